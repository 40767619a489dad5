"""A transformer cut into partitions, and copies of them: hybrid parallelism in one call.

    mpiexec -n 4 python examples/hybrid_transformer.py --partitions 2 [--steps N] [--plan]

Four nodes are then two pipelines of two nodes each. `--plan` shows where the model was cut. The
embedding is used at both ends of the model: its first node holds it and lends it to the last.
"""

import argparse
import zlib
from pydoc_data.topics import topics

import jax
import jax.numpy as jnp
import numpy as np
import optax

import jdaso

BATCH, LENGTH = 16, 32  # texts of all replicas, characters per text
WIDTH, BLOCKS, HEADS = 32, 4, 4
LEARNING_RATE = 1e-2
MICROBATCHES = 4  # of a replica's share


def init_params(random):
    def normal(*shape, scale):
        return random.normal(scale=scale, size=shape).astype(np.float32)

    deep = (BLOCKS, WIDTH)  # one array for all blocks, for lax.scan
    blocks = {
        "qkv": normal(*deep, 3 * WIDTH, scale=WIDTH**-0.5),
        "out": normal(*deep, WIDTH, scale=(BLOCKS * WIDTH) ** -0.5),
        "up": normal(*deep, 4 * WIDTH, scale=(2 / WIDTH) ** 0.5),
        "down": normal(BLOCKS, 4 * WIDTH, WIDTH, scale=(4 * BLOCKS * WIDTH) ** -0.5),
    }
    embed, places = normal(128, WIDTH, scale=0.3), normal(LENGTH, WIDTH, scale=0.3)
    return {"embed": embed, "places": places, "blocks": blocks}


def normalize(x):
    x = x - x.mean(-1, keepdims=True)
    return x * jax.lax.rsqrt(jnp.square(x).mean(-1, keepdims=True) + 1e-5)


def block(x, p):
    n, length, _ = x.shape
    q, k, v = (
        y.reshape(n, length, HEADS, -1) for y in jnp.split(normalize(x) @ p["qkv"], 3, axis=-1)
    )
    y = jax.nn.dot_product_attention(q, k, v, is_causal=True, implementation="xla")
    x = x + y.reshape(x.shape) @ p["out"]
    return x + jax.nn.gelu(normalize(x) @ p["up"]) @ p["down"], None


def loss_of(params, batch):
    """A loss as for `jax.value_and_grad`: it does not depend on where it is cut."""
    characters = batch["characters"]
    x = params["embed"][characters[:, :-1]] + params["places"]
    x, _ = jax.lax.scan(block, x, params["blocks"])
    logits = normalize(x) @ params["embed"].T
    return optax.softmax_cross_entropy_with_integer_labels(logits, characters[:, 1:]).mean()


def main(session, arguments):
    partitions = arguments.partitions
    replica, replicas = session.node // partitions, session.num_nodes // partitions
    text = np.frombuffer("\n".join(topics.values()).encode("ascii", "replace"), np.uint8)
    params = init_params(np.random.default_rng(0))  # the same on all nodes

    def batches():
        for step in range(arguments.steps):  # all nodes draw the joined batch, and take their part
            starts = np.random.default_rng(step).integers(0, len(text) - LENGTH, BATCH)
            texts = text[starts[:, None] + np.arange(LENGTH + 1)].astype(np.int32)
            yield {"characters": np.array_split(texts, replicas)[replica]}

    def report(number, result, pipeline, state):
        if session.node == 0 and number == 0 and arguments.plan:
            print(pipeline.plan)
        if session.node == 0 and number % 20 == 0:
            print(f"step {number}, loss {result.loss:.3f}", flush=True)

    result = jdaso.fit(
        loss_of,
        params,
        optax.chain(optax.clip_by_global_norm(1.0), optax.adam(LEARNING_RATE)),
        batches(),
        session=session,
        strategy="hybrid",
        num_partitions=partitions,
        num_microbatches=MICROBATCHES,
        on_step=report,
    )
    first, last = result.history[0], result.history[-5:].mean()
    leaves = jax.tree.leaves(result.params)
    checksum = zlib.crc32(b"".join(np.asarray(leaf).tobytes() for leaf in leaves))
    print(f"node {session.node}: loss {first:.4f} -> {last:.4f}, parameters {checksum:08x}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--partitions", type=int, default=2)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--plan", action="store_true")
    with jdaso.Session() as session:
        main(session, parser.parse_args())
