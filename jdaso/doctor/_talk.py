"""Messages between the ranks of a launch: ranks that answer, speed of the links, progress.

Only non-blocking calls are used, and each waits for an answer no longer than the limit: a rank that
is missing or unreachable gives a line in the report, not a hang. The steps, on every rank:

1. Each sends its findings to every other, and notes which ranks it has received from.
2. Each sends that list to every rank in it. Rank 0 also gets the findings of ranks whose messages
   it may have missed. The ranks continue only if each has received from all; all decide alike.
3. Pairs are measured, one rank from each host, in rounds in which no rank is in two pairs.
4. The first pair checks whether messages move while nobody calls MPI, and while a thread does.
5. The first rank collects the figures, then releases the others.
"""

from __future__ import annotations

import json
import os
import statistics
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ._probe import ProbeSteps

RECORD, ACCOUNT, LINK, BULK, FIGURES, LEAVE = range(600, 606)
"""Tags of the messages."""

_TRIPS = 40
_FIRST_BYTES, _MOST_BYTES = 2**18, 2**24
_LONG_ENOUGH_SECONDS = 0.05
_LOOKS = 3
_LOOKS_AT_PROGRESS = 6  # other work on the machine may disturb some
_SPIN_SECONDS = 2e-3

Pair = tuple[int, int]


def talk(steps: ProbeSteps, record_path: str, limit: str) -> None:
    """Runs a rank's part: all steps above.

    Args:
        steps: records the steps for the rank's parent process.
        record_path: JSON file with this rank's findings.
        limit: seconds that the ranks wait for each other.
    """
    start = steps.take("start", _start)
    if start is None or start["size"] == 1:
        return
    own = json.loads(Path(record_path).read_text())
    ranks = Ranks(float(limit), lambda name: steps.note({"begin": name}))
    records = steps.take("records", lambda: ranks.exchange(RECORD, own))
    accounts = steps.take("accounts", lambda: ranks.exchange(ACCOUNT, _account(ranks, records)))
    if not _everyone(ranks, accounts):
        os._exit(0)  # MPI_Finalize would wait for unreachable ranks
    measuring = leaders({int(rank): found["machine"] for rank, found in records.items()})
    figures = steps.take("links", lambda: ranks.measure(measuring))
    steps.take("figures", lambda: ranks.collect(measuring, figures))


def _start() -> dict[str, Any]:
    from mpi4py import MPI

    world = MPI.COMM_WORLD
    return {"rank": world.Get_rank(), "size": world.Get_size()}


def _account(ranks: Ranks, records: Mapping[int, Any]) -> Callable[[int], Any]:
    """Returns the ranks received from, and those whose files in the checkpoint folder are seen."""
    seen = {
        rank: os.path.exists(found["file"]) for rank, found in records.items() if found.get("file")
    }
    account = {"received": sorted(records), "sees": sorted(r for r, there in seen.items() if there)}
    whole = len(records) == ranks.size
    return lambda to: account if whole or to != 0 else {**account, "records": dict(records)}


def _everyone(ranks: Ranks, accounts: Mapping[int, Any]) -> bool:
    everyone = list(range(ranks.size))
    return sorted(accounts) == everyone and all(
        a["received"] == everyone for a in accounts.values()
    )


def leaders(machines: Mapping[int, str]) -> list[int]:
    """Returns the first rank of each machine; all ranks if there is only one machine."""
    first: dict[str, int] = {}
    for rank in sorted(machines):
        first.setdefault(machines[rank], rank)
    return sorted(machines) if len(first) == 1 else sorted(first.values())


def rounds(members: Sequence[int]) -> list[list[Pair]]:
    """Returns all pairs, in rounds in which no member is in two (the circle method)."""
    ring: list[int | None] = [*members, *([None] * (len(members) % 2))]
    found = []
    for _ in range(len(ring) - 1):
        half = len(ring) // 2
        across = zip(ring[:half], reversed(ring[half:]), strict=True)
        found.append([(min(a, b), max(a, b)) for a, b in across if a is not None and b is not None])
        ring = [ring[0], ring[-1], *ring[1:-1]]
    return found


def _looks_at_progress(takes: float, limit_seconds: float) -> int:
    """Returns the number of looks at each way to wait, of which one lasts four messages."""
    most = limit_seconds / 3 / max(2 * 4 * takes, 1e-9)
    return min(max(int(most), 1), _LOOKS_AT_PROGRESS)


