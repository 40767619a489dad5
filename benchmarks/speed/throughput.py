"""Steps a second on emulated hosts: jdaso between its limits and beside synchronous peers.

    python benchmarks/speed/throughput.py [--quick] [--hosts 2 4] [--gigabits 1] [--step-ms 200]
        [--compute paced]

The compute is *paced*: a step takes a given time, as on an accelerator, while the host's cores stay
free, and leaves gradients of every parameter in memory; or *real*, a task of `tasks` (`--compute
demo`, text) that the processor computes. Optimizer, packing, exchange and merge are always real, in
the same compiled program. All methods of a cell run in turn, round after round, and a ratio is the
median over rounds.

- *bare*: the inner optimizer alone. *instant*: all of jdaso, but nothing is sent.
- *daso WIRE MERGE*, *synchronous [WIRE]*: jdaso's.
- *jax gloo*: JAX's own data parallelism over processes, `shard_map` and `pmean`.
- *torch ddp*, *torch post-local sgd*, *horovod*: see `_torch_peers.py`.

HeAT's DASO is missing: it does not start without CUDA. "sent" is read from the interface's counter;
"hidden" is 1 less an exchange's lost time over its own, from `Session.stats`, and beside it the
same from the events of the timeline alone; "fits" says whether the link carries the exchanges of a
cycle behind the steps from their starts to their merges; "of link" is an exchange's time at the
link's rate (a ring's 2(P-1)/P of the bytes) over the time it took, empty where fragments share the
link, "of allowed" the step's time if nothing but the link's rate held it up over what it
took. "of passes" is what a start and a merge add to a cycle over the time in which a plain copy
moves as many bytes as they need to move at the least. Needs root, iproute2 and MPICH.
"""

import argparse
import json
import math
import os
import subprocess
import tempfile
from pathlib import Path

import numpy as np

from benchmarks.lib import harness
from benchmarks.lib.marks import JDASO
from benchmarks.lib.methods import COORDINATOR, Cell, measure, measure_gloo
from benchmarks.lib.tasks import TASKS
from benchmarks.lib.work import Kind
from jdaso.fabric import (
    ClusterError,
    Fabric,
    Training,
    emulated_cluster,
    predict,
    predict_synchronous,
)
from jdaso.plots import plot_timeline
from jdaso.traces._timeline import Event

LIMITS = ("bare", "instant")
FEWEST_PASSES = {"float32": 11, "narrow": 16}
"""Reads and writes of all parameters that a start and a merge ("corrected") need at the least."""
METHODS = (*LIMITS, JDASO, "synchronous")
PEERS = ("torch ddp", "torch post-local sgd", "horovod")
WIRE_BYTES = {"float32": 4, "bfloat16": 2, "int8": 1 + 4 / 256, "int4": 1 / 2 + 2 / 64}
PORT = 23456


def parse():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--name", default="throughput", help="of the JSON file")
    parser.add_argument("--hosts", type=int, nargs="+", default=[2, 4])
    parser.add_argument("--gigabits", type=float, nargs="+", default=[1.0])
    parser.add_argument("--step-ms", type=float, nargs="+", default=[200.0])
    parser.add_argument("--parameters", type=float, nargs="+", default=[25.6e6])
    parser.add_argument("--compute", default="paced", help="paced, or a task by its name")
    parser.add_argument("--batch", type=int, default=64, help="of a node, where compute is real")
    parser.add_argument("--sync-every", type=int, default=4, help="B")
    parser.add_argument("--delay", type=int, help="S; default B")
    parser.add_argument("--methods", nargs="+", default=METHODS)
    parser.add_argument("--separate", action="store_true", help="each method in its own processes")
    parser.add_argument("--engine", default="mpi4py")
    parser.add_argument("--instant-wire", default="bfloat16")
    parser.add_argument("--warm", type=int, default=2, help="cycles before the clock runs")
    parser.add_argument("--cycles", type=int, default=4, help="cycles on the clock, a round")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--timeline", help="picture of one cycle; PNG or SVG")
    parser.add_argument("--peers-python", default=".venv-peers/bin/python")
    options = parser.parse_args()
    if options.compute != "paced":
        options.step_ms = [0.0]
    if options.quick:
        options.hosts, options.parameters, options.rounds = [2], [1e6], 1
        options.cycles, options.warm = 8, 1
        options.step_ms = [20.0] if options.compute == "paced" else [0.0]
    return options


