"""Starts MPI and waits for all ranks of a launch, with a limit, naming those that are missing."""

from __future__ import annotations

import atexit
import contextlib
import faulthandler
import json
import logging
import os
import socket
import sys
import time
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import numpy as np

from .._base.errors import NodeError
from .._launch import witness
from .._launch.early_failure import note_meeting
from .._launch.environment import (
    all_on_this_host,
    launched_rank,
    launched_ranks,
    left_over,
    rank_above,
    survives_deaths,
    to_start_mpi,
)
from .abort import end_job
from .between import failure_of
from .messages import dead_ranks
from .names import names_of
from .requests import allgather_bytes, as_bytes, finish, poll

log = logging.getLogger("jdaso")

_RENDEZVOUS = "128k"  # UCX's own choice is some 2 MB over TCP, and slow (docs/launching.md)
_SHARED_MEMORY = "/dev/shm"
_LEAST_SHARED_BYTES = 16 * 2**20
_WARN_SECONDS = 30.0
_ROLL_SECONDS = 2.0
_DEATH_SECONDS = 1.0  # MPI may name the failed rank only a moment after a call has failed
_ROLL_TAG = 32_109  # on the user's communicator, once its session is given up; tags go to 32767


def rank_prefix() -> str:
    """The prefix of messages before MPI assigns the rank."""
    return f"[rank {launched_rank()} of {launched_ranks()}, host {socket.gethostname()}]"


def start_mpi(timeout_seconds: float) -> Any:
    """mpi4py's `MPI`, started; None if the program has already ended MPI.

    Its first import calls MPI_Init, which waits for all ranks of the launch. MPI_Init holds
    Python's lock and no Python runs meanwhile, so the fault handler enforces the limit: it prints
    "Timeout" and a traceback that ends here, and ends the process with status 1. Before that, this
    rank's witness reports the wait.

    UCX, if MPI uses it, is set to let the kernel move messages of `_RENDEZVOUS` bytes or more.

    Raises:
        ImportError, RuntimeError: there is no MPI library.
        NodeError: MPI takes this process for the rank that started it, or was already ended.
    """
    several = launched_ranks() > 1
    if several:
        witness.start(rank_prefix(), timeout_seconds, one_host=all_on_this_host())
        _warn_of_little_shared_memory()
    first = several and not _is_initialized()
    if first:
        os.environ.setdefault("UCX_RNDV_THRESH", _RENDEZVOUS)
        faulthandler.dump_traceback_later(timeout_seconds, exit=True, file=2)  # standard error
    try:
        MPI = _initialized()
    finally:
        if first:
            faulthandler.cancel_dump_traceback_later()
        if several:
            witness.note_started()
    if MPI.Is_finalized():
        if several:
            raise NodeError(
                f"{rank_prefix()} The program has called MPI.Finalize(), and MPI cannot be started "
                "again. Make the Session before that, and leave MPI.Finalize() to Python's exit."
            )
        return None
    _refuse_part_of(MPI, rank_above())
    return MPI


def _is_initialized() -> bool:
    module = sys.modules.get("mpi4py.MPI")
    return module is not None and module.Is_initialized()


def _initialized() -> Any:
    """mpi4py's `MPI`, initialized even if ``mpi4py.rc.initialize`` is False."""
    with to_start_mpi():
        from mpi4py import MPI

        if not MPI.Is_initialized():
            MPI.Init_thread(MPI.THREAD_MULTIPLE)
            atexit.register(_finalize)  # mpi4py finalizes MPI only if it initialized MPI itself
    return MPI


def _finalize() -> None:
    from mpi4py import MPI, rc

    if rc.finalize is not False and not MPI.Is_finalized():
        MPI.Finalize()


def _refuse_part_of(MPI: Any, above: tuple[int, int] | None) -> None:
    """Raises if MPI takes this process for the rank that started it."""
    if above is None or MPI.COMM_WORLD.Get_size() == 1:
        return
    raise NodeError(
        f"[host {socket.gethostname()}, process {os.getpid()}] Rank {above[0]} (process {above[1]})"
        " started this process, and MPI takes it for that rank: it was forked, or has imported "
        "mpi4py.MPI. A session here would act as that rank. Start a fresh Python "
        "(subprocess, or multiprocessing's spawn) and do not import mpi4py.MPI before the Session: "
        "then it is one node."
    )


def why_alone() -> str:
    """The reason why this process is a single node although it may look like one of several."""
    if (above := rank_above()) is not None:
        return f"rank {above[0]} (process {above[1]}) started this process, which is not a rank"
    if found := left_over():
        return f"{found} is left in the environment, but its launcher no longer runs"
    module = sys.modules.get("mpi4py.MPI")
    return "the program has ended MPI" if module is not None and module.Is_finalized() else ""


