"""A process beside a rank that reports whether the rank runs while its Python cannot.

Run as a file by `witness.start`, with only the standard library; ends with the rank. Any client
that connects gets one line: a token, the state of the rank's process as in ``/proc/PID/stat``, and
the seconds of CPU time that it has used.
"""

import contextlib
import os
import select
import signal
import socket
import sys
import time
from pathlib import Path

_MPICH = "MPI_LOCALNRANKS", "PMI_SIZE", "PMI_RANK"
_OPEN_MPI = "OMPI_COMM_WORLD_LOCAL_SIZE", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK"
LAUNCHERS = {"hydra_pmi_proxy": _MPICH, "prterun": _OPEN_MPI, "prted": _OPEN_MPI}
"""Processes that start the ranks of a host, with the variables in which they give each rank the
number of ranks on this host, the total number, and its own number."""

_LOOK_SECONDS = 0.25
_READ_SECONDS = 1.0
"""Time for launchers to read the last output; when they end the job they discard the rest."""

_IN_VAIN = 3
"""Consecutive checks, a second apart, that may find a rank missing; one more ends the job."""


def listen(interface: str = "") -> socket.socket:
    """A socket on an interface, or on all if that is empty; the kernel chooses the port."""
    if interface:
        return socket.create_server((interface, 0))
    if socket.has_dualstack_ipv6():
        with contextlib.suppress(OSError):
            return socket.create_server(("", 0), family=socket.AF_INET6, dualstack_ipv6=True)
    return socket.create_server(("", 0))


def state(process: int) -> str:
    """The process's state, a letter, and its CPU seconds; ``? 0`` if the system gives neither."""
    try:
        with open(f"/proc/{process}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
    except OSError:
        return "? 0"
    seconds = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return f"{fields[0].decode()} {seconds:.2f}"


def answer(server: socket.socket, token: str, process: int) -> None:
    """Answers one client."""
    with contextlib.suppress(OSError):
        connection, _ = server.accept()
        with connection:
            connection.settimeout(1.0)
            connection.sendall(f"{token} {state(process)}\n".encode())


def complain(name: str, seconds: float) -> None:
    """Reports that MPI_Init is waiting."""
    tell(
        f"{name} MPI_Init has waited {seconds:.0f} s for all ranks that the launcher started. "
        "Ranks that do not print this have not arrived: they have ended, or are busy or stuck "
        "before their Session.\n"
    )


def tell(text: str) -> None:
    """Writes to standard error if that does not block."""
    if select.select([], [2], [], 0)[1]:
        with contextlib.suppress(OSError):
            os.write(2, text.encode())


def _fields(process: int) -> list[bytes]:
    """State, parent and more of a process, as in ``/proc/PID/stat``."""
    return Path(f"/proc/{process}/stat").read_bytes().rpartition(b")")[2].split()


def _launcher(process: int) -> tuple[int, str]:
    """The nearest process above this one that starts ranks, and its name.

    Raises:
        OSError: no known launcher is among the processes above.
    """
    while True:
        process = int(_fields(process)[1])
        name = Path(f"/proc/{process}/comm").read_text().strip()
        if name in LAUNCHERS:
            return process, name


def _number(process: int, variable: str) -> int:
    """The rank that a process was started as; -1 if it has overwritten its environment."""
    for text in Path(f"/proc/{process}/environ").read_bytes().split(b"\0"):
        if text.startswith(f"{variable}=".encode()):
            return int(text.partition(b"=")[2])
    return -1


def ended_ranks(process: int) -> str:
    """Names the ranks of this host that have ended; empty if none has, or if that is unknown.

    A launcher has one child per rank (the rank, or a script around it), and may have others.
    """
    try:
        launcher, name = _launcher(process)
        size_here, size, rank = LAUNCHERS[name]
        here, everyone = int(os.environ[size_here]), int(os.environ[size])
        children = Path(f"/proc/{launcher}/task/{launcher}/children").read_text().split()
        living = [child for child in map(int, children) if _fields(child)[0] not in b"ZX"]
        if len(living) >= here:
            return ""
        ended = {*range(everyone)} - {_number(child, rank) for child in living}
    except (OSError, ValueError, KeyError):  # a child that is just ending, for example
        return ""
    if len(ended) == here - len(living):
        return f"rank {', '.join(map(str, sorted(ended)))}"
    return f"{here - len(living)} of the {here} ranks of this host"


_FOR_THE_RANK = (
    *(signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2),
    *(signal.SIGXCPU, signal.SIGQUIT, signal.SIGALRM),
)
"""Signals that managers may send to all processes of a job; a rank may handle them and go on."""


def give_up(process: int, name: str, gone: str) -> None:
    """Ends the rank, which waits in MPI_Init for ended ranks; its launcher ends the others."""
    tell(
        f"{name} MPI_Init cannot return: it waits for {gone}, which ended before making a Session "
        "(sys.exit, os._exit, or the end of the program). The job is ended.\n"
    )
    time.sleep(_READ_SECONDS)
    with contextlib.suppress(OSError):
        os.kill(process, signal.SIGKILL)  # C code waits: no Python handler would run


def main(token: str, process: int, name: str, warn_seconds: float, interface: str) -> None:
    """Listens until the rank ends.

    Args:
        token: sent with each answer.
        process: the process id of the rank, which started this process.
        name: the prefix of the rank's messages.
        warn_seconds: time until MPI_Init is reported as waiting; doubles after each report.
        interface: the interface to listen on.
    """
    for number in _FOR_THE_RANK:
        signal.signal(number, signal.SIG_IGN)
    server = listen(interface)
    os.write(1, f"{server.getsockname()[1]}\n".encode())
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    begin, started, look_at, in_vain = time.monotonic(), False, 0.0, 0
    while os.getppid() == process:
        ready = select.select([server, 0], [], [], _LOOK_SECONDS)[0]
        if 0 in ready:
            if not os.read(0, 1):  # the rank has ended
                return
            started = True
            os.dup2(nowhere, 2)
        if server in ready:
            answer(server, token, process)
        waited = time.monotonic() - begin
        if not started and waited > look_at:
            look_at = waited + 1.0
            in_vain = in_vain + 1 if (gone := ended_ranks(process)) else 0
            if in_vain > _IN_VAIN:
                return give_up(process, name, gone)
        if not started and waited > warn_seconds:
            complain(name, waited)
            warn_seconds *= 2


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), sys.argv[3], float(sys.argv[4]), sys.argv[5])
