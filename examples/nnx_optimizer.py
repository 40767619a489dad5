"""Flax nnx: `jdaso.daso` inside `nnx.Optimizer`, one device per node.

mpiexec -n 2 python examples/nnx_optimizer.py
"""

import zlib

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

import jdaso
from jdaso.cli.demo import fashion_mnist
from jdaso.data import batches

EPOCHS = 3
BATCH = 64
TRAINING_IMAGES = 6400
LEARNING_RATE = 2e-3


class Network(nnx.Module):
    def __init__(self, rngs: nnx.Rngs):
        self.conv = nnx.Conv(1, 16, (5, 5), strides=2, rngs=rngs)
        self.hidden = nnx.Linear(14 * 14 * 16, 64, rngs=rngs)
        self.out = nnx.Linear(64, 10, rngs=rngs)

    def __call__(self, images):
        x = nnx.relu(self.conv(images[..., None].astype(jnp.float32) / 255))
        return self.out(nnx.relu(self.hidden(x.reshape(len(x), -1))))


@nnx.jit
def train_step(model, optimizer, images, labels):
    def loss_of(model):
        return optax.softmax_cross_entropy_with_integer_labels(model(images), labels).mean()

    loss, grads = nnx.value_and_grad(loss_of)(model)
    optimizer.update(model, grads, value=loss)
    return loss


def main(session):
    data = fashion_mnist()
    if session.node == 0:
        print(f"Images: {data.source}")
    num_images = min(TRAINING_IMAGES, len(data.train_labels))
    share = {"node": session.node, "num_nodes": session.num_nodes}
    steps = EPOCHS * len(batches(num_images, BATCH, epoch=0, **share))

    model = Network(nnx.Rngs(0))
    nnx.update(model, jdaso.broadcast(nnx.state(model, nnx.Param), session))
    phases = jdaso.Phases(
        steps, warmup_steps=steps // 10, cooldown_steps=steps // 10, sync_every=4, delay=1
    )
    tx = jdaso.daso(optax.adamw(LEARNING_RATE), phases=phases, session=session)
    optimizer = nnx.Optimizer(model, tx, wrt=nnx.Param)

    first = None
    for epoch in range(EPOCHS):
        for chosen in batches(num_images, BATCH, epoch=epoch, **share):
            images, labels = data.train_images[chosen], data.train_labels[chosen]
            loss = train_step(model, optimizer, images, labels)
            first = float(loss) if first is None else first

    # nnx keeps arrays in Variables; as_pure gives jdaso the arrays themselves.
    params = nnx.as_pure(nnx.state(model, nnx.Param))
    params = jdaso.finalize(params, nnx.as_pure(optimizer.opt_state), session)
    nnx.update(model, params)

    right = np.mean(np.argmax(model(data.test_images[:1000]), -1) == data.test_labels[:1000])
    checksum = zlib.crc32(b"".join(np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(params)))
    print(
        f"node {session.node}: loss {first:.4f} -> {loss:.4f}, test accuracy {right:.1%}, "
        f"parameters {checksum:08x}"
    )


if __name__ == "__main__":
    with jdaso.Session() as session:
        main(session)
