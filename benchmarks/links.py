"""Exchanges over links of known speed: from which speed on a narrow wire no longer pays.

    python benchmarks/links.py [--quick]

Two emulated hosts, network namespaces joined by a bridge, each end shaped to the rate by a token
bucket (`tc tbf`); all traffic is TCP. Needs root, `ip` and `tc`, and MPICH. For each rate the wires
are measured in turn, in one run; ratios are taken run by run. Mark: each narrow wire is faster
than float32 on every link slower than 10 Gbit/s. "link" is the time that float32's bytes take at
the nominal rate, which no program can beat.
"""

import argparse
import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import _report
from engines import WIRES, Loop

import jdaso

GIGABITS, QUICK_GIGABITS = (1, 2.5, 5, 8, 10), (1, 5)
MEGABYTES, QUICK_MEGABYTES = 50, 10
REPEATS, QUICK_REPEATS = 7, 3
HOSTS, BRIDGE, SUBNET = ("jdaso-a", "jdaso-b"), "jdaso-br", "10.231.77"


def ip(*words):
    subprocess.run(["ip", *words], check=True, timeout=30)


@contextlib.contextmanager
def hosts(gigabits):
    """Network namespaces on a bridge, every link at the rate; gives the folder of the launcher."""
    with contextlib.ExitStack() as stack:
        ip("link", "add", BRIDGE, "type", "bridge")
        stack.callback(ip, "link", "delete", BRIDGE)
        ip("address", "add", f"{SUBNET}.254/24", "dev", BRIDGE)
        ip("link", "set", BRIDGE, "up")
        for number, host in enumerate(HOSTS):
            ip("netns", "add", host)
            stack.callback(ip, "netns", "delete", host)
            outer = f"{BRIDGE}{number}"
            ip("link", "add", outer, "type", "veth", "peer", "name", "eth0", "netns", host)
            stack.callback(ip, "link", "delete", outer)  # a namespace takes its end along late
            ip("link", "set", outer, "master", BRIDGE, "up")
            inside = ["ip", "netns", "exec", host]
            for command in (
                ["ip", "address", "add", f"{SUBNET}.{number + 1}/24", "dev", "eth0"],
                ["ip", "link", "set", "eth0", "up"],
                ["ip", "link", "set", "lo", "up"],
                ["tc", "qdisc", "add", "dev", "eth0", "root", "tbf", "rate", f"{gigabits}gbit"]
                + ["burst", "2mb", "latency", "100ms"],
            ):
                subprocess.run([*inside, *command], check=True, timeout=30)
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        launcher = folder / "launcher"
        launcher.write_text(
            '#!/bin/sh\nwhile [ "${1#-}" != "$1" ]; do shift; done\n'
            'host=$1; shift; exec ip netns exec "$host" sh -c "$*"\n'
        )
        launcher.chmod(0o755)
        yield launcher


def mpiexec(launcher):
    """The command that starts one rank on each emulated host."""
    return [
        str(Path(sys.executable).parent / "mpiexec"),
        *("-launcher", "ssh", "-launcher-exec", str(launcher), "-iface", BRIDGE),
        *("-hosts", ",".join(HOSTS), "-ppn", "1", "-n", str(len(HOSTS))),
    ]


def measure(megabytes, engine, repeats):
    """Milliseconds of each wire's exchange, from start to result, and their ratios to float32's."""
    with jdaso.Session(engine=engine) as session:
        loops = [Loop(session, wire, megabytes) for wire in WIRES]
        for loop in loops:
            loop.exchange_alone()
        calls = [loop.exchange_alone for loop in loops]
        times = _report.interleaved(calls, repeats, loops[0].comm.Barrier)
        median, node = _report.median, session.node
    row = {f"{wire} ms": median(t) * 1e3 for wire, t in zip(WIRES, times, strict=True)}
    for wire, narrow in zip(WIRES[1:], times[1:], strict=True):
        row[f"{wire} / float32"] = median([n / f for n, f in zip(narrow, times[0], strict=True)])
    return node, row


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--gigabits", type=float, nargs="+")
    parser.add_argument("--engine", default="mpi4jax")
    parser.add_argument("--megabytes", type=float)
    options = parser.parse_args()
    repeats = QUICK_REPEATS if options.quick else REPEATS
    megabytes = options.megabytes or (QUICK_MEGABYTES if options.quick else MEGABYTES)
    if _report.is_rank():
        node, row = measure(megabytes, options.engine, repeats)
        if node == 0:
            _report.give(row)
        return
    if os.geteuid() != 0 or not shutil.which("ip") or not shutil.which("tc"):
        print("links.py makes network namespaces: run it as root, with iproute2 installed.")
        return
    os.environ |= {"UCX_TLS": "tcp,self", "UCX_NET_DEVICES": "eth0"}  # nothing by shared memory
    rows = []
    flags = ["--quick"] * options.quick + ["--megabytes", megabytes, "--engine", options.engine]
    for gigabits in options.gigabits or (QUICK_GIGABITS if options.quick else GIGABITS):
        with hosts(gigabits) as launcher:
            found = _report.launch(__file__, flags, len(HOSTS), mpiexec(launcher))
        link = megabytes * 2**20 * 8 / (gigabits * 1e9) * 1e3
        rows.append({"Gbit/s": gigabits, "link ms": link, **found})
    _report.report("links", rows, engine=options.engine, megabytes=megabytes, repeats=repeats)
    slow = [row["Gbit/s"] for row in rows if row["Gbit/s"] < 10]
    late = [
        f"{wire} at {row['Gbit/s']:g} Gbit/s"
        for row in rows
        for wire in WIRES[1:]
        if row["Gbit/s"] < 10 and row[f"{wire} / float32"] >= 1
    ]
    if slow:
        print("not faster than float32: " + (", ".join(late) or "none"))


if __name__ == "__main__":
    main()
