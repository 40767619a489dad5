"""Nodes as threads of one process, which communicate over a scripted network; no MPI.

    world = World(3, ulfm=True)
    world.kill(1, before="Iallgather", nth=2)
    first, dead, third = world.run(lambda rank, comm: ...)

Each rank has a communicator with the mpi4py calls that jdaso uses. A script sets which message is
late or lost, and which rank fails or freezes at which call. The network is stricter than MPI: data
must not change before it is sent, and calls and sizes that do not match end the test.

Messages of one pair and tag keep their order, all others do not. A lost message blocks those behind
it, as on a stuck link. Collectives move as messages do: data in flight still arrives after its
sender has failed. MPI's progress needs no calls here.
"""

from __future__ import annotations

import dataclasses
import functools
import os
import random
import socket
import sys
from typing import Any
from unittest import mock

import mpi4py
import numpy as np
import pytest
from virtual_clock import Clock, Event, Halted, Thread

from jdaso._launch import environment as _environment
from jdaso._launch import witness as _witness
from jdaso._mpi import abort as _abort
from jdaso._mpi import between as _between
from jdaso._nodes import exit as _exit

NEVER = float("inf")
HOSTS = "abcdefgh"
"""Each rank has its own host."""

EAGER_BYTES = 1 << 16
"""Larger messages count as sent only once they are received."""

_SECONDS, _NOTICED_SECONDS = 1e-3, 3e-3


@dataclasses.dataclass
class Outcome:
    """The outcome of a rank's program.

    Attributes:
        fate: "ended", "died", or "cut off" if the run was over before.
        result: its return value.
        error: its exception.
        seconds: time of its end, since the begin of the run.
    """

    fate: str = "cut off"
    result: Any = None
    error: Exception | None = None
    seconds: float = NEVER

    @property
    def text(self):
        return str(self.error or "")


@dataclasses.dataclass
class _Link:
    """The time that matching messages take; None: they never arrive."""

    seconds: float | None
    source: int | None = None
    dest: int | None = None
    tag: int | None = None
    comm: str | None = None
    nth: int | None = None
    since: float = 0.0
    until: float = NEVER
    seen: int = 0

    def fits(self, source, dest, tag, comm, seconds):
        asked = (self.source, source), (self.dest, dest), (self.tag, tag), (self.comm, comm)
        if any(mine not in (None, its) for mine, its in asked):
            return False
        if not self.since <= seconds < self.until:
            return False
        self.seen += 1
        return self.nth in (None, self.seen)


@dataclasses.dataclass
class _Event:
    """An event before, or after, a rank's nth call of an operation."""

    rank: int
    act: Any
    call: str | None
    nth: int
    comm: str | None
    after: bool
    seen: int = 0

    def is_due(self, rank, call, comm):
        if rank != self.rank or self.call not in (None, call) or self.comm not in (None, comm):
            return False
        self.seen += 1
        return self.seen == self.nth


