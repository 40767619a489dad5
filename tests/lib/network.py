"""Nodes as threads of one process, which talk over a network that a script drives; no MPI.

    world = World(3, ulfm=True)
    world.kill(1, before="Iallgather", nth=2)
    first, dead, third = world.run(lambda rank, comm: ...)

Each rank has a communicator with what jdaso calls of mpi4py. A script says which message is late or
lost, and which rank dies or stands still where. It is stricter than MPI: what is sent may not be
changed before it has gone, and calls and sizes that do not fit each other end the test.

Messages of one pair and tag keep their order, all others do not. One that is lost holds up what is
behind it, as on a link that is stuck. Collectives move as messages do: what has left still comes,
though its sender dies. MPI's progress needs no calls here.
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

from jdaso import _environment, _exit, _witness

NEVER = float("inf")
HOSTS = "abcdefgh"
"""Each rank has a host of its own."""

EAGER_BYTES = 1 << 16
"""Larger messages have gone only when they were received."""

_SECONDS, _NOTICED_SECONDS = 1e-3, 3e-3


@dataclasses.dataclass
class Outcome:
    """What became of a rank's program.

    Attributes:
        fate: "ended", "died", or "cut off": the run was over before.
        result: what it returned.
        error: what it raised.
        seconds: when, after the begin.
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
    """For messages that fit, how long they take; None: for ever."""

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
    """Happens before, or after, a rank's nth call of an operation."""

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
        ranks: how many.
        ulfm: whether MPI tells of deaths. Else nothing is heard of the dead.
        seed: draws how long messages take, and the order of threads; None: all take equally long.
        settings: of `Clock`.

    Attributes:
        clock: the time.
        aborted: the rank that ended the job, if one did.
        calls: what ranks asked of MPI: ``(rank, operation, communicator)``.
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
        """A rank dies, by its nth such call (of any where None), or at a time.

        Args:
            rank: which.
            before: an operation, "Iallgather".
            after: the same; it has been begun.
            nth: counted from 1.
            comm: the communicator's name.
            at: seconds after the begin.
            losing: whether what it sent and has not come is lost.
        """

        def die():
            self.clock.kill(rank)
            for lines in self._whole.family() if losing else ():
                lines.lose(rank)

        self.do(die, rank, before=before, after=after, nth=nth, comm=comm, at=at)

    def freeze(self, rank, seconds=NEVER, **when):
        """A rank stands still; see `kill`."""
        self.do(lambda: self.clock.freeze(rank, seconds), rank, **when)

    def do(self, act, rank=None, *, before=None, after=None, nth=1, comm=None, at=None):
        """Calls `act` then; see `kill`."""
        if at is not None:
            self.clock.at(at, act)
        else:
            called = after if after is not None else before
            self._events.append(_Event(rank, act, called, nth, comm, after is not None))

    def delay(self, seconds, **which):
        """Messages take so long: of a source, to a dest, with a tag, the nth, since, until."""
        self.links.insert(0, _Link(seconds, **which))

    def lose(self, **which):
        """Messages never come; see `delay`."""
        self.delay(None, **which)

    def notice(self, rank, seconds):
        """MPI tells a rank of deaths so long after they happen."""
        self.noticed[rank] = seconds

    def run(self, program, at_exit=lambda: None):
        """What becomes of ``program(rank, comm)`` on each rank; then, there too, of `at_exit`."""
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
        doomed = dict(_exit._state, installed=True, began=True, doomed=False, bereft=False)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(_exit, "_state", PerRank(self.clock, lambda: dict(doomed)))
            patch.setattr(_exit, "_open", PerRank(self.clock, dict))
            patch.setattr(_exit, "_failed", PerRank(self.clock, list))
            for event in ("_leaves", "_has_left"):
                patch.setattr(_exit, event, PerRank(self.clock, lambda: Event(self.clock)))
            patch.setattr(mpi4py, "MPI", self.mpi, raising=False)
            patch.setitem(sys.modules, "mpi4py.MPI", self.mpi)
            patch.setattr(socket, "gethostname", self._host)
            patch.setattr(
                _witness, "start", lambda *about, **more: None
            )  # their hosts are none either
            patch.setenv(_environment.RANK, "")
            patch.setenv("PMIX_NAMESPACE", "played")
            with mock.patch.dict(os.environ, self._environment(), clear=True):
                self.clock.run(programs)
        if self.clock.defects:
            raise AssertionError("\n".join(self.clock.defects))
        return outcomes

    def untaken(self, comm=None):
        """What was sent and never received, on one communicator or all: source, dest, tag."""
        family = [lines for lines in self._whole.family() if comm in (None, lines.name)]
        return [x for lines in family for x in lines.untaken()]

    def _environment(self):
        """As the launcher of a rank sets it; a session adds to it."""
        kept = _environment.alone(os.environ)
        kept.pop(_environment.RANK, None)
        ulfm = {"OMPI_MCA_mpi_ft_enable": str(int(self.ulfm))}
        return {**kept, **ulfm, "PMI_SIZE": str(self.size), "PMI_PORT": "in memory"}

    def _host(self):
        mine = self.clock.current()
        return HOSTS[mine.rank] if mine else "here"

    # For communicators.

    def called(self, rank, call, comm, after=False):
        """A rank asks something of MPI."""
        if not after:
            self.calls.append((rank, call, comm))
        happens = [x for x in self._events if x.after == after and x.is_due(rank, call, comm)]
        for event in happens:
            event.act()
        if happens or (self._draw is not None and not after):
            self.clock.pause(0.0)

    def arrival(self, source, dest, tag, comm):
        """When a message comes that leaves now."""
        if source == dest:
            return self.clock.now
        passed = self.clock.now - self.clock.begin
        link = next((x for x in self.links if x.fits(source, dest, tag, comm, passed)), None)
        if link is not None:
            return NEVER if link.seconds is None else self.clock.now + link.seconds
        drawn = 1.0 if self._draw is None else self._draw.expovariate(1 / 20)
        return self.clock.now + _SECONDS * drawn

    def knows_dead(self, rank, other):
        """Whether MPI has told a rank that another died."""
        died = self.clock.dead.get(other, NEVER)
        return self.ulfm and self.clock.now >= died + self.noticed.get(rank, _NOTICED_SECONDS)

    def abort(self, rank):
        self.aborted = rank
        self.clock.end()
        self.clock.pause(0.0)