class Ranks:
    """The ranks of the launch, as seen by one of them.

    Args:
        limit_seconds: the longest wait for an answer.
        begin: called with a description of each step as it starts.
    """

    def __init__(self, limit_seconds: float, begin: Callable[[str], None]):
        from mpi4py import MPI

        self._mpi, self._world = MPI, MPI.COMM_WORLD
        self._limit, self._begin = limit_seconds, begin
        self.rank, self.size = self._world.Get_rank(), self._world.Get_size()

    def exchange(self, tag: int, message: Any) -> dict[int, Any]:
        """Sends a message to all others; returns what arrived within the limit, by its sender.

        Args:
            tag: of these messages.
            message: the message; either a function of the receiver, or the same for all.
        """
        of = message if callable(message) else lambda _: message
        others = [rank for rank in range(self.size) if rank != self.rank]
        texts = {rank: json.dumps(of(rank)).encode() for rank in others}
        sending = {r: self._world.Isend([t, self._mpi.BYTE], r, tag) for r, t in texts.items()}
        came, end, pause = {self.rank: of(self.rank)}, time.monotonic() + self._limit, 1e-4
        while len(came) < self.size and time.monotonic() < end:
            status = self._mpi.Status()
            found = self._world.Improbe(self._mpi.ANY_SOURCE, tag, status)
            if found:
                room = bytearray(status.Get_count(self._mpi.BYTE))
                self.wait(found.Irecv([room, self._mpi.BYTE]))
                came[status.Get_source()] = json.loads(room)
                pause = 1e-4
            else:
                time.sleep(pause)
                pause = min(2 * pause, 0.01)
        for rank in came:
            if rank != self.rank:
                self.wait(sending[rank])
        return dict(sorted(came.items()))

    def wait(self, *requests: Any, limit_seconds: float | None = None) -> None:
        """Tests requests until all are done: at first without a pause, then less and less often.

        Raises:
            TimeoutError: the limit has passed.
        """
        limit = self._limit if limit_seconds is None else limit_seconds
        begin, pause, left = time.perf_counter(), 1e-5, list(requests)
        while left:
            left = [request for request in left if not request.Test()]
            passed = time.perf_counter() - begin
            if passed > limit:
                raise TimeoutError(f"no answer within {limit:g} s")
            if left and passed > _SPIN_SECONDS:
                time.sleep(pause)
                pause = min(2 * pause, 1e-3)

    def send(self, to: int, tag: int, numbers: bytes | bytearray) -> None:
        """Sends bytes."""
        self.wait(self._world.Isend([numbers, self._mpi.BYTE], to, tag))

    def receive(self, source: int, tag: int, count: int) -> bytearray:
        """Waits for `count` bytes."""
        room = bytearray(count)
        self.wait(self._world.Irecv([room, self._mpi.BYTE], source, tag))
        return room

    def measure(self, members: Sequence[int]) -> list[dict[str, Any]]:
        """Measures the links to all partners; returns the figures of those with a higher number."""
        figures = []
        if self.rank not in members:
            return figures
        for number, pairs in enumerate(rounds(members)):
            self._begin(f"round {number + 1} of the links")
            for pair in pairs:
                if self.rank in pair:
                    found = self._measure_pair(pair, progress=number == 0 and pair[0] == 0)
                    if self.rank == pair[0]:
                        figures.append(found)
        return figures

    def _measure_pair(self, pair: Pair, *, progress: bool) -> dict[str, Any]:
        """Returns the figures of a pair, or the reason why there are none."""
        other = pair[1] if self.rank == pair[0] else pair[0]
        try:
            latency = self._latency(other)
            rate = self._rate(other)
            found = {"pair": pair, "latency_seconds": latency, "bytes_per_second": rate}
            if progress:
                found["hidden"] = self._hidden(other, rate)
        except (TimeoutError, self._mpi.Exception) as error:
            return {"pair": pair, "error": str(error)}
        return found

    def _latency(self, other: int) -> float:
        """Returns half of the median round trip of a few bytes, in seconds."""
        took = []
        for _ in range(_TRIPS):
            begin = time.perf_counter()
            if self.rank < other:
                self.send(other, LINK, b"ping....")
                self.receive(other, LINK, 8)
            else:
                self.receive(other, LINK, 8)
                self.send(other, LINK, b"pong....")
            took.append(time.perf_counter() - begin)
        return statistics.median(took[_TRIPS // 4 :]) / 2

    def _rate(self, other: int) -> float:
        """Returns bytes per second of single messages in the slower direction, on both ranks.

        The size grows until a message takes long enough. The first rank of the pair measures the
        time.
        """
        size, best, looks, first = _FIRST_BYTES, 0.0, 0, self.rank < other
        data, room = memoryview(bytearray(b"\1") * _MOST_BYTES), bytearray(b"\1") * _MOST_BYTES
        while looks < _LOOKS:
            forth = self._one_way(other, first, data[:size], memoryview(room)[:size])
            back = self._one_way(other, not first, data[:size], memoryview(room)[:size])
            slower = max(forth, back)
            if size < _MOST_BYTES and slower < _LONG_ENOUGH_SECONDS:
                size *= 2
            else:
                best = max(best, size / slower)
                looks += 1 if slower < 1 else _LOOKS
            looks, size, best = self._follow(other, first, (looks, size, best))
        return best

    def _follow(self, other: int, first: bool, own: tuple) -> tuple:
        """Sends the values of a pair's first rank to the second; returns them on both."""
        if first:
            self.send(other, LINK, f"{json.dumps(own):<80}".encode())
            return own
        return tuple(json.loads(self.receive(other, LINK, 80)))

    def _one_way(self, other: int, sends: bool, data: memoryview, room: memoryview) -> float:
        """Returns seconds of one message with its acknowledgement, as this rank measures them."""
        arriving = None
        if not sends:
            arriving = self._world.Irecv([room, self._mpi.BYTE], other, BULK)
        self._meet(other)
        begin = time.perf_counter()
        if arriving is None:
            going = self._world.Isend([data, self._mpi.BYTE], other, BULK)
            self.wait(going)
            self.receive(other, LINK, 1)
        else:
            self.wait(arriving)
            self.send(other, LINK, b".")
        return time.perf_counter() - begin

    def _meet(self, other: int) -> None:
        """Waits until both ranks of a pair have arrived."""
        room = bytearray(1)
        self.wait(
            self._world.Irecv([room, self._mpi.BYTE], other, LINK),
            self._world.Isend([b".", self._mpi.BYTE], other, LINK),
        )

    def _hidden(self, other: int, rate: float) -> dict[str, float]:
        """Returns the share of a message, each way, that moved in a time without calls to MPI.

        The first rank of the pair decides the message's size and duration. A slow link gets fewer
        looks: all of them together take at most a third of the limit, or one look each.
        """
        self._begin("the hidden part of a message")
        size = int(min(max(rate * _LONG_ENOUGH_SECONDS, 2**20), _MOST_BYTES))
        size = int(self._follow(other, self.rank < other, (size,))[0])
        shares = {}
        takes = min(self._away(other, size, 0.0, None) for _ in range(_LOOKS))
        (takes,) = self._follow(other, self.rank < other, (takes,))
        looks = _looks_at_progress(takes, self._limit)
        for name, thread in (("nobody", None), ("a thread", threading.Thread)):
            exposed = min(self._away(other, size, 3 * takes, thread) for _ in range(looks))
            shares[name] = max(0.0, 1 - exposed / takes)
        return shares

    def _away(self, other: int, size: int, pause: float, thread: Any) -> float:
        """Returns seconds left to wait after a pause in which a thread, or nobody, waited."""
        data, room = bytearray(size), bytearray(size)
        self._meet(other)
        requests = [
            self._world.Irecv([room, self._mpi.BYTE], other, BULK),
            self._world.Isend([data, self._mpi.BYTE], other, BULK),
        ]
        waiting = thread(target=self.wait, args=requests, daemon=True) if thread else None
        if waiting:
            waiting.start()
        time.sleep(pause)
        begin = time.perf_counter()
        if waiting:
            waiting.join(self._limit)
        self.wait(*([] if waiting else requests))
        return time.perf_counter() - begin

    def collect(self, members: Sequence[int], figures: list[dict[str, Any]]) -> list[Any]:
        """Collects all figures on the first rank; the others leave when it has them."""
        most = self._limit * (len(members) + 1)
        if self.rank == 0:
            found = list(figures)
            for member in members[1:]:
                found += self._figures_of(member, most)
            going = [
                self._world.Isend([b".", self._mpi.BYTE], r, LEAVE) for r in range(1, self.size)
            ]
            self.wait(*going)
            return found
        if self.rank in members:
            text = json.dumps(figures).encode()
            self.send(0, FIGURES, len(text).to_bytes(8, "big"))
            self.send(0, FIGURES, text)
        self._patiently(self._world.Irecv([bytearray(1), self._mpi.BYTE], 0, LEAVE), most)
        return []

    def _figures_of(self, member: int, most: float) -> list[Any]:
        size = bytearray(8)
        self._patiently(self._world.Irecv([size, self._mpi.BYTE], member, FIGURES), most)
        return json.loads(self.receive(member, FIGURES, int.from_bytes(size, "big")))

    def _patiently(self, request: Any, most: float) -> None:
        """Waits longer than the limit, but notes repeatedly that the wait goes on."""
        end = time.monotonic() + most
        while time.monotonic() < end:
            self._begin("waiting for the others' links")
            try:
                return self.wait(request, limit_seconds=self._limit / 2)
            except TimeoutError:
                continue
        raise TimeoutError(f"the links were not measured within {most:g} s")
