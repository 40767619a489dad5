"""Bytes that have crossed the interfaces of this host so far."""

from __future__ import annotations

import contextlib
from pathlib import Path

Counts = dict[str, list[int]]
"""Interface -> bytes received, bytes sent."""

_NETWORK = Path("/proc/self/net/dev")  # of the network namespace that this process is in
_INFINIBAND = Path("/sys/class/infiniband")
_WORD_BYTES = 4  # InfiniBand and Omni-Path count words


def counts(network: Path = _NETWORK, infiniband: Path = _INFINIBAND) -> Counts:
    """Returns the counters of all interfaces, InfiniBand's and Omni-Path's ports included.

    A port is named as UCX names it: ``mlx5_0:1``. Its bytes cross no kernel interface. A port whose
    counters cannot be read, as that of a virtual function, is left out.
    """
    found: Counts = {}
    for line in network.read_text().splitlines()[2:] if network.exists() else ():
        name, _, numbers = line.partition(":")
        fields = numbers.split()
        found[name.strip()] = [int(fields[0]), int(fields[8])]
    for port in sorted(infiniband.glob("*/ports/*/counters")):
        received, sent = port / "port_rcv_data", port / "port_xmit_data"
        with contextlib.suppress(OSError, ValueError):  # none, or "N/A (no PMA)"
            words = [int(path.read_text()) for path in (received, sent)]
            name = f"{port.parts[-4]}:{port.parts[-2]}"
            found[name] = [_WORD_BYTES * count for count in words]
    return found


def between(before: Counts, after: Counts) -> Counts:
    """Returns the bytes that crossed each interface between two counts."""
    return {
        name: [new - old for new, old in zip(pair, before.get(name, [0, 0]), strict=True)]
        for name, pair in after.items()
    }