class World:
    """The ranks of a launch.

    Args:
        ranks: their number.
        ulfm: whether MPI reports failed ranks. Otherwise they are silent.
        seed: draws the delays of messages and the order of threads; None: all delays are equal.
        settings: of `Clock`.

    Attributes:
        clock: the time.
        aborted: the rank that ended the job, if one did.
        calls: the ranks' MPI calls: ``(rank, operation, communicator)``.
    """

    def __init__(self, ranks, *, ulfm=False, seed=None, **settings):
        self.size, self.ulfm = ranks, ulfm
        self.clock = Clock(seed=seed, **settings)
        self.aborted, self.calls = None, []
        self.links: list[_Link] = []
        self._events: list[_Event] = []
        self._draw = None if seed is None else random.Random(seed)
        self.noticed = {}
        self.mpi = Library(self)
        self._whole = Lines(self, "world", tuple(range(ranks)))
        self.comms = [Comm(self._whole, rank) for rank in range(ranks)]

    def kill(self, rank, *, before=None, after=None, nth=1, comm=None, at=None, losing=False):
        """Makes a rank fail at its nth such call (any call if neither is given), or at a time.

        Args:
            rank: the rank.
            before: an operation, "Iallgather"; the rank fails before the call.
            after: an operation; the rank fails once the call has begun.
            nth: counted from 1.
            comm: the communicator's name.
            at: seconds after the begin.
            losing: whether the rank's messages in flight are lost.
        """

        def die():
            self.clock.kill(rank)
            for lines in self._whole.family() if losing else ():
                lines.lose(rank)

        self.do(die, rank, before=before, after=after, nth=nth, comm=comm, at=at)

    def freeze(self, rank, seconds=NEVER, **when):
        """A rank freezes; for `when` see `kill`."""
        self.do(lambda: self.clock.freeze(rank, seconds), rank, **when)

    def do(self, act, rank=None, *, before=None, after=None, nth=1, comm=None, at=None):
        """Calls `act` at that call or time; see `kill`."""
        if at is not None:
            self.clock.at(at, act)
        else:
            called = after if after is not None else before
            self._events.append(_Event(rank, act, called, nth, comm, after is not None))

    def delay(self, seconds, **which):
        """Sets the delay of messages: of a source, to a dest, with a tag, the nth, since, until."""
        self.links.insert(0, _Link(seconds, **which))

    def lose(self, **which):
        """Loses messages; see `delay`."""
        self.delay(None, **which)

    def notice(self, rank, seconds):
        """Sets how long after a death MPI reports it to a rank."""
        self.noticed[rank] = seconds

    def run(self, program, at_exit=lambda: None):
        """Runs ``program(rank, comm)``, then `at_exit`, on each rank; returns the outcomes."""
        outcomes = [Outcome() for _ in range(self.size)]

        def start(rank):
            outcome = outcomes[rank]
            try:
                outcome.result = program(rank, self.comms[rank])
            except Halted:
                outcome.fate = "died" if rank in self.clock.dead else "cut off"
                raise
            except Exception as error:
                outcome.error = error
            outcome.fate = "ended"
            outcome.seconds = self.clock.now - self.clock.begin
            at_exit()

        programs = []
        for rank in range(self.size):
            thread = Thread(self.clock, target=start, args=(rank,), name=f"rank {rank}")
            thread.rank = rank
            programs.append(thread)
        doomed = dict(_exit._state, installed=True, began=True, bereft=False)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(_exit, "_state", PerRank(self.clock, lambda: dict(doomed)))
            patch.setattr(_abort, "_state", PerRank(self.clock, lambda: {"ends": False}))
            patch.setattr(_exit, "_open", PerRank(self.clock, dict))
            for sessions in ("_failed", "_settled"):
                patch.setattr(_exit, sessions, PerRank(self.clock, list))
            patch.setattr(_between, "_failures", PerRank(self.clock, dict))
            for event in ("_leaves", "_has_left"):
                patch.setattr(_exit, event, PerRank(self.clock, lambda: Event(self.clock)))
            patch.setattr(mpi4py, "MPI", self.mpi, raising=False)
            patch.setitem(sys.modules, "mpi4py.MPI", self.mpi)
            patch.setattr(socket, "gethostname", self._host)
            patch.setattr(
                _witness, "start", lambda *about, **more: None
            )  # the hosts are not real either
            patch.setenv(_environment.RANK, "")
            patch.setenv("PMIX_NAMESPACE", "played")
            with mock.patch.dict(os.environ, self._environment(), clear=True):
                self.clock.run(programs)
        if self.clock.defects:
            raise AssertionError("\n".join(self.clock.defects))
        return outcomes

    def untaken(self, comm=None):
        """Messages that were never received, on one communicator or all: source, dest, tag."""
        family = [lines for lines in self._whole.family() if comm in (None, lines.name)]
        return [x for lines in family for x in lines.untaken()]

    def _environment(self):
        """The environment variables as set by the launcher of a rank; a session adds to them."""
        kept = _environment.alone(os.environ)
        kept.pop(_environment.RANK, None)
        ulfm = {"OMPI_MCA_mpi_ft_enable": str(int(self.ulfm))}
        return {**kept, **ulfm, "PMI_SIZE": str(self.size), "PMI_PORT": "in memory"}

    def _host(self):
        mine = self.clock.current()
        return HOSTS[mine.rank] if mine else "here"

    # For communicators.

    def called(self, rank, call, comm, after=False):
        """Counts a rank's MPI call, and triggers scripted events."""
        if not after:
            self.calls.append((rank, call, comm))
        happens = [x for x in self._events if x.after == after and x.is_due(rank, call, comm)]
        for event in happens:
            event.act()
        if happens or (self._draw is not None and not after):
            self.clock.pause(0.0)

    def arrival(self, source, dest, tag, comm):
        """Arrival time of a message sent now."""
        if source == dest:
            return self.clock.now
        passed = self.clock.now - self.clock.begin
        link = next((x for x in self.links if x.fits(source, dest, tag, comm, passed)), None)
        if link is not None:
            return NEVER if link.seconds is None else self.clock.now + link.seconds
        drawn = 1.0 if self._draw is None else self._draw.expovariate(1 / 20)
        return self.clock.now + _SECONDS * drawn

    def knows_dead(self, rank, other):
        """Returns whether MPI has reported another rank's death to a rank."""
        died = self.clock.dead.get(other, NEVER)
        return self.ulfm and self.clock.now >= died + self.noticed.get(rank, _NOTICED_SECONDS)

    def abort(self, rank):
        self.aborted = rank
        self.clock.end()
        self.clock.pause(0.0)


