"""Several hosts on one Linux machine: network namespaces around a switch, with shaped links.

Each host and the switch (a bridge) are network namespaces of their own, so nothing outside of them
is touched, not even the machine's routes. A link is a pair of virtual ends, each limited to a
number of bits per second by a token bucket: so both directions are shaped, as on a real port. A
process on a host sees the host's network, its name, and a hosts file that maps the name to the
host's address.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
import os
import re
import shlex
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

from ..._launch.mpiexec import find_mpiexec
from . import cleanup
from .cleanup import ClusterError, ip, run

MOST_HOSTS = 64
_TOLERANCE = 0.10
_LOOKS = 3
_LEAST_BITS, _MOST_BITS = 1e7, 1e12
_PACKET_SECONDS, _FREE_SECONDS, _BURST_SECONDS, _PEAK = 1.3e-4, 5e-4, 2e-3, 1.05
_LEAST_PACKET, _MOST_PACKET, _HEADER = 1500, 65536, 66
_UNITS = {"": 1, "bit": 1, "kbit": 1e3, "mbit": 1e6, "gbit": 1e9}


@dataclasses.dataclass(frozen=True)
class Cluster:
    """An emulated cluster, made by `emulated_cluster`.

    Attributes:
        hosts: the names of the hosts.
        addresses: their IP addresses.
        bits_per_second: rate of each link, in each direction.
        measured: measured rate of each host's link, in bits per second; empty without `check`.
    """

    hosts: tuple[str, ...]
    addresses: tuple[str, ...]
    bits_per_second: float
    folder: Path
    switch: str
    measured: tuple[float, ...] = ()

    def on_host(self, host: int, command: Sequence[str]) -> list[str]:
        """Returns the command line that runs a command on a host."""
        return [str(self.folder / "launcher"), self.hosts[host], f"exec {shlex.join(command)}"]

    def mpiexec(self, command: Sequence[str], *, ranks_per_host: int = 1) -> list[str]:
        """Returns the command line that starts MPICH ranks on all hosts; needs `environment`.

        Raises:
            ValueError: the command contains a lone ``:``, which mpiexec takes for the start of a
                second program, or there are no ranks.
            ClusterError: the mpiexec of this environment is not MPICH's.
            LaunchError: there is no mpiexec.
        """
        if ranks_per_host < 1:
            raise ValueError(f"ranks_per_host must be 1 or more, got {ranks_per_host}.")
        if ":" in command:
            raise ValueError(
                "mpiexec would take a lone ':' for the end of the command. Put the command into "
                f"one word: sh -c '...'. Got {shlex.join(command)}."
            )
        ranks, found = ranks_per_host * len(self.hosts), find_mpiexec()
        if "HYDRA" not in run(found, "--version").upper():
            raise ClusterError(
                f"{found} is not MPICH's, which alone can start ranks on emulated hosts. Use an "
                'environment with MPICH: pip install "jdaso[mpich]".'
            )
        mpiexec = [found, "-launcher", "ssh", "-launcher-exec"]
        mpiexec += [str(self.folder / "launcher"), "-iface", "switch", "-hosts"]
        mpiexec += [",".join(self.hosts), "-ppn", str(ranks_per_host), "-n", str(ranks)]
        return ["ip", "netns", "exec", self.switch, *mpiexec, *command]

    @property
    def environment(self) -> dict[str, str]:
        """This process's environment variables, plus those that keep MPI and gloo on the links."""
        return {
            **os.environ,
            "UCX_TLS": "tcp,self",  # nothing goes through shared memory
            "UCX_NET_DEVICES": "eth0",
            "GLOO_SOCKET_IFNAME": "eth0",
        }

    def bytes_sent(self) -> tuple[int, ...]:
        """Returns the bytes that each host's interface has sent so far, headers included."""
        sent = []
        for host in self.hosts:
            said = json.loads(ip("-n", host, "-s", "-j", "link", "show", "dev", "eth0"))
            sent.append(int(said[0]["stats64"]["tx"]["bytes"]))
        return tuple(sent)


