"""A run that is recorded, from its last checkpoint if there is one: ``python recorded_run.py DIR``.

Each node writes ``seen-NODE.json``: the losses that it saw, by step, and its totals.
"""

import json
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import optax

import jdaso
from jdaso.checkpoint import Checkpoints
from jdaso.faults import Faults
from jdaso.metrics import Recorder

FOLDER = Path(sys.argv[1])
PHASES = jdaso.Phases(total_steps=24, warmup_steps=4, cooldown_steps=4, sync_every=3, delay=2)

with jdaso.Session() as session, Recorder(FOLDER / "run", session) as recorder:
    tx = jdaso.daso(optax.sgd(0.05), phases=PHASES, session=session)
    params = jdaso.broadcast({"w": jnp.ones(8)}, session)
    checkpoints = Checkpoints(FOLDER / "checkpoints", session, every_steps=6)
    faults = Faults(None, session, folder=FOLDER / "faults")
    state, begin = checkpoints.restore({"params": params, "optimizer": tx.init(params)})

    @jax.jit
    def update(state, target):
        loss, grads = jax.value_and_grad(lambda p: jnp.sum((p["w"] - target) ** 2))(state["params"])
        updates, optimizer = tx.update(grads, state["optimizer"], state["params"], value=loss)
        params = optax.apply_updates(state["params"], updates)
        return {"params": params, "optimizer": optimizer}, loss

    losses = {}
    for n in range(begin, PHASES.total_steps):
        faults.at(n, state["params"])
        state, loss = update(state, 2.0 + session.node)
        recorder.step(n + 1, state["optimizer"], loss=loss)
        losses[n + 1] = float(loss)
        checkpoints.after(n + 1, state)
        if n + 1 == 12:
            checkpoints.wait()  # so that the drill finds a whole one
    checkpoints.wait()
    jdaso.finalize(state["params"], state["optimizer"], session)
    stats = session.stats
    path = FOLDER / f"seen-{session.node}.json"  # printed lines of two ranks may mix
    path.write_text(json.dumps({"losses": losses, **stats._asdict()}))
