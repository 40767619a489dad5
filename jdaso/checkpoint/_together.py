"""Errors of one node that are raised on all of them."""

from __future__ import annotations

import os
from pathlib import Path

from .._launch.paths import FolderError, local_folder
from .._session import Session
from ._files import CheckpointError, DamagedError

DISK_SECONDS = 3600.0
"""The longest that one node's disk may take."""


def raise_together(
    session: Session, what: str, said: str, kind: type[CheckpointError] = CheckpointError
) -> None:
    """Raises on all nodes what any of them says.

    Args:
        session: whose nodes; all call it together.
        what: what they are doing, as a verb.
        said: what is wrong on this node, if anything is.
        kind: of the error.
    """
    mine = f"{kind.__name__}|{said}" if said else ""
    for text in session.control.everyone(what, mine, limit_seconds=2 * DISK_SECONDS):
        if text:
            name, _, why = text.partition("|")
            raise (DamagedError if name == "DamagedError" else CheckpointError)(why)


def folder_of_all(folder: str | os.PathLike[str], session: Session, what: str) -> Path:
    """The path of a folder that the program named, or an error on all nodes if it is none."""
    said, path = "", Path()
    try:
        path = local_folder(folder)
    except FolderError as error:
        said = f"{session.topology.prefix()} {error}"
    raise_together(session, what, said)
    return path