class PerRank:
    """State that each process has for itself: a dict or a list per rank."""

    def __init__(self, clock, make):
        self._clock, self._make, self._of = clock, make, {}

    def _mine(self):
        mine = self._clock.current()
        return self._of.setdefault(mine and mine.rank, self._make())

    def __getattr__(self, name):
        return getattr(self._mine(), name)

    def __getitem__(self, key):
        return self._mine()[key]

    def __setitem__(self, key, value):
        self._mine()[key] = value

    def __iter__(self):
        return iter(self._mine())

    def __len__(self):
        return len(self._mine())


class Lines:
    """State shared by a communicator's members.

    Attributes:
        members: ranks of the world, by their ranks in the communicator.
    """

    def __init__(self, world, name, members):
        self.world, self.name, self.members = world, name, members
        self.letters = []  # not received yet, in the order in which they were sent
        self.waiting = [[] for _ in members]  # receives that match no message yet
        self.meetings: dict[tuple[str, int], Meeting] = {}
        self.counts = {}  # of collectives, by kind and member
        self.last = {}  # arrival of the last message, by pair and tag
        self.revoked = [NEVER] * len(members)
        self.known = [set() for _ in members]  # deaths that a member has acknowledged
        self.children = []

    def family(self):
        """Returns this communicator and all that were made from it."""
        return [self, *(x for child in self.children for x in child.family())]

    def child(self, members):
        self.children.append(Lines(self.world, f"{self.name}.{len(self.children)}", members))
        return self.children[-1]

    def arrival(self, source, dest, tag):
        """Arrival time of a message that a member sends now; each kind's messages stay in order."""
        ends = self.members[source], self.members[dest]
        at = self.world.arrival(*ends, tag, self.name)
        at = self.last[source, dest, tag] = max(at, self.last.get((source, dest, tag), 0.0))
        return at

    def lose(self, rank):
        """Loses all messages of a rank that are still in flight."""
        now = self.world.clock.now
        for letter in self.letters:
            if self.members[letter.source] == rank and letter.arrives > now:
                letter.arrives = NEVER
        for meeting in self.meetings.values():
            meeting.lose(rank, now)

    def untaken(self):
        return [(self.members[x.source], self.members[x.dest], x.tag) for x in self.letters]

    def meeting(self, kind, member, *about):
        """The collective to which a member's next call belongs."""
        number = self.counts[kind, member] = self.counts.get((kind, member), 0) + 1
        found = self.meetings.setdefault((kind, number), Meeting(self, about))
        if found.about != about:
            said = f"{self.name}: rank {self.members[member]} calls {about}, others {found.about}"
            self.world.clock.defects.append(said)
        return found

    def dead(self):
        """Dead members, once MPI has reported them to all."""
        clock, seconds = self.world.clock, max(_NOTICED_SECONDS, *self.world.noticed.values(), 0.0)
        died = {k: clock.dead.get(rank, NEVER) for k, rank in enumerate(self.members)}
        return {k for k, at in died.items() if clock.now >= at + seconds}

    def knows_dead(self, member):
        """Members whose death MPI has reported to this member."""
        mine = self.members[member]
        return {k for k, rank in enumerate(self.members) if self.world.knows_dead(mine, rank)}


@dataclasses.dataclass(eq=False)
class Letter:
    """A message in flight."""

    source: int
    dest: int
    tag: int
    memory: np.ndarray
    arrives: float
    taken: bool = False

    def __post_init__(self):
        self.payload = self.memory.tobytes()


