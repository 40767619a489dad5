"""Pipelines that an error has left open; the next one of the session closes them."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from .._session import Session


@runtime_checkable
class Closes(Protocol):
    """A pipeline, as it is needed here."""

    def close(self) -> None:
        """Frees its communicators; all nodes call this together."""
        ...


class _LeftOpen:
    """The pipelines of a session that were left open."""

    def __init__(self, session: Session):
        self.session = session
        self.pipelines: list[Closes] = []

    def forget(self, after_error: bool = False) -> None:
        """Ends with the session, which nothing must keep then."""
        del after_error
        _abandoned.pop(self.session, None)


_abandoned: dict[Session, _LeftOpen] = {}


def abandon(pipeline: Closes, session: Session) -> None:
    """Keeps a pipeline that this node cannot close: the others may have had no error."""
    if session not in _abandoned:
        _abandoned[session] = _LeftOpen(session)
        session.hooks.on_close(_abandoned[session].forget)
    _abandoned[session].pipelines.append(pipeline)


def close_abandoned(session: Session) -> None:
    """Closes those that were left open on all nodes; all nodes call this together."""
    left = _abandoned.get(session)
    count = 0 if left is None else len(left.pipelines)
    counts = session.all_ranks.everyone("make a pipeline", str(count))
    if left is None or len(set(counts)) > 1:
        return
    left.forget()
    session.hooks.forget_close(left.forget)
    for pipeline in left.pipelines:
        pipeline.close()
