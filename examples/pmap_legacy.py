"""`jax.pmap`, as in older code bases: replicated state, a leading axis for the devices.

On a machine without GPUs, as two nodes of two CPU devices each:

    XLA_FLAGS=--xla_force_host_platform_device_count=2 mpiexec -n 2 python examples/pmap_legacy.py

`flax.jax_utils.replicate` of older Flax calls `jax.device_put_replicated`, which newer JAX lacks;
`replicate` below does the same by hand.
"""

import functools
import zlib

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import linen as nn
from flax.training.train_state import TrainState

import jdaso
from jdaso.cli.demo import fashion_mnist
from jdaso.data import batches

EPOCHS = 3
BATCH_PER_DEVICE = 32
TRAINING_IMAGES = 6400
LEARNING_RATE = 0.05


class Network(nn.Module):
    @nn.compact
    def __call__(self, images):
        x = images[..., None].astype(jnp.float32) / 255
        x = nn.relu(nn.Conv(16, (5, 5), strides=2)(x))
        return nn.Dense(10)(nn.relu(nn.Dense(64)(x.reshape(len(x), -1))))


def replicate(tree, num_devices):
    return jax.tree.map(lambda leaf: np.stack([leaf] * num_devices), tree)


def first_of(tree):
    return jax.tree.map(lambda leaf: leaf[0], jax.device_get(tree))


@functools.partial(jax.pmap, axis_name="batch")
def train_step(state, images, labels):
    def loss_of(params):
        logits = state.apply_fn({"params": params}, images)
        return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()

    loss, grads = jax.value_and_grad(loss_of)(state.params)
    # Older code has `grads = jax.lax.pmean(grads, "batch")` here. daso does that: local_axis.
    return state.apply_gradients(grads=grads), jax.lax.pmean(loss, "batch")


def main(session):
    data = fashion_mnist()
    if session.node == 0:
        print(f"Images: {data.source}")
    num_images = min(TRAINING_IMAGES, len(data.train_labels))
    num_devices = len(session.devices)
    share = {"node": session.node, "num_nodes": session.num_nodes}
    node_batch = BATCH_PER_DEVICE * num_devices
    steps = EPOCHS * len(batches(num_images, node_batch, epoch=0, **share))

    phases = jdaso.Phases(
        steps, warmup_steps=steps // 10, cooldown_steps=steps // 10, sync_every=4, delay=1
    )
    inner = optax.sgd(LEARNING_RATE, momentum=0.9)
    network = Network()
    params = network.init(jax.random.key(0), data.train_images[:1])["params"]
    state = TrainState.create(
        apply_fn=network.apply,
        params=jdaso.broadcast(params, session),
        tx=jdaso.daso(inner, phases=phases, session=session, local_axis="batch"),
    )
    state = replicate(state, num_devices)

    first = None
    for epoch in range(EPOCHS):
        for chosen in batches(num_images, node_batch, epoch=epoch, **share):
            chosen = chosen.reshape(num_devices, BATCH_PER_DEVICE)
            state, losses = train_step(state, data.train_images[chosen], data.train_labels[chosen])
            first = float(losses[0]) if first is None else first

    params = jdaso.finalize(first_of(state.params), first_of(state.opt_state), session)
    logits = jax.jit(network.apply)({"params": params}, data.test_images[:1000])
    right = np.mean(np.argmax(logits, -1) == data.test_labels[:1000])
    checksum = zlib.crc32(b"".join(np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(params)))
    print(
        f"node {session.node}: loss {first:.4f} -> {losses[0]:.4f}, test accuracy {right:.1%}, "
        f"parameters {checksum:08x}"
    )


if __name__ == "__main__":
    with jdaso.Session() as session:
        main(session)
