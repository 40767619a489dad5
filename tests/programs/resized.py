"""A run with an outer optimizer: ``python resized.py FOLDER STEPS``.

Each step moves every node by 1, so that the number of nodes does not matter. The run saves its last
step, and continues from the last one that FOLDER has. Prints the parameter after each step.
"""

import sys

import jax
import jax.numpy as jnp
import optax

import jdaso
from jdaso.checkpoint import Checkpoints

FOLDER, STEPS = sys.argv[1], int(sys.argv[2])
PHASES = jdaso.Phases(1000, sync_every=6, delay=4, fragments=1)

with jdaso.Session(timeout_seconds=60) as session:
    merge = jdaso.outer(optax.sgd(0.7, momentum=0.9, nesterov=True))
    tx = jdaso.daso(optax.sgd(1.0), session=session, phases=PHASES, merge=merge)
    params = {"w": jnp.zeros(1)}
    state = {"params": params, "opt": tx.init(params)}
    checkpoints = Checkpoints(FOLDER, session)
    state, begin = checkpoints.restore(state)

    @jax.jit
    def step(state):
        params = state["params"]
        updates, opt = tx.update({"w": -jnp.ones(1)}, state["opt"], params)
        return {"params": optax.apply_updates(params, updates), "opt": opt}

    seen = []
    for _ in range(begin, STEPS):
        state = step(state)
        seen.append(f"{float(state['params']['w'][0]):.4f}")
    checkpoints.save(STEPS, state)
    checkpoints.wait()
    jdaso.finalize(state["params"], state["opt"], session)
    print(" ".join([str(session.node), str(begin), *seen]) + "\n", end="")
