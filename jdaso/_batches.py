"""Loops over data on all nodes: who has fewer batches says so, before others wait for the next."""

from __future__ import annotations

from collections.abc import Callable


class Batches:
    """This node's loops, which all nodes begin in the same order, and what others said of theirs.

    Args:
        tell: sends all other nodes a message.
    """

    def __init__(self, tell: Callable[[bytes], None]):
        self._tell = tell
        self._loop, self._step = 0, -1
        self._ended: dict[int, tuple[int, int]] = {}  # by node: the loop and its number of batches

    def begin_loop(self) -> None:
        """A loop over data begins."""
        self._loop += 1

    def begin_step(self, step: int) -> None:
        """This node has a batch for this step, counted from 0."""
        self._step = step

    def end_loop(self, count: int) -> None:
        """This node's data ended after so many batches; tells the others."""
        self._step = -1
        self._tell(f"{self._loop} {count}".encode())

    def take(self, node: int, message: bytes) -> None:
        """Another node's data ended."""
        loop, count = map(int, message.split())
        self._ended[node] = loop, count

    def why_in_vain(self, doing: str) -> str | None:
        """Why to wait no longer in this step: another node never comes to it."""
        for node, (loop, count) in sorted(self._ended.items()):
            if loop == self._loop and count <= self._step:
                return (
                    f"The data of node {node} ended after {count} batches, and this node {doing} "
                    f"with its batch number {self._step + 1}. Give all nodes equally many."
                )
        return None
