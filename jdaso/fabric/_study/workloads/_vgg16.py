"""VGG-16: 13 convolutions and 3 dense layers (Simonyan and Zisserman, arXiv 1409.1556, table 1 D).

Without dropout, which needs no communication and next to no time.
"""

from __future__ import annotations

import jax
from flax import linen as nn

_GROUPS = ((2, 1), (2, 2), (3, 4), (3, 8), (3, 8))
"""Convolutions of a group, and their channels as multiples of the first."""
_EDGE = 7


class Vgg16(nn.Module):
    """The network.

    Attributes:
        classes: of images.
        width: channels of the first convolution.
    """

    classes: int = 1000
    width: int = 64

    @nn.compact
    def __call__(self, images: jax.Array) -> jax.Array:
        """Returns logits of images [batch, height, width, 3].

        The dense layers read 7 x 7 points, as many as images of 224 pixels leave. Points of smaller
        images are repeated, so that the parameters stay the same.
        """
        x = images
        for convolutions, factor in _GROUPS:
            for _ in range(convolutions):
                x = nn.relu(nn.Conv(factor * self.width, (3, 3))(x))
            x = nn.max_pool(x, (2, 2), (2, 2))
        x = jax.image.resize(x, (len(x), _EDGE, _EDGE, x.shape[-1]), "nearest")
        x = x.reshape(len(x), -1)
        for _ in range(2):
            x = nn.relu(nn.Dense(64 * self.width)(x))
        return nn.Dense(self.classes)(x)
