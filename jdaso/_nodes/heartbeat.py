"""The last facts reported by each node, and their age: shows nodes that are late or silent.

At every beat a node sends the table of all nodes to those 1, 2, 4, ... places after it, so that
news reaches P nodes in about log2 P beats, and no node has to receive from all others.
"""

from __future__ import annotations

import logging
import os
import threading
import time

import numpy as np

log = logging.getLogger("jdaso")

BEAT, CALLS, STARTED = range(3)
"""Columns: number of beats of the node; the number of the host's own calls that it has made; from
there on, the number of exchanges that it has started on each channel."""

_CHANNELS = 8
"""Columns for channels; if there are more, some share one."""

_BEAT_SECONDS = 0.25
_STOPPED_SECONDS = 5.0
_BUSY = 0.2
"""The least share of a core used by a process that computes."""

_ROWS = 48
"""Rows of the table in a message. MPI sends messages of up to 4 KiB at once, whatever the fabric;
for a longer one the receiver waits for the sender, which may be stopped."""

_NODES_A_BEAT = 64
"""Number of nodes above which beats are less frequent: a message grows with that number."""


class Heartbeats:
    """This node's table of facts about all nodes.

    Attributes:
        table: int64 ``[nodes, columns]``; see the columns above.
        dead: nodes from which nothing more is expected.
    """

    def __init__(self, node: int, nodes: int):
        self.node, self.nodes = node, nodes
        self.table = np.zeros((nodes, STARTED + _CHANNELS), np.int64)
        self._news_at = np.full(nodes, time.monotonic())
        self._next, self._used = 0.0, _cpu_seconds()
        self.dead: set[int] = set()
        self._counting = threading.Lock()
        self.beat_seconds = _BEAT_SECONDS * max(1.0, nodes / _NODES_A_BEAT)

    @property
    def targets(self) -> list[int]:
        """The nodes to which this node sends."""
        living = [node for node in range(self.nodes) if node not in self.dead or node == self.node]
        count, at = len(living), living.index(self.node)
        hops = (1 << k for k in range(max(count - 1, 0).bit_length()))
        return sorted({living[(at + hop) % count] for hop in hops} - {self.node})

    @property
    def usual_delay_seconds(self) -> float:
        """The largest age of the facts about any node while all nodes are well."""
        return self.beat_seconds * (3 + max(self.nodes - 1, 0).bit_length())

    def lose(self, node: int) -> None:
        """Expects nothing more from a node."""
        self.dead.add(node)

    def note(self, column: int, value: int) -> None:
        """Sets a value of this node for the next beat; values only grow."""
        self.table[self.node, column] = max(value, int(self.table[self.node, column]))

    def note_start(self, channel: int) -> tuple[int, int]:
        """Counts an exchange that this node starts on a channel; returns the column and the count.

        Tickets do not count: those of another optimizer, or of a later training, may be lower.
        """
        column = STARTED + channel % _CHANNELS
        with self._counting:
            self.table[self.node, column] += 1
            return column, int(self.table[self.node, column])

    def beat(self) -> list[bytes]:
        """The messages to send now; none between beats."""
        now = time.monotonic()
        if now < self._next:
            return []
        stopped = now - self._news_at[self.node]
        if self.table[self.node, BEAT] and stopped > _STOPPED_SECONDS:
            used = _cpu_seconds() - self._used
            why = "it or its host was stopped, or C code held Python's lock and waited"
            if used > _BUSY * stopped:
                why = f"C code held Python's lock, and used {used:.1f} s of CPU time"
            log.warning("This process's Python did not run for %.1f s: %s.", stopped, why)
            self._news_at[:] = now  # messages that arrived meanwhile still have to be read
        self._next = now + self.beat_seconds
        self.table[self.node, BEAT] += 1
        self._news_at[self.node], self._used = now, _cpu_seconds()
        begins = range(0, self.nodes, _ROWS)
        return [np.int64(k).tobytes() + self.table[k : k + _ROWS].tobytes() for k in begins]

    def take(self, payload: bytes | bytearray) -> None:
        """Merges a part of the table of another node."""
        begin, *_ = numbers = np.frombuffer(payload, np.int64)
        table = numbers[1:].reshape(-1, self.table.shape[1])
        mine = slice(int(begin), int(begin) + len(table))
        newer = table[:, BEAT] > self.table[mine, BEAT]
        if mine.start <= self.node < mine.stop:
            newer[self.node - mine.start] = False
        self.table[mine][newer] = table[newer]
        self._news_at[mine][newer] = time.monotonic()

    def taken_part(self, node: int) -> tuple[int, int]:
        """The numbers of exchanges that a node started, and of its calls; both only grow."""
        return int(self.table[node, STARTED:].sum()), int(self.table[node, CALLS])

    def silent_seconds(self, node: int) -> float:
        """Seconds without news of a node, not counting time in which this node did not run."""
        if node in self.dead:
            return 0.0
        return max(float(self._news_at[self.node] - self._news_at[node]), 0.0)

    def missing(self, column: int, number: int) -> list[int]:
        """Nodes that have not yet reached this number, as far as this node's table shows."""
        late = np.flatnonzero(self.table[:, column] < number).tolist()
        return [node for node in late if node not in self.dead]


def _cpu_seconds() -> float:
    used = os.times()
    return used.user + used.system
