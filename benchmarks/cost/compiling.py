"""The time that jdaso adds to XLA's compilation of a step, by the number of leaves.

    python benchmarks/cost/compiling.py [--quick]

Two nodes; SGD with momentum; every leaf has a shape of its own, so that no kernel serves two.
"""

import argparse
import time

import jax
import jax.numpy as jnp
import optax

import jdaso
from benchmarks.lib import harness

LEAVES, QUICK_LEAVES = (10, 40, 160), (4,)
SETTINGS = {
    "corrected": {},
    "paper": {"merge": "paper"},
    "outer, int8": {"merge": jdaso.outer(optax.sgd(0.7, 0.9, nesterov=True)), "wire": "int8"},
}


def seconds_to_compile(tx, params):
    @jax.jit
    def step(params, state, grads):
        updates, state = tx.update(grads, state, params)
        return optax.apply_updates(params, updates), state

    begin = time.perf_counter()
    step.lower(params, tx.init(params), params).compile()
    return round(time.perf_counter() - begin, 2)


def measure(leaves):
    params = {f"leaf {k}": jnp.zeros((20, 5 + k)) for k in range(leaves)}
    inner, phases = optax.sgd(0.1, momentum=0.9), jdaso.Phases(100, 10, 10)
    with jdaso.Session() as session:
        row = {"leaves": leaves, "inner alone s": seconds_to_compile(inner, params)}
        tx = jdaso.synchronous(inner, session=session)
        row["synchronous s"] = seconds_to_compile(tx, params)
        for name, settings in SETTINGS.items():
            tx = jdaso.daso(inner, phases=phases, session=session, name=name, **settings)
            row[f"{name} s"] = seconds_to_compile(tx, params)
        return session.node, row


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true")
    quick = parser.parse_args().quick
    if harness.is_rank():
        rows = [measure(leaves) for leaves in (QUICK_LEAVES if quick else LEAVES)]
        if rows[0][0] == 0:
            harness.give([row for _, row in rows])
    else:
        rows = harness.launch(__file__, ["--quick"] * quick, 2)
        harness.report("compiling", rows)
