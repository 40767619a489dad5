"""Mixed precision: bfloat16 parameters and gradients, float32 master weights that are exchanged.

mpiexec -n 2 python examples/bfloat16.py
"""

import zlib

import jax
import jax.numpy as jnp
import numpy as np
import optax

import jdaso
from jdaso.cli.demo import fashion_mnist
from jdaso.data import batches

EPOCHS, BATCH, TRAINING_IMAGES = 4, 32, 3200  # BATCH: per node


def init(key):
    a, b = jax.random.split(key)
    params = {
        "hidden": jax.random.normal(a, (784, 64)) / 28,
        "out": jax.random.normal(b, (64, 10)) / 8,
        "bias": jnp.zeros(10),
    }
    return jax.tree.map(lambda x: x.astype(jnp.bfloat16), params)


def loss_of(params, images, labels):
    x = images.reshape(len(images), -1).astype(jnp.bfloat16) / 255
    logits = jax.nn.relu(x @ params["hidden"]) @ params["out"] + params["bias"]
    logits = logits.astype(jnp.float32)
    return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()


with jdaso.Session() as session:
    data = fashion_mnist()
    share = {"node": session.node, "num_nodes": session.num_nodes}
    num_images = min(TRAINING_IMAGES, len(data.train_labels))
    each = len(batches(num_images, BATCH, epoch=0, **share))
    steps = EPOCHS * each

    phases = jdaso.Phases(steps, warmup_steps=steps // 10, cooldown_steps=steps // 10)
    tx = jdaso.daso(optax.adamw(1e-3), phases=phases, session=session, wire="bfloat16")
    tx = jdaso.master_weights(tx)  # the nodes exchange the float32 weights

    params = jdaso.broadcast(init(jax.random.key(0)), session)
    opt_state = tx.init(params)

    @jax.jit
    def step(params, opt_state, images, labels):
        loss, grads = jax.value_and_grad(loss_of)(params, images, labels)
        updates, opt_state = tx.update(grads, opt_state, params, value=loss)
        return optax.apply_updates(params, updates), opt_state, loss

    losses = []
    for epoch in range(EPOCHS):
        for chosen in batches(num_images, BATCH, epoch=epoch, **share):
            images, labels = data.train_images[chosen], data.train_labels[chosen]
            params, opt_state, loss = step(params, opt_state, images, labels)
            losses.append(float(loss))

    params = jdaso.finalize(params, opt_state, session)  # bfloat16, from the float32 weights
    leaves = [np.asarray(leaf.astype(jnp.float32)) for leaf in jax.tree.leaves(params)]
    checksum = zlib.crc32(b"".join(leaf.tobytes() for leaf in leaves))
    print(
        f"node {session.node}: loss {losses[0]:.3f} -> {np.mean(losses[-5:]):.3f}, "
        f"parameters {checksum:08x}"
    )
