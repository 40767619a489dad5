"""How a node that fails, leaves or is stuck is noticed by the others, whatever they do meanwhile.

Nodes sound alarms and heartbeats on a communicator of their own, and a thread looks out for those
of others.
"""

from __future__ import annotations

import enum
import functools
import logging
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterable
from typing import Any

from ._batches import Batches
from ._heartbeat import CALLS, STARTED, Heartbeats
from ._host import speak_out
from ._messages import Messages
from ._poll import poll
from ._stopping import Stopping
from ._topology import Topology
from ._types import NodeError
from ._watchdog import Patience, Wait, Waiting
from ._witness import Witnesses

log = logging.getLogger("jdaso")

_GRACE_SECONDS = 5.0
"""How long a node goes on waiting after another one left: its last messages may be on the way."""

_PARTING_SECONDS = 2.0
"""How long a node that ends its session waits to hear the same from the others."""

_LOOK_SECONDS = 0.1
"""How often a node looks whether another one sounded the alarm."""

_FRAMES = 8
"""How many frames of its stack a node tells that is asked where it is."""


class _Tag(enum.IntEnum):
    """What a message says."""

    FAILED = 1  # this node has failed, and of what
    FOLLOWED = 2  # it has because another did
    LEFT = 3  # it has ended its session
    ENDED = 4  # its program has ended after a failure, and has nothing more to say
    BEAT = 5  # a heartbeat
    WHERE = 6  # where is your program?
    PLACE = 7  # there
    BATCHES = 8  # its data ended
    STOPPING = 9  # from here on those of `Stopping`


