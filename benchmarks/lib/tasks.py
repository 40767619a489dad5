"""Tasks for real compute: small models that run on real and virtual nodes alike."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from benchmarks.lib.transformer import Transformer, cross_entropy, dense, pieces
from jdaso.cli.demo import fashion_mnist
from jdaso.data import batches

ROOT = Path(__file__).parents[2]
JARGON, DICTIONARY = "usr/share/dictd/jargon.dict.dz", "usr/share/dictd/gcide.dict.dz"


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


def muon(peak):
    """The optimizer of a run: Muon, with AdamW at three tenths of the rate for other arrays."""

    def make(total):
        aside = warm_cosine(0.3 * peak, total)
        return optax.contrib.muon(warm_cosine(peak, total), adam_learning_rate=aside)

    return make


def momentum(peak):
    """The optimizer of a run: gradient descent with Nesterov's momentum."""

    def make(total):
        descent = optax.sgd(warm_cosine(peak, total), momentum=0.9, nesterov=True)
        return optax.chain(optax.add_decayed_weights(1e-4), descent)

    return make


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
    model = Transformer(length, width, heads=4, layers=2)
    return _characters("Jargon File", JARGON, model, examples, batch, adamw(6e-3))


def dictionary(
    examples: int = 256_000, batch: int = 128, length: int = 128, width: int = 384
) -> Task:
    """The Collaborative International Dictionary of English: six layers, 10.7 M parameters."""
    model = Transformer(length, width, heads=6, layers=6)
    return _characters("Dictionary", DICTIONARY, model, examples, batch, adamw(2e-3))


def _characters(name, file, model, examples, batch, optimizer):
    path = debian(file)
    if not path.exists():
        package = "dict-" + path.name.partition(".")[0]
        remedy = f"make setup, then tools/debian.sh .venv/debian {package}"
        raise SystemExit(f"{path} is missing: run {remedy}")
    texts = pieces(path, examples, model.length)

    def loss(params, arrays, chosen):
        codes = arrays[0][chosen]
        return cross_entropy(model.logits(params, codes[:, :-1]), codes[:, 1:]).mean()

    @on_a_part
    def score(params, part):
        return model.score(params, texts.test[part])

    return Task(name, examples, batch, (texts.train,), model.init, loss, score, optimizer)


def text_muon() -> Task:
    """The Jargon File with Muon, and AdamW for what is not a matrix."""
    return text()._replace(name="Jargon File, Muon", optimizer=muon(2e-2))


def fashion_adamw(examples: int = 60_000, batch: int = 1024) -> Task:
    """The same network and images with AdamW."""
    task = fashion(examples, batch)
    return task._replace(name="Fashion-MNIST, AdamW", optimizer=adamw(6e-3))


TASKS = {
    "fashion": fashion,
    "fashion-adamw": fashion_adamw,
    "text": text,
    "text-muon": text_muon,
    "dictionary": dictionary,
    "demo": demo,
}
OPTIMIZERS = {
    "fashion": momentum,
    "fashion-adamw": adamw,
    "text": adamw,
    "text-muon": muon,
    "dictionary": adamw,
}
"""Task -> its optimizer, given a peak learning rate; for studies of that rate."""
