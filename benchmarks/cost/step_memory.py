"""Device memory that jdaso adds to a step, in copies of the parameters, by XLA's own count.

    python benchmarks/cost/step_memory.py [--quick]

Two nodes; Adam; 160 leaves of 20,000 numbers; parameters and state donated. "State" is what the
optimizer state has beside Adam's, "temporaries" what the compiled step needs at most beyond its
arguments and results (``memory_analysis``), less the bare step's. Mark: 0.3 together.
"""

import argparse

import jax
import jax.numpy as jnp
import optax

import jdaso
from benchmarks.lib import harness

LEAVES, NUMBERS, QUICK_LEAVES = 160, 20_000, 4
MARK = 0.3
NESTEROV = optax.sgd(0.7, momentum=0.9, nesterov=True)
RULES = {"corrected": "corrected", "paper": "paper", "outer": jdaso.outer(NESTEROV)}
WIRES = ("float32", "bfloat16", "int8", "int4")


def copies_of(tx, params):
    """Copies of the parameters in the optimizer state, and in the step's temporaries."""
    size = sum(leaf.nbytes for leaf in jax.tree.leaves(params))

    def step(params, state, x):
        def loss(params):
            return sum(jnp.sum(jnp.tanh(leaf @ x)) for leaf in jax.tree.leaves(params))

        updates, state = tx.update(jax.grad(loss)(params), state, params)
        return optax.apply_updates(params, updates), state

    state = tx.init(params)
    x = jnp.ones(jax.tree.leaves(params)[0].shape[1])
    compiled = jax.jit(step, donate_argnums=(0, 1)).lower(params, state, x).compile()
    held = sum(leaf.nbytes for leaf in jax.tree.leaves(state))
    return held / size, compiled.memory_analysis().temp_size_in_bytes / size


def measure(leaves, wires=WIRES):
    """This node's number and a row, for each wire and merge in turn."""
    params = {f"leaf {k}": jnp.ones((100, NUMBERS // 100)) for k in range(leaves)}
    inner = optax.adam(1e-3)
    bare = copies_of(inner, params)
    with jdaso.Session() as session:
        for wire in wires:
            for name, merge in RULES.items():
                phases = jdaso.Phases(1000, 10, 10, 4, 1, fragments=4)
                settings = {"wire": wire, "merge": merge, "name": f"{wire} {name}"}
                tx = jdaso.daso(inner, phases=phases, session=session, **settings)
                state, temporaries = (
                    a - b for a, b in zip(copies_of(tx, params), bare, strict=True)
                )
                row = {"wire": wire, "merge": name, "state": round(state, 3)}
                row["temporaries"] = round(temporaries, 2)
                row["within mark"] = "yes" if state + temporaries <= MARK else "no"
                yield session.node, row


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true")
    quick = parser.parse_args().quick
    if harness.is_rank():
        found = list(measure(QUICK_LEAVES, WIRES[:1]) if quick else measure(LEAVES))
        if found[0][0] == 0:
            harness.give([row for _, row in found])
    else:
        harness.report("step_memory", harness.launch(__file__, ["--quick"] * quick, 2))
