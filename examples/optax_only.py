"""optax alone: clipping, frozen parameters, a scaled warm-up and a plateau factor, all inside daso.

mpiexec -n 2 python examples/optax_only.py
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
BASE_RATE, BASE_BATCH = 0.05, 32  # suitable for one node


def init(key):
    a, b, c = jax.random.split(key, 3)
    return {
        "projection": jax.random.normal(a, (784, 128)) / 28,  # frozen
        "hidden": jax.random.normal(b, (128, 64)) / 8,
        "out": jax.random.normal(c, (64, 10)) / 8,
        "bias": jnp.zeros(10),
    }


def loss_of(params, images, labels):
    x = images.reshape(len(images), -1).astype(jnp.float32) / 255
    x = jax.nn.relu(jax.nn.relu(x @ params["projection"]) @ params["hidden"])
    logits = x @ params["out"] + params["bias"]
    return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()


with jdaso.Session() as session:
    data = fashion_mnist()
    share = {"node": session.node, "num_nodes": session.num_nodes}
    num_images = min(TRAINING_IMAGES, len(data.train_labels))
    each = len(batches(num_images, BATCH, epoch=0, **share))
    steps = EPOCHS * each

    # Written once for any number of nodes; the rate grows with their root: see docs/scaling.md.
    rate = jdaso.scaled_warmup(
        BASE_RATE,
        batch_size=round(BATCH * session.num_nodes**0.5),
        base_batch_size=BASE_BATCH,
        warmup_steps=each,
    )
    inner = optax.chain(
        optax.clip_by_global_norm(1.0),  # of the mean gradient while waiting, else of the node's
        optax.sgd(rate, momentum=0.9),
        jdaso.reduce_on_plateau(each // 2, patience=2),
    )
    kinds = {"projection": "frozen", "hidden": "trained", "out": "trained", "bias": "trained"}
    inner = optax.partition({"trained": inner, "frozen": optax.set_to_zero()}, kinds)
    phases = jdaso.Phases(steps, warmup_steps=each, cooldown_steps=steps // 10, delay=2)
    tx = jdaso.daso(inner, phases=phases, session=session)

    params = jdaso.broadcast(init(jax.random.key(session.node)), session)
    opt_state, frozen = tx.init(params), params["projection"]

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

    params = jdaso.finalize(params, opt_state, session)
    assert jnp.array_equal(params["projection"], frozen)
    factor = optax.tree.get(opt_state, "plateau").scale
    checksum = zlib.crc32(b"".join(np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(params)))
    print(
        f"node {session.node}: loss {losses[0]:.3f} -> {np.mean(losses[-5:]):.3f}, "
        f"plateau factor {factor:g}, parameters {checksum:08x}"
    )
