"""Loops over data on all nodes: who has fewer batches says so, before others wait for the next."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator


class Batches:
    """This node's loops, and what the others said of theirs; one may run in a step of another.

    Args:
        num_nodes: P.
        tell: sends all other nodes a message.
    """

    def __init__(self, num_nodes: int, tell: Callable[[bytes], None]):
        self._tell = tell
        self._begun = 0
        # The innermost loop's number, and the step it is in; -1 before and after. Another thread
        # reads it, so it is replaced as one.
        self._now = (0, -1)
        self._ended = [(0, 0)] * num_nodes  # by node: a loop, and how many batches it had there

    @contextlib.contextmanager
    def loop(self) -> Iterator[None]:
        """Around a loop, however it ends: then the one around it goes on."""
        outer = self._now
        try:
            yield
        finally:
            self._now = outer

    def begin(self) -> None:
        """The loop begins; to be called where all nodes have just agreed on something."""
        self._begun += 1
        self._now = (self._begun, -1)

    def begin_step(self, step: int) -> None:
        """This node has a batch for this step, counted from 0."""
        self._now = (self._now[0], step)

    def end(self, count: int) -> None:
        """This node's data ended after so many batches; tells the others."""
        loop, _ = self._now
        self._now = (loop, -1)
        self._tell(f"{loop} {count}".encode())

    def take(self, node: int, message: bytes) -> None:
        """Another node's data ended."""
        loop, count = map(int, message.split())
        self._ended[node] = loop, count

    def why_in_vain(self, doing: str) -> str | None:
        """Why to wait no longer in this step: another node never comes to it.

        Args:
            doing: what this node does, "waits for ...".
        """
        now, step = self._now
        for node, (loop, count) in enumerate(self._ended):
            if loop == now and count <= step:
                return (
                    f"The data of node {node} ended after {count} batches, and this node {doing} "
                    f"with its batch number {step + 1}. Give all nodes the same number of batches."
                )
        return None