@contextlib.contextmanager
def emulated_cluster(
    hosts: int = 2, rate: str | float = "1gbit", *, check: bool = True
) -> Iterator[Cluster]:
    """Creates a cluster; removes it at the end, with all processes that run in it.

    Args:
        hosts: number of hosts, 2 to 64.
        rate: of each link and direction: bits per second, or a text such as ``"100mbit"``.
        check: whether to measure each link first, by TCP; a link may be off by at most 10 %.

    Raises:
        ValueError: an argument is out of range.
        ClusterError: this is not Linux, not root, or iproute2 is missing; the kernel refused; a
            link is off by more than 10 %.

    On failure, after Ctrl-C, and if the body raises, everything is removed. The remains of a killed
    process are removed by the next call.

    Example::

        with jdaso.fabric.emulated_cluster(4, "1gbit") as cluster:
            command = cluster.mpiexec([sys.executable, "train.py"])
            subprocess.run(command, env=cluster.environment, check=True)
    """
    bits = bits_per_second_of(rate)
    if not 2 <= hosts <= MOST_HOSTS:
        raise ValueError(f"hosts must be 2 to {MOST_HOSTS}, got {hosts}.")
    cleanup.require_tools()
    with contextlib.ExitStack() as stack:
        try:
            number = stack.enter_context(cleanup.own_number())
            stack.callback(cleanup.remove, number)
            cluster = _make(number, hosts, bits)
            if check:
                cluster = dataclasses.replace(cluster, measured=_measure(cluster))
        except (OSError, subprocess.SubprocessError) as error:
            raise ClusterError(f"The emulated cluster could not be made: {error}") from error
        yield cluster


def bits_per_second_of(rate: str | float) -> float:
    """Returns the rate of an emulated link.

    Raises:
        ValueError: the text is no rate, or a link cannot be limited to it.
    """
    if not _LEAST_BITS <= (bits := any_bits_per_second_of(rate)) <= _MOST_BITS:
        raise ValueError(f"The rate of a link must be from 10 mbit to 1000 gbit, got {rate!r}.")
    return bits


def any_bits_per_second_of(rate: str | float) -> float:
    """Returns a rate, given in bits per second or as a text such as ``"2.5gbit"``.

    Raises:
        ValueError: the text is no rate above 0.
    """
    found = re.fullmatch(r"([0-9.]+(?:e[+-]?[0-9]+)?) *([a-z]*)(?:/s)?", str(rate).strip().lower())
    try:
        bits = float(found[1]) * _UNITS[found[2]] if found else math.nan
    except (KeyError, ValueError):
        bits = math.nan
    if not 0 < bits < math.inf:
        raise ValueError(
            "rate must be bits per second above 0, or a text such as '100mbit' or '2.5gbit', got "
            f"{rate!r}."
        )
    return bits


def _make(number: int, count: int, bits: float) -> Cluster:
    switch, subnet = f"jdaso{number}-switch", f"10.231.{number}"
    hosts = tuple(f"jdaso{number}-h{k}" for k in range(count))
    addresses = tuple(f"{subnet}.{k + 1}" for k in range(count))
    folder = cleanup.STATE / f"cluster-{number}"
    taken = sorted({switch, *hosts} & set(cleanup.namespaces()))
    if taken:
        raise ClusterError(
            f"Network namespaces named {', '.join(taken)} already exist. Remove "
            f"them (ip netns delete {taken[0]}) if nobody needs them."
        )
    folder.mkdir()
    (folder / "namespaces").write_text("\n".join((switch, *hosts)))
    names = "".join(f"{a} {h}\n" for a, h in zip(addresses, hosts, strict=True))
    ip("netns", "add", switch)
    ip("-n", switch, "link", "add", "switch", "type", "bridge")
    ip("-n", switch, "address", "add", f"{subnet}.254/24", "dev", "switch")
    for device in ("switch", "lo"):
        ip("-n", switch, "link", "set", device, "up")
    for k, (host, address) in enumerate(zip(hosts, addresses, strict=True)):
        (cleanup.SETTINGS / host).mkdir(parents=True, exist_ok=True)
        (cleanup.SETTINGS / host / "hosts").write_text(f"127.0.0.1 localhost\n{names}")
        ip("netns", "add", host)
        ip("-n", host, "link", "set", "lo", "up")
        peer = ("peer", "name", "eth0", "netns", host)
        ip("-n", switch, "link", "add", f"port{k}", "type", "veth", *peer)
        ip("-n", switch, "link", "set", f"port{k}", "master", "switch", "up")
        ip("-n", host, "address", "add", f"{address}/24", "dev", "eth0")
        ip("-n", host, "link", "set", "eth0", "up")
        for namespace, device in ((host, "eth0"), (switch, f"port{k}")):
            _shape(namespace, device, bits)
        _keep_speed(host)
    launcher = folder / "launcher"
    # Takes arguments like ssh: options, host, command.
    launcher.write_text(
        '#!/bin/sh\nwhile [ "${1#-}" != "$1" ]; do shift; done\nhost=$1; shift\n'
        'exec ip netns exec "$host" unshare --uts sh -c '
        '\'echo "$0" > /proc/sys/kernel/hostname; eval "$1"\' "$host" "$*"\n'
    )
    launcher.chmod(0o755)
    return Cluster(hosts, addresses, bits, folder, switch)


