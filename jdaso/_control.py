"""How the hosts of all nodes agree, on a communicator of their own. Every wait has a limit."""

from __future__ import annotations

import contextlib
import json
import logging
import math
import threading
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, TypeVar

import numpy as np

from ._exit import end_job
from ._group import Died, Group, InThread
from ._heartbeat import CALLS
from ._host import survives_deaths
from ._lookout import Lookout
from ._messages import dead_ranks
from ._poll import poll
from ._topology import Topology
from ._types import NodeError
from ._watchdog import Wait

log = logging.getLogger("jdaso")

_PART_BYTES = 1 << 26
"""Longest message: MPI counts have 32 bits."""

_TRIAL_BYTES, _TRIALS = 2 * 2**20, 3
"""Of a measured link: 50 ms at 1 Gbit/s."""

_EXPLAIN_SECONDS = 1.0

_OWN_WORK_SECONDS, _OWN_WORK_LOOK_SECONDS, _WARN_SECONDS = 3600.0, 1.0, 30.0
"""How long a node's own steps may take once it has no exchange to start any more; how often it
looks whether it has; and when it is first said."""

_unfinished: list[Any] = []
"""Requests that ended in vain, with their data: MPI may yet write there, whoever is gone."""

Result = TypeVar("Result")

Facts = Sequence[tuple[str, str]]
"""What must be the same on all nodes: names and values, both readable."""