class Meeting:
    """One collective: the members that entered it, their data, and its arrival times."""

    def __init__(self, lines, about):
        self.lines, self.about = lines, about
        self.parts, self.arrives = {}, {}
        self.result = None  # decided once for all members

    def enter(self, member, part):
        self.parts[member] = part
        for other in range(len(self.lines.members)):
            self.arrives[member, other] = self.lines.arrival(member, other, self.about[0])

    def has_come(self, source, member):
        return self.lines.world.clock.now >= self.arrives.get((source, member), NEVER)

    def lose(self, rank, now):
        for (source, dest), at in self.arrives.items():
            if self.lines.members[source] == rank and at > now:
                self.arrives[source, dest] = NEVER

    def decide(self, result):
        """Returns ``result()`` once all living members have entered, else None; the same on all."""
        if self.result is None and len(self.parts | dict.fromkeys(self.lines.dead())) == len(
            self.lines.members
        ):
            self.result = (result(),)
        return None if self.result is None else self.result[0]


def _operation(method):
    """Counts a call, for scripts."""

    @functools.wraps(method)
    def call(self, *args, **kwargs):
        self.lines.world.called(self.world_rank, method.__name__, self.lines.name)
        if self.freed:
            self.lines.world.clock.defects.append(f"{self.lines.name} was freed")
        result = method(self, *args, **kwargs)
        self.lines.world.called(self.world_rank, method.__name__, self.lines.name, after=True)
        return result

    return call


