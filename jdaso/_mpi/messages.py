"""Short messages between nodes alongside training; no node blocks to send or receive one."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Any, NamedTuple

from .._launch.environment import survives_deaths

_LONGEST = 8192


class _Sent(NamedTuple):
    """A message in flight; request and payload are kept until it is sent."""

    node: int
    tag: int
    request: Any
    payload: bytes


class Messages:
    """This node's messages; any thread may call `send`, other methods need one thread at a time.

    Attributes:
        dead: nodes that MPI has reported as failed.

    On failure: a message for a failed node is dropped; other errors of MPI are raised where
    messages are received.
    """

    def __init__(self, node: int, num_nodes: int):
        self._others = [other for other in range(num_nodes) if other != node]
        self.dead: set[int] = set()
        self._comm: Any = None
        self._under_way: list[_Sent] = []
        self._lock = threading.Lock()

    @property
    def open(self) -> bool:
        """Returns whether there is a communicator; without one nothing is sent."""
        return self._comm is not None

    def begin(self, comm: Any) -> None:
        """Begins on a communicator that nothing else uses."""
        self._comm = comm

    def free(self) -> None:
        """Frees the communicator; a collective call of all nodes."""
        self._comm.Free()
        self._comm = None

    def under_way(self, node: int, tag: int) -> bool:
        """Returns whether a message to this node with this tag is in flight."""
        with self._lock:
            return any(x[:2] == (node, tag) for x in self._under_way)

    def send(self, node: int, tag: int, payload: bytes) -> None:
        """Sends a message."""
        if self._comm is None or node not in self._others or node in self.dead:
            return
        from mpi4py import MPI

        with self._lock:
            with contextlib.suppress(MPI.Exception):  # the node has just failed
                request = self._comm.Isend([payload, len(payload), MPI.BYTE], dest=node, tag=tag)
                self._under_way.append(_Sent(node, tag, request, payload))

    def send_all(self, tag: int, payload: bytes) -> None:
        """Sends the first 8192 bytes to all other nodes."""
        for node in self._others:
            self.send(node, tag, payload[:_LONGEST])

    def all_gone(self) -> bool:
        """Returns whether all messages have been sent; releases those that have."""
        with self._lock:
            self._under_way = [x for x in self._under_way if not _has_gone(x.request)]
            return not self._under_way

    def taken(self) -> Iterator[tuple[int, int, bytes]]:
        """Received messages, one after another: the sender, the tag, and the payload."""
        return received(self._comm)

    def newly_dead(self) -> list[int]:
        """Nodes that have failed since the last call, as far as MPI reports them."""
        if not survives_deaths():
            return []
        new = sorted(dead_ranks(self._comm) - self.dead)
        if new:
            self._comm.Ack_failed()  # so that messages from any node can be received again
            self.dead.update(new)
        return new


def received(comm: Any, tag: int | None = None) -> Iterator[tuple[int, int, bytes]]:
    """Messages that have arrived, with any tag or with this one: sender, tag, payload."""
    from mpi4py import MPI

    status, asked = MPI.Status(), MPI.ANY_TAG if tag is None else tag
    while (message := comm.Improbe(MPI.ANY_SOURCE, asked, status)) is not None:
        source, its_tag = status.Get_source(), status.Get_tag()
        payload = bytearray(status.Get_count(MPI.BYTE))
        message.Recv([payload, len(payload), MPI.BYTE])
        yield source, its_tag, bytes(payload)


def dead_ranks(comm: Any) -> set[int]:
    """Ranks of a communicator that MPI reports as failed, if it can (`survives_deaths`)."""
    from mpi4py import MPI

    failed, everyone = comm.Get_failed(), comm.Get_group()
    try:
        return set(MPI.Group.Translate_ranks(failed, None, everyone))
    finally:
        failed.Free()
        everyone.Free()


def _has_gone(request: Any) -> bool:
    """Returns whether a message was sent, or its receiver has failed."""
    from mpi4py import MPI

    try:
        return request.Test()
    except MPI.Exception:
        return True
