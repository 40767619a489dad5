"""A U-Net cut in two: its long skips go straight to the stage that uses them.

    mpiexec -n 2 python examples/hybrid_unet.py [--steps N]

The network learns to remove noise from waves. `print(pipeline.plan)` shows the traffic between
stages.
"""

import argparse
import zlib

import jax
import jax.numpy as jnp
import numpy as np
import optax

import jdaso

SIZE, BATCH, MICROBATCHES = 16, 16, 4  # pixels per side; samples per replica and step
WIDTHS = (8, 16, 32)  # of each level
LEARNING_RATE = 3e-3


def init_params(random):
    def conv(inputs, outputs):
        scale = np.sqrt(2 / (9 * inputs))
        return random.normal(scale=scale, size=(3, 3, inputs, outputs)).astype(np.float32)

    down = [conv(a, b) for a, b in zip((1, *WIDTHS), WIDTHS, strict=False)]
    up = [conv(a + b, a) for a, b in zip(WIDTHS, WIDTHS[1:], strict=False)]
    return {"down": down, "up": up, "last": 0.1 * conv(WIDTHS[0], 1)}


def conv(x, weights):
    layout = ("NHWC", "HWIO", "NHWC")
    return jax.lax.conv_general_dilated(x, weights, (1, 1), "SAME", dimension_numbers=layout)


def loss_of(params, batch):
    x, skips = batch["noisy"], []
    for weights in params["down"]:
        x = jax.nn.silu(conv(x, weights))
        skips.append(x)
        n, size = x.shape[:2]
        x = x.reshape(n, size // 2, 2, size // 2, 2, -1).mean((2, 4))
    x = skips.pop()
    for weights in params["up"][::-1]:
        x = jnp.concatenate([skips.pop(), x.repeat(2, 1).repeat(2, 2)], -1)
        x = jax.nn.silu(conv(x, weights))
    cleaned = batch["noisy"] + conv(x, params["last"])
    return jnp.square(cleaned - batch["clean"]).mean()


def make_batch(seed):
    random = np.random.default_rng(seed)
    places = np.linspace(0, np.pi, SIZE)
    across, down = np.sin(random.uniform(1, 4, (2, BATCH, 1)) * places)
    clean = (across[:, :, None] * down[:, None, :])[..., None].astype(np.float32)
    return {"clean": clean, "noisy": clean + random.normal(size=clean.shape).astype(np.float32)}


def main(session, arguments):
    partitions = arguments.partitions or session.num_nodes
    replica, replicas = session.node // partitions, session.num_nodes // partitions

    def report(number, result, pipeline, state):
        if session.node == 0 and number == 0:
            print(pipeline.plan)

    result = jdaso.fit(
        loss_of,
        init_params(np.random.default_rng(0)),  # the same on all nodes
        optax.adam(LEARNING_RATE),
        (make_batch([step, replica]) for step in range(arguments.steps)),
        session=session,
        strategy="hybrid",
        num_partitions=partitions,
        num_replicas=replicas,
        num_microbatches=MICROBATCHES,
        on_step=report,
    )
    first, last = result.history[0], result.history[-5:].mean()
    checksum = zlib.crc32(b"".join(x.tobytes() for x in jax.tree.leaves(result.params)))
    print(f"node {session.node}: loss {first:.4f} -> {last:.4f}, parameters {checksum:08x}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--partitions", type=int)
    parser.add_argument("--steps", type=int, default=200)
    with jdaso.Session() as session:
        main(session, parser.parse_args())
