"""Loops over data on all nodes: the end of a node's data is reported before others wait in vain."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator


class Batches:
    """This node's loops and the ends of the other nodes' loops; loops may be nested.

    Args:
        num_nodes: P.
        tell: sends a message to all other nodes.
        name: names a node.
    """

    def __init__(
        self,
        num_nodes: int,
        tell: Callable[[bytes], None],
        name: Callable[[int], str] = "node {}".format,
    ):
        self._tell, self._name = tell, name
        self._begun = 0
        # The innermost loop's number, and its step; -1 before and after. Another thread reads both,
        # so they are replaced together.
        self._now = (0, -1)
        self._ended = [(0, 0)] * num_nodes  # by node: a loop, and its number of batches there

    @contextlib.contextmanager
    def loop(self) -> Iterator[None]:
        """Context of a loop; whenever it ends, the loop around it goes on."""
        outer = self._now
        try:
            yield
        finally:
            self._now = outer

    def begin(self) -> None:
        """Begins the loop; must be called where all nodes have just agreed on something."""
        self._begun += 1
        self._now = (self._begun, -1)

    def begin_step(self, step: int) -> None:
        """Notes that this node has a batch for this step, counted from 0."""
        self._now = (self._now[0], step)

    def end(self, count: int) -> None:
        """Notes that this node's data ended after `count` batches; notifies the others."""
        loop, _ = self._now
        self._now = (loop, -1)
        self._tell(f"{loop} {count}".encode())

    def take(self, node: int, message: bytes) -> None:
        """Stores the end of another node's data."""
        loop, count = map(int, message.split())
        self._ended[node] = loop, count

    def why_in_vain(self, doing: str) -> str | None:
        """The reason to stop waiting in this step: another node never reaches it.

        Args:
            doing: this node's activity, "waits for ...".
        """
        now, step = self._now
        for node, (loop, count) in enumerate(self._ended):
            if loop == now and count <= step:
                return (
                    f"The data of {self._name(node)} ended after {count} batches, and this node "
                    f"{doing} with its batch number {step + 1}. Give all nodes the same number of "
                    "batches."
                )
        return None
