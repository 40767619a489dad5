"""The networks by name: shapes of their parameters, first values, a loss, and data from a seed.

Nothing is downloaded. An image is noise around a wave that depends on its class, and a sequence of
tokens goes on in equal steps, so that there is something to learn.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import linen as nn

from ..models import MODELS
from ._inceptionv3 import InceptionV3
from ._resnet50 import ResNet50
from ._transformer import Transformer
from ._vgg16 import Vgg16

Batch = tuple[jax.Array, jax.Array]
"""Images and classes, or tokens and those that follow each."""

SEED = 2020
_EMBEDDING_SCALE = 0.02  # as in GPT-2


@dataclass(frozen=True)
class NetworkAndData:
    """A network and its data.

    Attributes:
        module: of Flax.
        batch: (key, samples, size) -> a batch; the size is an image's edge or a sequence's length.
        size: of the published inputs.
    """

    module: nn.Module
    batch: Callable[[jax.Array, int, int], Batch]
    size: int

    def shapes(self) -> Any:
        """Returns the shapes of all parameters; nothing is computed."""

        def parameters(key: jax.Array) -> Any:
            return self.module.init(key, self.batch(key, 1, self.size)[0])["params"]

        return jax.eval_shape(parameters, jax.random.key(SEED))

    def loss(self, params: Any, batch: Batch) -> jax.Array:
        """Returns the mean cross-entropy of a batch."""
        inputs, targets = batch
        logits, _ = self.module.apply({"params": params}, inputs, mutable=["batch_stats"])
        return optax.softmax_cross_entropy_with_integer_labels(logits, targets).mean()


def network_of(model: str) -> NetworkAndData:
    """Returns the network of a model."""
    return NETWORKS[model]()


def of_images(module: Any, pixels: int) -> NetworkAndData:
    """A network that classifies images."""

    def batch(key: jax.Array, samples: int, size: int) -> Batch:
        of_labels, of_noise = jax.random.split(key)
        labels = jax.random.randint(of_labels, (samples,), 0, module.classes)
        turns = jnp.outer(labels + 1, jnp.arange(size)) / size
        wave = jnp.cos(2 * jnp.pi * turns)[:, :, None, None]
        return wave + jax.random.normal(of_noise, (samples, size, size, 3)), labels

    return NetworkAndData(module, batch, pixels)


def of_tokens(module: Transformer) -> NetworkAndData:
    """A network that predicts the next token."""

    def batch(key: jax.Array, samples: int, size: int) -> Batch:
        of_first, of_step = jax.random.split(key)
        first = jax.random.randint(of_first, (samples, 1), 0, module.vocabulary)
        step = jax.random.randint(of_step, (samples, 1), 1, 8)
        tokens = (first + step * jnp.arange(size + 1)) % module.vocabulary
        return tokens[:, :-1], tokens[:, 1:]

    return NetworkAndData(module, batch, module.positions)


NETWORKS: dict[str, Callable[[], NetworkAndData]] = {
    "resnet50": lambda: of_images(ResNet50(), MODELS["resnet50"].pixels),
    "vgg16": lambda: of_images(Vgg16(), MODELS["vgg16"].pixels),
    "inceptionv3": lambda: of_images(InceptionV3(), MODELS["inceptionv3"].pixels),
    "transformer": lambda: of_tokens(Transformer()),
}


def first_values(shapes: Any) -> Any:
    """Returns parameters of these shapes, the same on all nodes.

    Kernels are normal with variance 2 / inputs (He et al., arXiv 1502.01852), embeddings normal
    with deviation 0.02, scales 1, all others 0.
    """
    numbers = np.random.default_rng(SEED)

    def value(path: tuple[Any, ...], leaf: jax.ShapeDtypeStruct) -> np.ndarray:
        name = path[-1].key
        if name not in ("kernel", "embedding"):
            return np.full(leaf.shape, name == "scale", np.float32)
        inputs = math.prod(leaf.shape[:-1])
        scale = math.sqrt(2 / inputs) if name == "kernel" else _EMBEDDING_SCALE
        found = numbers.standard_normal(leaf.shape, np.float32)
        return np.multiply(found, np.float32(scale), out=found)

    return jax.tree_util.tree_map_with_path(value, shapes)
