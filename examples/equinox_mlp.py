"""Equinox: the model is the tree of parameters; its arrays go to the optimizer, the rest stays.

mpiexec -n 2 python examples/equinox_mlp.py
"""

import zlib

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax

import jdaso

STEPS, BATCH = 200, 64


def loss_of(model, x, y):
    return jnp.mean((jax.vmap(model)(x) - y) ** 2)


with jdaso.Session() as session:
    phases = jdaso.Phases(STEPS, warmup_steps=20, cooldown_steps=20, sync_every=4, delay=2)
    tx = jdaso.daso(optax.adam(1e-2), phases=phases, session=session)

    model = eqx.nn.MLP(2, 1, 64, 2, activation=jax.nn.gelu, key=jax.random.key(session.node))
    # An activation function is a leaf too, but is neither exchanged nor trained.
    params, static = eqx.partition(model, eqx.is_inexact_array)
    params = jdaso.broadcast(params, session)  # all nodes begin with node 0's values
    model, opt_state = eqx.combine(params, static), tx.init(params)

    @eqx.filter_jit
    def step(model, opt_state, x, y):
        loss, grads = eqx.filter_value_and_grad(loss_of)(model, x, y)
        params = eqx.filter(model, eqx.is_inexact_array)
        updates, opt_state = tx.update(grads, opt_state, params, value=loss)
        return eqx.apply_updates(model, updates), opt_state, loss

    losses, random = [], np.random.default_rng(session.node)  # each node sees different examples
    for _ in range(STEPS):
        x = random.uniform(-2, 2, (BATCH, 2)).astype(np.float32)
        model, opt_state, loss = step(model, opt_state, x, np.sin(x[:, :1]) * np.cos(x[:, 1:]))
        losses.append(float(loss))

    params, static = eqx.partition(model, eqx.is_inexact_array)
    params = jdaso.finalize(params, opt_state, session)
    model = eqx.combine(params, static)
    checksum = zlib.crc32(b"".join(np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(params)))
    print(
        f"node {session.node}: loss {losses[0]:.4f} -> {losses[-1]:.4f}, "
        f"model(0.5, 0) = {model(jnp.array([0.5, 0.0]))[0]:.3f}, parameters {checksum:08x}"
    )
