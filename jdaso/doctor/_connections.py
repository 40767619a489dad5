"""Finds TCP connections of a process that hang: signs of a firewall or a wrong interface.

MPI connects ranks in MPI_Init or with the first message; if the other side does not answer, MPI
waits and prints nothing. The kernel lists the addresses.
"""

from __future__ import annotations

import contextlib
import os
import re
import socket
import threading
from pathlib import Path

_SYN_SENT = "02"
_NAME_SECONDS = 2.0


def awaited(pid: int) -> list[str]:
    """Returns addresses ``host:port`` that do not answer a process of this machine."""
    mine, found = set(), []
    with contextlib.suppress(OSError):
        for link in Path(f"/proc/{pid}/fd").iterdir():
            with contextlib.suppress(OSError):
                mine.add(os.readlink(link))
    for family, table in ((socket.AF_INET, "tcp"), (socket.AF_INET6, "tcp6")):
        with contextlib.suppress(OSError):
            for line in Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]:
                fields = line.split()
                if fields[3] == _SYN_SENT and f"socket:[{fields[9]}]" in mine:
                    found.append(_address(family, fields[2]))
    return sorted(set(found))


def _address(family: int, text: str) -> str:
    """Decodes an address, which the kernel writes as 32-bit numbers in the machine's order."""
    numbers, port = text.split(":")
    words = (bytes.fromhex(numbers[at : at + 8])[::-1] for at in range(0, len(numbers), 8))
    return f"{socket.inet_ntop(family, b''.join(words))}:{int(port, 16)}"


def refused(words: str) -> list[str]:
    """Returns the addresses that UCX's output names as unreachable."""
    return sorted(set(re.findall(r"(?:dest_addr=|route to )((?:\d+\.){3}\d+:\d+)", words)))


def with_name(address: str) -> str:
    """Returns ``host:port`` with the host's name, if a look-up answers soon."""
    host, names = address.rpartition(":")[0], []

    def ask() -> None:
        with contextlib.suppress(OSError):
            names.append(socket.gethostbyaddr(host)[0])

    asking = threading.Thread(target=ask, daemon=True)
    asking.start()
    asking.join(_NAME_SECONDS)
    return f"{address} ({names[0]})" if names else address
