"""Exchanges over links of known speed: from which speed on a narrow wire no longer pays.

    python benchmarks/speed/links.py [--quick] [--hosts 2] [--engine mpi4py]

On emulated hosts (`jdaso.fabric.emulated_cluster`); all traffic is TCP. Needs root, iproute2 and
MPICH. Exchanges alone: nothing computes meanwhile. For each rate the wires are measured in turn, in
one run; ratios are taken run by run. "WIRE ms" is the time from an array to the sum, encoding and
decoding included. Mark: each narrow wire is faster than float32 on every link slower than
10 Gbit/s. "WIRE of link" is the time that a ring's 2(P-1)/P of its bytes take at the nominal rate
over the time from the first number handed over to the last one back (mark: 0.9); TCP's headers take
0.044 of the rate.
"""

import argparse
import itertools
import os
from functools import partial

import jdaso
from benchmarks.lib import harness
from benchmarks.speed.engines import WIRES, Loop
from jdaso.fabric import ClusterError, emulated_cluster

GIGABITS, QUICK_GIGABITS = (1, 2.5, 5, 8, 10), (1, 5)
MEGABYTES, QUICK_MEGABYTES = 50, 10
REPEATS, QUICK_REPEATS = 7, 3
WIRE_BYTES = {"float32": 4, "bfloat16": 2, "int8": 1 + 4 / 256, "int4": 1 / 2 + 2 / 64}


def measure(megabytes, engine, repeats):
    """Milliseconds of each wire's exchange, from start to result, and their ratios to float32's."""
    with jdaso.Session(engine=engine) as session:
        loops = [Loop(session, wire, megabytes) for wire in WIRES]
        for loop in loops:
            loop.exchange_alone()
        spent = [[] for _ in WIRES]
        calls = [
            partial(exchange, loop, seconds) for loop, seconds in zip(loops, spent, strict=True)
        ]
        times = harness.interleaved(calls, repeats, loops[0].comm.Barrier)
        median, node = harness.median, session.node
    row = {f"{wire} ms": median(t) * 1e3 for wire, t in zip(WIRES, times, strict=True)}
    for wire, narrow in zip(WIRES[1:], times[1:], strict=True):
        row[f"{wire} / float32"] = median([n / f for n, f in zip(narrow, times[0], strict=True)])
    row |= {f"{wire} exchange": median(s) for wire, s in zip(WIRES, spent, strict=True)}
    return node, row


def exchange(loop, spent):
    """One exchange; keeps its own seconds, without encoding and decoding."""
    before = loop.session.stats.exchange_seconds
    loop.exchange_alone()
    spent.append(loop.session.stats.exchange_seconds - before)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--hosts", type=int, nargs="+", default=[2])
    parser.add_argument("--name", default="links", help="of the JSON file")
    parser.add_argument("--gigabits", type=float, nargs="+")
    parser.add_argument("--engine", default="mpi4py")
    parser.add_argument("--megabytes", type=float)
    options = parser.parse_args()
    repeats = QUICK_REPEATS if options.quick else REPEATS
    megabytes = options.megabytes or (QUICK_MEGABYTES if options.quick else MEGABYTES)
    if harness.is_rank():
        node, row = measure(megabytes, options.engine, repeats)
        if node == 0:
            harness.give(row)
        return
    rows = []
    flags = ["--quick"] * options.quick + ["--megabytes", megabytes, "--engine", options.engine]
    rates = options.gigabits or (QUICK_GIGABITS if options.quick else GIGABITS)
    for hosts, gigabits in itertools.product(options.hosts, rates):
        try:
            with emulated_cluster(hosts, gigabits * 1e9, check=not options.quick) as cluster:
                os.environ |= cluster.environment
                found = harness.launch(__file__, flags, hosts, cluster.mpiexec([]))
        except ClusterError as error:
            print(f"{hosts} hosts, {gigabits:g} Gbit/s: {error}")
            continue
        row = {"hosts": hosts, "Gbit/s": gigabits, **found}
        for wire in WIRES:
            numbers = megabytes * 250_000
            ring = 2 * (hosts - 1) / hosts * numbers * WIRE_BYTES[wire] * 8 / (gigabits * 1e9)
            row[f"{wire} of link"] = ring / row.pop(f"{wire} exchange")
        rows.append(row)
    if not rows:
        raise SystemExit("Nothing was measured: no cluster could be made as it was asked for.")
    harness.report(options.name, rows, engine=options.engine, megabytes=megabytes, repeats=repeats)
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
