"""Checks whether another node's process runs although the node sends no heartbeats.

C code that holds Python's lock keeps a node's threads from sending. The witness, a process beside
each rank (`witness_process`), does not need that lock: nodes that wait for a silent node query its
witness over TCP. The answer distinguishes three cases: a process that runs C code, one that is
stopped, and one that has ended. If a host does not answer, the state of its process stays unknown.

The witness never reads what is sent to it. A client gets the token, a letter and the CPU seconds,
which are of no further use. The token is not a secret; it shows that an answer comes from this
run's witness, and not from a later process at the same port.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import math
import os
import secrets
import select
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path

log = logging.getLogger("jdaso")

Address = tuple[str, int, str]
"""The address of a rank's witness: host, port, and the token that starts its answers."""

SWITCH = "JDASO_WITNESS"
"""Environment variable: "off" if ranks are to have no witness."""

_PROGRAM = Path(__file__).with_name("witness_process.py")
_START_SECONDS = 10.0
_WARN_SECONDS = 30.0
_ASK_SECONDS = 5.0
_ANSWER_SECONDS = 3.0
_FRESH_SECONDS = 15.0
_ASKED_AT_ONCE = 16
_REFUSALS = 2
"""Consecutive refusals after which a witness that has answered before counts as ended."""

_BUSY = 0.2
"""The least share of a core used by a process that computes."""

_own: dict[int, tuple[subprocess.Popen, tuple[int, str] | None]] = {}  # by process id


def start(name: str, limit_seconds: float | None = None, *, one_host: bool = False) -> None:
    """Starts this process's witness, if it has none yet; if that fails, the rank has no witness.

    Args:
        name: the prefix of this rank's messages.
        limit_seconds: the time limit for starting MPI; the witness reports the wait before that.
            None if MPI has started.
        one_host: whether all ranks are on this host; then no other host can connect.
    """
    if os.getpid() in _own or not sys.executable or getattr(sys, "frozen", False):
        return
    if os.environ.get(SWITCH, "").lower() in ("off", "0", "no", "false"):
        return
    token, interface = secrets.token_hex(8), "127.0.0.1" if one_host else ""
    warn_seconds = min(_WARN_SECONDS, 0.8 * (limit_seconds or math.inf))
    about = [token, str(os.getpid()), name, str(warn_seconds), interface]
    try:
        process = subprocess.Popen(
            [sys.executable, "-I", "-S", str(_PROGRAM), *about],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
    except OSError as error:
        log.debug("%s no witness: %s", name, error)
        return
    _own[os.getpid()] = process, _port(process, token)
    if limit_seconds is None:
        note_started()


def _port(process: subprocess.Popen, token: str) -> tuple[int, str] | None:
    assert process.stdout is not None
    with process.stdout as said:
        ready = select.poll()  # takes descriptors of any number
        ready.register(said, select.POLLIN)
        if ready.poll(1000 * _START_SECONDS):
            text = said.readline().strip()
            if text.isdigit():
                return int(text), token
    process.kill()
    return None


def note_started() -> None:
    """Notifies the witness that MPI has started, so that it no longer reports on the start."""
    process, _ = _own.get(os.getpid(), (None, None))
    if process is not None and process.stdin is not None:
        with contextlib.suppress(OSError):
            os.write(process.stdin.fileno(), b".")


def own_port() -> tuple[int, str] | None:
    """Port and token of this process's witness; None if it has none."""
    return _own.get(os.getpid(), (None, None))[1]


@dataclasses.dataclass
class _Known:
    """Facts about one node's process.

    Attributes:
        state: its last state, a letter.
        at: time of the last answer; 0 before the first.
        busy: whether the process computed between the last two answers.
        cpu_seconds: CPU time at the last answer.
        refusals: connections refused since the last answer.
        asked_at: time of the last query.
    """

    state: str = "?"
    at: float = 0.0
    busy: bool = False
    cpu_seconds: float = 0.0
    refusals: int = 0
    asked_at: float = 0.0


class Witnesses:
    """The witnesses of all nodes, as queried by one node.

    Args:
        addresses: the address of each node's witness, None for a node without one.

    On failure: nothing is raised. A witness that cannot be queried leaves its node unknown.
    """

    def __init__(self, addresses: Sequence[Address | None]):
        self._addresses = list(addresses)
        self._known: dict[int, _Known] = {}
        self._under_way: set[int] = set()

    def ask(self, node: int) -> None:
        """Queries a node's witness in a thread; does nothing soon after the last query."""
        known, now = self._known.setdefault(node, _Known()), time.monotonic()
        address = self._addresses[node] if node < len(self._addresses) else None
        if address is None or node in self._under_way or len(self._under_way) >= _ASKED_AT_ONCE:
            return
        if known.asked_at and now - known.asked_at < _ASK_SECONDS:
            return
        known.asked_at = now
        self._under_way.add(node)
        thread = threading.Thread(target=self._ask, args=(node, address, known), daemon=True)
        try:
            thread.start()
        except RuntimeError:  # Python is shutting down and starts no more threads
            self._under_way.discard(node)

    def _ask(self, node: int, address: Address, known: _Known) -> None:
        host, port, token = address
        try:
            with socket.create_connection((host, port), _ANSWER_SECONDS) as connection:
                said = connection.makefile("rb").readline(256).decode().split()
            if len(said) == 3 and said[0] == token:
                self._note(known, said[1], float(said[2]))
        except ConnectionRefusedError:
            known.refusals += 1
        except (OSError, ValueError) as error:
            log.debug("no answer of node %d's witness: %s", node, error)
        finally:
            self._under_way.discard(node)

    def _note(self, known: _Known, state: str, cpu_seconds: float) -> None:
        now = time.monotonic()
        span, used = now - known.at, cpu_seconds - known.cpu_seconds
        known.busy = bool(known.at) and used > _BUSY * span
        known.state, known.at, known.cpu_seconds, known.refusals = state, now, cpu_seconds, 0

    def runs(self, node: int) -> bool:
        """Returns whether the node's process runs, as of an answer in the last 15 seconds."""
        known = self._known.get(node, _Known())
        return self._fresh(known) and known.state not in "?tTZX"

    def has_ended(self, node: int) -> bool:
        """Returns whether the process has ended; its witness ends with it."""
        known = self._known.get(node, _Known())
        return bool(known.at) and known.refusals >= _REFUSALS

    def describe(self, node: int) -> str:
        """Describes the process of a node that is silent."""
        known = self._known.get(node, _Known())
        if self.has_ended(node):
            return "its process has ended without closing its session (os._exit, or killed)"
        if self._fresh(known) and known.state in "tT":
            return "its process is stopped (SIGSTOP, a debugger, a suspended job)"
        if not self.runs(node):
            return "stopped, failed, or unreachable"
        doing = "computes" if known.busy else "waits"
        if known.state == "D":
            doing = "waits for a disk or a file system"
        return f"its process is there and {doing}, but C code holds Python's lock"

    def _fresh(self, known: _Known) -> bool:
        return bool(known.at) and time.monotonic() - known.at < _FRESH_SECONDS
