"""How nodes agree, and how one that fails tells the others. Every wait has a limit."""

from __future__ import annotations

import json
import logging
import threading
import time
import zlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from ._exit import end_job
from ._topology import Topology, poll
from ._types import NodeError

log = logging.getLogger("jdaso")

_FAILED, _FOLLOWED, _LEFT, _ENDED = 1, 2, 3, 4
"""Tags of alarms: a node failed; it failed because another did; it ended its session; its program
has ended after a failure, and has nothing more to say."""

_PART_BYTES = 1 << 26
"""Longest message: MPI counts have 32 bits."""

_GRACE_SECONDS = 5.0
"""How long a node goes on waiting after another one left: its last messages may be on the way."""

_PARTING_SECONDS = 2.0
"""How long a node that ends its session waits to hear the same from the others."""

_LOOK_SECONDS = 0.2
"""How often a node looks whether another one sounded the alarm."""

Facts = Sequence[tuple[str, str]]
"""What must be the same on all nodes: names and values, both readable."""


class Control:
    """The host's own messages between nodes, on two communicators that nobody else uses.

    All nodes call the collective methods in the same order. Each call first agrees on its own name
    and facts, so that a node that is elsewhere in the program, or holds something else, is named
    on every node instead of blocking them.

    On failure: every method raises `NodeError` on all nodes, at once where another node fails or
    leaves, else when `timeout_seconds` have passed.
    """

    def __init__(self, topology: Topology, timeout_seconds: float):
        self.topology = topology
        self.timeout_seconds = timeout_seconds
        self.failure: str | None = None  # what another node said before it failed
        self.broken: Exception | None = None  # what went wrong here
        self.refused: Exception | None = None  # what was asked in vain; the run can go on
        self.failed: set[int] = set()
        self.left: set[int] = set()
        self.ended: set[int] = set()
        self.closed = False
        self._blocked: list[tuple[float, int]] = []  # since when, and in which step
        self._unfinished: list[Any] = []  # requests that nobody waits for any more, and their data
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._alarms_out: list[tuple[Any, bytes]] = []  # requests and the text they send
        self._copies: list[Any] = []  # communicators given out by `duplicate`
        if topology.num_nodes > 1:
            try:
                self._comm = self._duplicate(topology.comm)
                self._alarm = self._duplicate(topology.comm)
            except NodeError:
                end_job()
                raise
            self._lookout = threading.Thread(target=self._look, name="jdaso-lookout", daemon=True)
            self._lookout.start()

    @property
    def alone(self) -> bool:
        """Whether there is no other node (process) to tell anything."""
        return self.topology.num_nodes == 1

    def error(self, text: str, step: int | None = None) -> NodeError:
        """An error that begins with this node."""
        return NodeError(f"{self.topology.prefix(step)} {text}")

    def closed_error(self) -> NodeError:
        """What a compiled step is told that goes on after `Session.close`."""
        return self.error("This session was closed, and a compiled step still uses it.")

    def check(self) -> None:
        """Raises if another node has failed."""
        if self.failure is not None:
            raise self.error(self.failure)

    def duplicate(self) -> Any:
        """A communicator for one more user; freed with the session. Collective."""
        self._copies.append(self._duplicate(self._comm))
        return self._copies[-1]

    def _duplicate(self, comm: Any) -> Any:
        copy, request = comm.Idup()
        self._wait(request, "open a communicator")
        return copy

    def agree(self, what: str, facts: Facts) -> None:
        """Raises on every node, naming node and fact, unless all hold the same `facts`.

        Args:
            what: what the nodes are doing, as a verb.
            facts: what must be equal.
        """
        if self.alone:
            return
        facts = [(str(name), str(value)) for name, value in facts]
        mine = np.array([_crc(what), _crc(repr(facts))], np.uint32)
        everyone = self._allgather(mine, what)
        if (everyone == everyone[0]).all():
            return
        mine = json.dumps((what, facts)).encode()
        everyone = [json.loads(text) for text in self._allgather_bytes(mine, what)]
        raise self.error(_first_difference(everyone))

    def allgather(self, what: str, array: np.ndarray) -> np.ndarray:
        """The arrays of all nodes, ``[nodes, ...]``; shape and dtype are agreed on first."""
        array = np.ascontiguousarray(array)
        self.agree(what, [("shape", str(array.shape)), ("dtype", str(array.dtype))])
        return self._allgather(array, what)

    def broadcast(self, array: np.ndarray) -> np.ndarray:
        """Node 0's array on every node; shapes and dtypes were agreed on before."""
        out = np.array(array, order="C")
        flat = out.reshape(-1).view(np.uint8) if out.size else np.zeros(0, np.uint8)
        for begin in range(0, flat.size, _PART_BYTES):
            part = flat[begin : begin + _PART_BYTES]
            self._wait(self._comm.Ibcast([part, _byte()]), "broadcast", part)
        return out

    def fail(self, text: str) -> None:
        """Tells all others that this node has failed; does not wait for them."""
        self._sound(_FAILED if self.failure is None else _FOLLOWED, text)

    def end(self) -> None:
        """Tells all others that this node's program has ended after a failure."""
        self._sound(_ENDED, "")

    def all_failed(self) -> bool:
        """Whether all other nodes have failed too."""
        return len(self.failed) >= self.topology.num_nodes - 1

    def all_ended(self) -> bool:
        """Whether all other nodes have said that their program has ended after a failure."""
        return len(self.ended) >= self.topology.num_nodes - 1

    def enter(self, step: int) -> float:
        """The compiled step goes into MPI by itself; from here the look-out watches over it."""
        self._blocked.append((time.perf_counter(), step))
        return self._blocked[-1][0]

    def leave(self) -> float:
        """The compiled step came back from MPI; returns how many seconds it was there.

        A step may hold several means, and XLA may enter the next before it leaves the last.
        """
        blocked = self._blocked
        begin, _ = blocked.pop(0) if blocked else (time.perf_counter(), 0)
        return time.perf_counter() - begin

    def abandon(self) -> None:
        """An error ends the step: none of its means is waited for any more."""
        self._blocked = []

    def close(self, failed: bool) -> None:
        """Tells the others that this node ends its session, and hears it from them.

        A node that ended first does not wait for the others for long. After a failure the look-out
        stays, to hear whether the others have failed too.
        """
        if self.alone or self.closed:
            return
        self.closed, self._blocked = True, []
        if failed:
            return
        self._sound(_LEFT, "")
        self.stop()

        def parted() -> bool:
            self._take_alarms()
            self._alarms_out = [(sent, text) for sent, text in self._alarms_out if not sent.Test()]
            return not self._alarms_out and len(self.left) == self.topology.num_nodes - 1

        if poll(parted, lambda: None, _PARTING_SECONDS):
            for comm in (*self._copies, self._alarm, self._comm):
                comm.Free()

    def stop(self) -> None:
        """Stops looking out: makes no more MPI calls of its own accord."""
        if not self.alone:
            self._stop.set()
            self._lookout.join(timeout=2.0)

    def _sound(self, tag: int, text: str) -> None:
        if self.alone:
            return
        payload = text.encode()[:8192]
        for node in range(self.topology.num_nodes):
            if node != self.topology.node:
                request = self._alarm.Isend([payload, len(payload), _byte()], dest=node, tag=tag)
                self._alarms_out.append((request, payload))

    def _look(self) -> None:
        """The look-out's thread: takes alarms in."""
        from mpi4py import MPI

        while not self._stop.wait(_LOOK_SECONDS):
            try:
                self._take_alarms()
                self._watch_step()
            except MPI.Exception as error:  # MPI is being shut down around us
                log.debug("jdaso look-out ends: %s", error)
                return

    def _take_alarms(self) -> None:
        from mpi4py import MPI

        status = MPI.Status()
        while (message := self._alarm.Improbe(status=status)) is not None:
            source, tag = status.Get_source(), status.Get_tag()
            payload = bytearray(status.Get_count(MPI.BYTE))
            message.Recv([payload, len(payload), MPI.BYTE])
            if tag == _LEFT:
                self.left.add(source)
                continue
            if tag == _ENDED:
                self.ended.add(source)
                continue
            self.failed.add(source)
            if tag == _FAILED and self.failure is None and not self.closed:
                self.failure = payload.decode(errors="replace")
                log.error("%s %s", self.topology.prefix(), self.failure)

    def _watch_step(self) -> None:
        """Ends the job if the compiled step waits in MPI for what cannot come.

        mpi4jax's operations return only when all nodes came. Nothing can be raised in them, so
        this is the one place where jdaso ends a process from outside.
        """
        blocked = list(self._blocked)  # another thread sets it
        if not blocked:
            return
        begin, step = blocked[0]
        waited = time.perf_counter() - begin
        if self.failure is not None and waited > _GRACE_SECONDS:
            why = self.failure
        elif self.failed and waited > _GRACE_SECONDS:
            why = f"{self.who_failed()} while this node waits for a mean of all nodes."
        elif self.left and waited > _GRACE_SECONDS:
            why = f"{self.who_left()} while this node waits for a mean of all nodes."
        elif waited > self.timeout_seconds:
            why = (
                f"Waited {self.timeout_seconds:g} s for a mean of all nodes. Look for a node that "
                "is stuck; raise Session(timeout_seconds=...) if one is only slow."
            )
        else:
            return
        from mpi4py import MPI

        log.critical("%s %s The job is ended.", self.topology.prefix(step), why)
        time.sleep(_LOOK_SECONDS * 5)  # the others say what they know
        MPI.COMM_WORLD.Abort(1)

    def _allgather(self, array: np.ndarray, what: str) -> np.ndarray:
        if self.alone:
            return array[None]
        with self._lock:
            out = np.empty((self.topology.num_nodes, *array.shape), array.dtype)
            flat, bits = array.reshape(-1).view(np.uint8), out.reshape(-1).view(np.uint8)
            rows = bits.reshape(self.topology.num_nodes, -1)
            for begin in range(0, max(flat.size, 1), _PART_BYTES):
                send = np.ascontiguousarray(flat[begin : begin + _PART_BYTES])
                recv = np.empty((self.topology.num_nodes, send.size), np.uint8)
                request = self._comm.Iallgather([send, _byte()], [recv, _byte()])
                self._wait(request, what, send, recv)
                rows[:, begin : begin + _PART_BYTES] = recv
            return out

    def _allgather_bytes(self, payload: bytes, what: str) -> list[bytes]:
        sizes = self._allgather(np.array([len(payload)], np.int64), what)[:, 0]
        padded = np.zeros(int(sizes.max()), np.uint8)
        padded[: len(payload)] = np.frombuffer(payload, np.uint8)
        rows = self._allgather(padded, what)
        return [row[:size].tobytes() for row, size in zip(rows, sizes, strict=True)]

    def _wait(self, request: Any, what: str, *data: Any) -> None:
        """Waits for a request; where that ends in vain, what MPI may yet write to is kept."""
        self._unfinished.append((request, data))
        grace = time.perf_counter() + _GRACE_SECONDS

        def check() -> None:
            self.check()
            if self.failed and time.perf_counter() > grace:
                raise self.error(f"{self.who_failed()} while this node waits to {what}.")
            if self.left and time.perf_counter() > grace:
                raise self.error(f"{self.who_left()} while this node waits to {what}.")

        if not poll(request.Test, check, self.timeout_seconds):
            raise self.error(
                f"Waited {self.timeout_seconds:g} s to {what}, and not all nodes came. "
                "Look for a node that is stuck or took another path through the program; raise "
                "Session(timeout_seconds=...) if one is only slow."
            )
        self._unfinished.pop()

    def who_left(self) -> str:
        """Names the nodes that ended their session."""
        return f"{_names(self.left)} ended the session"

    def who_failed(self) -> str:
        """Names the nodes that have failed, be it because of this one."""
        return f"{_names(self.failed)} failed"


