"""Softmax regression on Fashion-MNIST by nodes that may fail: ``python _shrinking.py FOLDER``.

The remaining nodes share each batch out anew every ten steps, and stop when a number of images was
seen, however many nodes are left by then. Each of these prints ``NODE end STEPS IMAGES LOSS``, the
loss on all test images.
"""

import argparse
import os
import sys
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax

import jdaso
from jdaso.checkpoint import Checkpoints
from jdaso.cli.demo import fashion_mnist

sys.path.insert(0, str(Path(__file__).parents[2] / "tests" / "programs"))
import resumable

BATCH = 32
SHARE_STEPS = 10


def options():
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--images", type=int, default=600_000)
    parser.add_argument("--nodes", type=int, default=4, help="as many as it begins with")
    parser.add_argument("--step-ms", type=float, default=40.0)
    parser.add_argument("--data", type=Path, help="a folder with the four files")
    parser.add_argument("--on-death", default="shrink")
    return parser.parse_args()


def loss_of(params, images, labels):
    logits = images @ params["w"] + params["b"]
    return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()


def prepared(images):
    return images.reshape(len(images), -1).astype(np.float32) / 255


def dealt(position, part, parts):
    """This node's images of a step that begins after so many images; the same rule on all."""
    epoch, begin = divmod(position, 60_000)
    order = np.random.default_rng(epoch).permutation(60_000)
    return order[(begin + part * BATCH + np.arange(BATCH)) % 60_000]


def main(given):
    data = fashion_mnist(given.data)
    images, labels = prepared(data.train_images), data.train_labels
    # A failure before all have begun is not detected: they wait so long.
    with jdaso.Session(on_death=given.on_death, timeout_seconds=60) as session:
        steps = given.images // (given.nodes * BATCH)
        phases = jdaso.Phases(steps, steps // 10, steps // 10, sync_every=4, delay=2)
        tx = jdaso.daso(optax.sgd(0.02, momentum=0.9), phases=phases, session=session)
        params = {"w": jnp.zeros((784, 10)), "b": jnp.zeros(10)}
        state = {"params": params, "optimizer": tx.init(params), "seen": np.int64(0)}
        checkpoints = Checkpoints(given.folder, session, every_steps=50)

        @jax.jit
        def update(params, opt_state, images, labels):
            value, grads = jax.value_and_grad(loss_of)(params, images, labels)
            updates, opt_state = tx.update(grads, opt_state, params, value=value)
            return optax.apply_updates(params, updates), opt_state

        state, step = checkpoints.restore(state)
        (given.folder / "at").mkdir(exist_ok=True)
        at = os.open(given.folder / "at" / str(session.node), os.O_RDWR | os.O_CREAT)
        seen = int(state["seen"])
        while seen < given.images:
            part, parts = session.share()
            for _ in range(SHARE_STEPS):
                os.pwrite(at, f"{step:9}".encode(), 0)
                mine = dealt(seen, part, parts)
                batch = jnp.asarray(images[mine]), jnp.asarray(labels[mine])
                params, optimizer = update(state["params"], state["optimizer"], *batch)
                jax.block_until_ready(params)
                seen, step = seen + parts * BATCH, step + 1
                state = {"params": params, "optimizer": optimizer, "seen": np.int64(seen)}
                time.sleep(given.step_ms / 1000)
                checkpoints.after(step, state)
        params = jdaso.finalize(state["params"], state["optimizer"], session)
        test = prepared(data.test_images), data.test_labels
        loss = float(jax.jit(loss_of)(params, *test))
        sys.stdout.write(f"{session.node} end {step} {seen} {loss:.6f}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    resumable.run(lambda: main(options()))
