"""Work that all nodes do together: an error of one raises on all."""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from .._launch.paths import FolderError, local_folder, shown
from .._session import Session
from ._files import CheckpointError, DamagedError
from ._folder import Folder, appears

DISK_SECONDS = 3600.0
"""The longest time that one node's disk may take."""


class LostError(CheckpointError):
    """A node failed while it was saving."""


_KINDS = {kind.__name__: kind for kind in (CheckpointError, DamagedError, LostError)}


@contextmanager
def together(session: Session, what: str, *others: type[Exception]) -> Iterator[None]:
    """Runs a block on all nodes; if it fails on one, all raise that node's error.

    Args:
        session: the nodes.
        what: the current action, as a verb.
        others: errors besides `CheckpointError` that become a `DamagedError`.
    """
    mine = ""
    try:
        yield
    except (CheckpointError, *others) as error:
        kind = type(error).__name__
        mine = f"{kind if kind in _KINDS else DamagedError.__name__}|{error}"
    for text in session.all_ranks.everyone(what, mine, limit_seconds=2 * DISK_SECONDS):
        if text:
            kind, _, why = text.partition("|")
            raise _KINDS[kind](why)


def is_first(session: Session) -> bool:
    """Returns whether this rank writes and reads for all: the first that has not failed does."""
    return session.node == session.living[0] and session.topology.place == 0


def of_first(session: Session, what: str, make: Callable[[], Any], *others: type[Exception]) -> Any:
    """Returns on all nodes the first node's result, which JSON can hold; see `together`."""
    found = "null"
    with together(session, what, *others):
        if is_first(session):
            found = json.dumps(make())
    return json.loads(session.all_ranks.everyone(what, found)[0])


def place_of(session: Session) -> tuple[int, int]:
    """Returns this process's number among those that save, and their number; see `share`."""
    if session.control.survives:
        return session.share()
    return session.topology.rank, session.topology.num_ranks


def shares_leaves(session: Session) -> bool:
    """Returns whether nodes have leaves in common; engine ``"instant"`` makes nothing common."""
    return session.engine != "instant"


def folder_of_all(folder: str | os.PathLike[str], session: Session, what: str) -> Path:
    """Returns the path of a folder; raises on all nodes if its name is not valid on one."""
    path = Path()
    with together(session, what):
        try:
            path = local_folder(folder)
        except FolderError as error:
            raise CheckpointError(f"{session.topology.prefix()} {error}") from error
    return path


def require_seen(path: Path, session: Session, what: str) -> None:
    """Raises on all nodes unless each sees a file that the first one wrote."""
    with together(session, what):
        if not appears(path):
            raise CheckpointError(
                f"Node {session.node} on host {session.topology.host} does not see what node 0 "
                f"writes to {shown(path.parent)}. Give a folder on a file system that all nodes "
                "share."
            )


def name_of_run(session: Session) -> str:
    """Returns a new name for a run, the same on all nodes."""
    return session.all_ranks.everyone("open checkpoints", secrets.token_hex(4))[0]


def take(folder: Folder, session: Session, run: str) -> None:
    """Takes a folder for a run, and checks that all nodes see it."""
    what = "open checkpoints"
    token = folder.token(run)
    with together(session, what):
        if is_first(session):
            try:
                folder.take(run)
            except OSError as error:
                raise CheckpointError(
                    f"{shown(folder.path)} cannot be used ({error}). Give a folder in which this "
                    "user may write, on a file system with free space."
                ) from error
    try:
        require_seen(token, session, what)
        folder.remember(run)
    finally:
        if is_first(session):
            with suppress(OSError):  # the next start removes it
                token.unlink(missing_ok=True)