class Comm:
    """A communicator, as seen by one of its members."""

    def __init__(self, lines, member):
        self.lines, self.member, self.freed = lines, member, False
        self.open = []  # requests
        self.world_rank = lines.members[member]

    def Get_rank(self):
        return self.member

    def Get_size(self):
        return len(self.lines.members)

    def Set_errhandler(self, handler):
        pass

    def Free(self):
        self.freed = True

    @_operation
    def Isend(self, buffer, dest, tag=0):
        self._refuse({dest})
        lines, memory = self.lines, as_bytes(buffer)
        letter = Letter(self.member, dest, tag, memory, lines.arrival(self.member, dest, tag))
        lines.letters.append(letter)
        return Sending(self, letter)

    @_operation
    def Irecv(self, buffer, source, tag=0):
        self._refuse({source} if not self._letter(source, tag) else set())
        request = Receiving(self, as_bytes(buffer), source, tag)
        self.lines.waiting[self.member].append(request)
        return request

    @_operation
    def Improbe(self, source=None, tag=None, status=None):
        """The next message; None if there is none."""
        unknown = self.lines.knows_dead(self.member) - self.lines.known[self.member]
        self._refuse(unknown)
        heads = {}
        for letter in self.lines.letters:
            if letter.dest == self.member and not letter.taken:
                if source in (None, letter.source) and tag in (None, letter.tag):
                    heads.setdefault(letter.source, letter)
        come = [x for x in heads.values() if x.arrives <= self.lines.world.clock.now]
        if not come:
            return None
        letter = min(come, key=lambda x: x.arrives)
        letter.taken = True
        if status is not None:
            status.letter = letter
        return Message(self, letter)

    @_operation
    def Iallgather(self, send, recv):
        received = as_bytes(recv)
        rows = np.split(received, self.Get_size())
        sent = rows[self.member] if send is Library.IN_PLACE else as_bytes(send)

        def give(parts):
            for k, row in enumerate(rows):
                row[:] = parts[k]

        everyone = range(self.Get_size())
        return self._collective("Iallgather", sent.size, sent, everyone, give)

    @_operation
    def Ialltoall(self, send, recv):
        sent, received = as_bytes(send), as_bytes(recv)

        def give(parts):
            for k, row in enumerate(np.split(received, self.Get_size())):
                row[:] = np.split(parts[k], self.Get_size())[self.member]

        everyone = range(self.Get_size())
        return self._collective("Ialltoall", sent.size, sent, everyone, give)

    @_operation
    def Ibcast(self, buffer, root=0):
        memory = as_bytes(buffer)

        def give(parts):
            memory[:] = parts[root]

        return self._collective("Ibcast", (memory.size, root), memory, [root], give)

    @_operation
    def Idup(self):
        everyone = range(self.Get_size())
        nothing = np.zeros(0, np.uint8)
        request = self._collective("Idup", 0, nothing, everyone, lambda parts: None)
        meeting = request.meeting
        if meeting.result is None:
            meeting.result = (self.lines.child(self.lines.members),)
        return Comm(meeting.result[0], self.member), request

    @_operation
    def Split(self, color, key):
        """Blocks until all members call it."""
        meeting = self.lines.meeting("collective", self.member, "Split")
        meeting.enter(self.member, (color, key))
        while len(meeting.parts) < self.Get_size():
            self.lines.world.clock.pause(_SECONDS)
        groups = {}
        for member in sorted(meeting.parts, key=lambda member: (meeting.parts[member], member)):
            groups.setdefault(meeting.parts[member][0], []).append(self.lines.members[member])
        made = meeting.decide(lambda: {c: self.lines.child(tuple(m)) for c, m in groups.items()})
        lines = made[color]
        return Comm(lines, lines.members.index(self.world_rank))

    @_operation
    def Iagree(self, flag):
        meeting = self.lines.meeting("Iagree", self.member, "Iagree")
        meeting.enter(self.member, bool(flag[0]))
        return Agreeing(self, meeting, flag)

    @_operation
    def Shrink(self):
        """Blocks until all living members call it."""
        meeting = self.lines.meeting("Shrink", self.member, "Shrink")
        meeting.enter(self.member, True)

        def made():
            dead = self.lines.dead()
            living = [self.lines.members[k] for k in sorted(meeting.parts) if k not in dead]
            return self.lines.child(tuple(living))

        while (lines := meeting.decide(made)) is None:
            self.lines.world.clock.pause(_SECONDS)
        return Comm(lines, lines.members.index(self.world_rank))

    @_operation
    def Revoke(self):
        for other in range(self.Get_size()):
            at = self.lines.arrival(self.member, other, "Revoke")
            self.lines.revoked[other] = min(self.lines.revoked[other], at)

    def Is_revoked(self):
        return self.lines.world.clock.now >= self.lines.revoked[self.member]

    def Get_group(self):
        return Group(self.lines.members)

    def Get_failed(self):
        dead = self.lines.knows_dead(self.member)
        return Group(tuple(self.lines.members[k] for k in sorted(dead)))

    def Ack_failed(self):
        self.lines.known[self.member] |= self.lines.knows_dead(self.member)

    def Abort(self, status=1):
        self.lines.world.abort(self.world_rank)

    def _collective(self, name, about, sent, needed, give):
        self._refuse(set())
        meeting = self.lines.meeting("collective", self.member, name, about)
        meeting.enter(self.member, sent.copy())
        return Collective(self, meeting, needed, give)

    def _refuse(self, needed):
        """Raises if the communicator was revoked, or if a needed member has failed."""
        if self.Is_revoked():
            raise Error(Library.ERR_REVOKED)
        if needed & self.lines.knows_dead(self.member):
            raise Error(Library.ERR_PROC_FAILED)

    def _letter(self, source, tag):
        fits = (x for x in self.lines.letters if (x.source, x.dest) == (source, self.member))
        return next((x for x in fits if x.tag == tag and not x.taken), None)

    def meet(self):
        """Matches receives with messages, both in the order in which they were begun."""
        waiting = self.lines.waiting[self.member]
        for request in list(waiting):
            if (letter := self._letter(request.source, request.tag)) is not None:
                letter.taken, request.letter = True, letter
                waiting.remove(request)


class Request:
    """An operation in flight; `done` may raise, and delivers its results once."""

    def __init__(self, comm):
        self.comm, self.over = comm, False
        comm.open.append(self)

    def Test(self):
        """Moves all requests, as MPI does, and writes arrived data to the memory of each."""
        self.comm.open = [request for request in self.comm.open if not request.moved()]
        if not self.moved():
            self.comm._refuse(self.needs())
        return self.over

    def moved(self):
        self.over = self.over or self.done()
        return self.over

    def needs(self):
        """Members whose death ends the request."""
        return set()


class Sending(Request):
    def __init__(self, comm, letter):
        super().__init__(comm)
        self.letter = letter

    def done(self):
        letter, clock = self.letter, self.comm.lines.world.clock
        if letter.memory.size <= EAGER_BYTES:
            return True
        if self.letter in self.comm.lines.letters or clock.now < letter.arrives:
            return False
        if letter.memory.tobytes() != letter.payload:
            clock.defects.append(f"what {self.comm.lines.name} sends was changed before it went")
        return True

    def needs(self):
        return {self.letter.dest}


