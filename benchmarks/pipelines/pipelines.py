"""Pipelines on emulated hosts: schedules against their bound, and replicas of pipelines.

    python benchmarks/pipelines/pipelines.py [--quick] [--parts efficiency hybrid]
        [--gigabits 1] [--name N]

The compute is paced: a pass of a layer takes a given time a sample, as on an accelerator, while the
host's cores stay free, and gives gradients of all its parameters. Everything else is real: the
partition, its compiled stages, messages over the emulated links, averages and the optimizer.

- *efficiency*: K hosts, a stage each. "of bound" is the time that a schedule needs at the least
  (`Schedule.bound`, messages and the optimizer take none) over the time a step takes.
- *hybrid*: 4 hosts train with the same samples a step. *data*: a copy of the model each; *hybrid*:
  2 partitions, 2 replicas; averaged by `jdaso.synchronous` or `jdaso.daso`. *jax gloo*: JAX's own
  data parallelism. All in turn, round after round; ratios are medians over rounds.

Needs root, iproute2 and MPICH.
"""

import argparse
import os
import time
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax

import jdaso
from benchmarks.lib import harness
from benchmarks.lib.methods import COORDINATOR, Cell, bytes_sent, measure_gloo
from benchmarks.lib.work import Kind
from jdaso import pipeline
from jdaso._jax.host_call import host_call
from jdaso.fabric import ClusterError, emulated_cluster

PORT = 23457
SCHEDULES = (("gpipe", 1), ("1f1b", 1), ("interleaved", 2))
METHODS = ("data synchronous", "data daso", "hybrid synchronous", "hybrid daso")


def parse():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--name", default="pipelines", help="of the JSON files")
    parser.add_argument("--parts", nargs="+", default=["efficiency", "hybrid"])
    parser.add_argument("--partitions", type=int, nargs="+", default=[2, 4])
    parser.add_argument("--microbatches", type=int, nargs="+", default=[4, 8, 16])
    parser.add_argument("--methods", nargs="+", default=METHODS)
    parser.add_argument("--gigabits", type=float, default=1.0)
    parser.add_argument("--pass-ms", type=float, default=50.0, help="of a stage and micro-batch")
    parser.add_argument("--activation-mb", type=float, default=0.25, help="of a micro-batch")
    parser.add_argument("--parameters", type=float, default=30.5e6)
    parser.add_argument("--step-ms", type=float, default=400.0, help="of a host's compute")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=8, help="of a round")
    options = parser.parse_args()
    if options.quick:
        options.partitions, options.microbatches = [2], [4]
        options.rounds, options.steps, options.parameters = 1, 4, 1e6
        options.pass_ms, options.step_ms = 10.0, 40.0
    return options


@partial(jax.custom_vjp, nondiff_argnums=(2,))
def layer(x, w, seconds):
    """Takes `seconds` a sample, forward and again backward; every number of `w` has a gradient."""
    return slept(x, seconds) + w[0]


def slept(x, seconds):
    def call(_):
        time.sleep(seconds * x.shape[0])
        return np.zeros((), np.float32)

    return x + host_call(call, jax.ShapeDtypeStruct((), jnp.float32), x[0, 0])


def layer_forward(x, w, seconds):
    return layer(x, w, seconds), w


def layer_backward(seconds, w, g):
    g = slept(g, seconds)
    return g, 1e-3 * w + g[0, 0]


layer.defvjp(layer_forward, layer_backward)


def make_loss(seconds):
    """A chain of layers, each `seconds` a sample and pass; it may be cut behind each of them."""

    def loss_fn(params, batch):
        x = batch
        for w in params:
            x = pipeline.boundary(layer(x, w, seconds))
        return jnp.mean(x)

    return loss_fn


class Trial:
    """One way to train, and its state."""

    def __init__(self, session, plan, params, **options):
        self.pipe = pipeline.Pipeline(
            plan, optax.sgd(1e-3, momentum=0.9), session=session, **options
        )
        self.state = self.pipe.init(params)

    def seconds(self, batch, steps, barrier):
        """Mean of some steps."""
        barrier()
        begin = time.perf_counter()
        for _ in range(steps):
            self.state, _ = self.pipe.step(self.state, batch)
        jax.block_until_ready(self.state.params)
        return (time.perf_counter() - begin) / steps


def measure_efficiency(session, options, barrier):
    ranks, rows = session.num_nodes, []
    for microbatches in options.microbatches:
        trials = []
        for schedule, chunks in SCHEDULES:
            loss = make_loss(options.pass_ms / 1e3 / chunks)
            params = [np.full(1024, 0.5, np.float32)] * (ranks * chunks)
            numbers = int(options.activation_mb * 1e6 / 4)
            batch = np.ones((microbatches, numbers), np.float32)
            plan = pipeline.partition(
                loss,
                params,
                batch,
                num_partitions=ranks,
                num_microbatches=microbatches,
                chunks=chunks,
            )
            trial = Trial(session, plan, params, schedule=schedule)
            trial.seconds(batch, 1, barrier)
            trials.append((trial, batch))
        for _ in range(options.rounds):
            for trial, batch in trials:
                least = 2 * microbatches * options.pass_ms / 1e3 / trial.pipe.schedule.bound()
                rows.append(
                    {
                        "schedule": trial.pipe.schedule.name,
                        "K": ranks,
                        "V": trial.pipe.schedule.chunks,
                        "M": microbatches,
                        "seconds": trial.seconds(batch, 3, barrier),
                        "least": least,
                        "bound": trial.pipe.schedule.bound(),
                    }
                )
    return rows


