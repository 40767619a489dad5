"""Orbax: a trained model is saved once, and any later script restores it; here the same one.

mpiexec -n 2 python examples/orbax_restore.py FOLDER     # trains, saves
mpiexec -n 2 python examples/orbax_restore.py FOLDER     # restores, goes on

For a run that was cut off, exchange in flight and all, use jdaso.checkpoint: this is for what is
finished, and read by others.
"""

import sys
import zlib
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
import orbax.checkpoint as ocp

import jdaso

STEPS, BATCH = 200, 64


def loss_of(params, x, y):
    return jnp.mean((jnp.tanh(x @ params["w1"] + params["b1"]) @ params["w2"] - y) ** 2)


def checksum(params):
    return zlib.crc32(b"".join(np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(params)))


with jdaso.Session() as session:
    folder = Path(sys.argv[1]).absolute() / "model"
    template = {"w1": jnp.zeros((2, 64)), "b1": jnp.zeros(64), "w2": jnp.zeros((64, 1))}
    if folder.exists():  # every node reads; to Orbax each of them is alone
        with ocp.StandardCheckpointer() as checkpointer:
            params = checkpointer.restore(folder, template)
        print(f"node {session.node}: restored {checksum(params):08x}")
    else:
        a, b = jax.random.split(jax.random.key(0))
        params = template | {"w1": jax.random.normal(a, (2, 64))}
        params["w2"] = jax.random.normal(b, (64, 1)) / 8
    params = jdaso.broadcast(params, session)

    phases = jdaso.Phases(STEPS, warmup_steps=20, cooldown_steps=20, sync_every=4, delay=2)
    tx = jdaso.daso(optax.adam(1e-2), phases=phases, session=session)
    opt_state = tx.init(params)

    @jax.jit
    def step(params, opt_state, x, y):
        loss, grads = jax.value_and_grad(loss_of)(params, x, y)
        updates, opt_state = tx.update(grads, opt_state, params, value=loss)
        return optax.apply_updates(params, updates), opt_state, loss

    losses, random = [], np.random.default_rng(session.node)
    for _ in range(STEPS):
        x = random.uniform(-2, 2, (BATCH, 2)).astype(np.float32)
        params, opt_state, loss = step(params, opt_state, x, np.sin(x[:, :1]) * np.cos(x[:, 1:]))
        losses.append(float(loss))

    params = jdaso.finalize(params, opt_state, session)  # before saving: the same on all nodes
    if session.node == 0:  # one writes; all at once would be in each other's way
        with ocp.StandardCheckpointer() as checkpointer:
            checkpointer.save(folder, params, force=True)
    jdaso.mean(jnp.zeros(()), session)  # nobody ends before it is written
    print(
        f"node {session.node}: loss {losses[0]:.4f} -> {losses[-1]:.4f}, "
        f"parameters {checksum(params):08x}"
    )
