"""Short messages between nodes beside training: nobody waits until one is sent, or comes."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Any, NamedTuple

from ._host import survives_deaths

_LONGEST = 8192


class _Sent(NamedTuple):
    """One on its way; request and payload are kept until it has gone."""

    node: int
    tag: int
    request: Any
    payload: bytes


class Messages:
    """Those of this node; `send` may be called from any thread, all else from one at a time.

    Attributes:
        dead: nodes of which MPI has said that they died.

    On failure: what is for a node that has died is dropped, other errors of MPI are raised where
    messages are taken.
    """

    def __init__(self, node: int, num_nodes: int):
        self._others = [other for other in range(num_nodes) if other != node]
        self.dead: set[int] = set()
        self._comm: Any = None
        self._under_way: list[_Sent] = []
        self._lock = threading.Lock()

    @property
    def open(self) -> bool:
        """Whether there is a communicator; before, and afterwards, nothing is sent."""
        return self._comm is not None

    def begin(self, comm: Any) -> None:
        """On a communicator that nobody else uses."""
        self._comm = comm

    def free(self) -> None:
        """All nodes together give the communicator back."""
        self._comm.Free()
        self._comm = None

    def send(self, node: int, tag: int, payload: bytes, *, behind_others: bool = True) -> None:
        """Sends a message; by choice only where none of this tag is still on its way there."""
        if self._comm is None or node not in self._others or node in self.dead:
            return
        from mpi4py import MPI

        with self._lock:
            if not behind_others and any(x[:2] == (node, tag) for x in self._under_way):
                return
            with contextlib.suppress(MPI.Exception):  # it has just died
                request = self._comm.Isend([payload, len(payload), MPI.BYTE], dest=node, tag=tag)
                self._under_way.append(_Sent(node, tag, request, payload))

    def send_all(self, tag: int, payload: bytes) -> None:
        """To all other nodes, the first 8192 bytes."""
        for node in self._others:
            self.send(node, tag, payload[:_LONGEST])

    def all_gone(self) -> bool:
        """Whether all have gone out; lets go of those that have."""
        with self._lock:
            self._under_way = [x for x in self._under_way if not _has_gone(x.request)]
            return not self._under_way

    def taken(self) -> Iterator[tuple[int, int, bytes]]:
        """Those that have come, one after the other: the node, the tag, and what it says."""
        from mpi4py import MPI

        status = MPI.Status()
        while (message := self._comm.Improbe(status=status)) is not None:
            source, tag = status.Get_source(), status.Get_tag()
            payload = bytearray(status.Get_count(MPI.BYTE))
            message.Recv([payload, len(payload), MPI.BYTE])
            yield source, tag, bytes(payload)

    def newly_dead(self) -> list[int]:
        """Nodes that have died since this was last asked, where MPI can say that."""
        if not survives_deaths():
            return []
        new = sorted(dead_ranks(self._comm) - self.dead)
        if new:
            self._comm.Ack_failed()  # from here on those of any node can be taken again
            self.dead.update(new)
        return new


def dead_ranks(comm: Any) -> set[int]:
    """Ranks of a communicator that MPI has seen die, where it can (`survives_deaths`)."""
    from mpi4py import MPI

    failed, everyone = comm.Get_failed(), comm.Get_group()
    try:
        return set(MPI.Group.Translate_ranks(failed, None, everyone))
    finally:
        failed.Free()
        everyone.Free()


def _has_gone(request: Any) -> bool:
    """Whether a message was sent, or is for a node that has died."""
    from mpi4py import MPI

    try:
        return request.Test()
    except MPI.Exception:
        return True
