"""Trains over partitions and saves: ``python pipeline_resumed.py FOLDER PARTITIONS STEPS MODEL``.

Goes on from what it finds in the folder. Node 0 prints how many steps were made, and how far the
parameters are from those of one process that was never stopped, in units of the learning rate.
"""

import sys

import jax
import jax.numpy as jnp
import numpy as np
import optax

import jdaso

FOLDER, PARTITIONS, STEPS, MODEL = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
WIDTH, LAYERS, SAMPLES, RATE = 8, 9, 16, 1e-2


def listed(params, batch):
    x, y = batch
    for w in params["w"]:
        x = jnp.tanh(x @ w) * params["scale"]
    return jnp.mean((x @ params["w"][0] - y) ** 2)  # the first is used again


def stacked(params, batch):
    x, y = batch
    x, _ = jax.lax.scan(lambda x, w: (jnp.tanh(x @ w), None), x, params["w"])
    return jnp.mean((x - y) ** 2) * params["scale"]


def batch_of(step, replica):
    random = np.random.default_rng((step, replica))
    return tuple(random.standard_normal((2, SAMPLES, WIDTH)).astype(np.float32))


def main(session):
    random = np.random.default_rng(0)
    layers = list(random.normal(0, 0.4, (LAYERS, WIDTH, WIDTH)).astype(np.float32))
    loss_fn, weights = {"listed": (listed, layers), "stacked": (stacked, np.stack(layers))}[MODEL]
    params = {"w": weights, "scale": np.float32(1)}
    optimizer = optax.chain(optax.clip_by_global_norm(0.3), optax.sgd(RATE, momentum=0.9))
    replicas = session.num_nodes // PARTITIONS
    result = jdaso.fit(
        loss_fn,
        params,
        optimizer,
        [batch_of(step, 0) for step in range(STEPS)],
        session=session,
        strategy="hybrid",  # the replicas have the same batches: how many there are changes nothing
        num_partitions=PARTITIONS,
        num_microbatches=4,
        folder=FOLDER,
        every_steps=1,
    )
    state, expected = optimizer.init(params), params
    for step in range(STEPS):
        joined = [np.concatenate(x) for x in zip(*[batch_of(step, 0)] * replicas, strict=True)]
        grads = jax.grad(loss_fn)(expected, tuple(joined))
        updates, state = optimizer.update(grads, state, expected)
        expected = optax.apply_updates(expected, updates)
    leaves = zip(jax.tree.leaves(result.params), jax.tree.leaves(expected), strict=True)
    off = max(float(np.abs(a - np.asarray(b)).max()) for a, b in leaves) / RATE
    if session.node == 0:
        print(f"{len(result.history)} steps, off by {off:.2e}")


if __name__ == "__main__":
    with jdaso.Session() as session:
        main(session)
