"""Hugging Face datasets: each node takes its shard, and JAX gets NumPy arrays.

mpiexec -n 2 python examples/datasets_source.py

The data set is made in memory; ``datasets.load_dataset(...)`` gives one to use likewise.
"""

import zlib

import datasets
import jax
import jax.numpy as jnp
import numpy as np
import optax

import jdaso
from jdaso.cli.demo import fashion_mnist

EPOCHS, BATCH, TRAINING_IMAGES = 4, 32, 2560  # BATCH: per node


def loss_of(params, images, labels):
    x = images.reshape(len(images), -1).astype(jnp.float32) / 255
    logits = jax.nn.relu(x @ params["hidden"]) @ params["out"]
    return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()


with jdaso.Session() as session:
    data = fashion_mnist()
    images, labels = data.train_images[:TRAINING_IMAGES], data.train_labels[:TRAINING_IMAGES]
    source = datasets.Dataset.from_dict({"image": images.reshape(len(images), -1), "label": labels})
    source = source.with_format("numpy")

    # Shuffled alike on all nodes, then cut: every sample on one node. Shards differ by a sample at
    # most, but the nodes must make equally many batches, so a remainder is left out.
    each = len(source) // session.num_nodes // BATCH
    steps = EPOCHS * each

    def batches(epoch):
        shuffled = source.shuffle(seed=epoch)
        own = shuffled.shard(num_shards=session.num_nodes, index=session.node)
        yield from own.take(each * BATCH).iter(batch_size=BATCH)

    a, b = jax.random.split(jax.random.key(0))
    params = {
        "hidden": jax.random.normal(a, (784, 64)) / 28,
        "out": jax.random.normal(b, (64, 10)) / 8,
    }
    params = jdaso.broadcast(params, session)
    phases = jdaso.Phases(steps, warmup_steps=steps // 5, cooldown_steps=steps // 10)
    tx = jdaso.daso(optax.sgd(0.1, momentum=0.9), phases=phases, session=session)
    opt_state = tx.init(params)

    @jax.jit
    def step(params, opt_state, images, labels):
        loss, grads = jax.value_and_grad(loss_of)(params, images, labels)
        updates, opt_state = tx.update(grads, opt_state, params, value=loss)
        return optax.apply_updates(params, updates), opt_state, loss

    losses, seen = [], 0
    for epoch in range(EPOCHS):
        for batch in batches(epoch):
            params, opt_state, loss = step(params, opt_state, batch["image"], batch["label"])
            losses.append(float(loss))
            seen += len(batch["label"])

    params = jdaso.finalize(params, opt_state, session)
    checksum = zlib.crc32(b"".join(np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(params)))
    print(
        f"node {session.node}: loss {losses[0]:.3f} -> {np.mean(losses[-5:]):.3f}, "
        f"{seen} images, parameters {checksum:08x}"
    )
