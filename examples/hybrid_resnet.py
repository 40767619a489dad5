"""A ResNet of any depth on Fashion-MNIST, too deep for one node: its layers divided between nodes.

    mpiexec -n 2 python examples/hybrid_resnet.py [--depth 110] [--data FOLDER] [--steps N]

Depth is 9 n + 2: 110, 1001, 5006. A group's equal blocks are one `lax.scan`; jdaso cuts between
its iterations. With `--partitions 2` four nodes are two replicas.
"""

import argparse
import zlib

import jax
import jax.numpy as jnp
import numpy as np
import optax

import jdaso
from jdaso.cli.demo import fashion_mnist
from jdaso.data import batches

MICROBATCHES, CLASSES, WIDTH = 4, 10, 8  # the paper's width is 16, its first layer has stride 1
LEARNING_RATE, MOMENTUM = 0.03, 0.9


def init_params(blocks, random):
    def conv(size, inputs, outputs, gain=2.0):
        scale = np.sqrt(gain / (size * size * inputs))
        return random.normal(scale=scale, size=(size, size, inputs, outputs)).astype(np.float32)

    def bottleneck(inputs, width):
        last = conv(1, width, 4 * width, 2 / blocks)  # so that all blocks add up to about 1
        return {"conv1": conv(1, inputs, width), "conv2": conv(3, width, width), "conv3": last}

    params, inputs = {"stem": conv(3, 1, WIDTH)}, WIDTH
    for group, width in enumerate((WIDTH, 2 * WIDTH, 4 * WIDTH)):
        first = bottleneck(inputs, width) | {"skip": conv(1, inputs, 4 * width)}
        inputs = 4 * width
        others = (bottleneck(inputs, width) for _ in range(blocks - 1))
        params[f"group{group}"] = first, jax.tree.map(lambda *x: np.stack(x), *others)
    return params | {"last": conv(1, inputs, CLASSES, 1.0)[0, 0]}


def conv(x, weights, stride=1):
    strides, axes = (stride, stride), ("NHWC", "HWIO", "NHWC")
    return jax.lax.conv_general_dilated(x, weights, strides, "SAME", dimension_numbers=axes)


def normalize(x, groups=4):
    """Normalizes each sample by itself, so that its result does not depend on its micro-batch."""
    y = x.reshape(*x.shape[:3], groups, -1)
    y = y - y.mean((1, 2, 4), keepdims=True)
    return (y * jax.lax.rsqrt(jnp.square(y).mean((1, 2, 4), keepdims=True) + 1e-5)).reshape(x.shape)


def block(x, p, stride=1):
    y = jax.nn.relu(normalize(x))
    skip = conv(y, p["skip"], stride) if "skip" in p else x
    y = jax.nn.relu(normalize(conv(y, p["conv1"], stride)))
    return skip + conv(jax.nn.relu(normalize(conv(y, p["conv2"]))), p["conv3"])


def loss_of(params, batch):
    x = conv((batch["image"][..., None] / jnp.float32(255) - 0.3) / 0.35, params["stem"], stride=2)
    for group in range(3):
        first, others = params[f"group{group}"]
        x = block(x, first, stride=1 + (group > 0))
        x, _ = jax.lax.scan(lambda x, p: (block(x, p), None), x, others)
    logits = jax.nn.relu(normalize(x)).mean((1, 2)) @ params["last"]
    losses = optax.softmax_cross_entropy_with_integer_labels(logits, batch["label"])
    return losses.mean(), (logits.argmax(-1) == batch["label"]).sum()


def main(session, arguments):
    blocks, rest = divmod(arguments.depth - 2, 9)
    if rest or blocks < 2:
        raise SystemExit(f"--depth must be 9 n + 2 and at least 20, got {arguments.depth}.")
    partitions = arguments.partitions or session.num_nodes
    replica, replicas = session.node // partitions, session.num_nodes // partitions
    data = fashion_mnist(arguments.data)
    count = len(data.train_labels)
    batch = arguments.batch  # per replica and step
    length = count // (batch * replicas)  # steps per epoch

    def batch_of(step):  # all nodes of a replica take the same
        dealt = batches(count, batch, node=replica, num_nodes=replicas, epoch=step // length)
        rows = dealt[step % length]
        return {"image": data.train_images[rows], "label": data.train_labels[rows]}

    def report(number, result, pipeline, state):
        if session.node == 0 and number == 0:
            print(data.source, pipeline.plan, sep="\n")
        if session.node == 0 and number % 10 == 0:
            print(f"step {number}, loss {result.loss:.3f}, right {result.aux / batch:.0%}")

    result = jdaso.fit(
        loss_of,
        init_params(blocks, np.random.default_rng(0)),  # the same on all nodes
        optax.sgd(LEARNING_RATE, momentum=MOMENTUM),
        map(batch_of, range(arguments.steps)),
        session=session,
        strategy="hybrid",
        num_partitions=partitions,
        num_microbatches=MICROBATCHES,
        on_step=report,
    )
    first, last = result.history[0], result.history[-5:].mean()
    checksum = zlib.crc32(b"".join(x.tobytes() for x in jax.tree.leaves(result.params)))
    print(f"node {session.node}: loss {first:.4f} -> {last:.4f}, parameters {checksum:08x}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--data")
    parser.add_argument("--depth", type=int, default=110)
    parser.add_argument("--partitions", type=int)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--steps", type=int, default=100)
    with jdaso.Session() as session:
        main(session, parser.parse_args())
