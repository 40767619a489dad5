"""Threads that take turns on a virtual clock: a run is the same each time, and takes no real time.

Only one thread runs, until it pauses, waits or ends. Then the thread that is due next runs, and the
clock jumps to its time. `Clock.patched` replaces Python's own modules with those below in all
modules of jdaso. Threads that do not belong to the clock still use Python's own.
"""

from __future__ import annotations

import contextlib
import functools
import heapq
import importlib
import itertools
import os
import queue
import random
import sys
import threading
import time
import traceback
from collections import deque

import pytest

REAL_SECONDS = 20.0
"""The longest real time that a thread may run without a pause; then it waits for something else."""

_LATE = ("jdaso._engines.mpi4py", "jdaso._engines.surviving", "jdaso._nodes.mail")
"""Modules that jdaso imports lazily, which would be too late to be patched."""


class Halted(BaseException):
    """Ends a thread whose rank was killed, or whose run is over."""


class _Worker:
    """A Python thread, which is reused: creating one takes a hundred times as long."""

    def __init__(self):
        self._call, self._called = None, threading.Lock()
        self._called.acquire()
        thread = threading.Thread(target=self._run, name="virtual", daemon=True)
        thread.start()
        self.ident = thread.ident

    def work(self, call):
        self._call = call
        self._called.release()

    def _run(self):
        while True:
            self._called.acquire()
            self._call()
            self._call = None
            _idle.append(self)


_idle: list[_Worker] = []


class Thread:
    """`threading.Thread`, on a rank: that of the creating thread, or a given one."""

    def __init__(
        self, clock, group=None, target=None, name=None, args=(), kwargs=None, daemon=None
    ):
        del group, daemon
        self.clock, self.name = clock, name
        self.rank = clock.running.rank if clock.running else None
        self._call = lambda: target(*args, **(kwargs or {}))
        self.baton, self.turn, self.ended = threading.Lock(), 0, False
        self.stuck = self.lent = False
        self._waiting = []
        self.baton.acquire()
        self.ident = None

    def start(self):
        self.clock.threads.append(self)
        worker = _idle.pop() if _idle else _Worker()
        self.ident = worker.ident
        worker.work(self._run)
        self.clock.wake(self)

    def is_alive(self):
        return not self.ended

    def join(self, timeout=None):
        self.clock.wait_for(lambda: self.ended, timeout, self._waiting)

    def check(self):
        """Raises `Halted` if this thread's rank was killed, or if the run is over."""
        if self.clock.over or self.rank in self.clock.dead:
            raise Halted

    def _run(self):
        self.baton.acquire()
        try:
            self.check()
            self._call()
        except Halted:
            pass
        except BaseException:  # no caller could catch it
            self.clock.defects.append(f"{self.name} ended:\n{traceback.format_exc()}")
        self.ended = True
        self.clock.leave(self)


