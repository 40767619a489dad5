"""What each node last said of itself, and how long ago: who has not arrived, and who is silent.

At every beat a node sends what it knows of all nodes to those 1, 2, 4, ... places after it, so that
news reaches P nodes in about log2 P beats, and no node has to hear all others.
"""

from __future__ import annotations

import logging
import os
import time

import numpy as np

log = logging.getLogger("jdaso")

BEAT, STARTED, CALLS = range(3)
"""Columns: how often the node has said something; the latest ticket of what it handed over; how
many of the host's own calls it has made."""

_BEAT_SECONDS = 0.25
_STOPPED_SECONDS = 5.0
_BUSY = 0.2
"""The least share of a core that a process uses which computes."""

_NODES_A_BEAT = 64
"""More nodes than that beat less often: a message grows with their number."""


class Heartbeats:
    """What this node knows of all.

    Attributes:
        table: int64 ``[nodes, 3]``; see the columns above.
        dead: nodes that nothing more is expected of.
    """

    def __init__(self, node: int, nodes: int):
        self.node, self.nodes = node, nodes
        self.table = np.zeros((nodes, 3), np.int64)
        self._heard = np.full(nodes, time.monotonic())
        self._next, self._used = 0.0, _cpu_seconds()
        self.dead: set[int] = set()
        self.beat_seconds = _BEAT_SECONDS * max(1.0, nodes / _NODES_A_BEAT)

    @property
    def targets(self) -> list[int]:
        """To whom this node sends."""
        living = [node for node in range(self.nodes) if node not in self.dead or node == self.node]
        count, at = len(living), living.index(self.node)
        hops = (1 << k for k in range(max(count - 1, 0).bit_length()))
        return sorted({living[(at + hop) % count] for hop in hops} - {self.node})

    @property
    def usual_delay_seconds(self) -> float:
        """How old news of any node is at the most while all are well."""
        return self.beat_seconds * (3 + max(self.nodes - 1, 0).bit_length())

    def note(self, column: int, value: int) -> None:
        """Says something new of this node, in the next beat: a number that only grows."""
        self.table[self.node, column] = max(value, int(self.table[self.node, column]))

    def beat(self) -> bytes | None:
        """What to send now; None between beats."""
        now = time.monotonic()
        if now < self._next:
            return None
        stopped = now - self._heard[self.node]
        if self.table[self.node, BEAT] and stopped > _STOPPED_SECONDS:
            used = _cpu_seconds() - self._used
            why = "it or its host was stopped, or C code held Python's lock and waited"
            if used > _BUSY * stopped:
                why = f"C code held Python's lock, and used {used:.1f} s of CPU time"
            log.warning("This process's Python did not run for %.1f s: %s.", stopped, why)
            self._heard[:] = now  # what the others said meanwhile is still to be read
        self._next = now + self.beat_seconds
        self.table[self.node, BEAT] += 1
        self._heard[self.node], self._used = now, _cpu_seconds()
        return self.table.tobytes()

    def take(self, payload: bytes | bytearray) -> None:
        """Takes what another node knows."""
        table = np.frombuffer(payload, np.int64).reshape(self.nodes, -1)
        newer = table[:, BEAT] > self.table[:, BEAT]
        newer[self.node] = False
        self.table[newer] = table[newer]
        self._heard[newer] = time.monotonic()

    def taken_part(self, node: int) -> tuple[int, int]:
        """What it has started with others, and how many calls it has made: they only grow."""
        return int(self.table[node, STARTED]), int(self.table[node, CALLS])

    def silent_seconds(self, node: int) -> float:
        """How long nothing new was heard of a node, while this one was listening."""
        if node in self.dead:
            return 0.0
        return max(float(self._heard[self.node] - self._heard[node]), 0.0)

    def missing(self, column: int, number: int) -> list[int]:
        """Nodes that have not come so far, as far as is known here."""
        late = np.flatnonzero(self.table[:, column] < number).tolist()
        return [node for node in late if node not in self.dead]


def _cpu_seconds() -> float:
    used = os.times()
    return used.user + used.system
