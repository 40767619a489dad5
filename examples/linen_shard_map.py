"""Flax linen: TrainState, BatchNorm, and shard_map over the devices of each node.

On a machine without GPUs, as two nodes of two CPU devices each:

    XLA_FLAGS=--xla_force_host_platform_device_count=2 \
        mpiexec -n 2 python examples/linen_shard_map.py
"""

import zlib
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import linen as nn
from flax.training.train_state import TrainState
from jax.sharding import PartitionSpec as P

import jdaso
from jdaso.cli.demo import fashion_mnist
from jdaso.data import batches

EPOCHS = 2
BATCH_PER_DEVICE = 32
TRAINING_IMAGES = 6400
LEARNING_RATE = 0.05


class Network(nn.Module):
    @nn.compact
    def __call__(self, images, train: bool):
        # axis_name: the statistics of a batch are those of all devices of the node.
        norm = nn.BatchNorm(use_running_average=not train, axis_name="local", momentum=0.9)
        x = images[..., None].astype(jnp.float32) / 255
        x = nn.relu(norm(nn.Conv(16, (5, 5), strides=2, use_bias=False)(x)))
        x = nn.relu(nn.Conv(32, (3, 3), strides=2)(x))
        return nn.Dense(10)(x.reshape(len(x), -1))


class NormTrainState(TrainState):
    batch_stats: Any


def train_step(state, images, labels):  # runs once on each of the node's devices
    def loss_of(params):
        variables = {"params": params, "batch_stats": state.batch_stats}
        logits, changed = state.apply_fn(variables, images, train=True, mutable="batch_stats")
        loss = optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()
        return loss, changed["batch_stats"]

    (loss, batch_stats), grads = jax.value_and_grad(loss_of, has_aux=True)(state.params)
    state = state.apply_gradients(grads=grads, batch_stats=batch_stats)
    return state, jax.lax.pmean(loss, "local")


def main(session):
    data = fashion_mnist()
    if session.node == 0:
        print(f"Images: {data.source}")
    num_images = min(TRAINING_IMAGES, len(data.train_labels))
    batch = BATCH_PER_DEVICE * len(session.devices)
    share = {"node": session.node, "num_nodes": session.num_nodes}
    steps = EPOCHS * len(batches(num_images, batch, epoch=0, **share))

    phases = jdaso.Phases(
        steps, warmup_steps=steps // 5, cooldown_steps=steps // 5, sync_every=4, delay=1
    )
    inner = optax.sgd(LEARNING_RATE, momentum=0.9)
    network = Network()
    variables = network.init(jax.random.key(0), data.train_images[:1], train=False)
    variables = jdaso.broadcast(variables, session)
    state = NormTrainState.create(
        apply_fn=network.apply,
        params=variables["params"],
        batch_stats=variables["batch_stats"],
        tx=jdaso.daso(inner, phases=phases, session=session, local_axis="local"),
    )
    state = jax.device_put(state, jax.sharding.NamedSharding(session.mesh, P()))
    step = jax.jit(
        jax.shard_map(
            train_step,
            mesh=session.mesh,
            in_specs=(P(), P("local"), P("local")),
            out_specs=(P(), P()),
            check_vma=False,
        )
    )
    first = None
    for epoch in range(EPOCHS):
        for chosen in batches(num_images, batch, epoch=epoch, **share):
            state, loss = step(state, data.train_images[chosen], data.train_labels[chosen])
            first = float(loss) if first is None else first
        # The optimizer does not see running statistics: average them before they are used.
        state = state.replace(batch_stats=jdaso.mean(state.batch_stats, session))

    state = state.replace(params=jdaso.finalize(state.params, state.opt_state, session))
    variables = {"params": state.params, "batch_stats": state.batch_stats}
    logits = jax.jit(lambda *args: network.apply(*args, train=False))(
        jax.device_get(variables), data.test_images[:1000]
    )
    right = np.mean(np.argmax(logits, -1) == data.test_labels[:1000])
    checksum = zlib.crc32(
        b"".join(np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(variables))
    )
    print(
        f"node {session.node}: loss {first:.4f} -> {loss:.4f}, test accuracy {right:.1%}, "
        f"parameters {checksum:08x}"
    )


if __name__ == "__main__":
    with jdaso.Session() as session:
        main(session)
