"""Folders and files as users name them: what a name means, and how a message shows it."""

from __future__ import annotations

import os
import re
from pathlib import Path

_ADDRESS = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):[/\\]")  # a drive of Windows (C:\) too
_VARIABLE = re.compile(r"\$(?:(\w+)|\{([^}]*)\})")


class FolderError(ValueError):
    """No folder can have this name.

    Args:
        wrong: what is wrong with it.
        remedy: what to do.
    """

    def __init__(self, wrong: str, remedy: str):
        super().__init__(f"{wrong}. {remedy}.")
        self.wrong, self.remedy = wrong, remedy


def local_folder(folder: str | bytes | os.PathLike[str]) -> Path:
    """The absolute path of a folder, whatever the working directory becomes later.

    ``~`` and ``$NAME`` are replaced as a shell does it.

    Raises:
        FolderError: the name is empty, an address (``s3://bucket/run``), or of a home or a
            variable that is not there.
    """
    given = os.fsdecode(folder)
    if not given.strip() or "\0" in given:
        raise FolderError(f"The folder's name is {given!r}", "Give its path: /scratch/me/run, say")
    if (address := _ADDRESS.match(given)) is not None:
        where = "without it" if address[1] == "file" else "where it is mounted"
        raise FolderError(
            f"{given!r} is an address ({address[1]}:), and jdaso needs a folder of a file system",
            f"Give the path {where}: /scratch/me/run, say",
        )
    path = os.path.expanduser(_VARIABLE.sub(lambda name: _value(given, name), given))
    if path.startswith("~"):
        raise FolderError(f"The home in {given!r} is not known on this host", "Give the whole path")
    try:
        return Path(path).absolute()
    except FileNotFoundError:
        raise FolderError(
            f"{given!r} is relative to the working directory, which was deleted",
            "Give the whole path, or change to another directory first",
        ) from None


def shown(path: str | os.PathLike[str]) -> str:
    r"""A path on one line that any terminal and any log file takes.

    Bytes that are not UTF-8 and control characters are escaped: ``caf\xe9.png``.
    """
    return "".join(x if x.isprintable() else _escaped(x) for x in os.fsdecode(path))


def _escaped(character: str) -> str:
    if "\udc80" <= character <= "\udcff":  # a byte, as Python keeps it in a file's name
        return f"\\x{ord(character) - 0xDC00:02x}"
    return character.encode("unicode_escape").decode()


def _value(given: str, name: re.Match[str]) -> str:
    """The value of a variable that a folder's name holds."""
    value = os.environ.get(name[1] or name[2], "")
    if not value:
        raise FolderError(
            f"{given!r} names {name[0]}, which is not set in the environment of this process",
            "Set it for all ranks, or give the path itself",
        )
    return value
