"""A process beside a rank that tells others whether the rank runs while its Python cannot.

Run as a file, by `_witness.start`: standard library only. It ends with the rank. Anyone who
connects is sent one line: a token, the state of the rank's process as in ``/proc/PID/stat``, and
the seconds of CPU time that it has used.
"""

import contextlib
import os
import select
import socket
import sys
import time

_LOOK_SECONDS = 0.25


def listen() -> socket.socket:
    """A socket on all interfaces; the kernel chooses the port."""
    if socket.has_dualstack_ipv6():
        with contextlib.suppress(OSError):
            return socket.create_server(("", 0), family=socket.AF_INET6, dualstack_ipv6=True)
    return socket.create_server(("", 0))


def state(process: int) -> str:
    """The process's state, a letter, and its CPU seconds; ``? 0`` where the system cannot tell."""
    try:
        with open(f"/proc/{process}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
    except OSError:
        return "? 0"
    seconds = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return f"{fields[0].decode()} {seconds:.2f}"


def answer(server: socket.socket, token: str, process: int) -> None:
    """Answers one who has connected."""
    with contextlib.suppress(OSError):
        connection, _ = server.accept()
        with connection:
            connection.settimeout(1.0)
            connection.sendall(f"{token} {state(process)}\n".encode())


def complain(name: str, seconds: float) -> None:
    """Says that MPI_Init waits, where somebody reads it."""
    text = (
        f"{name} MPI_Init has waited {seconds:.0f} s for all ranks that the launcher started. "
        "Those that do not say this have not come: they have ended, or are busy or stuck before "
        "their Session.\n"
    )
    if select.select([], [2], [], 0)[1]:
        with contextlib.suppress(OSError):
            os.write(2, text.encode())


def main(token: str, process: int, name: str, warn_seconds: float) -> None:
    """Listens until the rank ends.

    Args:
        token: sent with each answer.
        process: the rank's, which started this one.
        name: how the rank's messages begin.
        warn_seconds: after which MPI_Init is reported; again each time that has doubled.
    """
    server = listen()
    os.write(1, f"{server.getsockname()[1]}\n".encode())
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    begin, started = time.monotonic(), False
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
        if not started and waited > warn_seconds:
            complain(name, waited)
            warn_seconds *= 2


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), sys.argv[3], float(sys.argv[4]))
