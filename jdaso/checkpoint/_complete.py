"""The parts of one save on disk: complete, cut short, given up, removed."""

from __future__ import annotations

import contextlib
import os
import shutil
from pathlib import Path

from ._files import COMMON, DamagedError, Manifest, manifest_path, node_folder

_FAILED = "failed"
"""A file that marks a save in which a node could not write its part."""


def complete(folder: Path) -> Manifest | DamagedError | None:
    """Returns node 0's manifest if those of all nodes of that run exist, else None.

    If node 0's manifest exists but cannot be read, returns the reason.
    """
    try:
        first = Manifest.read(folder, 0)
    except DamagedError as error:
        return None if _is_missing(manifest_path(folder, 0)) else error
    others = (manifest_path(folder, node) for node in range(1, first.nodes))
    return first if all(os.path.isfile(path) for path in others) else None


def is_cut_short(folder: Path) -> bool:
    """Returns whether a manifest is certainly missing; an unreadable one is not.

    One behind a symbolic link may be on a file system that is not mounted now.
    """
    if folder.is_symlink():
        return False
    if _is_missing(manifest_path(folder, 0)):
        return True
    try:
        first = Manifest.read(folder, 0)
    except DamagedError:
        return False
    return any(_is_missing(manifest_path(folder, node)) for node in range(1, first.nodes))


def give_up(folder: Path, node: int, nodes: int) -> None:
    """Removes a node's part of a save that failed on it, so that the next one finds space.

    Other nodes may still be writing. A marker file shows them that their parts are useless.
    """
    if nodes == 1:
        remove(folder)
        return
    remove_part(folder, node)
    with contextlib.suppress(OSError):
        (folder / _FAILED).touch()


def has_failed(folder: Path) -> bool:
    """Returns whether a node has given up this save."""
    return os.path.exists(folder / _FAILED)


def remove_part(folder: Path, node: int) -> None:
    """Removes the files of one node, complete or not."""
    with contextlib.suppress(OSError):
        manifest_path(folder, node).unlink()
    for name in (node_folder(node), COMMON)[: 2 if node == 0 else 1]:
        for path in (folder / name, *folder.glob(f"{name}.*")):  # orbax's temporary folders too
            shutil.rmtree(path, ignore_errors=True)
            with contextlib.suppress(OSError):
                path.unlink()


def remove(folder: Path) -> None:
    """Removes a checkpoint; if interrupted, the rest does not count as complete.

    Of a symbolic link, as to an archive, only the link is removed.
    """
    if folder.is_symlink():
        with contextlib.suppress(OSError):
            folder.unlink()
        return
    with contextlib.suppress(OSError):
        manifest_path(folder, 0).unlink()
    shutil.rmtree(folder, ignore_errors=True)


def _is_missing(path: Path) -> bool:
    try:
        path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return True
    except OSError:  # the file system has a problem
        return False
    return False