def _warn_of_little_shared_memory() -> None:
    """Warns if MPI may end by SIGBUS, without a message of its own."""
    try:
        about = os.statvfs(_SHARED_MEMORY)
    except OSError:
        return
    free = about.f_bavail * about.f_frsize
    if free < _LEAST_SHARED_BYTES:
        log.warning(
            "%s %s has %.1f MB free. MPI keeps the messages between the ranks of a host there, "
            "and may end with a bus error. Remove files of ended jobs there, or give the container "
            "more (docker run --shm-size=1g).",
            rank_prefix(),
            _SHARED_MEMORY,
            free / 1e6,
        )


class _Roll:
    """Checks, once the limit has passed, which ranks have reached the start; then the job ends.

    Nodes that are waiting here answer. A node that has ended, or is elsewhere in its program, does
    not.
    """

    def __init__(self, comm: Any):
        self._comm, self._here = comm, {comm.Get_rank()}
        self._sent: list[Any] = []
        self._asked: set[int] = set()

    def look(self) -> None:
        """Receives the other nodes' questions and answers."""
        from mpi4py import MPI

        with contextlib.suppress(MPI.Exception):  # a failed rank: the awaited request reports it
            self._take()

    def _take(self) -> None:
        from mpi4py import MPI

        status = MPI.Status()
        while (message := self._comm.Improbe(MPI.ANY_SOURCE, _ROLL_TAG, status)) is not None:
            source = status.Get_source()
            message.Recv([bytearray(1), MPI.BYTE])
            self._here.add(source)
            self._ask(source)

    def missing(self) -> list[int]:
        """Nodes that do not answer within `_ROLL_SECONDS`."""
        everyone = range(self._comm.Get_size())
        for node in everyone:
            self._ask(node)

        def all_here() -> bool:
            self.look()
            return len(self._here) == len(everyone)

        poll(all_here, limit_seconds=_ROLL_SECONDS)
        return [node for node in everyone if node not in self._here]

    def _ask(self, node: int) -> None:
        from mpi4py import MPI

        if node != self._comm.Get_rank() and node not in self._asked:
            self._asked.add(node)
            self._sent.append(self._comm.Isend([b".", MPI.BYTE], node, _ROLL_TAG))


def everyones(
    about: dict[str, Any], comm: Any, timeout_seconds: float, ranks_per_node: int = 1
) -> list[dict[str, Any]]:
    """The texts of all ranks, by non-blocking calls only, so that a missing rank causes no hang.

    Raises:
        NodeError: not all arrived in time; the message names those that did not.
    """
    from mpi4py import MPI

    note_meeting()
    begin, roll, warn_at = time.monotonic(), _Roll(comm), [_WARN_SECONDS]
    names = partial(names_of, ranks_per_node=ranks_per_node)
    kind = "node" if ranks_per_node == 1 else "rank"
    name = f"[{kind} {comm.Get_rank()} of {comm.Get_size()}, host {about['host']}]"

    def look() -> None:
        waited = time.monotonic() - begin
        if waited > _ROLL_SECONDS:  # before that, no node has given up
            roll.look()
            if (failure := failure_of(comm)) is not None:
                end_job()
                raise NodeError(f"{name} A session could not start: {failure}")
        if waited > warn_at[0]:
            warn_at[0] *= 2
            text = "%s Waits for all nodes to make their Session, for %.0f s now (longest: %g s)."
            log.warning(text, name, waited, timeout_seconds)

    def wait(request: Any, *data: Any) -> None:
        if not finish(request, look, *data, limit_seconds=timeout_seconds):
            end_job()
            raise NodeError(
                f"{name} Waited {timeout_seconds:g} s to start a session, and not all nodes came: "
                f"{_absent(roll.missing(), names)}"
            )

    def gather(array: np.ndarray) -> np.ndarray:
        rows = np.zeros((comm.Get_size(), *array.shape), array.dtype)
        wait(own.Iallgather(as_bytes(array), as_bytes(rows)), array, rows)
        return rows

    try:
        own, request = comm.Idup()
        wait(request)
        texts = allgather_bytes(gather, json.dumps(about).encode())
    except MPI.Exception as error:
        end_job()
        raise NodeError(f"{name} A session could not start: {_why(error, comm, names)}") from error
    own.Free()
    return [json.loads(text) for text in texts]


def _why(error: Exception, comm: Any, names: Callable[[Iterable[int]], str]) -> str:
    """The cause of an error in MPI: the rank that failed, if MPI reports it."""
    can_tell = survives_deaths()
    dead = can_tell and poll(lambda: dead_ranks(comm), limit_seconds=_DEATH_SECONDS)
    return f"{names(dead)} failed." if dead else f"{error}."


def _absent(ranks: list[int], names: Callable[[Iterable[int]], str]) -> str:
    if not ranks:
        return "all answer now. Some were late: raise Session(timeout_seconds=...)."
    return (
        f"{names(ranks)} did not. Check whether it failed, ended, or is "
        "stuck or busy before its Session; raise Session(timeout_seconds=...) if it is only slow."
    )
