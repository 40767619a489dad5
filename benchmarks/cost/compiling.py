"""The time that jdaso adds to XLA's compilation of a step, by the number of leaves.

    python benchmarks/cost/compiling.py [--quick]

Two nodes; SGD with momentum; every leaf has a shape of its own, so that no kernel serves two. Then
the step of a network, with its gradients and Adam: ResNet-50, 161 leaves of some twenty shapes.
The ranks start twice with one folder for JAX's compilation cache: the second start loads what the
first has compiled (with JDASO_FFI=off it compiles again, but for the inner optimizer alone).
Seconds are those of tracing, lowering and compiling, and of "loading": the last of these.
"""

import argparse
import os
import tempfile
import time

import jax
import jax.numpy as jnp
import numpy as np
import optax

import jdaso
from benchmarks.lib import harness
from jdaso.fabric._study.workloads._networks import of_images
from jdaso.fabric._study.workloads._resnet50 import ResNet50

LEAVES, QUICK_LEAVES = (10, 40, 160), (4,)
SIZE = 64  # of images; what is compiled hardly depends on it
CACHE = "JDASO_BENCHMARK_CACHE"
SETTINGS = {
    "corrected": {},
    "paper": {"merge": "paper"},
    "outer, int8": {"merge": jdaso.outer(optax.sgd(0.7, 0.9, nesterov=True)), "wire": "int8"},
}


def seconds_to_compile(step, *arguments):
    """Seconds by what they are for: all of it, and the last part."""
    begin = time.perf_counter()
    lowered = jax.jit(step).lower(*arguments)
    between = time.perf_counter()
    lowered.compile()
    end = time.perf_counter()
    return {"": round(end - begin, 2), " loading": round(end - between, 2)}


def updates_alone(tx, leaves):
    """A step of parameters of as many shapes as leaves, whose gradients are given."""

    def step(params, state, grads):
        updates, state = tx.update(grads, state, params)
        return optax.apply_updates(params, updates), state

    params = {f"leaf {k}": jnp.zeros((20, 5 + k)) for k in range(leaves)}
    return step, params, tx.init(params), params


def with_network(tx, network, size):
    """A step of a network that computes its gradients."""

    def step(params, state, batch):
        loss, grads = jax.value_and_grad(network.loss)(params, batch)
        updates, state = tx.update(grads, state, params, value=loss)
        return optax.apply_updates(params, updates), state, loss

    params = jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), network.shapes())
    return step, params, tx.init(params), network.batch(jax.random.key(0), 2, size)


def measure(session, name, inner, step_of, *about):
    """The seconds of all settings, a row."""
    inner = optax.with_extra_args_support(inner)
    phases = jdaso.Phases(100, 10, 10)
    found = {"inner alone": seconds_to_compile(*step_of(inner, *about))}
    tx = jdaso.synchronous(inner, session=session)
    found["synchronous"] = seconds_to_compile(*step_of(tx, *about))
    for setting, settings in SETTINGS.items():
        tx = jdaso.daso(inner, phases=phases, session=session, name=setting, **settings)
        found[setting] = seconds_to_compile(*step_of(tx, *about))
    row = {"leaves": name}
    for setting, of in found.items():
        row |= {f"{setting}{part} s": seconds for part, seconds in of.items()}
        row[f"{setting} / inner"] = round(of[""] / found["inner alone"][""], 2)
    del row["inner alone / inner"]
    return row


def measure_all(quick):
    """The node, and the rows of all steps."""
    module = ResNet50(width=8, blocks=(1, 1)) if quick else ResNet50()
    network = of_images(module, SIZE)
    with jdaso.Session() as session:
        # Each rank has a folder: JAX's writes to one are not atomic.
        jax.config.update("jax_compilation_cache_dir", f"{os.environ[CACHE]}/{session.node}")
        sgd = optax.sgd(0.1, momentum=0.9)
        rows = [
            measure(session, leaves, sgd, updates_alone, leaves)
            for leaves in (QUICK_LEAVES if quick else LEAVES)
        ]
        rows.append(measure(session, "network", optax.adam(1e-3), with_network, network, SIZE))
        return session.node, rows


def starts(quick):
    """The rows of two starts of the same ranks, with one folder for JAX's compilation cache."""
    with tempfile.TemporaryDirectory() as folder:
        os.environ[CACHE] = folder
        os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"
        os.environ["JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES"] = "-1"
        for start in ("first", "second"):
            for row in harness.launch(__file__, ["--quick"] * quick, 2):
                yield {"start": start, **row}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true")
    quick = parser.parse_args().quick
    if harness.is_rank():
        node, rows = measure_all(quick)
        if node == 0:
            harness.give(rows)
    else:
        harness.report("compiling", list(starts(quick)))
