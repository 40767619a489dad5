"""What a node knows of the others: a record without threads or MPI, which the detector feeds."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from .._launch.witness import Witnesses
from .._mpi.topology import Topology
from .heartbeat import Heartbeats
from .loops import Batches
from .patience import Patience, Waiting

GRACE_SECONDS = 5.0
"""How long a node goes on waiting after another one left: its last messages may be on the way."""


class Known:
    """What this node knows of the others, and why a wait for them is in vain.

    Attributes:
        topology: the nodes.
        failure: what another node said before it failed.
        failed: nodes that have failed, be it because of this one.
        left: nodes that ended their session.
        ended: nodes whose program has ended after a failure.
        dead: nodes of which MPI has said that they died.
        survives: whether the others then go on.
        heartbeats: what each node last said of itself.
        patience: how long waits take.
        batches: whose data ended when.
        places: where the programs of nodes are that were asked.
        waits: which of them wait for others themselves.
        waiting: what this node's program waits for, be it in another session.
        witnesses: whether the processes of silent nodes run.
        phase_of: names the phase of a step.

    Args:
        topology: see above.
        timeout_seconds: the longest wait; None derives it from what is usual.
        dead: see above.
        ask: asks a node where its program is.
        tell: tells all nodes whose data ended, for `Batches`.
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
        self.heartbeats = Heartbeats(topology.node, topology.num_nodes)
        self.patience = Patience(timeout_seconds)
        self.batches = Batches(topology.num_nodes, tell)
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

    def why_wait_no_longer(self, waited_seconds: float, what: str) -> str | None:
        """What ends a wait for other nodes early, if anything does.

        Args:
            waited_seconds: how long this node has waited.
            what: what it does, "waits for ...".
        """
        if self.failure is not None:
            return self.failure
        if (why := self.batches.why_in_vain(what)) is not None:
            return why
        if waited_seconds <= GRACE_SECONDS:
            return None
        if self.failed:
            return f"{_names(self.failed)} failed while this node {what}."
        if self.left:
            return (
                f"{_names(self.left)} ended the session while this node {what}. All nodes must "
                "make the same calls and the same number of updates."
            )
        return None

    def prefix(self, step: int | None) -> str:
        """How this node's messages begin; with the phase of a step."""
        phase = "" if step is None else self.phase_of(step)
        return self.topology.prefix(step) + (f" {phase}:" if phase else "")

    def name(self, nodes: Iterable[int]) -> str:
        """Nodes with their hosts."""
        hosts = self.topology.hosts
        return ", ".join(f"node {node} (host {hosts[node]})" for node in sorted(nodes))

    def describe(self, node: int) -> str:
        """What is known of a node that is waited for."""
        hosts, silent = self.topology.hosts, self.heartbeats.silent_seconds(node)
        name = f"node {node} (host {hosts[node]})" if hosts else f"node {node}"
        if node in self.dead:
            return f"{name} has died"
        if node in self.left | self.ended:
            return f"{name} has ended its session"
        if silent > self.heartbeats.usual_delay_seconds:
            what = self.witnesses.describe(node)
            return f"{name} has not been heard of for {silent:.1f} s: {what}"
        return f"{name} is alive, {self.places.get(node, 'at a place not known yet')}"

    def ask_where(self, nodes: Iterable[int]) -> None:
        """Asks nodes where their programs are; the answers come to `places`."""
        for node in nodes:
            self.places.pop(node, None)
            self.waits.discard(node)
            self._ask(node)

    def take_place(self, node: int, text: str) -> None:
        """Takes a node's answer: what its program waits for, if it does; in a second line where."""
        waits, _, where = text.partition("\n")
        if waits:
            self.waits.add(node)
        self.places[node] = f"and {waits}, at {where}" if waits else f"at {where}"

    def share(self, other: Known) -> None:
        """Shares what is of the whole process with another session's: data's ends, and waits."""
        self.batches, self.waiting = other.batches, other.waiting

    def note_failure(self, text: str) -> None:
        """Keeps what another node said before it failed; the first one counts."""
        self.failure = self.failure or text

    def survive(self, survives: bool) -> None:
        """From here on the run goes on where a node dies, or it does not."""
        self.survives = survives

    def name_phases(self, phase_of: Callable[[int], str]) -> None:
        """From here on messages of a step name its phase."""
        self.phase_of = phase_of

    def all_failed(self) -> bool:
        """Whether all other nodes have failed too."""
        return len(self.failed | self.dead) >= self.topology.num_nodes - 1

    def all_ended(self) -> bool:
        """Whether all other nodes have said that their program has ended after a failure."""
        return len(self.ended | self.dead) >= self.topology.num_nodes - 1


def _names(nodes: set[int]) -> str:
    plural = "nodes" if len(nodes) > 1 else "node"
    return f"{plural} {', '.join(map(str, sorted(nodes)))}"