class PerRank:
    """What each process has for itself: a dict or a list of each rank's."""

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
    """What a communicator's members share.

    Attributes:
        members: ranks of the world, by their ranks in it.
    """

    def __init__(self, world, name, members):
        self.world, self.name, self.members = world, name, members
        self.letters = []  # not received yet, in the order in which they were sent
        self.waiting = [[] for _ in members]  # receives that have met none
        self.meetings: dict[tuple[str, int], Meeting] = {}
        self.counts = {}  # of collectives, by kind and member
        self.last = {}  # when the last one came, by pair and tag
        self.revoked = [NEVER] * len(members)
        self.known = [set() for _ in members]  # deaths that a member has acknowledged
        self.children = []

    def family(self):
        """This one, and all that were made of it."""
        return [self, *(x for child in self.children for x in child.family())]

    def child(self, members):
        self.children.append(Lines(self.world, f"{self.name}.{len(self.children)}", members))
        return self.children[-1]

    def arrival(self, source, dest, tag):
        """When a message comes that a member sends now: none overtakes one of its own kind."""
        ends = self.members[source], self.members[dest]
        at = self.world.arrival(*ends, tag, self.name)
        at = self.last[source, dest, tag] = max(at, self.last.get((source, dest, tag), 0.0))
        return at

    def lose(self, rank):
        """What a rank has sent and has not come never comes."""
        now = self.world.clock.now
        for letter in self.letters:
            if self.members[letter.source] == rank and letter.arrives > now:
                letter.arrives = NEVER
        for meeting in self.meetings.values():
            meeting.lose(rank, now)

    def untaken(self):
        return [(self.members[x.source], self.members[x.dest], x.tag) for x in self.letters]

    def meeting(self, kind, member, *about):
        """The collective that a member's next call belongs to."""
        number = self.counts[kind, member] = self.counts.get((kind, member), 0) + 1
        found = self.meetings.setdefault((kind, number), Meeting(self, about))
        if found.about != about:
            said = f"{self.name}: rank {self.members[member]} calls {about}, others {found.about}"
            self.world.clock.defects.append(said)
        return found

    def dead(self):
        """Members that are dead, as MPI at last tells all."""
        clock, seconds = self.world.clock, max(_NOTICED_SECONDS, *self.world.noticed.values(), 0.0)
        died = {k: clock.dead.get(rank, NEVER) for k, rank in enumerate(self.members)}
        return {k for k, at in died.items() if clock.now >= at + seconds}

    def knows_dead(self, member):
        """Members of which MPI has told this one that they died."""
        mine = self.members[member]
        return {k for k, rank in enumerate(self.members) if self.world.knows_dead(mine, rank)}


