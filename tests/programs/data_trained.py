"""Trains on a file with a loader and checkpoints; says what each node was given, step by step."""

import json
import sys

import jax
import jax.numpy as jnp
import numpy as np
import optax

import jdaso
from jdaso.checkpoint import Checkpoints
from jdaso.data import Loader, Npy

path, folder, end = sys.argv[1], sys.argv[2], int(sys.argv[3])

with jdaso.Session() as session:
    loader = Loader(Npy(path), 12, session, seed=5)
    tx = jdaso.synchronous(optax.sgd(0.1), session=session)
    params = {"w": jnp.zeros(3)}
    state = {"params": params, "optimizer": tx.init(params), "data": loader.state()}
    checkpoints = Checkpoints(folder, session, every_steps=3)
    state, begin = checkpoints.restore(state)
    loader.restore(state["data"])

    @jax.jit
    def step(params, optimizer, batch):
        x, y = batch[:, :3], batch[:, 3]
        loss, grads = jax.value_and_grad(lambda p: jnp.mean((x @ p["w"] - y) ** 2))(params)
        updates, optimizer = tx.update(grads, optimizer, params, value=loss)
        return optax.apply_updates(params, updates), optimizer

    given = []
    for number in range(begin, end):
        batch = next(loader)
        given.append(np.asarray(batch)[:, 4].astype(int).tolist())
        params, optimizer = step(state["params"], state["optimizer"], batch)
        state = {"params": params, "optimizer": optimizer, "data": loader.state()}
        checkpoints.after(number + 1, state)
    weights = np.asarray(state["params"]["w"]).tolist()
    said = {"node": session.node, "begin": begin, "given": given, "weights": weights}
    print(json.dumps(said) + "\n", end="", flush=True)
