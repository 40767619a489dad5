"""Accuracy when nodes are added and each keeps its batch, with the learning rate scaled and not.

    python benchmarks/accuracy/scaling.py [--quick] [--nodes 1 4 8] [--seeds 1] [--epochs 4]
        [--images 20000]

Every node takes 64 images a step, so P nodes make 1/P of the steps in the same epochs. "kept" is
the rate of one node, "scaled" P times it after an epoch of warm-up (`jdaso.scaled_warmup`), "root"
that times the root of P; all end on a cosine. NaN: the parameters were no longer finite. Virtual
nodes (engine simulated).
"""

import argparse
import contextlib
import math

import jax
import optax

import jdaso
from benchmarks.accuracy.accuracy import train
from benchmarks.lib import harness
from benchmarks.lib.tasks import fashion

BATCH, BASE_RATE = 64, 0.05
POWERS = {"kept": 0, "root": 1 / 2, "scaled": 1}
SETTINGS = {"synchronous": "synchronous", "daso": "default"}


def optimizer(batch, epochs):
    """The optimizer of a run, by its number of steps."""

    def make(total):
        warmup = total // epochs
        then = optax.cosine_decay_schedule(1.0, total - warmup)
        rate = jdaso.scaled_warmup(
            BASE_RATE, batch_size=batch, base_batch_size=BATCH, warmup_steps=warmup, then=then
        )
        return optax.sgd(rate, momentum=0.9, nesterov=True)

    return make


def measure(nodes, options):
    """A row for each rate and setting."""
    rows = []
    task = fashion(5_000 if options.quick else options.images, nodes * BATCH)
    for rate in options.rates if nodes > 1 else ["kept"]:
        batch = round(BATCH * nodes ** POWERS[rate])
        task = task._replace(optimizer=optimizer(batch, options.epochs))
        for name in options.settings if nodes > 1 else ["synchronous"]:
            scores = [{"accuracy": math.nan, "loss": math.nan}]
            diverged = contextlib.suppress(jax.errors.JaxRuntimeError, jdaso.NodeError)
            with diverged, jdaso.Session(engine=jdaso.Simulated(nodes)) as session:
                scores = train(task, SETTINGS[name], session, options.epochs, options)
            jax.clear_caches()
            mean = {key: sum(s[key] for s in scores) / len(scores) for key in ("accuracy", "loss")}
            steps = options.epochs * len(task.order(0, nodes, 0))
            row = {"nodes": nodes, "setting": name, "rate": rate, "steps": steps}
            rows.append(row | {"accuracy": 100 * mean["accuracy"], "loss": mean["loss"]})
    return rows


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--nodes", type=int, nargs="*", default=[1, 4, 8])
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--images", type=int, default=20_000)
    parser.add_argument("--rates", nargs="*", default=list(POWERS), choices=list(POWERS))
    parser.add_argument("--settings", nargs="*", default=list(SETTINGS), choices=list(SETTINGS))
    parser.set_defaults(fragments=None, second_moments=None)  # as each setting has them
    options = parser.parse_args()
    if options.quick:
        options.nodes, options.epochs, options.settings = [2], 2, ["daso"]
    rows = [row for nodes in options.nodes for row in measure(nodes, options)]
    harness.report(
        "scaling", rows, images=options.images, epochs=options.epochs, seeds=options.seeds
    )


if __name__ == "__main__":
    main()
