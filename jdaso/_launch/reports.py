"""Reports of a rank to the supervisor of its job: its name, its failure, its end, its saves."""

from __future__ import annotations

import atexit
import contextlib
import os
import socket
import sys
import time
from collections.abc import Iterable

from .environment import survives_deaths
from .guard import LAUNCH

PATH = "JDASO_SUPERVISOR"
"""Environment variable of the ranks: the path at which the supervisor on this host listens."""

RANK_MARK = "\x1ejdaso-rank "
"""Start of a report that a supervised rank on another host writes to standard error. It contains a
character that programs do not print, since these bytes are removed from the stream."""

FAILED, THROUGH, AGAIN, ENDS, SAVED, SAVES = "failed", "through", "again", "ends", "saved", "saves"
PROGRESSED = "progressed"
"""Reports of a rank to the supervisor: one message each; after the last one, its signals."""

LIVES_ON = "goes on where others die"
_CONNECT_SECONDS, _PEER_SECONDS = 5.0, 0.5

_to_supervisor: list[socket.socket] = []
_own = {"host": ""}  # as given to `say_rank`
_held: list[int] = []
"""A second descriptor of the connection: Python closes sockets at its end, where the process may
still wait in MPI_Finalize. The kernel closes this one when the process ends."""


def say_rank(node: int | str, host: str) -> None:
    """Reports to a supervisor, if there is one, which process this node is.

    The node is given by its number, or as ``1 (rank 3)`` if nodes have several ranks.

    A supervisor on this host gets the report over a connection that stays open while the process
    runs. Processes that this one starts are not this node and do not get the supervisor's path.
    """
    if not os.environ.get(LAUNCH):
        return
    if _to_supervisor:  # one session after another
        _tell(AGAIN)
        return
    path = os.environ.pop(PATH, None)
    if path is None:  # started by a rank
        return
    _own["host"] = host
    text = f"{RANK_MARK}{node} {os.getpid()} {host}"
    text += f" {LIVES_ON}" * survives_deaths()
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    _to_supervisor.append(connection)
    os.register_at_fork(after_in_child=_forget_supervisor)
    atexit.register(_tell, ENDS)  # not called if the process is killed, nor by `os._exit`
    try:
        _connect(connection, path, text)
        _held.append(os.dup(connection.fileno()))
    except OSError:
        _print(text)


def say_failed(*, peers: bool = False) -> None:
    """Reports to the supervisor that this node failed by itself, not because another node did.

    Args:
        peers: whether the cause may be another rank's failure, as JAX reports it; then the
            supervisor is given a moment to receive that rank's report first.
    """
    if peers and _to_supervisor:
        time.sleep(_PEER_SECONDS)
    _tell(FAILED)


def say_through() -> None:
    """Reports to the supervisor that this node has closed its last open session normally."""
    _tell(THROUGH)


def say_saves(signals: Iterable[int]) -> None:
    """Reports to the supervisor which signals make this node save and end."""
    _tell(" ".join([SAVES, *(str(int(number)) for number in signals)]))


def say_saved() -> None:
    """Reports to the supervisor that this run has saved and stopped on request: exit status 75."""
    _tell(SAVED)


def say_progressed() -> None:
    """Reports to the supervisor that a checkpoint is complete: a restart continues there."""
    _tell(PROGRESSED)


def say_job_saved() -> None:
    """Reports the same from this supervisor to the supervisor that started it."""
    if path := os.environ.get(PATH):
        with contextlib.suppress(OSError):
            with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
                _connect(connection, path, SAVED)


def _tell(what: str) -> None:
    for connection in _to_supervisor:
        try:
            connection.send(what.encode(), socket.MSG_DONTWAIT)
        except OSError:
            _print(f"{RANK_MARK}process {os.getpid()} {_own['host']} {what}")


def _connect(connection: socket.socket, path: str, text: str) -> None:
    connection.settimeout(_CONNECT_SECONDS)  # a stopped supervisor accepts no connection
    connection.connect(path)
    connection.sendall(text.encode())


def _print(text: str) -> None:
    with contextlib.suppress(OSError, ValueError, AttributeError):  # closed, or None
        sys.stderr.flush()
    with contextlib.suppress(OSError):  # wherever the program has put `sys.stderr`
        os.write(2, f"{text}\n".encode())


def _forget_supervisor() -> None:
    """Closes the connection in a forked process, which is not this node and must not hold it."""
    for connection in _to_supervisor:
        connection.close()
    for descriptor in _held:
        os.close(descriptor)
    _to_supervisor.clear()
    _held.clear()
