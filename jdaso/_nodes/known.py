"""Facts about other nodes: a record without threads or MPI, filled by the detector."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable

from .._launch.witness import Witnesses
from .._mpi.names import names_of
from .._mpi.topology import Topology
from .heartbeat import Heartbeats
from .loops import Batches
from .patience import Patience, Waiting

GRACE_SECONDS = 5.0
"""Seconds that a node goes on waiting after another one left: last messages may be in flight."""


class Known:
    """Facts about the other nodes, and the reasons why a wait for them cannot succeed.

    Attributes:
        topology: the nodes.
        failure: the error that another node reported before it failed.
        failed: nodes that have failed, including those that failed because of this one.
        left: nodes that ended their session.
        ended: nodes that are through with the session after a failure.
        dead: nodes that MPI has reported as failed.
        survives: whether the other nodes then go on.
        heartbeats: the last values reported by each node.
        patience: the usual duration of waits.
        batches: the ends of the nodes' data.
        places: the places in the code that queried nodes reported.
        waits: those of the queried nodes that are waiting for other nodes.
        waiting: the current wait of this node's program, in any of its sessions.
        witnesses: report whether the processes of silent nodes run.
        phase_of: names the phase of a step.

    Args:
        topology: see above.
        timeout_seconds: the longest wait; None derives it from past waits.
        dead: see above.
        ask: asks a node where its program is.
        tell: notifies all nodes that this node's data has ended, for `Batches`.
    """

    def __init__(
        self,
        topology: Topology,
        timeout_seconds: float | None,
        *,
        dead: set[int],
        ask: Callable[[int], None],
        tell: Callable[[bytes], None],
    ):
        self.topology, self.dead, self._ask = topology, dead, ask
        self.heartbeats = Heartbeats(topology.rank, topology.num_ranks)
        self.patience = Patience(timeout_seconds)
        self.batches = Batches(topology.num_ranks, tell, topology.name)
        self.places: dict[int, str] = {}
        self.waits: set[int] = set()
        self.waiting = Waiting()
        self.witnesses = Witnesses(topology.witnesses)
        self.phase_of: Callable[[int], str] = lambda step: ""
        self.failure: str | None = None
        self.failed: set[int] = set()
        self.left: set[int] = set()
        self.ended: set[int] = set()
        self.survives = False
        self._waits_end = math.inf

    def why_wait_no_longer(self, waited_seconds: float, what: str) -> str | None:
        """The reason to end a wait for other nodes early; None if there is none.

        Args:
            waited_seconds: how long this node has waited.
            what: this node's activity, "waits for ...".
        """
        if self.failure is not None:
            return self.failure
        if (why := self.batches.why_in_vain(what)) is not None:
            return why
        if time.monotonic() > self._waits_end:
            return f"This node's program has failed while the node {what}."
        if waited_seconds <= GRACE_SECONDS:
            return None
        if self.failed:
            return f"{self._names(self.failed)} failed while this node {what}."
        if self.left:
            return (
                f"{self._names(self.left)} ended the session while this node {what}. All nodes "
                "must make the same calls and the same number of updates."
            )
        return None

    def end_waits_in(self, seconds: float) -> None:
        """Ends all waits for other nodes after this time: this node's program has failed."""
        self._waits_end = time.monotonic() + seconds

    def prefix(self, step: int | None) -> str:
        """The prefix of this node's messages, with the phase of a step."""
        phase = "" if step is None else self.phase_of(step)
        return self.topology.prefix(step) + (f" {phase}:" if phase else "")

    def name(self, nodes: Iterable[int]) -> str:
        """Names of nodes with their hosts."""
        return ", ".join(map(self._at_host, sorted(nodes)))

    def describe(self, node: int) -> str:
        """Describes a node that is waited for."""
        silent, name = self.heartbeats.silent_seconds(node), self._at_host(node)
        if node in self.dead:
            return f"{name} has failed"
        if node in self.left | self.ended:
            return f"{name} has ended its session"
        if silent > self.heartbeats.usual_delay_seconds:
            what = self.witnesses.describe(node)
            return f"{name} has been silent for {silent:.1f} s: {what}"
        return f"{name} is running, {self.places.get(node, 'at a place not yet known')}"

    def ask_where(self, nodes: Iterable[int]) -> None:
        """Asks nodes where their programs are; the answers are stored in `places`."""
        for node in nodes:
            self.places.pop(node, None)
            self.waits.discard(node)
            self._ask(node)

    def take_place(self, node: int, text: str) -> None:
        """Stores a node's answer: its program's wait, if any; on a second line its place."""
        waits, _, where = text.partition("\n")
        if waits:
            self.waits.add(node)
        self.places[node] = f"and {waits}, at {where}" if waits else f"at {where}"

    def share(self, other: Known) -> None:
        """Shares the state of the whole process with another session: ends of data, and waits."""
        self.batches, self.waiting = other.batches, other.waiting

    def note_failure(self, text: str) -> None:
        """Keeps the error that another node reported before it failed; only the first is kept."""
        self.failure = self.failure or text

    def note_failed(self, nodes: Iterable[int]) -> None:
        """Notes that nodes have failed."""
        self.failed.update(nodes)

    def note_left(self, node: int) -> None:
        """Notes that a node has ended its session."""
        self.left.add(node)

    def note_ended(self, node: int) -> None:
        """Notes that a node is through with the session after a failure."""
        self.ended.add(node)

    def survive(self, survives: bool) -> None:
        """Sets whether the run goes on from here when a node fails."""
        self.survives = survives

    def name_phases(self, phase_of: Callable[[int], str]) -> None:
        """Makes messages about a step name its phase."""
        self.phase_of = phase_of

    def all_failed(self) -> bool:
        """Returns whether all other nodes have failed too."""
        return len(self.failed | self.dead) >= self.topology.num_ranks - 1

    def all_ended(self) -> bool:
        """Returns whether all other nodes are through with the session after a failure."""
        return len(self.ended | self.dead) >= self.topology.num_ranks - 1

    def _at_host(self, node: int) -> str:
        hosts = self.topology.hosts
        return self.topology.name(node, hosts[node] if hosts else "")

    def _names(self, nodes: set[int]) -> str:
        return names_of(nodes, self.topology.ranks_per_node)
