"""Sessions inside a session: those of the replicas that hold one partition of a pipeline."""

from __future__ import annotations

from typing import Generic, Protocol, TypeVar, runtime_checkable

from ..traces._timeline import Stats, Timeline


@runtime_checkable
class Timed(Protocol):
    """A session, or another object with a timeline."""

    timeline: Timeline


Inner = TypeVar("Inner", bound=Timed)


class Replicas(Generic[Inner]):
    """The sessions of replicas, by the number of partitions."""

    def __init__(self) -> None:
        self._sessions: dict[int, Inner] = {}

    def find(self, partitions: int) -> Inner | None:
        """Returns the session of pipelines with this many partitions; None before `keep`."""
        return self._sessions.get(partitions)

    def keep(self, partitions: int, session: Inner) -> None:
        """Keeps a session for all later pipelines with this many partitions."""
        self._sessions[partitions] = session

    def stats_with(self, own: Stats) -> Stats:
        """Returns totals that include those of the replicas."""
        inner = (session.timeline.stats for session in self._sessions.values())
        return Stats(*map(sum, zip(own, *inner, strict=True)))
