"""Collectives between the hosts of all nodes, on their own communicator. Every wait has a limit."""

from __future__ import annotations

import contextlib
import copy
import json
import zlib
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, TypeVar

import numpy as np

from .._base.errors import NodeError
from .._launch.environment import survives_deaths
from .._mpi.abort import end_job
from .._mpi.messages import dead_ranks
from .._mpi.requests import allgather_bytes, byte, finish, poll
from .._mpi.topology import Topology
from .._mpi.ulfm import Died, Group, InThread
from .detector import Detector
from .differences import first_difference
from .heartbeat import CALLS
from .turn import Turn
from .wait import Wait

_PART_BYTES = 1 << 26
"""Longest message: MPI counts have 32 bits."""

_LONG_SECONDS = 15.0
"""Calls that waited less say nothing about the longest: most follow a node's work at once."""

_EXPLAIN_SECONDS = 1.0

Result = TypeVar("Result")

Facts = Sequence[tuple[str, str]]
"""Names and values, both readable, that must be the same on all nodes."""


class Control:
    """The hosts' own messages between ranks, on communicators that nothing else uses.

    A session has one for all ranks. If its nodes have several, the session has another one, for
    the ranks with this rank's place in each node, which its methods call nodes; see `across`.

    All nodes call the collective methods in the same order. Each call first agrees on its own name
    and facts, so that a node that is elsewhere in the program, or holds another value, is named
    on every node instead of blocking them.

    On failure: every method raises `NodeError` on all nodes, at once if another node fails or
    leaves, else when `timeout_seconds` have passed.

    Args:
        topology: the ranks.
        timeout_seconds: the longest wait; None derives it from past waits (`Patience`).

    Attributes:
        ranks: the numbers of the ranks that make its calls.
        survives: whether the run goes on when a node fails.
    """

    def __init__(self, topology: Topology, timeout_seconds: float | None):
        self.topology = topology
        self.ranks: Sequence[int] = range(topology.num_ranks)
        self.detector = Detector(topology, timeout_seconds)
        self.known = self.detector.known
        self.survives = False
        self._turn = Turn()
        self._errors: dict[str, Exception] = {}
        self._copies: list[Any] = []  # communicators given out by `duplicate` and `split`
        if topology.num_ranks > 1:
            try:
                self._group = Group(self._duplicate(topology.comm), self.ranks)
                alarms = self._duplicate(topology.comm)
            except NodeError:
                end_job()
                raise
            self.detector.begin(alarms)

    def across(self) -> Control:
        """The control of the ranks with this one's place in each node; collective on all ranks."""
        topology = self.topology
        return self._among(range(topology.place, topology.num_ranks, topology.ranks_per_node))

    def inside(self) -> Control:
        """The control of the ranks of this one's node; collective on all ranks."""
        topology = self.topology
        first = topology.rank - topology.place
        return self._among(range(first, first + topology.ranks_per_node))

    def _among(self, ranks: range) -> Control:
        """The control of some ranks. Errors, failures and the order of calls are those of all."""
        if len(ranks) == len(self.ranks):
            return self
        found = copy.copy(self)
        found.ranks = ranks
        comm = self.split(self._group.comm, ranks.start, self.topology.rank)
        found._group = Group(comm, range(len(ranks)))
        return found

    @property
    def broken(self) -> Exception | None:
        """The first error on this node."""
        return self._errors.get("broken")

    @property
    def given_up(self) -> Exception | None:
        """The error that ended a wait; the run cannot go on."""
        return self._errors.get("given up")

    @property
    def refused(self) -> Exception | None:
        """The error of a request that could not succeed; the run can go on."""
        return self._errors.get("refused")

    @property
    def alone(self) -> bool:
        """Returns whether there is no other rank."""
        return self.topology.num_ranks == 1

    def error(self, text: str, step: int | None = None) -> NodeError:
        """An error that begins with this node's prefix."""
        return NodeError(f"{self.topology.prefix(step)} {text}")

    def closed_error(self) -> NodeError:
        """The error of a compiled step that goes on after `Session.close`."""
        return self.error("This session was closed, and a compiled step still uses it.")

    def explain(self, error: Exception) -> str:
        """The cause of an error in MPI; waits a moment, since failures of nodes show up late."""
        can_tell = survives_deaths() and not isinstance(error, NodeError)
        return can_tell and poll(self._cause, limit_seconds=_EXPLAIN_SECONDS) or str(error)

    def _cause(self) -> str | None:
        if self.known.failure is not None or self.detector.began:
            return self.known.failure
        dead = dead_ranks(self.topology.comm)
        return f"{self.known.name(dead)} failed." if dead else None

    @contextlib.contextmanager
    def explained(self, step: int | None = None) -> Iterator[None]:
        """Context of MPI calls that turns their errors into a `NodeError` with the cause."""
        try:
            yield
        except NodeError:
            raise
        except Exception as error:
            raise self.error(self.explain(error), step) from error

    def check(self) -> None:
        """Raises if another node has failed, or if a wait of this node was given up."""
        if self.known.failure is not None:
            raise self.error(self.known.failure)
        if self.given_up is not None:
            raise self.given_up

    def note_broken(self, error: Exception) -> None:
        """Keeps an error of this node; only the first is kept."""
        self._errors.setdefault("broken", error)

    def give_up(self, error: NodeError) -> NodeError:
        """Keeps the error that ended a wait, and returns it; the run cannot go on."""
        self._errors["given up"] = error
        return error

    def refuse(self, error: NodeError) -> None:
        """Keeps the error of a request that could not succeed; the run can go on."""
        self._errors["refused"] = error

    @property
    def living(self) -> tuple[int, ...]:
        """Nodes that had not failed when all nodes last communicated here."""
        return (0,) if self.alone else self._group.living

    def survive(self) -> None:
        """Makes the run go on from here when a node fails."""
        self.survives = not self.alone
        self.known.survive(self.survives)

    def duplicate(self) -> Group:
        """A communicator for one more user, freed with the session or by `release`. Collective."""
        comm = self._together(lambda: self._duplicate(self._group.comm))
        self._copies.append(comm)
        return Group(comm, self._group.living)

    def release(self, comm: Any) -> None:
        """Frees a communicator of `duplicate` or `split`, with nothing in flight. Collective."""
        self.agree("free a communicator", [])
        self._copies.remove(comm)
        comm.Free()

    def split(self, comm: Any, color: int, key: int, *, stays: bool = False) -> Any:
        """A communicator of the nodes that give the same color, in the order of `key`. Collective.

        The communicator is freed with the session, or by `release`, unless it `stays`. MPI has only
        a blocking call for this, so a thread makes it.

        On failure: see above, and the job ends with this process: the thread is still inside MPI.
        """
        what = "split a communicator"
        self.agree(what, [])
        call = InThread(lambda: comm.Split(color, key), "jdaso-split")
        try:
            self.wait(call, what)
        except NodeError:
            end_job()
            raise
        with self.explained():
            comm = call.result()
        if not stays:
            self._copies.append(comm)
        return Group(comm, range(comm.Get_size())).comm

    def _duplicate(self, comm: Any) -> Any:
        copy, request = comm.Idup()
        self.wait(request, "open a communicator")
        return copy

    def _together(self, attempt: Callable[[], Result]) -> Result:
        """The result of a collective call; if nodes may fail, of a call of those that survive."""
        return self._group.together(attempt, self._checks) if self.survives else attempt()

    def _checks(self) -> Callable[[], None]:
        """Begins a wait for the other nodes to agree on the survivors."""
        return Wait(
            self.known, "call", "agrees on the nodes that are left", call=0, column=CALLS
        ).check

    def repeat_if_a_node_fails(self, attempt: Callable[[], Result]) -> Result:
        """The result of calls that belong together, repeated until no node fails in between."""
        while True:
            before, result = self.living, attempt()
            if self.living == before:
                return result

    def agree(self, what: str, facts: Facts, *, limit_seconds: float | None = None) -> None:
        """Raises on every node, naming the node and the fact, unless all hold the same `facts`.

        Args:
            what: the nodes' action, as a verb.
            facts: names and values that must be equal.
            limit_seconds: the longest wait, if a node may take long.
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
        names = {node: self.topology.name(self.ranks[node]) for node in self.living}
        raise self.error(first_difference({names[node]: everyone[node] for node in self.living}))

    def allgather(self, what: str, array: np.ndarray) -> np.ndarray:
        """The arrays of all nodes, ``[nodes, ...]``; shape and dtype are agreed on first."""
        array = np.ascontiguousarray(array)
        self.agree(what, [("shape", str(array.shape)), ("dtype", str(array.dtype))])
        return self._allgather(array, what)

    def everyone(self, what: str, text: str, *, limit_seconds: float | None = None) -> list[str]:
        """The texts of all nodes, by node; `limit_seconds` if a node may take long."""
        if self.alone:
            return [text]
        self.agree(what, [], limit_seconds=limit_seconds)
        mine = text.encode(errors="backslashreplace")  # file names may not be UTF-8
        return [said.decode() for said in self._allgather_bytes(mine, what)]

    def broadcast(self, array: np.ndarray, root: int = 0) -> np.ndarray:
        """One node's array on every node; shapes and dtypes must already be agreed on."""
        return self.repeat_if_a_node_fails(lambda: self._broadcast_whole(array, root))

    def _broadcast_whole(self, array: np.ndarray, root: int) -> np.ndarray:
        out = np.array(array, order="C")
        if self.alone:
            return out
        flat = out.reshape(-1).view(np.uint8)
        for begin in range(0, flat.size, _PART_BYTES):
            self._together(partial(self._broadcast, flat[begin : begin + _PART_BYTES], root))
        return out

    def _broadcast(self, part: np.ndarray, root: int) -> None:
        request = self._group.comm.Ibcast([part, byte()], self._group.rank(root))
        self.wait(request, "broadcast", part)

    def wait(
        self,
        request: Any,
        what: str,
        *data: Any,
        most_pause: float = 2e-3,
        limit_seconds: float | None = None,
    ) -> None:
        """Waits for a request; if the wait fails, keeps the buffers that MPI may still write to."""
        calls = self._turn.count()
        self.known.heartbeats.note(CALLS, calls)
        wait = Wait(
            self.known,
            "call",
            f"waits to {what}",
            call=calls,
            column=CALLS,
            limit_seconds=limit_seconds,
        )
        try:
            finish(request, partial(self._check, wait), *data, most_pause=most_pause)
        except (NodeError, Died):
            raise
        except Exception as error:  # MPI's
            if self.survives:
                raise
            raise self.error(self.explain(error)) from error
        if wait.waited_seconds > _LONG_SECONDS:
            self.known.patience.note("call", wait.waited_seconds)

    def _check(self, wait: Wait) -> None:
        wait.check()
        if self.survives:
            self._group.look()

    def close(self, failed: bool) -> None:
        """Leaves the other nodes; see `Detector.close`."""
        if self.detector.close(failed) and not self.known.dead:
            for comm in (*self._copies, self._group.comm):
                comm.Free()

    def _allgather(
        self, array: np.ndarray, what: str, limit_seconds: float | None = None
    ) -> np.ndarray:
        if self.alone:
            return array[None]
        with self._alone_in_call(what):
            out = np.empty((len(self.ranks), *array.shape), array.dtype)
            flat, bits = array.reshape(-1).view(np.uint8), out.reshape(-1).view(np.uint8)
            rows = bits.reshape(len(self.ranks), -1)
            for begin in range(0, max(flat.size, 1), _PART_BYTES):
                part = np.ascontiguousarray(flat[begin : begin + _PART_BYTES])
                gather = partial(self._gather, part, what, limit_seconds)
                rows[:, begin : begin + _PART_BYTES] = self._together(gather)
            return out

    @contextlib.contextmanager
    def _alone_in_call(self, what: str) -> Iterator[None]:
        """Context of a call that only one thread makes at a time; other threads wait for its end.

        Raises:
            NodeError: the same thread is already in such a call: a signal handler makes this one,
                and would wait for the call that it interrupted.
        """
        if self._turn.is_mine:
            raise self.error(
                f"A signal handler was about to {what} while its thread was already inside a "
                "collective call. In the handler only set a flag, and act after the step."
            )
        doing = f"waits for another thread's call before it can {what}"
        wait = Wait(self.known, "call", doing, call=self._turn.calls, column=CALLS)
        with self._turn.taken(wait.check):
            yield

    def _gather(self, send: np.ndarray, what: str, limit_seconds: float | None) -> np.ndarray:
        """Rows of all nodes; a failed node gets the first living node's row."""
        group = self._group
        recv = np.empty((len(group.living), send.size), np.uint8)
        request = group.comm.Iallgather([send, byte()], [recv, byte()])
        self.wait(request, what, send, recv, limit_seconds=limit_seconds)
        return recv[[group.rank(node) for node in range(len(self.ranks))]]

    def _allgather_bytes(self, payload: bytes, what: str) -> list[bytes]:
        gather = partial(self._allgather, what=what)
        return self.repeat_if_a_node_fails(lambda: allgather_bytes(gather, payload))


def _crc(text: str) -> int:
    return zlib.crc32(text.encode())
