"""Several hosts on one Linux machine: network namespaces around a switch, with shaped links.

Each host and the switch (a bridge) are namespaces of their own, so that nothing outside of them is
touched, not even the machine's routes. A link is a pair of virtual ends, and each end lets out so
many bits a second (a token bucket): up and down are shaped, as on a real port. A process on a host
has the host's network, its name, and a file of hosts in which that name has the host's address.

Clusters are numbered. Each holds the lock of its number, which the kernel drops when the process
ends, however it ends, and writes down each name before it makes it: what a killed one left is known
by that, and the next call removes it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import json
import logging
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from .._launch import find_mpiexec

log = logging.getLogger("jdaso")

_STATE = Path("/run/jdaso")
_SETTINGS = Path("/etc/netns")  # `ip netns exec` lays what is there over /etc
_NUMBERS = 32  # clusters at a time
_MOST_HOSTS = 64
_TOLERANCE = 0.10
_LOOKS = 3
_LEAST_BITS, _MOST_BITS = 1e7, 1e12
_UNITS = {"": 1, "bit": 1, "kbit": 1e3, "mbit": 1e6, "gbit": 1e9}
_COMMAND_SECONDS = 30.0


class ClusterError(RuntimeError):
    """The cluster could not be made, or its links are not what was asked for."""


@dataclasses.dataclass(frozen=True)
class Cluster:
    """An emulated cluster, as `emulated_cluster` gives it.

    Attributes:
        hosts: the names of the hosts.
        addresses: their IP addresses.
        bits_per_second: what each link carries, in each direction.
        measured: what the check found, for each host's link, in bits per second; empty if it was
            not asked for.
    """

    hosts: tuple[str, ...]
    addresses: tuple[str, ...]
    bits_per_second: float
    folder: Path
    switch: str
    measured: tuple[float, ...] = ()

    def on_host(self, host: int, command: Sequence[str]) -> list[str]:
        """The command line that runs a command on a host."""
        return [str(self.folder / "launcher"), self.hosts[host], f"exec {shlex.join(command)}"]

    def mpiexec(self, command: Sequence[str], *, ranks_per_host: int = 1) -> list[str]:
        """The command line that starts ranks on all hosts, with MPICH; needs `environment`.

        Raises:
            ValueError: the command holds a lone ``:``, which mpiexec takes for a second program,
                or there are no ranks.
            ClusterError: the mpiexec of this environment is not MPICH's.
            LaunchError: there is none.
        """
        if ranks_per_host < 1:
            raise ValueError(f"ranks_per_host must be 1 or more, got {ranks_per_host}.")
        if ":" in command:
            raise ValueError(
                "mpiexec would take a lone ':' for the end of the command. Put the command into "
                f"one word: sh -c '...'. Got {shlex.join(command)}."
            )
        ranks, found = ranks_per_host * len(self.hosts), find_mpiexec()
        if "HYDRA" not in _command(found, "--version").upper():
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
        """This process's environment variables, and those that keep MPI and gloo on the links."""
        return {
            **os.environ,
            "UCX_TLS": "tcp,self",  # nothing goes through shared memory
            "UCX_NET_DEVICES": "eth0",
            "GLOO_SOCKET_IFNAME": "eth0",
        }

    def bytes_sent(self) -> tuple[int, ...]:
        """What each host's interface has sent so far, headers included."""
        sent = []
        for host in self.hosts:
            said = json.loads(_ip("-n", host, "-s", "-j", "link", "show", "dev", "eth0"))
            sent.append(int(said[0]["stats64"]["tx"]["bytes"]))
        return tuple(sent)


@contextlib.contextmanager
def emulated_cluster(
    hosts: int = 2, rate: str | float = "1gbit", *, check: bool = True
) -> Iterator[Cluster]:
    """Makes a cluster, and takes it down with everything that runs in it.

    Args:
        hosts: how many, 2 to 64.
        rate: of each link, each way: bits per second, or a text such as ``"100mbit"``.
        check: measure each link before, by TCP; at most 10 % off is taken.

    Raises:
        ValueError: an argument is out of its range.
        ClusterError: this is not Linux, not root, or iproute2 is missing; the kernel refused; a
            link is more than 10 % off.

    On failure, by Ctrl-C, and where the body raises, all is taken down. What a killed process has
    left is taken down by the next call.

    Example::

        with jdaso.fabric.emulated_cluster(4, "1gbit") as cluster:
            command = cluster.mpiexec([sys.executable, "train.py"])
            subprocess.run(command, env=cluster.environment, check=True)
    """
    bits = bits_per_second_of(rate)
    if not 2 <= hosts <= _MOST_HOSTS:
        raise ValueError(f"hosts must be 2 to {_MOST_HOSTS}, got {hosts}.")
    _require_tools()
    with contextlib.ExitStack() as stack:
        try:
            number = stack.enter_context(_own_number())
            stack.callback(_remove, number)
            cluster = _make(number, hosts, bits)
            if check:
                cluster = dataclasses.replace(cluster, measured=_measure(cluster))
        except (OSError, subprocess.SubprocessError) as error:
            raise ClusterError(f"The emulated cluster could not be made: {error}") from error
        yield cluster


