"""Seconds to an accuracy on emulated hosts, where the processor computes: daso and synchronous.

    python benchmarks/accuracy/time_to_accuracy.py [--quick] [--hosts 4] [--megabits 100]
        [--task demo]

Each method trains from the same first parameters, on the same batches in the same order, to the
end. Now and then it keeps the parameters and the time; only when the clock has stopped are they
looked at, each node's own at its part of the test images. S follows docs/choosing.md: an
exchange takes 0.35 s and a step 0.2. "to 90 %" is the time to 90 % of what synchronous training
ends with. Needs root, iproute2 and MPICH.
"""

import argparse
import json
import os
import time
from functools import partial

import jax

import jdaso
from benchmarks.lib import harness
from benchmarks.lib.methods import bytes_sent
from benchmarks.lib.tasks import TASKS
from jdaso.fabric import ClusterError, emulated_cluster

METHODS = {
    "synchronous": None,
    "daso": {"wire": "bfloat16"},
    "daso paper": {"wire": "bfloat16", "merge": "paper"},
}


def train(task, name, seed, options):
    """One run: ``[(seconds, steps, accuracy), ...]`` and bytes a step."""
    with jdaso.Session(engine=options.engine) as session:
        orders = [
            task.order(epoch, session.num_nodes, seed)[:, session.node]
            for epoch in range(options.epochs)
        ]
        every = max(1, len(orders[0]) // options.looks)
        total = sum(len(order) // every * every for order in orders)
        inner = task.optimizer(total)
        if METHODS[name] is None:
            tx = jdaso.synchronous(inner, session=session)
        else:
            phases = jdaso.Phases(
                total, options.warmup, total // 20, options.sync_every, options.delay
            )
            tx = jdaso.daso(inner, phases=phases, session=session, **METHODS[name])

        params = task.init(jax.random.key(seed))
        state = tx.init(params)
        compiled = (
            jax.jit(partial(task.train, tx))
            .lower(params, state, orders[0][:every], task.arrays)
            .compile()
        )
        looks, done, before = [], 0, bytes_sent()
        jdaso.mean({"all": 1.0}, session)  # all nodes begin together
        begin = time.perf_counter()
        for order in orders:
            for first in range(0, len(order) // every * every, every):
                (params, state), _ = jax.block_until_ready(
                    compiled(params, state, order[first : first + every], task.arrays)
                )
                done += every
                looks.append((time.perf_counter() - begin, done, params))
        sent = (bytes_sent() - before) / done
        curve = []
        for seconds, steps, then in looks:
            mine = task.score(then, session.node, session.num_nodes)
            curve.append((seconds, steps, float(jdaso.mean(mine, session)["accuracy"])))
        params = jdaso.finalize(params, state, session)
        final = float(task.score(params)["accuracy"])
    return {"method": name, "seed": seed, "curve": curve, "sent": sent, "final": final}


def summary(runs, options):
    """A row a method: medians over seeds."""
    rows, by_method = [], {}
    for run in runs:
        by_method.setdefault(run["method"], []).append(run)
    goal = options.share * harness.median(r["final"] for r in by_method["synchronous"])
    base = None
    for name, group in sorted(by_method.items(), key=lambda one: one[0] != "synchronous"):
        row = {"method": name, "hosts": options.hosts, "Mbit/s": options.megabits}
        row["final"] = 100 * harness.median(r["final"] for r in group)
        row["seconds"] = harness.median(r["curve"][-1][0] for r in group)
        row["MB a step"] = harness.median(r["sent"] for r in group) / 1e6
        reached = [next((s for s, _, a in r["curve"] if a >= goal), float("inf")) for r in group]
        row[f"to {options.share:.0%}"] = harness.median(reached)
        base = base or row
        row["times shorter"] = base[f"to {options.share:.0%}"] / row[f"to {options.share:.0%}"]
        row["times faster"] = base["seconds"] / row["seconds"]
        rows.append(row)
    return rows


def parse():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--task", default="demo", choices=list(TASKS))
    parser.add_argument("--hosts", type=int, default=4)
    parser.add_argument("--megabits", type=float, default=100.0)
    parser.add_argument("--engine", default="mpi4py")
    parser.add_argument("--batch", type=int, default=256, help="of all hosts")
    parser.add_argument("--examples", type=int, default=60_000)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--looks", type=int, default=20, help="at the accuracy, an epoch")
    parser.add_argument("--warmup", type=int, default=5, help="steps")
    parser.add_argument("--sync-every", type=int, default=4, help="B")
    parser.add_argument("--delay", type=int, default=2, help="S")
    parser.add_argument("--share", type=float, default=0.9, help="of the final accuracy")
    parser.add_argument("--methods", nargs="+", default=list(METHODS), choices=list(METHODS))
    parser.add_argument("--name", default="time_to_accuracy", help="of the JSON file")
    options = parser.parse_args()
    if options.quick:
        options.hosts, options.examples, options.epochs, options.looks = 2, 8000, 1, 3
        options.task, options.methods = "fashion", ["synchronous", "daso"]
    if "synchronous" not in options.methods:
        parser.error("--methods needs synchronous, with which the others are compared.")
    return options


def main():
    options = parse()
    if harness.is_rank():
        task = TASKS[options.task](options.examples, options.batch)
        seeds = range(options.seeds)
        runs = [train(task, name, seed, options) for seed in seeds for name in options.methods]
        if int(os.environ["PMI_RANK"]) == 0:
            harness.give(runs)
        return
    flags = ["--task", options.task, "--engine", options.engine, "--batch", options.batch]
    flags += ["--examples", options.examples, "--epochs", options.epochs, "--seeds", options.seeds]
    flags += ["--looks", options.looks, "--warmup", options.warmup, "--delay", options.delay]
    flags += ["--sync-every", options.sync_every, "--methods", *options.methods]
    rate = options.megabits * 1e6
    try:
        with emulated_cluster(options.hosts, rate, check=not options.quick) as cluster:
            os.environ |= cluster.environment
            runs = harness.launch(__file__, flags, options.hosts, cluster.mpiexec([]))
    except ClusterError as error:
        raise SystemExit(f"Nothing was measured: {error}") from None
    for run in runs:
        print(json.dumps(run))
    settings = {"task": options.task, "epochs": options.epochs, "batch": options.batch}
    settings |= {"B": options.sync_every, "S": options.delay, "warm-up": options.warmup}
    harness.report(options.name, summary(runs, options), **settings, runs=len(runs))


if __name__ == "__main__":
    main()
