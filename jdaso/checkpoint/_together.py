"""Raises an error of one node on all nodes."""

from __future__ import annotations

import os
from pathlib import Path

from .._launch.paths import FolderError, local_folder
from .._session import Session
from ._files import CheckpointError, DamagedError

DISK_SECONDS = 3600.0
"""The longest time that one node's disk may take."""


def raise_together(
    session: Session, what: str, said: str, kind: type[CheckpointError] = CheckpointError
) -> None:
    """Raises an error on all nodes if one of them has one.

    Args:
        session: the nodes; all call this together.
        what: the current action, as a verb.
        said: the error on this node; empty if there is none.
        kind: class of that error.
    """
    mine = f"{kind.__name__}|{said}" if said else ""
    for text in session.control.everyone(what, mine, limit_seconds=2 * DISK_SECONDS):
        if text:
            name, _, why = text.partition("|")
            raise (DamagedError if name == "DamagedError" else CheckpointError)(why)


def folder_of_all(folder: str | os.PathLike[str], session: Session, what: str) -> Path:
    """Returns the path of a folder; raises on all nodes if its name is not valid on one."""
    said, path = "", Path()
    try:
        path = local_folder(folder)
    except FolderError as error:
        said = f"{session.topology.prefix()} {error}"
    raise_together(session, what, said)
    return path
