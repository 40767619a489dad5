"""Returns whether another node's process runs, where the node itself sends no heartbeats.

C code that holds Python's lock keeps a node's threads from sending anything. A process beside each
rank (`_witness_process`) needs no lock of the rank's: it is asked over TCP, by who waits for a node
that is silent. What it says tells three cases apart that are alike otherwise: a process that runs
C code, one that is stopped, and one that has ended. A host that does not answer says nothing.

It trusts nobody: what is sent to it is never read. Who connects learns the token, a letter and the
CPU seconds, and can do nothing with them. The token is no secret; it shows that an answer is from
this run's witness, and not from a later process at the same port.
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
"""The address of a rank's witness: host, port, and the token that its answers begin with."""

SWITCH = "JDASO_WITNESS"
"""A variable of the environment: "off" where ranks are to have no witness."""

_PROGRAM = Path(__file__).with_name("_witness_process.py")
_START_SECONDS = 10.0
_WARN_SECONDS = 30.0
_ASK_SECONDS = 5.0
_ANSWER_SECONDS = 3.0
_FRESH_SECONDS = 15.0
_ASKED_AT_ONCE = 16
_REFUSALS = 2
"""Refusals one after the other, by a witness that has answered before: then it has ended."""

_BUSY = 0.2
"""The least share of a core that a process uses which computes."""

_own: dict[int, tuple[subprocess.Popen, tuple[int, str] | None]] = {}  # by this process


def start(name: str, limit_seconds: float | None = None, *, one_host: bool = False) -> None:
    """Starts this process's witness, if it has none yet; where that fails it goes without one.

    Args:
        name: how this rank's messages begin.
        limit_seconds: after which a start of MPI is given up; it is reported before. None where MPI
            has started.
        one_host: whether all ranks are on this host; no other host can then connect.
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
        if select.select([said], [], [], _START_SECONDS)[0]:
            text = said.readline().strip()
            if text.isdigit():
                return int(text), token
    process.kill()
    return None


def note_started() -> None:
    """MPI has started: the witness says nothing more of it."""
    process, _ = _own.get(os.getpid(), (None, None))
    if process is not None and process.stdin is not None:
        with contextlib.suppress(OSError):
            os.write(process.stdin.fileno(), b".")


def own_port() -> tuple[int, str] | None:
    """Port and token of this process's witness, None where it has none."""
    return _own.get(os.getpid(), (None, None))[1]


@dataclasses.dataclass
class _Known:
    """Facts about one node's process.

    Attributes:
        state: its last state, a letter.
        at: when that was said; 0 before the first answer.
        busy: whether it computed between the last two answers.
        cpu_seconds: it had used by then.
        refusals: since the last answer.
        asked_at: when the last question began.
    """

    state: str = "?"
    at: float = 0.0
    busy: bool = False
    cpu_seconds: float = 0.0
    refusals: int = 0
    asked_at: float = 0.0


class Witnesses:
    """Those of all nodes, as one node asks them.

    Args:
        addresses: of each node's, None where it has none.

    On failure: nothing is raised. A witness that cannot be asked leaves its node unknown.
    """

    def __init__(self, addresses: Sequence[Address | None]):
        self._addresses = list(addresses)
        self._known: dict[int, _Known] = {}
        self._under_way: set[int] = set()

    def ask(self, node: int) -> None:
        """Asks a node's witness, in a thread; does nothing where it was asked just now."""
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
        except RuntimeError:  # Python is at its end and starts no more threads
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
        """Returns whether the node's process runs, by an answer of the last seconds."""
        known = self._known.get(node, _Known())
        return self._fresh(known) and known.state not in "?tTZX"

    def has_ended(self, node: int) -> bool:
        """Returns whether the process has ended: its witness ends with it."""
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
            return "stopped, dead, or cut off"
        doing = "computes" if known.busy else "waits"
        if known.state == "D":
            doing = "waits for a disk or a file system"
        return f"its process is there and {doing}, but C code holds Python's lock"

    def _fresh(self, known: _Known) -> bool:
        return bool(known.at) and time.monotonic() - known.at < _FRESH_SECONDS