def run_cell(cluster, parameters, options):
    """Rows of all methods of one cluster and one size, as its ranks measured them."""
    hosts = len(cluster.hosts)
    os.environ |= cluster.environment
    os.environ[COORDINATOR] = f"{cluster.addresses[0]}:{PORT}"
    together = [m for m in options.methods if m not in (*PEERS, "jax gloo")]
    groups = [[m] for m in together] if options.separate else [together]
    groups += [[m] for m in options.methods if m not in together]
    found = []
    for number in range(options.rounds if options.separate else 1):
        for group in groups:
            rounds = 1 if options.separate or group[0] not in together else options.rounds
            if group[0] in PEERS:
                found += torch_rows(cluster, group[0], parameters, options)
                continue
            flags = ["--parameters", parameters, "--rounds", rounds, "--methods", *group]
            flags += ["--compute", options.compute, "--batch", options.batch]
            flags += ["--step-ms", *options.step_ms, "--sync-every", options.sync_every]
            flags += ["--delay", options.delay or options.sync_every, "--engine", options.engine]
            flags += ["--warm", options.warm, "--cycles", options.cycles]
            flags += ["--instant-wire", options.instant_wire]
            try:
                rows = harness.launch(__file__, flags, hosts, cluster.mpiexec([]))
            except subprocess.CalledProcessError as error:  # too little memory, say
                print(f"{hosts} hosts, {', '.join(group)}: failed with status {error.returncode}")
                continue
            for row in rows:
                events = row.pop("events", [])
                if options.timeline and row["method"] == JDASO:
                    draw_cycle(events, options)
            found += [{**row, "round": number + row["round"]} for row in rows]
        print(json.dumps(found[-len(groups) :]), flush=True)
    return found


def draw_cycle(events, options):
    """The steps around the last exchange of a round but one, as a picture."""
    events = [Event(*event) for event in events]
    begins = [e.begin_seconds for e in events if e.name == "exchange"][-2:]
    if len(begins) < 2:
        return
    begin, end = begins
    before = (end - begin) / options.sync_every
    shown = [e for e in events if begin - before < e.begin_seconds < end + before]
    plot_timeline(shown, options.timeline)


def torch_rows(cluster, method, parameters, options):
    """A peer of another environment; nothing where it cannot be had."""
    python, rows = Path(options.peers_python), []
    module = "horovod" if method == "horovod" else "torch"
    there = (
        python.exists()
        and not subprocess.run(
            [str(python), "-c", f"import {module}"], capture_output=True
        ).returncode
    )
    if not there:
        print(f"{method}: {module} is not installed in {python.parent.parent}")
        return []
    script, hosts = str(Path(__file__).with_name("_torch_peers.py")), len(cluster.hosts)
    for step_ms in options.step_ms:
        flags = ["--method", method, "--parameters", int(parameters), "--step-ms", step_ms]
        flags += ["--compute", options.compute, "--batch", options.batch]
        flags += ["--sync-every", options.sync_every, "--warm", options.sync_every]
        flags += ["--steps", options.cycles * options.sync_every]
        with tempfile.TemporaryDirectory() as folder:
            if options.compute != "paced":
                flags += ["--arrays", f"{folder}/arrays.npz"]
                np.savez(flags[-1], *TASKS[options.compute]().arrays)
            row = harness.launch(script, flags, hosts, cluster.mpiexec([]), python=str(python))
        rows.append({"method": method, "step_ms": step_ms, "round": 0, **row})
    return rows