class Clock:
    """The time, and the order of turns.

    Args:
        seed: draws the order of threads that are due at the same time; None keeps their order.
        least_pause: the shortest pause, so that long waits poll less often.
        limit_seconds: time after which the run is over.

    Attributes:
        now: seconds.
        offsets: seconds by which the clock of a rank is ahead.
        dead: ranks that were killed.
        defects: errors that must never happen; `World.run` raises them.
    """

    def __init__(self, seed=None, least_pause=0.01, limit_seconds=1000.0):
        self.now = self.begin = 1000.0
        self.offsets, self.dead, self.frozen = {}, {}, {}
        self.threads, self.defects, self.over = [], [], False
        self.running = None
        self.programs = []
        self._order = None if seed is None else random.Random(seed)
        self._numbers, self._due, self._pauses = itertools.count(), [], 0
        self._least_pause, self._limit = least_pause, self.begin + limit_seconds
        self._all_ended = threading.Lock()
        self._all_ended.acquire()

    def run(self, programs):
        """Starts these threads, and returns when all have ended."""
        self.programs = list(programs)
        with self.patched():
            for program in self.programs:
                program.start()
            self._hand_over()
            seen = -1
            while not self._all_ended.acquire(timeout=REAL_SECONDS):
                if self._pauses != seen:  # a busy machine plays long times slowly
                    seen = self._pauses
                    continue
                stack = traceback.format_stack(sys._current_frames()[self.running.ident])
                raise AssertionError(f"{self.running.name} does not pause:\n{''.join(stack)}")

    @contextlib.contextmanager
    def patched(self):
        """Patches jdaso's modules with this time, these threads and these queues."""
        mine = {time: Time(self), threading: Threading(self), queue: Queues(self), os: Os(self)}
        for name in _LATE:
            importlib.import_module(name)
        with pytest.MonkeyPatch.context() as patch:
            for name, module in list(sys.modules.items()):
                if name.partition(".")[0] == "jdaso":
                    for word, value in list(vars(module).items()):
                        if any(value is real for real in mine):
                            patch.setattr(module, word, mine[value])
                        for part in vars(value).values() if isinstance(value, type) else ():
                            if isinstance(part, functools.cached_property):
                                # Before Python 3.12 it locks, and the computing thread may pause.
                                patch.setattr(part, "lock", contextlib.nullcontext(), raising=False)
            yield

    def current(self):
        """The thread whose turn it is, if called from that thread."""
        mine = self.running
        asks = mine is not None and (mine.lent or mine.ident == threading.get_ident())
        return mine if asks else None

    @contextlib.contextmanager
    def lent(self):
        """Marks that this thread waits for JAX, whose threads call back in its place."""
        mine = self.current()
        mine.lent = True
        try:
            yield
        finally:
            mine.lent = False

    def time(self):
        mine = self.current()
        return self.now + (self.offsets.get(mine.rank, 0.0) if mine else 0.0)

    def sleep(self, seconds):
        self.pause(max(seconds, self._least_pause))

    def at(self, seconds, act):
        """Calls `act` at `seconds` after the begin."""
        self._push(self.begin + seconds, None, act)

    def kill(self, rank):
        """Kills a rank: its threads do nothing more."""
        self.dead.setdefault(rank, self.now)
        self._wake_all(rank)

    def freeze(self, rank, seconds):
        """Freezes a rank for so long, as after SIGSTOP."""
        self.frozen[rank] = self.now + seconds
        self._end_if_through()

    def end(self):
        """Ends the run for all."""
        self.over = True
        self._wake_all()

    def forever(self):
        """Blocks the calling thread for ever."""
        self.current().stuck = True
        self._end_if_through()
        while True:
            self.pause(None)

    def pause(self, seconds):
        """Gives other threads their turns: for `seconds`, or until woken if None."""
        mine = self.current()
        if mine is None:
            return
        mine.check()
        self._pauses += 1
        if seconds is not None:
            self._push(self.now + seconds, mine)
        if (other := self._next()) is not mine:
            self.running = other
            other.baton.release()
            mine.baton.acquire()
        mine.check()

    def wake(self, thread):
        """Makes a thread due now."""
        self._push(self.now, thread)

    def wait_for(self, done, timeout, waiting):
        """Waits until `done` or a timeout; others wake it through `waiting`. Returns `done()`."""
        until = None if timeout is None else self.now + timeout
        while not done():
            left = None if until is None else until - self.now
            if left is not None and left <= 0:
                return False
            mine = self.current()
            assert mine is not None, "a thread of nobody's waits on this clock"
            waiting.append(mine)
            try:
                self.pause(None if left is None else max(left, self._least_pause))
            finally:
                waiting.remove(mine)
        return True

    def wake_all_of(self, waiting):
        for thread in list(waiting):
            self.wake(thread)

    def leave(self, thread):
        """Handles the end of a thread: the next thread gets its turn."""
        self.threads.remove(thread)
        self.wake_all_of(thread._waiting)
        self._end_if_through()
        self._hand_over()

    def _end_if_through(self):
        """Ends the run when no program can go any further."""
        gone = [rank for rank, until in self.frozen.items() if until == float("inf")]
        if all(x.ended or x.stuck or x.rank in gone for x in self.programs):
            self.end()

    def _hand_over(self):
        if not self.threads:
            self.running = None
            self._all_ended.release()
            return
        self.running = self._next()
        self.running.baton.release()

    def _wake_all(self, rank=None):
        for thread in self.threads:
            if rank is None or thread.rank == rank:
                self.wake(thread)

    def _push(self, at, thread, act=None):
        tie = 0.0 if self._order is None else self._order.random()
        turn = thread.turn if thread is not None else 0
        heapq.heappush(self._due, (at, tie, next(self._numbers), thread, turn, act))

    def _next(self):
        """The thread with the next turn; advances the clock."""
        while True:
            if not self._due:
                self.defects.append("All wait for ever:\n" + self._stacks())
                self.end()
            at, _, _, thread, turn, act = heapq.heappop(self._due)
            if thread is None:
                self.now = max(self.now, at)
                act()
                continue
            if turn != thread.turn or thread.ended:
                continue
            until = self.frozen.get(thread.rank, 0.0)
            halts = self.over or thread.rank in self.dead
            if until > max(self.now, at) and not halts:
                if until < float("inf"):
                    self._push(until, thread)
                continue
            thread.turn += 1  # makes all other wake-ups of the thread obsolete
            self.now = max(self.now, at)
            if self.now > self._limit and not self.over:
                self.end()
            return thread

    def _stacks(self):
        frames = sys._current_frames()
        stacks = [(x.name, traceback.format_stack(frames[x.ident])[-6:]) for x in self.threads]
        return "\n".join(f"{name}:\n{''.join(stack)}" for name, stack in stacks)