def _names(nodes: set[int]) -> str:
    plural = "nodes" if len(nodes) > 1 else "node"
    return f"{plural} {', '.join(map(str, sorted(nodes)))}"


def _first_difference(everyone: Sequence[Any]) -> str:
    """Says in one sentence where the nodes part, against the value that most of them hold."""
    actions = [what for what, _ in everyone]
    usual = max(actions, key=actions.count)
    if any(what != usual for what in actions):
        where = ", ".join(f"node {node} is about to {what}" for node, what in enumerate(actions))
        return (
            f"The nodes are at different places of the program: {where}. All nodes must make the "
            "same calls in the same order."
        )
    tables = [dict(facts) for _, facts in everyone]
    names: list[str] = []
    for table in tables:
        names += [name for name in table if name not in names]
    for name in names:
        values = [table.get(name, "absent") for table in tables]
        usual = max(values, key=values.count)
        odd = [node for node, value in enumerate(values) if value != usual]
        if odd:
            said = "; ".join(f"node {node} has {_short(values[node])}" for node in odd)
            hint = (
                "Give all nodes the same values with jdaso.broadcast(tree, session)."
                if name.startswith("bits of")
                else "All nodes must be given the same."
            )
            return f"The nodes disagree on {name}: {said}, the others {_short(usual)}. {hint}"
    return "The nodes disagree, but on nothing that has a name."


def _short(text: str) -> str:
    return text if len(text) <= 200 else text[:200] + " ..."


def _crc(text: str) -> int:
    return zlib.crc32(text.encode())


def _byte() -> Any:
    from mpi4py import MPI

    return MPI.BYTE
