"""Tasks for real compute: small models that run on real and virtual nodes alike."""

from __future__ import annotations

import gzip
import math
from functools import partial
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from jdaso.cli._fashion_mnist import fashion_mnist
from jdaso.data import batches

ROOT = Path(__file__).parents[2]
JARGON = "usr/share/dictd/jargon.dict.dz"


def debian(path: str) -> Path:
    """A file of a Debian package: installed, or unpacked by ``make setup``."""
    installed = Path("/", path)
    return installed if installed.exists() else ROOT / ".venv/debian" / path


class Task(NamedTuple):
    """Data, network and score; `batch` is what all nodes together take in a step."""

    name: str
    examples: int
    batch: int
    arrays: tuple[jax.Array, ...]  # what `loss` cuts batches from
    init: object  # key -> params
    loss: object  # params, arrays, chosen -> scalar
    score: object  # params, node=0, nodes=1 -> {"accuracy": share, "loss": nats} of its test part
    optimizer: object  # steps in all -> optax.GradientTransformation

    def order(self, epoch: int, nodes: int, seed: int) -> np.ndarray:
        """Examples of one epoch, ``[steps, nodes, batch / nodes]``."""
        each = [
            batches(
                self.examples, self.batch // nodes, node=p, num_nodes=nodes, epoch=epoch, seed=seed
            )
            for p in range(nodes)
        ]
        return np.stack(each, axis=1).astype(np.int32)

    def train(self, tx, params, state, order, arrays):
        """One step for each row of `order`; parameters and state after them, and the losses."""

        def step(carry, chosen):
            params, state = carry
            loss, grads = jax.value_and_grad(self.loss)(params, arrays, chosen)
            updates, state = tx.update(grads, state, params, value=loss)
            return (optax.apply_updates(params, updates), state), loss

        return jax.lax.scan(step, (params, state), order)


def on_a_part(score):
    """`score` of parameters and a slice, as one of parameters, a node and how many there are."""

    @partial(jax.jit, static_argnums=(1, 2))
    def of_node(params, node=0, nodes=1):
        return score(params, slice(node, None, nodes))

    return of_node


