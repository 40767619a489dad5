"""Accuracy after equal epochs: daso in all its settings against synchronous training.

    python benchmarks/accuracy/accuracy.py [--quick] [--tasks fashion fashion-adamw text]
        [--nodes 2 4] [--simulated 8 16 32 64 128] [--seeds 3] [--megabits 20]
        [--settings default ...] [--every 16 30] [--outer 16 0.7 0.5] [--rate 1e-3]
        [--fragments 1] [--second-moments own]

Every setting takes the same examples, in the same total batch, for the same number of epochs, from
the same first parameters; only what happens between nodes differs. `--nodes` are real ones (ranks
that mpiexec starts), `--simulated` ones virtual. With `--megabits` the real ones are emulated hosts
with links of that rate (root, iproute2 and MPICH). "behind" is by how many points of accuracy a
setting is below synchronous, the mean over seeds; "spread" the standard deviation of its accuracy;
"loss over" how much larger its loss is. The task "dictionary" is a transformer of 10.7 M parameters
and wants a GPU (`JAX_PLATFORMS=cuda`, virtual nodes).
"""

import argparse
import dataclasses
import json
import os
import time
from functools import partial

import jax
import numpy as np
import optax

import jdaso
from benchmarks.lib import harness
from benchmarks.lib.tasks import OPTIMIZERS, TASKS
from jdaso.fabric import emulated_cluster

EPOCHS = {"fashion": 10, "fashion-adamw": 10, "text": 6, "text-muon": 6, "dictionary": 1}
USUAL = ["fashion", "fashion-adamw", "text"]
NESTEROV = jdaso.outer(optax.sgd(0.7, momentum=0.9, nesterov=True))
MILD = jdaso.outer(optax.sgd(0.7, momentum=0.5, nesterov=True))


def fixed(sync_every, delay, *, warmup=0.1, cooldown=0.1, fragments="auto"):
    """Phases with shares of the run for warm-up and cool-down."""

    def make(steps, epochs):
        total = steps * epochs
        blocking = [int(total * share) for share in (warmup, cooldown)]
        return jdaso.Phases(total, *blocking, sync_every, delay, fragments=fragments)

    return make