class Time:
    """The module `time`."""

    def __init__(self, clock):
        self._clock = clock

    def __getattr__(self, name):
        mine = self._clock.current() is not None
        if name in ("monotonic", "perf_counter", "time"):
            return self._clock.time if mine else getattr(time, name)
        return self._clock.sleep if mine and name == "sleep" else getattr(time, name)


class Os:
    """The module `os`, of which a yield of the core is a pause."""

    def __init__(self, clock):
        self._clock = clock

    def __getattr__(self, name):
        yields = name == "sched_yield" and self._clock.current() is not None
        return (lambda: self._clock.sleep(0.0)) if yields else getattr(os, name)


class Threading:
    """The module `threading`."""

    def __init__(self, clock):
        self._clock = clock

    def __getattr__(self, name):
        here = {"Thread": Thread, "Event": Event, "Lock": Lock, "Condition": Condition}
        if name not in here or self._clock.current() is None:
            return getattr(threading, name)
        return lambda *args, **kwargs: here[name](self._clock, *args, **kwargs)


class Queues:
    """The module `queue`."""

    def __init__(self, clock):
        self._clock = clock

    def __getattr__(self, name):
        if name != "SimpleQueue" or self._clock.current() is None:
            return getattr(queue, name)
        return lambda: SimpleQueue(self._clock)


class Event:
    """`threading.Event`."""

    def __init__(self, clock):
        self._clock, self._is_set, self._waiting = clock, False, []

    def is_set(self):
        return self._is_set

    def set(self):
        self._is_set = True
        self._clock.wake_all_of(self._waiting)

    def clear(self):
        self._is_set = False

    def wait(self, timeout=None):
        return self._clock.wait_for(self.is_set, timeout, self._waiting)


class Lock:
    """`threading.Lock`."""

    def __init__(self, clock):
        self._clock, self._held, self._waiting = clock, False, []

    def acquire(self, blocking=True, timeout=-1):
        limit = 0 if not blocking else None if timeout < 0 else timeout
        if not self._clock.wait_for(lambda: not self._held, limit, self._waiting):
            return False
        self._held = True
        return True

    def release(self):
        self._held = False
        self._clock.wake_all_of(self._waiting)

    def locked(self):
        return self._held

    __enter__ = acquire

    def __exit__(self, *error):
        self.release()


class Condition(Lock):
    """`threading.Condition`."""

    def __init__(self, clock):
        super().__init__(clock)
        self._notified, self._waits = 0, []

    def wait(self, timeout=None):
        before = self._notified
        self.release()
        found = self._clock.wait_for(lambda: self._notified > before, timeout, self._waits)
        self.acquire()
        return found

    def notify_all(self):
        self._notified += 1
        self._clock.wake_all_of(self._waits)


class SimpleQueue:
    """`queue.SimpleQueue`."""

    def __init__(self, clock):
        self._clock, self._items, self._waiting = clock, deque(), []

    def put(self, item):
        self._items.append(item)
        self._clock.wake_all_of(self._waiting)

    def get(self, block=True, timeout=None):
        if not self._clock.wait_for(lambda: self._items, timeout if block else 0, self._waiting):
            raise queue.Empty
        return self._items.popleft()