def _shape(namespace: str, device: str, bits: float) -> None:
    """Limits what a device sends, by two token buckets.

    The first holds 2 ms of traffic, so that the link catches up after a timer that was late. The
    second lets 0.5 ms of traffic through at once, and then `_PEAK` of the rate at most: so even
    the first message after a pause takes almost its full time. Packets are short, so both count.
    """
    rate = ["rate", f"{bits:.0f}bit", "burst", str(_bucket(_BURST_SECONDS, bits))]
    rate += ["peakrate", f"{_PEAK * bits:.0f}bit", "mtu", str(_bucket(_FREE_SECONDS, bits))]
    rate += ["latency", "100ms"]
    ip("-n", namespace, "link", "set", "dev", device, "gso_max_size", str(_packet(bits)))
    run("tc", "-n", namespace, "qdisc", "replace", "dev", device, "root", "tbf", *rate)


def _packet(bits: float) -> int:
    """Returns the most bytes that the kernel hands to a link in one piece."""
    return min(max(int(bits / 8 * _PACKET_SECONDS), _LEAST_PACKET), _MOST_PACKET)


def _bucket(seconds: float, bits: float) -> int:
    """Returns the bytes that a link carries in a time, at least two packets with headers."""
    return max(int(bits / 8 * seconds), 2 * (_packet(bits) + _HEADER))


def _keep_speed(host: str) -> None:
    """Lets TCP keep its speed after a pause, as a cluster's transports do; if permitted."""
    setting = "/proc/sys/net/ipv4/tcp_slow_start_after_idle"
    run("ip", "netns", "exec", host, "sh", "-c", f"[ ! -w {setting} ] || echo 0 > {setting}")


_RECEIVER = """
import socket, sys, time
server = socket.create_server((sys.argv[1], 0))
server.settimeout(20)
print(server.getsockname()[1], flush=True)
link, _ = server.accept()
link.settimeout(20)
skip, got, since, at, room = int(sys.argv[2]), 0, None, 0, bytearray(1 << 20)
while count := link.recv_into(room):
    got += count
    if since is None and got >= skip:
        since, at = time.perf_counter(), got
print((got - at) * 8 / (time.perf_counter() - since))
"""
_SENDER = """
import socket, sys
left, block = int(sys.argv[3]), bytes(1 << 18)
with socket.create_connection((sys.argv[1], int(sys.argv[2])), timeout=20) as link:
    while left > 0:
        link.sendall(block[:left])
        left -= len(block)
"""


def _measure(cluster: Cluster) -> tuple[float, ...]:
    """Measures bits per second from each host to the next, one link at a time.

    A link that seems slow is measured again, as other work on the machine may have disturbed it.
    """
    found = []
    for k, host in enumerate(cluster.hosts):
        to = (k + 1) % len(cluster.hosts)
        best = off = 0.0
        for _ in range(_LOOKS):
            best = max(best, _measure_link(cluster, k, to))
            off = best / cluster.bits_per_second - 1
            if off >= -_TOLERANCE:
                break
        if abs(off) > _TOLERANCE:
            raise ClusterError(
                f"The link from {host} to {cluster.hosts[to]} carries {best / 1e9:.3g} Gbit/s "
                f"instead of {cluster.bits_per_second / 1e9:.3g} ({off:+.0%}; at most "
                f"{_TOLERANCE:.0%} is taken). Use a lower rate, or a machine with more free cores."
            )
        found.append(best)
    return tuple(found)


def _measure_link(cluster: Cluster, k: int, to: int) -> float:
    """Returns bits per second of one TCP stream from host k to another, after the first burst."""
    python, rate = [sys.executable, "-I", "-S", "-c"], cluster.bits_per_second / 8
    skip = int(0.1 * rate) + 2 * _bucket(_BURST_SECONDS, cluster.bits_per_second)
    total = skip + int(max(0.3 * rate, 1 << 19))
    receive = cluster.on_host(to, [*python, _RECEIVER, cluster.addresses[to], str(skip)])
    with subprocess.Popen(receive, stdout=subprocess.PIPE, text=True) as receiver:
        assert receiver.stdout is not None
        limit = 20 + 3 * total / rate
        late = threading.Timer(2 * limit, receiver.kill)  # ends the read below
        late.start()
        try:
            port = receiver.stdout.readline().strip()
            send = [*python, _SENDER, cluster.addresses[to], port, str(total)]
            subprocess.run(cluster.on_host(k, send), check=True, timeout=limit)
            return float(receiver.stdout.readline())
        except (subprocess.SubprocessError, ValueError) as error:
            raise ClusterError(
                f"The link from {cluster.hosts[k]} to {cluster.hosts[to]} carries nothing "
                f"({error})."
            ) from error
        finally:
            late.cancel()
            receiver.kill()