def summary(found, cluster, parameters, options):
    """A row a step time and method: medians over rounds, and of ratios within a round."""
    rows, rate = [], cluster.bits_per_second / 8
    hosts, delay = len(cluster.hosts), options.delay or options.sync_every
    by_key = {}
    parameters = next((r["parameters"] for r in found if "parameters" in r), parameters)
    for row in found:
        by_key.setdefault((row["step_ms"], row["method"]), []).append(row)
    for (step_ms, method), rounds in by_key.items():
        wire = method.split()[1] if method.startswith("daso") else None
        bare = [1e3 * r["seconds"] for r in by_key.get((step_ms, "bare"), ())]
        alone = harness.median(bare) if bare else step_ms or math.nan
        row = {
            "compute": options.compute,
            "M": parameters / 1e6,
            "hosts": hosts,
            "Gbit/s": cluster.bits_per_second / 1e9,
            "step": step_ms,
            "B": options.sync_every,
            "S": delay,
            "method": method,
            "ms": harness.median(r["seconds"] for r in rounds) * 1e3,
        }
        for limit in LIMITS:
            same = limit_of(limit, method, [name for _, name in by_key], options)
            pairs = zip(by_key.get((step_ms, same), ()), rounds, strict=False)
            ratios = [a["seconds"] / b["seconds"] for a, b in pairs]
            row[f"of {limit}"] = harness.median(ratios) if ratios else ""
        row["MB a step"] = harness.median(r["sent"] for r in rounds) / 1e6
        for key in ("exchange ms", "lost ms", "hidden", "hidden, by events", "peak MB"):
            values = [r[key] for r in rounds if r.get(key) is not None]
            row[key] = harness.median(values) if values else ""
        if wire:
            cycle = 2 * (hosts - 1) / hosts * parameters * WIRE_BYTES[wire] / rate * 1e3
            fragments = next((r["fragments"] for r in rounds if "fragments" in r), 1)
            row["ring ms"] = cycle / fragments
            alone_on_link = fragments * delay <= options.sync_every
            row["of link"] = row["ring ms"] / row["exchange ms"] if alone_on_link else ""
            free = min(fragments * delay, options.sync_every) * alone
            row["fits"] = cycle < free
            late = max(0.0, cycle - free) / options.sync_every
            row["of allowed"] = (alone + late) / row["ms"]
        copies = [r["copy"] for r in found if "copy" in r]
        if copies and bare:
            copy = row["copy GB/s"] = harness.median(copies) / 1e9
            if wire and method.endswith("corrected"):
                row["of passes"] = of_passes(row, wire, alone)
            model = predicted(method, wire, cluster, parameters, alone / 1e3, copy, options)
            if model is not None:
                row["model ms"] = 1e3 * model.step_seconds
                row["model off"] = row["model ms"] / row["ms"] - 1
        rows.append(row)
    return rows


def limit_of(limit, method, measured, options):
    """The limit that a method is held against: "instant" of the same wire and merge, or none."""
    if limit == "bare" or not method.startswith("daso"):
        return limit
    settings = method.removeprefix("daso ")
    if f"instant {settings}" in measured:
        return f"instant {settings}"
    return limit if settings == f"{options.instant_wire} corrected" else None


def of_passes(row, wire, bare_ms):
    """Returns a cycle's cost beyond B bare steps, in units of a plain copy of as many bytes."""
    passes = FEWEST_PASSES["float32" if wire == "float32" else "narrow"]
    at_least = passes / 2 * 4e6 * row["M"] / (row["copy GB/s"] * 1e9)
    return (row["ms"] - bare_ms) / 1e3 * row["B"] / at_least


def predicted(method, wire, cluster, parameters, bare, copy, options):
    """Returns the prediction of `jdaso.fabric` for a cell; None for methods that it lacks."""
    fabric = Fabric(
        nodes=len(cluster.hosts),
        bits_per_second=cluster.bits_per_second,
        copy_bytes_per_second=copy * 1e9,
        accelerators=False,
    )
    delay = options.delay or options.sync_every
    training = Training(int(parameters), bare, options.sync_every, delay, wire or "float32")
    if wire:
        return predict(fabric, training) if options.engine == "mpi4py" else None
    return predict_synchronous(fabric, training) if method == "synchronous" else None


def main():
    options = parse()
    if harness.is_rank():
        cell = Cell(
            kind=Kind(options.compute, int(options.parameters[0]), options.batch),
            sync_every=options.sync_every,
            delay=options.delay or options.sync_every,
            engine=options.engine,
            instant_wire=options.instant_wire,
            warm=options.warm,
            cycles=options.cycles,
        )
        if options.methods == ["jax gloo"]:
            rows = measure_gloo(cell, options.step_ms, options.rounds)
        else:
            rows = measure(cell, options.methods, options.step_ms, options.rounds)
        if int(os.environ["PMI_RANK"]) == 0:
            harness.give(rows)
        return
    rows, missing, done = [], [], 0
    cells = len(options.gigabits) * len(options.hosts) * len(options.parameters)
    settings = {"engine": options.engine, "rounds": options.rounds, "cycles": options.cycles}
    for gigabits in options.gigabits:
        for hosts in options.hosts:
            try:
                with emulated_cluster(hosts, gigabits * 1e9, check=not options.quick) as cluster:
                    for parameters in options.parameters:
                        found = run_cell(cluster, parameters, options)
                        rows += summary(found, cluster, parameters, options)
                        done += 1
                        settings["cells"] = f"{done} of {cells}"  # should it be stopped here
                        harness.report(options.name, rows, **settings)
            except ClusterError as error:
                print(f"{hosts} hosts at {gigabits:g} Gbit/s: {error}")
                missing.append(f"{hosts} hosts at {gigabits:g} Gbit/s")
    if not rows:
        raise SystemExit("Nothing was measured: no cluster could be made as it was asked for.")
    if missing:
        settings["refused (the link was off)"] = "; ".join(missing)
        harness.report(options.name, rows, **settings)


if __name__ == "__main__":
    main()
