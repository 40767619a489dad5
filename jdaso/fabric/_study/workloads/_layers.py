"""A layer that the convolutional networks share."""

from __future__ import annotations

import jax
from flax import linen as nn


class ConvNorm(nn.Module):
    """A convolution without bias, batch normalization, and a rectifier.

    Normalizes by the mean and variance of the node's own batch, as the papers do in training; no
    running averages are kept, since nothing is ever evaluated.
    """

    features: int
    kernel: tuple[int, int]
    strides: int = 1
    padding: str = "SAME"
    activates: bool = True

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        x = nn.Conv(self.features, self.kernel, self.strides, self.padding, use_bias=False)(x)
        x = nn.BatchNorm(use_running_average=False)(x)
        return nn.relu(x) if self.activates else x
