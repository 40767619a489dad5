"""Models whose parameters and compute the parts of `gpu.py` use."""

from __future__ import annotations

import functools
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from flax import linen as nn


class ResNet(nn.Module):
    """ResNet-50 (arXiv 1512.03385) with strides in the 3x3 convolutions: 25.6 M parameters."""

    width: int = 64
    blocks: tuple[int, ...] = (3, 4, 6, 3)
    classes: int = 1000
    dtype: Any = jnp.float32

    @nn.compact
    def __call__(self, images):
        norm = partial(nn.BatchNorm, use_running_average=False, dtype=self.dtype)
        conv = partial(nn.Conv, use_bias=False, dtype=self.dtype)
        x = conv(self.width, (7, 7), 2)(images.astype(self.dtype))
        x = nn.max_pool(nn.relu(norm()(x)), (3, 3), (2, 2), "SAME")
        for stage, blocks in enumerate(self.blocks):
            for block in range(blocks):
                width, strides = self.width * 2**stage, 2 if stage > 0 and block == 0 else 1
                y = nn.relu(norm()(conv(width, (1, 1))(x)))
                y = nn.relu(norm()(conv(width, (3, 3), strides)(y)))
                y = norm(scale_init=nn.initializers.zeros)(conv(4 * width, (1, 1))(y))
                x = norm()(conv(4 * width, (1, 1), strides)(x)) if block == 0 else x
                x = nn.relu(x + y)
        return nn.Dense(self.classes, dtype=self.dtype)(x.mean((1, 2))).astype(jnp.float32)


SMALL_RESNET = {"width": 8, "blocks": (1,), "classes": 10}
"""Settings for dry runs."""


class Training(NamedTuple):
    """Work in the sense of `work`: a ResNet on generated images, the same in every step.

    Attributes:
        model: the network.
        batch: images per node and step.
        size: their height and width in pixels.
    """

    model: ResNet
    batch: int
    size: int

    @property
    def pace(self) -> Any:
        """Real compute; its duration is not set."""
        return Unpaced()

    def make(self, nodes: int) -> Training:
        """See `work.Kind`."""
        del nodes
        return self

    def params(self) -> Any:
        """Makes parameters, float32."""
        images = jnp.zeros((1, self.size, self.size, 3))
        return _init(self.model)(jax.random.key(0), images)["params"]

    def gradient(self, params: Any, n: Any, node: Any) -> tuple[Any, Any]:
        """Loss and gradients of step n on this node."""
        key = jax.random.fold_in(jax.random.key(node), n % 8)
        images = jax.random.normal(key, (self.batch, self.size, self.size, 3))
        labels = jnp.arange(self.batch) % self.model.classes

        def loss(params):
            logits, _ = self.model.apply({"params": params}, images, mutable=["batch_stats"])
            return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()

        return jax.value_and_grad(loss)(params)


class Unpaced:
    """Takes a step's time and does nothing with it."""

    seconds = 0.0


@functools.cache
def _init(model: Any) -> Any:
    """The compiled `init`, made once; on a GPU compiling takes some 20 s."""
    return jax.jit(model.init)


def resnet50_shapes() -> Any:
    """Shapes of ResNet-50's 161 parameters, 25.6 M numbers."""
    model, images = ResNet(), jax.ShapeDtypeStruct((1, 64, 64, 3), jnp.float32)
    return jax.eval_shape(model.init, jax.random.key(0), images)["params"]


def gpt2_shapes(width: int = 768, layers: int = 12, tokens: int = 50_257) -> Any:
    """Shapes of GPT-2's smallest model: 148 parameters, 124 M numbers."""

    def affine(rows: int, columns: int) -> list[tuple[int, ...]]:
        return [(rows, columns), (columns,)]

    norm = [(width,), (width,)]
    attention = [*affine(width, 3 * width), *affine(width, width)]
    perceptron = [*affine(width, 4 * width), *affine(4 * width, width)]
    shapes = [(tokens, width), (1024, width), *norm]
    shapes += layers * [*norm, *attention, *norm, *perceptron]
    return [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes]