class Control:
    """The host's own messages between nodes, on communicators that nobody else uses.

    All nodes call the collective methods in the same order. Each call first agrees on its own name
    and facts, so that a node that is elsewhere in the program, or holds something else, is named
    on every node instead of blocking them.

    On failure: every method raises `NodeError` on all nodes, at once where another node fails or
    leaves, else when `timeout_seconds` have passed.

    Args:
        topology: the nodes.
        timeout_seconds: the longest wait; None derives it from what is usual (`Patience`).
    """

    def __init__(self, topology: Topology, timeout_seconds: float | None):
        self.topology = topology
        self.lookout = Lookout(topology, timeout_seconds)
        self.broken: Exception | None = None  # what went wrong here
        self.given_up: Exception | None = None  # what is waited for no longer
        self.refused: Exception | None = None  # what was asked in vain; the run can go on
        self._lock = threading.Lock()
        self._caller: int | None = None  # the thread that holds it
        self._copies: list[Any] = []  # communicators given out by `duplicate`
        self._bytes_per_second: float | None = None
        self._calls = 0  # made so far; the same on all nodes where they make the same
        self.survives = False  # whether the run goes on where a node dies
        if topology.num_nodes > 1:
            try:
                self._group = Group(self._duplicate(topology.comm), range(topology.num_nodes))
                alarms = self._duplicate(topology.comm)
            except NodeError:
                end_job()
                raise
            self.lookout.begin(alarms)

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

    def explain(self, error: Exception) -> str:
        """What an error in MPI is about: the death of a node is known a moment later."""
        limit = time.monotonic() + _EXPLAIN_SECONDS
        while survives_deaths() and not isinstance(error, NodeError) and time.monotonic() < limit:
            if self.lookout.failure is not None:
                return self.lookout.failure
            if not self.lookout.began and (dead := dead_ranks(self.topology.comm)):
                return f"{self.lookout.name(dead)} died."
            time.sleep(0.01)
        return str(error)

    @contextlib.contextmanager
    def explained(self, step: int | None = None) -> Iterator[None]:
        """Around calls of MPI, whose errors come out as a `NodeError` that names the cause."""
        try:
            yield
        except NodeError:
            raise
        except Exception as error:
            raise self.error(self.explain(error), step) from error

    def check(self) -> None:
        """Raises if another node has failed, or what this one waited for was given up."""
        if self.lookout.failure is not None:
            raise self.error(self.lookout.failure)
        if self.given_up is not None:
            raise self.given_up

    @property
    def living(self) -> tuple[int, ...]:
        """Nodes that have not died, as far as all knew when they last spoke here."""
        return (self.topology.node,) if self.alone else self._group.living

    def survive(self) -> None:
        """From here on the run goes on where a node dies."""
        self.survives = self.lookout.survives = not self.alone

    def duplicate(self) -> Group:
        """A communicator for one more user; freed with the session. Collective."""
        comm = self._together(lambda: self._duplicate(self._group.comm))
        self._copies.append(comm)
        return Group(comm, self._group.living)

    def split(self, comm: Any, color: int, key: int) -> Any:
        """A communicator of the nodes that give the same color, in the order of `key`. Collective.

        MPI has only a call for it that blocks, so a thread makes it.

        On failure: see above, and the job ends with this process: the thread is still inside MPI.
        """
        what = "split a communicator"
        self.agree(what, [])
        call = InThread(lambda: comm.Split(color, key), "jdaso-split")
        try:
            self._wait(call, what)
        except NodeError:
            end_job()
            raise
        with self.explained():
            return call.result()

    def _duplicate(self, comm: Any) -> Any:
        copy, request = comm.Idup()
        self._wait(request, "open a communicator")
        return copy

    def _together(self, attempt: Callable[[], Result]) -> Result:
        """What a collective call gives; where nodes may die, one of those that live."""
        return self._group.together(attempt, self._checks) if self.survives else attempt()

    def _checks(self) -> Callable[[], None]:
        """Begins a wait for the others to agree on who lives."""
        wait = Wait(self.lookout, "call", "agrees on who lives", call=0, column=CALLS)

        def check() -> None:
            if (why := wait.why_no_longer()) is not None:
                raise self.error(why)

        return check

    def unless_someone_dies(self, attempt: Callable[[], Result]) -> Result:
        """What calls give that belong together, once nobody died between the first and the last."""
        while True:
            before, result = self.living, attempt()
            if self.living == before:
                return result

    def agree(self, what: str, facts: Facts, *, limit_seconds: float | None = None) -> None:
        """Raises on every node, naming node and fact, unless all hold the same `facts`.

        Args:
            what: what the nodes are doing, as a verb.
            facts: what must be equal.
            limit_seconds: the longest wait, where a node may be long about it.
        """
        if self.alone:
            return
        facts = [(str(name), str(value)) for name, value in facts]
        mine = np.array([_crc(what), _crc(repr(facts))], np.uint32)
        everyone = self._allgather(mine, what, limit_seconds)
        if (everyone == everyone[0]).all():
            return
        mine = json.dumps((what, facts)).encode()
        everyone = [json.loads(text) for text in self._allgather_bytes(mine, what)]
        raise self.error(_first_difference({node: everyone[node] for node in self.living}))

    def allgather(self, what: str, array: np.ndarray) -> np.ndarray:
        """The arrays of all nodes, ``[nodes, ...]``; shape and dtype are agreed on first."""
        array = np.ascontiguousarray(array)
        self.agree(what, [("shape", str(array.shape)), ("dtype", str(array.dtype))])
        return self._allgather(array, what)

    def everyone(self, what: str, text: str, *, limit_seconds: float | None = None) -> list[str]:
        """What each node says, node by node; with a limit where a node may be long about it."""
        if self.alone:
            return [text]
        self.agree(what, [], limit_seconds=limit_seconds)
        mine = text.encode(errors="backslashreplace")  # names of files may be no UTF-8
        return [said.decode() for said in self._allgather_bytes(mine, what)]

    def broadcast(self, array: np.ndarray, root: int = 0) -> np.ndarray:
        """One node's array on every node; shapes and dtypes were agreed on before."""
        return self.unless_someone_dies(lambda: self._broadcast_whole(array, root))

    def _broadcast_whole(self, array: np.ndarray, root: int) -> np.ndarray:
        out = np.array(array, order="C")
        if self.alone:
            return out
        flat = out.reshape(-1).view(np.uint8) if out.size else np.zeros(0, np.uint8)
        for begin in range(0, flat.size, _PART_BYTES):
            self._together(partial(self._broadcast, flat[begin : begin + _PART_BYTES], root))
        return out

    def _broadcast(self, part: np.ndarray, root: int) -> None:
        request = self._group.comm.Ibcast([part, _byte()], self._group.rank(root))
        self._wait(request, "broadcast", part)

    def bytes_per_second(self) -> float:
        """What the slowest link between neighbors carries, in both directions at once.

        Measured at the first call, the best of a few, and the same on all nodes.
        """
        if self._bytes_per_second is None:
            nodes, node = self.topology.num_nodes, self.topology.node
            send, recv = np.zeros((2, _TRIAL_BYTES), np.uint8)
            seconds = np.inf
            for _ in range(_TRIALS):
                begin = time.perf_counter()
                left = self._group.comm.Irecv([recv, _byte()], (node - 1) % nodes)
                right = self._group.comm.Isend([send, _byte()], (node + 1) % nodes)
                for request in (left, right):
                    self._wait(request, "measure the links", send, recv, most_pause=1e-4)
                seconds = min(seconds, time.perf_counter() - begin)
            slowest = self._allgather(np.array([seconds]), "measure the links").max()
            self._bytes_per_second = float(_TRIAL_BYTES / slowest)
        return self._bytes_per_second

    def see_end(self, call: Callable[[], None], what: str) -> None:
        """Makes a call that waits for this node's own work, and says now and then that it does.

        Args:
            call: the call; another thread makes it.
            what: what it waits for.

        Raises:
            NodeError: the work did not end, and for an hour this node took part in nothing.
        """
        if self.alone:
            return call()
        heartbeats, node = self.lookout.heartbeats, self.topology.node
        try:
            work = InThread(call, "jdaso-steps")
        except RuntimeError:  # Python is at its end and starts no more threads
            return call()
        begin, warn_at = time.monotonic(), _WARN_SECONDS
        seen, since = heartbeats.taken_part(node), begin
        while not poll(work.Test, lambda: None, _OWN_WORK_LOOK_SECONDS):
            now = time.monotonic()
            if (last := heartbeats.taken_part(node)) != seen:
                seen, since = last, now
            if now - since > _OWN_WORK_SECONDS:
                raise self.error(
                    f"This node waits for {what}, for {now - begin:.0f} s now, and took part in "
                    f"no exchange for {_OWN_WORK_SECONDS:g} s. Look for a callback or a loop in a "
                    "step that does not end."
                )
            if now - begin > warn_at:
                text = "%s This node waits for %s, for %.0f s now (longest: %g s after the last "
                text += "exchange)."
                about = what, now - begin, _OWN_WORK_SECONDS
                log.warning(text, self.topology.prefix(), *about)
                warn_at *= 2
        work.result()

    def close(self, failed: bool) -> None:
        """Parts from the other nodes; see `Lookout.close`."""
        if self.lookout.close(failed) and not self.lookout.dead:
            for comm in (*self._copies, self._group.comm):
                comm.Free()

    def _allgather(
        self, array: np.ndarray, what: str, limit_seconds: float | None = None
    ) -> np.ndarray:
        if self.alone:
            return array[None]
        with self._alone_in_call(what):
            out = np.empty((self.topology.num_nodes, *array.shape), array.dtype)
            flat, bits = array.reshape(-1).view(np.uint8), out.reshape(-1).view(np.uint8)
            rows = bits.reshape(self.topology.num_nodes, -1)
            for begin in range(0, max(flat.size, 1), _PART_BYTES):
                part = np.ascontiguousarray(flat[begin : begin + _PART_BYTES])
                gather = partial(self._gather, part, what, limit_seconds)
                rows[:, begin : begin + _PART_BYTES] = self._together(gather)
            return out

    @contextlib.contextmanager
    def _alone_in_call(self, what: str) -> Iterator[None]:
        """Around a call that one thread makes at a time; the others wait for its end.

        Raises:
            NodeError: the same thread is in one already: a signal handler makes this one, and
                would wait for what it interrupted.
        """
        if self._caller == threading.get_ident():
            raise self.error(
                f"A signal handler was about to {what} while its thread was in such a call of all "
                "nodes already. Note in the handler that the signal came, and act after the step."
            )
        doing = f"waits for another thread's call before it can {what}"
        wait = Wait(self.lookout, "call", doing, call=self._calls, column=CALLS)
        while not self._lock.acquire(timeout=0.05):
            if (why := wait.why_no_longer()) is not None:
                raise self.error(why)
        self._caller = threading.get_ident()
        try:
            yield
        finally:
            self._caller = None
            self._lock.release()

    def _gather(self, send: np.ndarray, what: str, limit_seconds: float | None) -> np.ndarray:
        """Rows of all nodes; of dead ones the first living one's."""
        group = self._group
        recv = np.empty((len(group.living), send.size), np.uint8)
        request = group.comm.Iallgather([send, _byte()], [recv, _byte()])
        self._wait(request, what, send, recv, limit_seconds=limit_seconds)
        return recv[[group.rank(node) for node in range(self.topology.num_nodes)]]

    def _allgather_bytes(self, payload: bytes, what: str) -> list[bytes]:
        return self.unless_someone_dies(lambda: self._allgather_texts(payload, what))

    def _allgather_texts(self, payload: bytes, what: str) -> list[bytes]:
        sizes = self._allgather(np.array([len(payload)], np.int64), what)[:, 0]
        padded = np.zeros(int(sizes.max()), np.uint8)
        padded[: len(payload)] = np.frombuffer(payload, np.uint8)
        rows = self._allgather(padded, what)
        return [row[:size].tobytes() for row, size in zip(rows, sizes, strict=True)]

    def _wait(
        self,
        request: Any,
        what: str,
        *data: Any,
        most_pause: float = 2e-3,
        limit_seconds: float | None = None,
    ) -> None:
        """Waits for a request; where that ends in vain, what MPI may yet write to is kept."""
        self._calls += 1
        self.lookout.heartbeats.note(CALLS, self._calls)
        wait = Wait(
            self.lookout,
            "call",
            f"waits to {what}",
            call=self._calls,
            column=CALLS,
            limit_seconds=limit_seconds,
        )

        def check() -> None:
            if (why := wait.why_no_longer()) is not None:
                raise self.error(why)
            if self.survives:
                self._group.look()

        done = False
        try:
            done = poll(request.Test, check, math.inf, most_pause)
        except (NodeError, Died):
            raise
        except Exception as error:  # MPI's
            if self.survives:
                raise
            raise self.error(self.explain(error)) from error
        finally:
            if not done:
                _unfinished.append((request, data))


def _first_difference(by_node: dict[int, Any]) -> str:
    """Says in one sentence where the nodes part, against the value that most of them hold."""
    nodes, everyone = list(by_node), list(by_node.values())
    actions = [what for what, _ in everyone]
    usual = max(actions, key=actions.count)
    if any(what != usual for what in actions):
        pairs = zip(nodes, actions, strict=True)
        where = ", ".join(f"node {node} is about to {what}" for node, what in pairs)
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
        odd = [pair for pair in zip(nodes, values, strict=True) if pair[1] != usual]
        if odd:
            said = "; ".join(f"node {node} has {_short(value)}" for node, value in odd)
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
