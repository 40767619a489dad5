"""ResNet-50: residual blocks of three convolutions (He et al., arXiv 1512.03385, table 1)."""

from __future__ import annotations

import jax
from flax import linen as nn

from ._layers import ConvNorm


class ResNet50(nn.Module):
    """The network of 50 layers; the stride of a stage is in its first 3 x 3 convolution.

    Attributes:
        classes: of images.
        width: channels of the first stage's narrow convolutions; doubled from stage to stage.
        blocks: of each stage.
    """

    classes: int = 1000
    width: int = 64
    blocks: tuple[int, ...] = (3, 4, 6, 3)

    @nn.compact
    def __call__(self, images: jax.Array) -> jax.Array:
        """Returns logits of images [batch, height, width, 3]."""
        x = ConvNorm(self.width, (7, 7), strides=2)(images)
        x = nn.max_pool(x, (3, 3), (2, 2), "SAME")
        for stage, blocks in enumerate(self.blocks):
            for block in range(blocks):
                strides = 2 if stage > 0 and block == 0 else 1
                x = Bottleneck(self.width * 2**stage, strides, projects=block == 0)(x)
        return nn.Dense(self.classes)(x.mean((1, 2)))


class Bottleneck(nn.Module):
    """``relu(x + f(x))`` with f of 1 x 1, 3 x 3 and 1 x 1 convolutions (figure 5)."""

    width: int
    strides: int
    projects: bool

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        y = ConvNorm(self.width, (1, 1))(x)
        y = ConvNorm(self.width, (3, 3), strides=self.strides)(y)
        y = ConvNorm(4 * self.width, (1, 1), activates=False)(y)
        if self.projects:
            x = ConvNorm(4 * self.width, (1, 1), strides=self.strides, activates=False)(x)
        return nn.relu(x + y)