class Lookout:
    """What this node knows of the others' ends, and says of its own.

    Attributes:
        failure: what another node said before it failed.
        failed: nodes that have failed, be it because of this one.
        left: nodes that ended their session.
        ended: nodes whose program has ended after a failure.
        dead: nodes of which MPI has said that they died.
        survives: whether the others then go on.
        heartbeats: what each node last said of itself.
        patience: how long waits take.
        stopping: how all nodes agree to stop.
        batches: whose data ended when.
        places: where the programs of nodes are that were asked.
        waits: which of them wait for others themselves.
        waiting: what this node's program waits for, be it in another session.
        witnesses: whether the processes of silent nodes run.
        phase_of: names the phase of a step.

    On failure: no method raises. Where the compiled step itself waits in MPI for what cannot come,
    the look-out ends the job (`enter`).
    """

    def __init__(self, topology: Topology, timeout_seconds: float | None):
        self.topology = topology
        self.heartbeats = Heartbeats(topology.node, topology.num_nodes)
        self.patience = Patience(timeout_seconds)
        self._messages = Messages(topology.node, topology.num_nodes)
        self.stopping = Stopping(topology.node, topology.num_nodes, self._send_stopping)
        tell = functools.partial(self._messages.send_all, _Tag.BATCHES)
        self.batches = Batches(topology.num_nodes, tell)
        self.places: dict[int, str] = {}
        self.waits: set[int] = set()
        self.waiting = Waiting()
        self.witnesses = Witnesses(topology.witnesses)
        self.phase_of: Callable[[int], str] = lambda step: ""
        self._owner = threading.get_ident()
        self.failure: str | None = None
        self.failed: set[int] = set()
        self.left: set[int] = set()
        self.ended: set[int] = set()
        self.dead = self._messages.dead
        self.survives = False
        self._closed = False
        self._blocked: list[tuple[float, Wait]] = []  # since when the compiled step waits
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._look, name="jdaso-lookout", daemon=True)

    def begin(self, comm: Any) -> None:
        """Begins to look out, on a communicator that nobody else uses. Before, nothing is heard."""
        self._messages.begin(comm)
        self._thread.start()
        for node in self.heartbeats.targets:  # one that has answered can be seen to end
            self.witnesses.ask(node)

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
        if waited_seconds <= _GRACE_SECONDS:
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

    @property
    def began(self) -> bool:
        """Whether it has begun to look out; before, nothing is heard."""
        return self._messages.open

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
            self._messages.send(node, _Tag.WHERE, b"")

    def stops_at(self, step: int) -> bool:
        """Whether all nodes stop after this step; pauses while they agree on one.

        Raises:
            NodeError: a node failed, or does not answer.
        """
        wait = Wait(self, "call", "agrees on where to stop", call=0, column=CALLS, step=step)

        def check() -> None:
            if (why := wait.why_no_longer()) is not None:
                raise NodeError(f"{self.topology.prefix(step)} {why}")

        return self.stopping.stops_at(step, check)

    def fail(self, text: str) -> None:
        """Tells all others that this node has failed; does not wait for them."""
        tag = _Tag.FAILED if self.failure is None else _Tag.FOLLOWED
        self._messages.send_all(tag, text.encode(errors="backslashreplace"))

    def end(self) -> None:
        """Tells all others that this node's program has ended after a failure."""
        self._messages.send_all(_Tag.ENDED, b"")

    def all_failed(self) -> bool:
        """Whether all other nodes have failed too."""
        return len(self.failed | self.dead) >= self.topology.num_nodes - 1

    def all_ended(self) -> bool:
        """Whether all other nodes have said that their program has ended after a failure."""
        return len(self.ended | self.dead) >= self.topology.num_nodes - 1

    def enter(self, step: int) -> None:
        """The compiled step goes into MPI by itself; from here the look-out watches over it."""
        self.heartbeats.note(STARTED, step + 1)
        doing = f"waits for a mean of all nodes in step {step}"
        wait = Wait(self, "mean", doing, call=step + 1, column=STARTED, step=step)
        self._blocked.append((time.perf_counter(), wait))

    def leave(self) -> float:
        """The compiled step came back from MPI; returns how many seconds it was there.

        A step may hold several means, and XLA may enter the next before it leaves the last.
        """
        blocked = self._blocked
        begin, _ = blocked.pop(0) if blocked else (time.perf_counter(), None)
        seconds = time.perf_counter() - begin
        self.patience.note("mean", seconds)
        return seconds

    def abandon(self) -> None:
        """An error ends the step: none of its means is waited for any more."""
        self._blocked = []

    def close(self, failed: bool) -> bool:
        """Tells the others that this node ends its session; whether it heard the same from them.

        A node that ended first does not wait for the others for long. After a failure the look-out
        stays, to hear whether the others have failed too.
        """
        ended, self._closed, self._blocked = self._closed, True, []
        self.stopping.close()
        if ended or failed or not self._messages.open:
            return False
        self.stop()
        self._messages.send_all(_Tag.LEFT, b"")

        def parted() -> bool:
            self._listen()
            return self._messages.all_gone() and len(self.left | self.dead) == others

        others = self.topology.num_nodes - 1
        if not poll(parted, lambda: None, _PARTING_SECONDS):
            return False
        if not self.dead:  # to free it needs all
            self._messages.free()
        return True

    def stop(self) -> None:
        """Stops looking out: makes no more MPI calls of its own accord."""
        if self._messages.open:
            self._stop.set()
            self._thread.join(timeout=2.0)

    def _send_stopping(self, node: int, what: int, step: int) -> None:
        self._messages.send(node, _Tag.STOPPING + what, str(step).encode())

    def _beat(self) -> None:
        """Sends a heartbeat, where it is time to and the one before has gone out."""
        payload = self.heartbeats.beat()
        if payload is None or self._closed:
            return
        self._messages.all_gone()
        for node in self.heartbeats.targets:
            if node not in self.left | self.ended:
                self._messages.send(node, _Tag.BEAT, payload, behind_others=False)

    def _look(self) -> None:
        """The thread: takes alarms in."""
        from mpi4py import MPI

        while not self._stop.wait(_LOOK_SECONDS):
            try:
                self._listen()
                self._beat()
                self.stopping.look()
                self._watch_step()
            except MPI.Exception as error:  # MPI is being shut down around us
                log.debug("jdaso look-out ends: %s", error)
                return

    def _listen(self) -> None:
        """Takes messages in, and deaths."""
        from mpi4py import MPI

        self._note_deaths()
        try:
            for message in self._messages.taken():
                self._take(*message)
        except MPI.Exception:
            if not self._note_deaths() and not (self.survives and self.dead):
                raise

    def _note_deaths(self) -> bool:
        """Whether a node has died since this was last asked, where MPI can say that."""
        new = self._messages.newly_dead()
        who = self.name(new)
        if new and self.survives:
            log.warning("%s %s died. The others go on.", self.topology.prefix(), who)
            for node in new:
                self.heartbeats.dead.add(node)
                self.stopping.lost(node)
        elif not set(new) <= self.left | self.ended and not self._closed:
            self.failure = self.failure or f"{who} died."
            self.failed.update(new)
            log.error("%s %s", self.topology.prefix(), self.failure)
        return bool(new)

    def _take(self, node: int, tag: int, payload: bytes) -> None:
        """Takes what another node says."""
        match tag:
            case _Tag.BEAT:
                self.heartbeats.take(payload)
            case _Tag.WHERE:
                self._messages.send(
                    node, _Tag.PLACE, self._place().encode(errors="backslashreplace")
                )
            case _Tag.PLACE:
                self._take_place(node, payload.decode(errors="replace"))
            case _Tag.BATCHES:
                self.batches.take(node, payload)
            case _Tag.LEFT:
                self.left.add(node)
            case _Tag.ENDED:
                self.ended.add(node)
            case _Tag.FAILED | _Tag.FOLLOWED:
                self.failed.add(node)
                if tag == _Tag.FAILED and self.failure is None and not self._closed:
                    self.failure = payload.decode(errors="replace")
                    log.error("%s %s", self.topology.prefix(), self.failure)
            case _:
                self.stopping.take(node, tag - _Tag.STOPPING, int(payload))

    def _place(self) -> str:
        """What this node's program waits for, if it does, and in a second line where it is."""
        return f"{self.waiting.now()}\n{_where(self._owner)}"

    def _take_place(self, node: int, text: str) -> None:
        waits, _, where = text.partition("\n")
        if waits:
            self.waits.add(node)
        self.places[node] = f"and {waits}, at {where}" if waits else f"at {where}"

    def _watch_step(self) -> None:
        """Ends the job if the compiled step waits in MPI for what cannot come.

        mpi4jax's operations return only when all nodes came. Nothing can be raised in them, so
        this is the one place where jdaso ends a process from outside.
        """
        blocked = list(self._blocked)  # another thread sets it
        if not blocked:
            return
        _, wait = blocked[0]
        why = wait.why_no_longer()
        early = wait.waited_seconds <= _GRACE_SECONDS  # it may yet come back by itself
        if why is None or (early and self.failure is not None):
            return
        from mpi4py import MPI

        def say() -> None:
            log.critical("%s %s The job is ended.", self.topology.prefix(wait.step), why)
            speak_out()

        # In a thread of its own: where nobody reads what this node prints, it may take for ever.
        saying = threading.Thread(target=say, name="jdaso-last-words", daemon=True)
        try:
            saying.start()
            time.sleep(_LOOK_SECONDS * 5)  # the others say what they know
            saying.join(timeout=2.0)
        except RuntimeError:  # Python is at its end and starts no more threads
            say()
        finally:
            MPI.COMM_WORLD.Abort(1)


def _where(thread: int) -> str:
    """Where a thread of this process is, the innermost frame first."""
    frame = sys._current_frames().get(thread)
    if frame is None:
        return "its end"
    frames = traceback.extract_stack(frame)[: -_FRAMES - 1 : -1]
    return " < ".join(f"{x.filename}:{x.lineno} in {x.name}" for x in frames)


def _names(nodes: set[int]) -> str:
    plural = "nodes" if len(nodes) > 1 else "node"
    return f"{plural} {', '.join(map(str, sorted(nodes)))}"