def measure_hybrid(session, options, barrier):
    """Each host computes `step_ms`, whatever the method; with 8 samples a host in all."""
    layers, samples = 4, 8
    seconds = options.step_ms / 1e3 / (2 * layers * samples)
    loss = make_loss(seconds)
    params = [np.full(int(options.parameters) // layers, 0.5, np.float32)] * layers
    numbers = int(options.activation_mb * 1e6 / 4 / 2)  # two samples are a micro-batch
    trials = {}
    for method in options.methods:
        kind, averaging = method.split()
        partitions = 2 if kind == "hybrid" else 1
        batch = np.ones((samples * partitions, numbers), np.float32)
        phases = jdaso.Phases(10**6, sync_every=4, delay=4) if averaging == "daso" else None
        settings = {"wire": "bfloat16"} if averaging == "daso" else None
        plan = pipeline.partition(
            loss,
            params,
            batch,
            num_partitions=partitions,
            num_microbatches=8 if kind == "hybrid" else 1,
        )
        trial = Trial(session, plan, params, phases=phases, settings=settings)
        trial.seconds(batch, 5, barrier)
        trials[method] = trial, batch
    rows = []
    for number in range(options.rounds):
        for method, (trial, batch) in trials.items():
            sent = bytes_sent()
            seconds = trial.seconds(batch, options.steps, barrier)
            rows.append(
                {
                    "method": method,
                    "round": number,
                    "seconds": seconds,
                    "sent": (bytes_sent() - sent) / options.steps,
                }
            )
    return rows


def on_hosts(hosts, part, options):
    with emulated_cluster(hosts, options.gigabits * 1e9, check=not options.quick) as cluster:
        os.environ |= cluster.environment
        os.environ[COORDINATOR] = f"{cluster.addresses[0]}:{PORT}"
        flags = ["--parts", part, "--rounds", options.rounds, "--steps", options.steps]
        flags += ["--pass-ms", options.pass_ms, "--step-ms", options.step_ms]
        flags += ["--activation-mb", options.activation_mb, "--parameters", options.parameters]
        flags += ["--microbatches", *options.microbatches]
        if part == "efficiency":
            return harness.launch(__file__, flags, hosts, cluster.mpiexec([]))
        rows = []
        for number in range(options.rounds):  # each in its own processes: all would not fit
            for method in (*options.methods, "gloo"):
                named = ["--name", "gloo"] if method == "gloo" else ["--methods", method]
                one = [*flags, *named, "--rounds", 1]
                found = harness.launch(__file__, one, hosts, cluster.mpiexec([]))
                rows += [{**row, "round": number} for row in found]
        return rows


def efficiency(options):
    rows = []
    for hosts in options.partitions:
        found = on_hosts(hosts, "efficiency", options)
        keys = dict.fromkeys((r["schedule"], r["K"], r["V"], r["M"]) for r in found)
        for key in keys:
            rounds = [r for r in found if (r["schedule"], r["K"], r["V"], r["M"]) == key]
            least = rounds[0]["least"]
            rows.append(
                {
                    **dict(zip(("schedule", "K", "V", "M"), key, strict=True)),
                    "ms": 1e3 * harness.median(r["seconds"] for r in rounds),
                    "least ms": 1e3 * least,
                    "of bound": harness.median(least / r["seconds"] for r in rounds),
                    "busy": rounds[0]["bound"]
                    * harness.median(least / r["seconds"] for r in rounds),
                }
            )
    settings = {"pass ms": options.pass_ms, "activation MB": options.activation_mb}
    harness.report(name_of("efficiency", options), rows, **settings, gigabits=options.gigabits)


def hybrid(options):
    found = on_hosts(4, "hybrid", options)
    by_method = {}
    for row in found:
        by_method.setdefault(row["method"], []).append(row)
    base = by_method["data synchronous"]
    rows = []
    for method, rounds in by_method.items():
        ratios = [a["seconds"] / b["seconds"] for a, b in zip(base, rounds, strict=False)]
        seconds = harness.median(r["seconds"] for r in rounds)
        rows.append(
            {
                "method": method,
                "ms": 1e3 * seconds,
                "steps/s": 1 / seconds,
                "of data synchronous": harness.median(ratios),
                "MB a step": harness.median(r["sent"] for r in rounds) / 1e6,
            }
        )
    settings = {"M": options.parameters / 1e6, "step ms": options.step_ms}
    harness.report(name_of("hybrid", options), rows, **settings, gigabits=options.gigabits)


def name_of(part, options):
    return options.name if len(options.parts) == 1 else f"{options.name}_{part}"


def main():
    options = parse()
    if harness.is_rank():
        from mpi4py import MPI

        if options.name == "gloo":
            kind = Kind("paced", int(options.parameters), 0)
            cell = Cell(kind, 4, 4, "mpi4py", "float32", 2, options.steps)
            rows = measure_gloo(cell, [options.step_ms], options.rounds)
            keys = ("method", "round", "seconds", "sent")
            rows = [{key: row[key] for key in keys} for row in rows]
        else:
            measure = {"efficiency": measure_efficiency, "hybrid": measure_hybrid}
            with jdaso.Session() as session:
                rows = measure[options.parts[0]](session, options, MPI.COMM_WORLD.Barrier)
        if int(os.environ["PMI_RANK"]) == 0:
            harness.give(rows)
        return
    for part in options.parts:
        try:
            {"efficiency": efficiency, "hybrid": hybrid}[part](options)
        except ClusterError as error:
            print(f"{part}: {error}")


if __name__ == "__main__":
    main()