@dataclasses.dataclass(eq=False)
class Letter:
    """A message on its way."""

    source: int
    dest: int
    tag: int
    memory: np.ndarray
    arrives: float
    taken: bool = False

    def __post_init__(self):
        self.payload = self.memory.tobytes()


class Meeting:
    """One collective: who has come with what, and when that is where."""

    def __init__(self, lines, about):
        self.lines, self.about = lines, about
        self.parts, self.arrives = {}, {}
        self.result = None  # of what is decided once for all

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
        """``result()``, once all are here who live; None before. The same for all."""
        if self.result is None and len(self.parts | dict.fromkeys(self.lines.dead())) == len(
            self.lines.members
        ):
            self.result = (result(),)
        return None if self.result is None else self.result[0]


def _operation(method):
    """A call that a script counts."""

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
    """A communicator, as one of its members has it."""

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
        """The next message; None where there is none."""
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
        sent, received = as_bytes(send), as_bytes(recv)

        def give(parts):
            for k, row in enumerate(np.split(received, self.Get_size())):
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
        """Blocks."""
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
        """Blocks."""
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
        """Raises where the communicator was revoked, or one who is needed has died."""
        if self.Is_revoked():
            raise Error(Library.ERR_REVOKED)
        if needed & self.lines.knows_dead(self.member):
            raise Error(Library.ERR_PROC_FAILED)

    def _letter(self, source, tag):
        fits = (x for x in self.lines.letters if (x.source, x.dest) == (source, self.member))
        return next((x for x in fits if x.tag == tag and not x.taken), None)

    def meet(self):
        """Receives meet messages, both in the order in which they were begun."""
        waiting = self.lines.waiting[self.member]
        for request in list(waiting):
            if (letter := self._letter(request.source, request.tag)) is not None:
                letter.taken, request.letter = True, letter
                waiting.remove(request)


class Request:
    """What was begun; `done` may raise, and gives its results once."""

    def __init__(self, comm):
        self.comm, self.over = comm, False
        comm.open.append(self)

    def Test(self):
        """Asked of one, MPI moves all: it writes to the memory of each as its data comes."""
        self.comm.open = [request for request in self.comm.open if not request.moved()]
        if not self.moved():
            self.comm._refuse(self.needs())
        return self.over

    def moved(self):
        self.over = self.over or self.done()
        return self.over

    def needs(self):
        """Members whose death ends it."""
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
    """An agreement: it ends for all who live, in the same way."""

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
    """One that was probed."""

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
    """Some ranks."""

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
    """What mpi4py raises."""

    def __init__(self, code):
        super().__init__(f"MPI error {code}")
        self._code = code

    def Get_error_class(self):
        return self._code


class Library:
    """`mpi4py.MPI`."""

    BYTE, ERRORS_RETURN, ANY_SOURCE = "byte", "errors return", None
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
    """The memory of what mpi4py takes: an array, or a list that begins with one."""
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
