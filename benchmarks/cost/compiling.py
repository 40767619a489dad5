"""The time that jdaso adds to XLA's compilation of a step, by the number of leaves.

    python benchmarks/cost/compiling.py [--quick]

Two nodes; SGD with momentum; every leaf has a shape of its own, so that no kernel serves two.
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
import optax

import jdaso
from benchmarks.lib import harness

LEAVES, QUICK_LEAVES = (10, 40, 160), (4,)
CACHE = "JDASO_BENCHMARK_CACHE"
SETTINGS = {
    "corrected": {},
    "paper": {"merge": "paper"},
    "outer, int8": {"merge": jdaso.outer(optax.sgd(0.7, 0.9, nesterov=True)), "wire": "int8"},
}


def seconds_to_compile(tx, params):
    """Seconds by what they are for: all of it, and the last part."""

    @jax.jit
    def step(params, state, grads):
        updates, state = tx.update(grads, state, params)
        return optax.apply_updates(params, updates), state

    state = tx.init(params)
    begin = time.perf_counter()
    lowered = step.lower(params, state, params)
    between = time.perf_counter()
    lowered.compile()
    end = time.perf_counter()
    return {"": round(end - begin, 2), " loading": round(end - between, 2)}


def measure(leaves):
    params = {f"leaf {k}": jnp.zeros((20, 5 + k)) for k in range(leaves)}
    inner, phases = optax.sgd(0.1, momentum=0.9), jdaso.Phases(100, 10, 10)
    with jdaso.Session() as session:
        # Each rank has a folder: JAX's writes to one are not atomic.
        jax.config.update("jax_compilation_cache_dir", f"{os.environ[CACHE]}/{session.node}")
        found = {"inner alone": seconds_to_compile(inner, params)}
        tx = jdaso.synchronous(inner, session=session)
        found["synchronous"] = seconds_to_compile(tx, params)
        for name, settings in SETTINGS.items():
            tx = jdaso.daso(inner, phases=phases, session=session, name=name, **settings)
            found[name] = seconds_to_compile(tx, params)
        row = {"leaves": leaves}
        row |= {f"{name}{part} s": x for name, of in found.items() for part, x in of.items()}
        return session.node, row


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
        rows = [measure(leaves) for leaves in (QUICK_LEAVES if quick else LEAVES)]
        if rows[0][0] == 0:
            harness.give([row for _, row in rows])
    else:
        harness.report("compiling", list(starts(quick)))