def remove_leftovers() -> int:
    """Removes clusters whose process has ended without doing so; returns how many."""
    removed = 0
    for number in range(_NUMBERS):
        if not (_STATE / f"cluster-{number}").exists():
            continue
        try:
            with _lock(number):
                _remove(number)
                removed += 1
        except BlockingIOError:  # it runs
            continue
        except (ClusterError, OSError, subprocess.SubprocessError) as error:
            log.warning("What an emulated cluster has left could not be removed: %s", error)
    return removed


def bits_per_second_of(rate: str | float) -> float:
    found = re.fullmatch(r"([0-9.]+(?:e[0-9]+)?) *([a-z]*)(?:/s)?", str(rate).strip().lower())
    try:
        bits = float(found[1]) * _UNITS[found[2]] if found else float("nan")
    except (KeyError, ValueError):
        bits = float("nan")
    if not _LEAST_BITS <= bits <= _MOST_BITS:
        raise ValueError(
            "rate must be bits per second, or a text such as '100mbit' or '2.5gbit', from 10 mbit "
            f"to 1000 gbit, got {rate!r}."
        )
    return bits


def _require_tools() -> None:
    missing = [name for name in ("ip", "tc", "unshare") if shutil.which(name) is None]
    if sys.platform != "linux" or missing:
        raise ClusterError(
            "An emulated cluster is made of Linux network namespaces by the commands ip, tc and "
            f"unshare; not found here: {', '.join(missing) or 'Linux'}. Install iproute2 and "
            "util-linux (Debian: apt install iproute2)."
        )
    if os.geteuid() != 0:
        raise ClusterError(
            "An emulated cluster is made of network namespaces, which only root may make: run the "
            "same command with sudo, or in a container with the capability SYS_ADMIN."
        )


@contextlib.contextmanager
def _lock(number: int) -> Iterator[None]:
    """Holds a number; raises BlockingIOError where another process does."""
    _STATE.mkdir(exist_ok=True)
    file = os.open(_STATE / f"cluster-{number}.lock", os.O_CREAT | os.O_RDWR, 0o600)
    _held.add(file)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        _held.discard(file)
        os.close(file)


_held: set[int] = set()


def _leave_locks_to_parent() -> None:
    for file in _held:
        os.close(file)
    _held.clear()


os.register_at_fork(after_in_child=_leave_locks_to_parent)


@contextlib.contextmanager
def _own_number() -> Iterator[int]:
    remove_leftovers()
    for number in range(_NUMBERS):
        with contextlib.ExitStack() as stack:
            try:
                stack.enter_context(_lock(number))
            except BlockingIOError:
                continue
            if (_STATE / f"cluster-{number}").exists():  # a leftover that stays
                continue
            yield number
            return
    raise ClusterError(f"{_NUMBERS} emulated clusters run already. End one of them.")


def _make(number: int, count: int, bits: float) -> Cluster:
    switch, subnet = f"jdaso{number}-switch", f"10.231.{number}"
    hosts = tuple(f"jdaso{number}-h{k}" for k in range(count))
    addresses = tuple(f"{subnet}.{k + 1}" for k in range(count))
    folder = _STATE / f"cluster-{number}"
    taken = sorted({switch, *hosts} & set(_namespaces()))
    if taken:
        raise ClusterError(
            f"There are network namespaces of others with the names {', '.join(taken)}. Remove "
            f"them (ip netns delete {taken[0]}) if nobody needs them."
        )
    folder.mkdir()
    (folder / "namespaces").write_text("\n".join((switch, *hosts)))
    names = "".join(f"{a} {h}\n" for a, h in zip(addresses, hosts, strict=True))
    _ip("netns", "add", switch)
    _ip("-n", switch, "link", "add", "switch", "type", "bridge")
    _ip("-n", switch, "address", "add", f"{subnet}.254/24", "dev", "switch")
    for device in ("switch", "lo"):
        _ip("-n", switch, "link", "set", device, "up")
    for k, (host, address) in enumerate(zip(hosts, addresses, strict=True)):
        (_SETTINGS / host).mkdir(parents=True, exist_ok=True)
        (_SETTINGS / host / "hosts").write_text(f"127.0.0.1 localhost\n{names}")
        _ip("netns", "add", host)
        _ip("-n", host, "link", "set", "lo", "up")
        peer = ("peer", "name", "eth0", "netns", host)
        _ip("-n", switch, "link", "add", f"port{k}", "type", "veth", *peer)
        _ip("-n", switch, "link", "set", f"port{k}", "master", "switch", "up")
        _ip("-n", host, "address", "add", f"{address}/24", "dev", "eth0")
        _ip("-n", host, "link", "set", "eth0", "up")
        for namespace, device in ((host, "eth0"), (switch, f"port{k}")):
            _shape(namespace, device, bits)
        _keep_speed(host)
    launcher = folder / "launcher"
    # In the form of ssh: options, host, command.
    launcher.write_text(
        '#!/bin/sh\nwhile [ "${1#-}" != "$1" ]; do shift; done\nhost=$1; shift\n'
        'exec ip netns exec "$host" unshare --uts sh -c '
        '\'echo "$0" > /proc/sys/kernel/hostname; eval "$1"\' "$host" "$*"\n'
    )
    launcher.chmod(0o755)
    return Cluster(hosts, addresses, bits, folder, switch)


