"""Inception-v3 without its auxiliary classifier (Szegedy et al., arXiv 1512.00567, table 1).

Each block is a table of branches, whose outputs are joined: (channels, height, width) of one
convolution after another.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from flax import linen as nn

from ._layers import ConvNorm

Convolution = tuple[int, int, int]
Branch = tuple[Convolution, ...]
Block = tuple[Branch, ...]


def _of_35(pooled: int) -> Block:
    """Figure 5, with 5 x 5 as one convolution; `pooled` channels come after the pooling."""
    return ((64, 1, 1),), ((48, 1, 1), (64, 5, 5)), _THREES, ((pooled, 1, 1),)


def _of_17(narrow: int) -> Block:
    """Figure 6: n x n as 1 x n after n x 1, with n = 7."""
    once = ((narrow, 1, 1), (narrow, 1, 7), (192, 7, 1))
    twice = ((narrow, 1, 1), (narrow, 7, 1), (narrow, 1, 7), (narrow, 7, 1), (192, 1, 7))
    return ((192, 1, 1),), once, twice, ((192, 1, 1),)


_THREES: Branch = ((64, 1, 1), (96, 3, 3), (96, 3, 3))
_TO_17: Block = (((384, 3, 3),), _THREES)
_TO_8: Block = ((192, 1, 1), (320, 3, 3)), ((192, 1, 1), (192, 1, 7), (192, 7, 1), (192, 3, 3))
_FORKS = ((384, 1, 1),), ((448, 1, 1), (384, 3, 3))


class InceptionV3(nn.Module):
    """The network.

    Attributes:
        classes: of images.
        divisor: of the channels of all convolutions.
    """

    classes: int = 1000
    divisor: int = 1

    @nn.compact
    def __call__(self, images: jax.Array) -> jax.Array:
        """Returns logits of images [batch, height, width, 3].

        Raises:
            ValueError: an edge has fewer than 75 pixels, of which nothing would be left.
        """
        if images.shape[1] < 75:
            raise ValueError(f"Inception-v3 reads 75 pixels or more, got {images.shape[1]}.")
        x = self._conv(images, (32, 3, 3), 2, "VALID")
        x = self._conv(x, (32, 3, 3), padding="VALID")
        x = self._pooled(self._conv(x, (64, 3, 3)))
        x = self._conv(self._conv(x, (80, 1, 1)), (192, 3, 3), padding="VALID")
        x = self._pooled(x)
        for pooled in (32, 64, 64):
            x = self._joined(x, _of_35(pooled))
        x = self._halved(x, _TO_17)
        for narrow in (128, 160, 160, 192):
            x = self._joined(x, _of_17(narrow))
        x = self._halved(x, _TO_8)
        for _ in range(2):
            x = self._forked(x)
        return nn.Dense(self.classes)(x.mean((1, 2)))

    def _conv(
        self, x: jax.Array, about: Convolution, strides: int = 1, padding: str = "SAME"
    ) -> jax.Array:
        features, *kernel = about
        return ConvNorm(features // self.divisor, (kernel[0], kernel[1]), strides, padding)(x)

    def _branch(self, x: jax.Array, branch: Branch) -> jax.Array:
        for about in branch:
            x = self._conv(x, about)
        return x

    def _pooled(self, x: jax.Array) -> jax.Array:
        return nn.max_pool(x, (3, 3), (2, 2))

    def _joined(self, x: jax.Array, block: Block) -> jax.Array:
        """The last branch begins with a mean over 3 x 3 points."""
        *branches, last = block
        found = [self._branch(x, branch) for branch in branches]
        mean = nn.avg_pool(x, (3, 3), padding="SAME")
        return jnp.concatenate([*found, self._branch(mean, last)], -1)

    def _halved(self, x: jax.Array, block: Block) -> jax.Array:
        """Figure 10: the last convolution of each branch has stride 2; so has a pooling."""
        found = [
            self._conv(self._branch(x, tuple(branch)), last, 2, "VALID")
            for (*branch, last) in block
        ]
        return jnp.concatenate([*found, self._pooled(x)], -1)

    def _forked(self, x: jax.Array) -> jax.Array:
        """Figure 7: two branches end in 1 x 3 and 3 x 1 convolutions side by side."""
        found = [self._conv(x, (320, 1, 1))]
        for branch in _FORKS:
            y = self._branch(x, branch)
            found += [self._conv(y, (384, 1, 3)), self._conv(y, (384, 3, 1))]
        mean = nn.avg_pool(x, (3, 3), padding="SAME")
        return jnp.concatenate([*found, self._conv(mean, (192, 1, 1))], -1)