def measured(steps, epochs):
    total = steps * epochs
    return jdaso.Phases(total, total // 10, total // 10, sync_every="auto", delay="auto")


def heat(steps, epochs):
    return jdaso.Phases.heat(
        steps_per_epoch=steps, total_epochs=epochs, warmup_epochs=1, cooldown_epochs=1
    )


def poster(steps, epochs):
    total = steps * epochs
    return jdaso.Phases(total, total // 10, total // 10, (4, 2, 1), (4, 2, 1))


SETTINGS = {
    "synchronous": None,
    "default": (fixed(4, 1), {}),
    "paper": (fixed(4, 1), {"merge": "paper"}),
    "near": (fixed(1, 1), {}),
    "two": (fixed(2, 1), {}),
    "outer": (fixed(4, 1), {"merge": NESTEROV}),
    "mild outer": (fixed(4, 1), {"merge": MILD}),
    "bfloat16": (fixed(4, 1), {"wire": "bfloat16"}),
    "int8": (fixed(4, 1), {"wire": "int8"}),
    "int4": (fixed(4, 1), {"wire": "int4"}),
    "auto": (measured, {"wire": "auto"}),
    "heat": (heat, {}),
    "poster": (poster, {}),
    "half warm-up": (fixed(4, 1, warmup=1 / 2), {}),
    "third warm-up": (fixed(4, 1, warmup=1 / 3), {}),
    "half cool-down": (fixed(4, 1, cooldown=1 / 2), {}),
    "third cool-down": (fixed(4, 1, cooldown=1 / 3), {}),
    "near, half warm-up": (fixed(1, 1, warmup=1 / 2), {}),
    "late": (fixed(4, 4, fragments=1), {}),
    "late paper": (fixed(4, 4, fragments=1), {"merge": "paper"}),
    "late int8": (fixed(4, 4, fragments=1), {"wire": "int8"}),
    "one fragment": (fixed(4, 1, fragments=1), {}),
    "two fragments": (fixed(4, 1, fragments=2), {}),
    "four fragments": (fixed(4, 1, fragments=4), {}),  # uses a link as much as "late" does
    "near int4": (fixed(1, 1), {"wire": "int4"}),  # half of its bytes
    "far": (fixed(16, 4), {}),
    "far outer": (fixed(16, 4), {"merge": NESTEROV}),
}


def make(task, name, session, steps, epochs, options):
    """One setting's transformation."""
    total = steps * epochs
    inner = task.optimizer(total)
    if SETTINGS[name] is None:
        return jdaso.synchronous(inner, session=session)
    phases_of, chosen = SETTINGS[name]
    phases = phases_of(steps, epochs)
    if options.fragments is not None and phases.fragments == "auto":
        phases = dataclasses.replace(phases, fragments=options.fragments)
    if options.second_moments is not None:
        chosen = chosen | {"second_moments": options.second_moments}
    return jdaso.daso(inner, phases=phases, session=session, **chosen)


def train(task, name, session, epochs, options):
    """Trains with one setting, once a seed; rows of scores."""
    nodes = session.num_nodes
    steps = len(task.order(0, nodes, 0))
    tx, rows = make(task, name, session, steps, epochs, options), []
    run_epoch = partial(task.train, tx)

    init, epoch_of = tx.init, run_epoch
    if session.simulated:
        axes = {"axis_name": session.node_axis}
        init = jax.vmap(tx.init, **axes)
        epoch_of = jax.vmap(run_epoch, in_axes=(0, 0, 1, None), out_axes=(0, 1), **axes)
    epoch_of = jax.jit(epoch_of, donate_argnums=(0, 1))
    for seed in range(options.seeds):
        params = task.init(jax.random.key(seed))
        if session.simulated:
            params = jax.tree.map(lambda x: np.repeat(np.asarray(x)[None], nodes, 0), params)
        state, begin = init(params), time.perf_counter()
        for epoch in range(epochs):
            order = task.order(epoch, nodes, seed)
            order = order if session.simulated else order[:, session.node]
            (params, state), _ = epoch_of(params, state, order, task.arrays)
        params = jdaso.finalize(params, state, session)
        if session.simulated:
            params = jax.tree.map(lambda x: x[0], params)
        score = {key: float(value) for key, value in task.score(params).items()}
        seconds = time.perf_counter() - begin
        if SETTINGS[name] is not None:
            phase = state.phase
            found = {"B": phase.sync_every, "S": phase.delay}
            score |= {key: int(np.max(value)) for key, value in found.items()}
        about = {"task": task.name, "engine": session.engine, "nodes": nodes}
        about |= {"setting": name, "seed": seed}
        rows.append({**about, **score, "seconds": seconds})
        if session.node == 0:
            print(json.dumps(rows[-1]), flush=True)
    return rows


def measure(options, **about):
    """All tasks and settings in this process."""
    rows = []
    for which in options.tasks:
        task = TASKS[which](*options.sizes.get(which, ()))
        if options.rate is not None:
            task = task._replace(optimizer=OPTIMIZERS[which](options.rate))
        for name in options.settings:
            with jdaso.Session(**about) as session:
                epochs = options.epochs or EPOCHS[which]
                rows += train(task, name, session, epochs, options)
            jax.clear_caches()
    return rows


def summary(rows):
    """A row a task, number of nodes and setting: means over seeds."""
    groups = {}
    for row in rows:
        groups.setdefault((row["task"], row["engine"], row["nodes"], row["setting"]), []).append(
            row
        )
    table = []
    for (task, engine, nodes, name), group in groups.items():
        base = groups.get((task, engine, nodes, "synchronous"), [])
        base = base or groups.get((task, "simulated", 2, "synchronous"), [])
        accuracy = [100 * r["accuracy"] for r in group]
        row = {"task": task, "engine": engine, "nodes": nodes, "setting": name}
        row |= {"accuracy": float(np.mean(accuracy)), "spread": float(np.std(accuracy))}
        if base:
            behind = np.mean([100 * r["accuracy"] for r in base]) - np.mean(accuracy)
            row["behind"] = float(behind)
        row["loss"] = float(np.mean([r["loss"] for r in group]))
        if base:
            row["loss over, %"] = 100 * (
                row["loss"] / float(np.mean([r["loss"] for r in base])) - 1
            )
        table.append({**row, "seeds": len(group)})
    return table


def launch(flags, nodes, megabits):
    """Rows of real nodes."""
    if megabits is None:
        return harness.launch(__file__, flags, nodes)
    with emulated_cluster(nodes, 1e6 * megabits) as cluster:
        os.environ |= cluster.environment
        return harness.launch(__file__, flags, nodes, cluster.mpiexec([]))


def parse():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--tasks", nargs="*", default=USUAL, choices=list(EPOCHS))
    parser.add_argument("--nodes", type=int, nargs="*", default=[2, 4])
    parser.add_argument("--simulated", type=int, nargs="*", default=[8, 16, 32, 64, 128])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--epochs", type=int, help=f"default: {EPOCHS}")
    parser.add_argument("--rate", type=float, help="the peak learning rate (default: the task's)")
    parser.add_argument("--settings", nargs="*", default=list(SETTINGS), choices=list(SETTINGS))
    parser.add_argument("--megabits", type=float, help="rate of the links between real nodes")
    about = "of all settings that do not name a number (default: as many as fit)"
    parser.add_argument("--fragments", type=int, metavar="F", help=about)
    parser.add_argument("--second-moments", choices=["shared", "own"], help="of all settings")
    about = "corrected, S = 1, with these B besides the settings"
    parser.add_argument("--every", nargs="*", type=int, default=[], metavar="B", help=about)
    about = "an outer Nesterov step, besides the settings; may be given again"
    names = ("B", "RATE", "MOMENTUM")
    parser.add_argument(
        "--outer", nargs=3, type=float, action="append", default=[], metavar=names, help=about
    )
    parser.add_argument("--virtual", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--name", default="accuracy", help="of the JSON file")
    options = parser.parse_args()
    options.sizes = {}
    if options.quick:
        options.seeds, options.epochs = 1, options.epochs or 2
        options.nodes, options.simulated = [2], [8]
        options.tasks = options.tasks[:1]
        options.sizes = {name: (10_000, 256) for name in EPOCHS}
        options.sizes |= {"text": (2_000, 64), "dictionary": (64, 8, 16, 24)}
        options.settings = [name for name in options.settings if name in QUICK]
    return options


QUICK = ("synchronous", "default", "paper")


def add_asked(options):
    """Adds the settings that ``--every`` and ``--outer`` ask for."""
    for every in options.every:
        SETTINGS[f"B {every}"] = (fixed(every, 1), {})
        options.settings = [*options.settings, f"B {every}"]
    for every, rate, momentum in options.outer:
        name = f"B {every:g}, outer {rate:g} {momentum:g}"
        rule = jdaso.outer(optax.sgd(rate, momentum=momentum, nesterov=True))
        SETTINGS[name] = (fixed(int(every), 1), {"merge": rule})
        options.settings = [*options.settings, name]


def main():
    options = parse()
    chosen = options.settings
    add_asked(options)
    if harness.is_rank():
        rows = measure(options)
        from mpi4py import MPI

        if MPI.COMM_WORLD.Get_rank() == 0:
            harness.give(rows)
        return
    flags = ["--quick"] * options.quick + ["--seeds", options.seeds]
    flags += ["--epochs", options.epochs] * (options.epochs is not None)
    for name in ("rate", "fragments", "second_moments"):
        value = getattr(options, name)
        flags += [f"--{name.replace('_', '-')}", value] * (value is not None)
    flags += ["--settings", *chosen]
    flags += ["--every", *options.every] if options.every else []
    flags += [word for each in options.outer for word in ("--outer", *each)]
    rows = []
    for task in options.tasks:
        for nodes in options.nodes:
            rows += launch([*flags, "--tasks", task], nodes, options.megabits)
    for nodes in options.simulated:
        rows += measure(options, engine=jdaso.Simulated(nodes))
    asked = {name: getattr(options, name) for name in ("rate", "fragments", "second_moments")}
    about = {"seeds": options.seeds}
    about |= {name: value for name, value in asked.items() if value is not None}
    epochs = ", ".join(f"{options.epochs or EPOCHS[task]} of {task}" for task in options.tasks)
    harness.report(options.name, summary(rows), epochs=epochs, **about)


if __name__ == "__main__":
    main()
