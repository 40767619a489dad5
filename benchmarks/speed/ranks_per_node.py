"""Nodes of several ranks on emulated hosts: steps a second, and the bytes that each rank sends.

    python benchmarks/speed/ranks_per_node.py [--quick] [--hosts 2] [--ranks 1 2] [--devices 4]
        [--gigabits 1] [--step-ms 400] [--layouts divided copies]

A host is a node of so many devices, which one rank drives, or several do as one JAX world
(`Session(ranks_per_node=R)`). Steps are paced, as in `throughput.py`: each device takes a given
time, as an accelerator does, and the loss is the mean over the node's devices. Parameters are
*divided* over the devices (FSDP), or each device has a *copy*. Methods of a cell run in turn, round
after round, and a ratio is the median over rounds, between the smallest and the largest.

- *bare*: the inner optimizer alone. *instant*: all of jdaso, but nothing is sent.
- *daso WIRE MERGE*: jdaso's.

"MB a step" is a host's, read from its interface; "MB of a rank" is what a rank's connections to
other hosts have sent by the kernel's counts, the most of all ranks (headers left out). "of model"
is that over what a node of one rank has to send, a ring's 2(P-1)/P of the numbers: mark 1/R.
Mark for daso's steps a second relative to *instant* and *bare*: 0.97. Needs root, iproute2, MPICH.
"""

import argparse
import itertools
import os

from benchmarks.lib import harness
from benchmarks.lib.marks import JDASO
from benchmarks.lib.methods import Cell, measure
from benchmarks.lib.work import OnMesh
from jdaso.fabric import ClusterError, emulated_cluster

LIMITS = ("bare", "instant")
WIRE_BYTES = {"float32": 4, "bfloat16": 2, "int8": 1 + 4 / 256, "int4": 1 / 2 + 2 / 64}


def parse():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--name", default="ranks_per_node", help="of the JSON file")
    parser.add_argument("--hosts", type=int, default=2)
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 2], help="of a host")
    parser.add_argument("--devices", type=int, default=4, help="of a host, with all its ranks")
    parser.add_argument("--gigabits", type=float, default=1.0)
    parser.add_argument("--step-ms", type=float, default=400.0)
    parser.add_argument("--parameters", type=float, default=6.4e6)
    parser.add_argument("--layouts", nargs="+", default=["divided"])
    parser.add_argument("--methods", nargs="+", default=[*LIMITS, JDASO])
    parser.add_argument("--sync-every", type=int, default=4, help="B, and S")
    parser.add_argument("--engine", default="mpi4py")
    parser.add_argument("--warm", type=int, default=2, help="cycles before the clock runs")
    parser.add_argument("--cycles", type=int, default=4, help="cycles on the clock, a round")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    if options.quick:
        options.parameters, options.step_ms, options.rounds, options.warm = 1e6, 20.0, 1, 1
    return options


def measure_rank(options):
    """Rows of all methods; each has the most bytes that any of the ranks has sent."""
    from mpi4py import MPI

    (ranks,), (layout,) = options.ranks, options.layouts
    cell = Cell(
        kind=OnMesh(int(options.parameters), divided=layout == "divided"),
        sync_every=options.sync_every,
        delay=options.sync_every,
        engine=options.engine,
        instant_wire=JDASO.split()[1],
        warm=options.warm,
        cycles=options.cycles,
        ranks_per_node=ranks,
    )
    rows = measure(cell, options.methods, [options.step_ms], options.rounds)
    sent = MPI.COMM_WORLD.allgather([row["sent by rank"] for row in rows])
    for row, of_ranks in zip(rows, zip(*sent, strict=True), strict=True):
        row.pop("events", None)
        row["sent by rank"] = max(of_ranks)
    if MPI.COMM_WORLD.Get_rank() == 0:
        harness.give(rows)


def run_cell(cluster, ranks, layout, options):
    """Rows of all methods, as the ranks measured them."""
    flags = ["--ranks", ranks, "--layouts", layout, "--methods", *options.methods]
    flags += ["--parameters", options.parameters, "--step-ms", options.step_ms]
    flags += ["--sync-every", options.sync_every, "--engine", options.engine]
    flags += ["--warm", options.warm, "--cycles", options.cycles, "--rounds", options.rounds]
    count = f"--xla_force_host_platform_device_count={options.devices // ranks}"
    os.environ |= {**cluster.environment, "XLA_FLAGS": count}
    start = cluster.mpiexec([], ranks_per_host=ranks)
    return harness.launch(__file__, flags, ranks * options.hosts, start)


def summary(found, ranks, layout, options):
    """A row a method: medians over rounds, and of ratios within a round."""
    by_method, rows = {}, []
    for row in found:
        by_method.setdefault(row["method"], []).append(row)
    for method, rounds in by_method.items():
        row = {"layout": layout, "hosts": options.hosts, "ranks a host": ranks}
        row |= {"devices a rank": options.devices // ranks, "M": rounds[0]["parameters"] / 1e6}
        row |= {"Gbit/s": options.gigabits, "step": options.step_ms, "method": method}
        row["ms"] = 1e3 * harness.median(r["seconds"] for r in rounds)
        for limit in LIMITS:
            pairs = zip(by_method.get(limit, ()), rounds, strict=False)
            ratios = sorted(a["seconds"] / b["seconds"] for a, b in pairs)
            row[f"of {limit}"] = harness.median(ratios) if ratios else ""
            row[f"of {limit}, rounds"] = f"{ratios[0]:.3f}-{ratios[-1]:.3f}" if ratios else ""
        row["MB a step"] = harness.median(r["sent"] for r in rounds) / 1e6
        row["MB of a rank"] = harness.median(r["sent by rank"] for r in rounds) / 1e6
        if method.startswith("daso"):
            wire = WIRE_BYTES[method.split()[1]] / options.sync_every
            model = 2 * (options.hosts - 1) / options.hosts * row["M"] * wire
            row["of model"] = row["MB of a rank"] / model
        for key in ("exchange ms", "hidden", "peak MB"):
            values = [r[key] for r in rounds if r.get(key) is not None]
            row[key] = harness.median(values) if values else ""
        rows.append(row)
    return rows


def main():
    options = parse()
    if harness.is_rank():
        measure_rank(options)
        return
    rows, rate = [], options.gigabits * 1e9
    settings = {"engine": options.engine, "rounds": options.rounds, "B": options.sync_every}
    try:
        with emulated_cluster(options.hosts, rate, check=not options.quick) as cluster:
            for layout, ranks in itertools.product(options.layouts, options.ranks):
                found = run_cell(cluster, ranks, layout, options)
                rows += summary(found, ranks, layout, options)
                harness.report(options.name, rows, **settings)
    except ClusterError as error:
        raise SystemExit(f"Nothing was measured: {error}") from error


if __name__ == "__main__":
    main()