def warm_cosine(peak, total):
    """Learning rate: a tenth of the run up to `peak`, then down to 0."""
    return optax.warmup_cosine_decay_schedule(0.0, peak, total // 10, total)


def adamw(peak):
    """The optimizer of a run, by its number of steps."""
    return lambda total: optax.adamw(warm_cosine(peak, total), weight_decay=1e-3)


def momentum(peak):
    """The optimizer of a run: gradient descent with Nesterov's momentum."""

    def make(total):
        descent = optax.sgd(warm_cosine(peak, total), momentum=0.9, nesterov=True)
        return optax.chain(optax.add_decayed_weights(1e-4), descent)

    return make


def cross_entropy(logits, labels):
    return optax.softmax_cross_entropy_with_integer_labels(logits, labels)


def dense(key, rows, columns):
    return jax.random.normal(key, (rows, columns)) / math.sqrt(rows)


def fashion(examples: int = 60_000, batch: int = 1024) -> Task:
    """Fashion-MNIST: patches of 4x4, a hidden layer, ten classes; 105 thousand parameters."""
    folder = debian("usr/share/datasets/fashion-mnist")
    data = fashion_mnist(folder if folder.exists() else None)
    images = jnp.asarray(_patches(data.train_images[:examples]))
    labels = jnp.asarray(data.train_labels[:examples])
    test, answers = jnp.asarray(_patches(data.test_images)), jnp.asarray(data.test_labels)

    def init(key):
        keys = jax.random.split(key, 3)
        return {
            "patch": dense(keys[0], 16, 32),
            "hidden": dense(keys[1], 49 * 32, 64) * 1.4,
            "hidden bias": jnp.zeros(64),
            "out": dense(keys[2], 64, 10),
            "out bias": jnp.zeros(10),
        }

    def logits_of(params, patches):
        x = patches.astype(jnp.float32) / 255 - 0.286
        x = jax.nn.relu(2.8 * x @ params["patch"])
        x = jax.nn.relu(x.reshape(len(x), -1) @ params["hidden"] + params["hidden bias"])
        return x @ params["out"] + params["out bias"]

    def loss(params, arrays, chosen):
        images, labels = arrays
        return cross_entropy(logits_of(params, images[chosen]), labels[chosen]).mean()

    @on_a_part
    def score(params, part):
        logits, mine = logits_of(params, test[part]), answers[part]
        right = (logits.argmax(-1) == mine).mean()
        return {"accuracy": right, "loss": cross_entropy(logits, mine).mean()}

    arrays = (images, labels)
    return Task("Fashion-MNIST", len(labels), batch, arrays, init, loss, score, momentum(0.2))


def demo(examples: int = 60_000, batch: int = 256) -> Task:
    """Fashion-MNIST with the demo's convolutional network; 0.8 million parameters."""
    from jdaso.cli._demo_node import Network

    folder = debian("usr/share/datasets/fashion-mnist")
    data, network = fashion_mnist(folder if folder.exists() else None), Network()
    arrays = jnp.asarray(data.train_images[:examples]), jnp.asarray(data.train_labels[:examples])
    test, answers = jnp.asarray(data.test_images), jnp.asarray(data.test_labels)

    def init(key):
        return network.init(key, jnp.zeros((1, 28, 28), jnp.uint8))

    def loss(params, arrays, chosen):
        images, labels = arrays
        return cross_entropy(network.apply(params, images[chosen]), labels[chosen]).mean()

    @on_a_part
    def score(params, part):
        of_one = lambda x: network.apply(params, x[None])[0]  # noqa: E731
        logits, mine = jax.lax.map(of_one, test[part], batch_size=500), answers[part]
        right = (logits.argmax(-1) == mine).mean()
        return {"accuracy": right, "loss": cross_entropy(logits, mine).mean()}

    return Task("demo", len(arrays[1]), batch, arrays, init, loss, score, adamw(2e-3))


def _patches(images):
    """uint8 ``[n, 28, 28]`` to ``[n, 49, 16]``."""
    cut = images.reshape(-1, 7, 4, 7, 4).transpose(0, 1, 3, 2, 4)
    return np.ascontiguousarray(cut.reshape(-1, 49, 16))


def text(examples: int = 20_000, batch: int = 256, length: int = 32, width: int = 64) -> Task:
    """The Jargon File, character by character: a transformer of two layers, 0.1 M parameters."""
    path = debian(JARGON)
    if not path.exists():
        raise SystemExit(f"{path} is missing: run make setup, which fetches Debian's dict-jargon")
    codes = np.frombuffer(gzip.decompress(path.read_bytes()), np.uint8)
    codes = np.where(codes < 128, codes, ord("?")).astype(np.int32)
    held_out = codes[-(len(codes) // 20) :]
    codes = codes[: -len(held_out)]
    starts = np.random.default_rng(0).integers(0, len(codes) - length, examples)
    texts = jnp.asarray(codes[starts[:, None] + np.arange(length + 1)])
    places = np.arange(0, len(held_out) - length - 1, length)[:1000]
    test = jnp.asarray(held_out[places[:, None] + np.arange(length + 1)])
    heads, layers = 4, 2
    mask = jnp.where(jnp.tril(jnp.ones((length, length), bool)), 0.0, -1e9)

    def init(key):
        keys = iter(jax.random.split(key, 2 + 4 * layers))
        params = {
            "characters": jax.random.normal(next(keys), (128, width)) * 0.05,
            "places": jax.random.normal(next(keys), (length, width)) * 0.05,
        }
        for k in range(layers):
            params[f"layer {k}"] = {
                "attend": dense(next(keys), width, 3 * width),
                "mix": dense(next(keys), width, width) * 0.5,
                "up": dense(next(keys), width, 4 * width),
                "down": dense(next(keys), 4 * width, width) * 0.5,
                "scales": jnp.ones((2, width)),
            }
        return params

    def normed(x, scale):
        return x * jax.lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) + 1e-6) * scale

    def logits_of(params, codes):
        x = params["characters"][codes] + params["places"]
        for k in range(layers):
            p = params[f"layer {k}"]
            q, key, v = jnp.split(normed(x, p["scales"][0]) @ p["attend"], 3, axis=-1)
            q, key, v = (y.reshape(*y.shape[:-1], heads, -1) for y in (q, key, v))
            weights = jnp.einsum("bihd,bjhd->bhij", q, key) / math.sqrt(width // heads) + mask
            mixed = jnp.einsum("bhij,bjhd->bihd", jax.nn.softmax(weights), v)
            x = x + mixed.reshape(x.shape) @ p["mix"]
            x = x + jax.nn.gelu(normed(x, p["scales"][1]) @ p["up"]) @ p["down"]
        return normed(x, 1.0) @ params["characters"].T

    def loss_of(params, codes):
        return cross_entropy(logits_of(params, codes[:, :-1]), codes[:, 1:]).mean()

    def loss(params, arrays, chosen):
        return loss_of(params, arrays[0][chosen])

    @on_a_part
    def score(params, part):
        codes = test[part]
        logits = logits_of(params, codes[:, :-1])
        right = (logits.argmax(-1) == codes[:, 1:]).mean()
        return {"accuracy": right, "loss": cross_entropy(logits, codes[:, 1:]).mean()}

    return Task("Jargon File", examples, batch, (texts,), init, loss, score, adamw(6e-3))


def fashion_adamw(examples: int = 60_000, batch: int = 1024) -> Task:
    """The same network and images with AdamW."""
    task = fashion(examples, batch)
    return task._replace(name="Fashion-MNIST, AdamW", optimizer=adamw(6e-3))


TASKS = {"fashion": fashion, "fashion-adamw": fashion_adamw, "text": text, "demo": demo}
OPTIMIZERS = {"fashion": momentum, "fashion-adamw": adamw, "text": adamw}
"""Of a peak learning rate; for studies of it."""
