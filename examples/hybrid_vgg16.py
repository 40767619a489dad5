"""VGG-16 as a Flax module on Fashion-MNIST, its layers divided between nodes.

    mpiexec -n 2 python examples/hybrid_vgg16.py [--width 64] [--data FOLDER] [--steps N]

The module does not depend on pipelines. Its dropout keys come with the batch: each micro-batch, and
each replica, draws its own. With `--partitions 2` four nodes are two replicas.
"""

import argparse
import zlib

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax

import jdaso
from jdaso.cli.demo import fashion_mnist
from jdaso.data import batches

MICROBATCHES = 4
GROUPS = (2, 1), (2, 2), (3, 4), (3, 8), (3, 8)  # convolutions, and their width
CLASSES = 10
LEARNING_RATE = 3e-4


class VGG16(nn.Module):
    """13 convolutions and 3 dense layers (Simonyan and Zisserman 2015, table 1, D)."""

    width: int = 64

    @nn.compact
    def __call__(self, x, *, train):
        init = nn.initializers.he_normal()
        for convolutions, factor in GROUPS:
            for _ in range(convolutions):
                x = nn.relu(nn.Conv(factor * self.width, (3, 3), kernel_init=init)(x))
            x = nn.max_pool(x, (2, 2), strides=(2, 2))
        x = x.reshape(len(x), -1)
        for _ in range(2):
            x = nn.relu(nn.Dense(64 * self.width, kernel_init=init)(x))
            x = nn.Dropout(0.5, deterministic=not train)(x)
        return nn.Dense(CLASSES)(x)


def main(session, arguments):
    model = VGG16(arguments.width)
    partitions = arguments.partitions or session.num_nodes
    replica, replicas = session.node // partitions, session.num_nodes // partitions
    data = fashion_mnist(arguments.data)
    count = len(data.train_labels)
    batch = arguments.batch  # per replica and step
    length = count // (batch * replicas)  # steps per epoch

    def loss_of(params, batch):
        x = (batch["image"][..., None] / jnp.float32(255) - 0.3) / 0.35
        x = jnp.pad(x, ((0, 0), (2, 2), (2, 2), (0, 0)))  # 32 x 32
        logits = model.apply({"params": params}, x, train=True, rngs={"dropout": batch["key"]})
        losses = optax.softmax_cross_entropy_with_integer_labels(logits, batch["label"])
        return losses.mean(), (logits.argmax(-1) == batch["label"]).sum()

    def batch_of(step):  # all nodes of a replica take the same
        dealt = batches(count, batch, node=replica, num_nodes=replicas, epoch=step // length)
        rows = dealt[step % length]
        key = jax.random.key(step * replicas + replica)
        return {"image": data.train_images[rows], "label": data.train_labels[rows], "key": key}

    def report(number, result, pipeline, state):
        if session.node == 0 and number == 0:
            print(data.source, pipeline.plan, sep="\n")
        if session.node == 0 and number % 10 == 0:
            print(f"step {number}, loss {result.loss:.3f}, right {result.aux / batch:.0%}")

    params = model.init(jax.random.key(0), jnp.zeros((1, 32, 32, 1)), train=False)["params"]
    result = jdaso.fit(
        loss_of,
        params,  # the same on all nodes
        optax.adam(LEARNING_RATE),
        map(batch_of, range(arguments.steps)),
        session=session,
        strategy="hybrid",
        num_partitions=partitions,
        num_microbatches=MICROBATCHES,
        on_step=report,
    )
    first, last = result.history[0], result.history[-5:].mean()
    checksum = zlib.crc32(b"".join(np.asarray(x).tobytes() for x in jax.tree.leaves(result.params)))
    print(f"node {session.node}: loss {first:.4f} -> {last:.4f}, parameters {checksum:08x}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--data")
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--partitions", type=int)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--steps", type=int, default=100)
    with jdaso.Session() as session:
        main(session, parser.parse_args())
