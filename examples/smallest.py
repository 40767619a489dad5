"""The smallest loop: bare JAX, one device per node.

mpiexec -n 2 python examples/smallest.py
"""

import zlib

import jax
import jax.numpy as jnp
import numpy as np
import optax

import jdaso

STEPS, BATCH = 300, 64


def loss_of(params, x, y):
    return jnp.mean((jnp.tanh(x @ params["w1"] + params["b1"]) @ params["w2"] - y) ** 2)


with jdaso.Session() as session:
    phases = jdaso.Phases(STEPS, warmup_steps=30, cooldown_steps=30, sync_every=4, delay=2)
    tx = jdaso.daso(optax.adam(1e-2), phases=phases, session=session)

    a, b = jax.random.split(jax.random.key(session.node))
    params = {"w1": jax.random.normal(a, (2, 64)), "b1": jnp.zeros(64)}
    params["w2"] = jax.random.normal(b, (64, 1)) / 8
    params = jdaso.broadcast(params, session)  # all nodes begin with node 0's values
    opt_state = tx.init(params)

    @jax.jit
    def step(params, opt_state, x, y):
        loss, grads = jax.value_and_grad(loss_of)(params, x, y)
        updates, opt_state = tx.update(grads, opt_state, params, value=loss)
        return optax.apply_updates(params, updates), opt_state, loss

    losses, random = [], np.random.default_rng(session.node)  # each node sees different examples
    for _ in range(STEPS):
        x = random.uniform(-2, 2, (BATCH, 2)).astype(np.float32)
        y = np.sin(x[:, :1]) * np.cos(x[:, 1:])
        params, opt_state, loss = step(params, opt_state, x, y)
        losses.append(loss)

    params = jdaso.finalize(params, opt_state, session)
    checksum = zlib.crc32(b"".join(np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(params)))
    print(
        f"node {session.node}: loss {losses[0]:.3f} -> {losses[-1]:.3f}, parameters {checksum:08x}"
    )
