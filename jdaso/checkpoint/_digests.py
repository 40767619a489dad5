"""Checksums of files, and syncing to disk."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable
from pathlib import Path


def checksums(folder: Path, names: Iterable[str]) -> dict[str, tuple[int, str]]:
    """Returns size and SHA-256 of every file below these folders, after syncing them to disk."""
    found = {}
    for name in names:
        for path in sorted((folder / name).rglob("*")):
            if path.is_file():
                with open(path, "rb") as file:
                    os.fsync(file.fileno())
                size = path.stat().st_size
                found[path.relative_to(folder).as_posix()] = (size, digest_of_file(path))
            else:
                sync_folder(path)
        if (folder / name).is_dir():
            sync_folder(folder / name)
    return found


def digest(data: bytes) -> str:
    """Returns the SHA-256 of bytes."""
    return hashlib.sha256(data).hexdigest()


def digest_of_file(path: Path) -> str:
    """Returns the SHA-256 of a file."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def sync_folder(folder: Path) -> None:
    """Makes the names in a folder survive a crash of the machine."""
    number = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(number)
    finally:
        os.close(number)