def _shape(namespace: str, device: str, bits: float) -> None:
    """A token bucket that holds what 2 ms let out, and at least two of the kernel's packets."""
    rate = ["rate", f"{bits:.0f}bit", "burst", str(_burst(bits)), "latency", "100ms"]
    _command("tc", "-n", namespace, "qdisc", "add", "dev", device, "root", "tbf", *rate)


def _keep_speed(host: str) -> None:
    """After a pause TCP goes on at its speed, as a cluster's own transports do; where it may."""
    setting = "/proc/sys/net/ipv4/tcp_slow_start_after_idle"
    _command("ip", "netns", "exec", host, "sh", "-c", f"[ ! -w {setting} ] || echo 0 > {setting}")


def _burst(bits: float) -> int:
    return max(int(bits / 8 * 0.002), 2 * 65536)


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
    """Bits per second from each host to the next, one after the other.

    A link that seems slow is measured again: what else the machine does may have disturbed it.
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
    """Bits per second of one TCP stream from host k to another, behind the first burst."""
    python, rate = [sys.executable, "-I", "-S", "-c"], cluster.bits_per_second / 8
    skip = int(0.1 * rate) + 2 * _burst(cluster.bits_per_second)
    total = skip + int(max(0.3 * rate, 1 << 19))
    receive = cluster.on_host(to, [*python, _RECEIVER, cluster.addresses[to], str(skip)])
    with subprocess.Popen(receive, stdout=subprocess.PIPE, text=True) as receiver:
        assert receiver.stdout is not None
        limit = 20 + 3 * total / rate
        late = threading.Timer(2 * limit, receiver.kill)  # what is read of it ends then
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


def _remove(number: int) -> None:
    """Ends what runs in the namespaces of a number, and removes them, whatever signals come."""
    folder, failed = _STATE / f"cluster-{number}", []
    with _signals_later():
        listed = folder / "namespaces"
        names = listed.read_text().split() if listed.exists() else []
        for name in names:
            try:
                if name in _namespaces():
                    _end_processes(name)
                    _ip("netns", "delete", name)
                shutil.rmtree(_SETTINGS / name, ignore_errors=True)
            except (ClusterError, OSError, subprocess.SubprocessError) as error:
                failed.append(str(error))
        if failed:
            raise ClusterError(" ".join(failed))
        shutil.rmtree(folder, ignore_errors=True)


def _end_processes(namespace: str) -> None:
    limit = time.monotonic() + 10
    while pids := _ip("netns", "pids", namespace).split():
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGKILL)
        if time.monotonic() > limit:
            raise ClusterError(f"Processes {', '.join(pids)} in {namespace} do not end.")
        time.sleep(0.02)


@contextlib.contextmanager
def _signals_later() -> Iterator[None]:
    """Those that would end this process wait until the body is done."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    came: list[int] = []
    kinds = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = {kind: signal.signal(kind, lambda number, _: came.append(number)) for kind in kinds}
    try:
        yield
    finally:
        for kind, handler in before.items():
            signal.signal(kind, handler or signal.SIG_DFL)
        for number in came[:1]:
            signal.raise_signal(number)


def _namespaces() -> list[str]:
    return [line.split()[0] for line in _ip("netns", "list").splitlines() if line.strip()]


def _ip(*words: str) -> str:
    return _command("ip", *words)


def _command(*words: str) -> str:
    done = subprocess.run(
        words,
        capture_output=True,
        text=True,
        timeout=_COMMAND_SECONDS,
        start_new_session=True,  # Ctrl-C is for us
    )
    if done.returncode != 0:
        raise ClusterError(
            f"The kernel refused to make the emulated cluster. {shlex.join(words)}: "
            f"{done.stderr.strip() or done.returncode}"
        )
    return done.stdout