class Receiving(Request):
    def __init__(self, comm, memory, source, tag):
        super().__init__(comm)
        self.memory, self.source, self.tag, self.letter = memory, source, tag, None

    def done(self):
        self.comm.meet()
        letter = self.letter
        if letter is None or letter.arrives > self.comm.lines.world.clock.now:
            return False
        _take(self.comm, letter, self.memory)
        return True

    def needs(self):
        on_its_way = self.letter is not None and self.letter.arrives < NEVER
        return set() if on_its_way else {self.source}


class Collective(Request):
    def __init__(self, comm, meeting, needed, give):
        super().__init__(comm)
        self.meeting, self.needed, self.give = meeting, needed, give

    def done(self):
        if not all(self.meeting.has_come(k, self.comm.member) for k in self.needed):
            return False
        self.give(self.meeting.parts)
        return True

    def needs(self):
        arrives = self.meeting.arrives
        return {k for k in self.needed if arrives.get((k, self.comm.member), NEVER) == NEVER}


class Agreeing(Request):
    """An agreement, which ends for all living members in the same way."""

    def __init__(self, comm, meeting, flag):
        super().__init__(comm)
        self.meeting, self.flag = meeting, flag

    def done(self):
        lines, parts = self.comm.lines, self.meeting.parts

        def result():
            dead = lines.dead()
            acknowledged = all(dead <= lines.known[k] for k in parts if k not in dead)
            return all(parts.values()), acknowledged, lines.world.clock.now

        found = self.meeting.decide(result)
        if found is None or lines.world.clock.now < found[2] + _SECONDS:
            return False
        self.flag[0] = found[0]
        self.over = True
        if not found[1]:
            raise Error(Library.ERR_PROC_FAILED)
        return True

    def moved(self):
        return self.over

    def Test(self):
        return self.over or self.done()


class Message:
    """A message that was probed."""

    def __init__(self, comm, letter):
        self._comm, self._letter = comm, letter

    def Recv(self, buffer):
        _take(self._comm, self._letter, as_bytes(buffer))


class Status:
    letter: Letter

    def Get_source(self):
        return self.letter.source

    def Get_tag(self):
        return self.letter.tag

    def Get_count(self, datatype):
        return len(self.letter.payload)


class Group:
    """A group of ranks."""

    def __init__(self, ranks):
        self.ranks = ranks

    def Get_size(self):
        return len(self.ranks)

    def Free(self):
        pass

    @staticmethod
    def Translate_ranks(group, ranks, other):
        chosen = group.ranks if ranks is None else [group.ranks[k] for k in ranks]
        return [other.ranks.index(rank) for rank in chosen]


class Error(Exception):
    """The error that mpi4py raises."""

    def __init__(self, code):
        super().__init__(f"MPI error {code}")
        self._code = code

    def Get_error_class(self):
        return self._code


class Library:
    """`mpi4py.MPI`."""

    BYTE, ERRORS_RETURN, ANY_SOURCE = "byte", "errors return", None
    ANY_TAG = None
    IN_PLACE = "in place"
    ERR_PROC_FAILED, ERR_PROC_FAILED_PENDING, ERR_REVOKED, ERR_TRUNCATE = 75, 76, 78, 15
    THREAD_MULTIPLE = 3
    Exception, Group, Status = Error, Group, Status

    def __init__(self, world):
        self._world = world

    @property
    def COMM_WORLD(self):
        return self._world.comms[self._world.clock.current().rank]

    def Is_initialized(self):
        return True

    def Is_finalized(self):
        return False

    def Query_thread(self):
        return self.THREAD_MULTIPLE

    def Get_library_version(self):
        return "in memory"


def as_bytes(buffer):
    """The memory of an mpi4py buffer: an array, or a list that begins with one."""
    data, *more = buffer if isinstance(buffer, list | tuple) else [buffer]
    if isinstance(data, np.ndarray):
        assert data.flags.c_contiguous, "MPI moves runs of memory"
        whole = data.reshape(-1).view(np.uint8) if data.size else np.zeros(0, np.uint8)
    else:
        whole = np.frombuffer(data, np.uint8)
    return whole[: more[0]] if len(more) == 2 else whole


def _take(comm, letter, memory):
    comm.lines.letters.remove(letter)
    if len(letter.payload) != memory.size:
        lines = comm.lines
        said = f"{lines.name}: {len(letter.payload)} bytes came for {memory.size}, tag {letter.tag}"
        lines.world.clock.defects.append(said)
        raise Error(Library.ERR_TRUNCATE)
    memory[:] = np.frombuffer(letter.payload, np.uint8)
