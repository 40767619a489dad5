"""Exchanges over links of known speed: from which speed on a narrow wire no longer pays.

    python benchmarks/links.py [--quick]

On two emulated hosts (`jdaso.fabric.emulated_cluster`); all traffic is TCP. Needs root, iproute2
and MPICH. For each rate the wires are measured in turn, in one run; ratios are taken run by run.
Mark: each narrow wire is faster than float32 on every link slower than 10 Gbit/s. "link" is the
time that float32's bytes take at the nominal rate, which no program can beat.
"""

import argparse
import os

import _report
from engines import WIRES, Loop

import jdaso
from jdaso.fabric import ClusterError, emulated_cluster

GIGABITS, QUICK_GIGABITS = (1, 2.5, 5, 8, 10), (1, 5)
MEGABYTES, QUICK_MEGABYTES = 50, 10
REPEATS, QUICK_REPEATS = 7, 3
HOSTS = 2


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
    rows = []
    flags = ["--quick"] * options.quick + ["--megabytes", megabytes, "--engine", options.engine]
    for gigabits in options.gigabits or (QUICK_GIGABITS if options.quick else GIGABITS):
        try:
            with emulated_cluster(HOSTS, gigabits * 1e9) as cluster:
                os.environ |= cluster.environment
                found = _report.launch(__file__, flags, HOSTS, cluster.mpiexec([]))
        except ClusterError as error:
            print(f"{gigabits:g} Gbit/s: {error}")
            continue
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
