"""A decoder-only transformer; the sizes are those of GPT-2 small (Radford et al., 2019)."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from flax import linen as nn


class Transformer(nn.Module):
    """The network. Normalization comes first in a block, and the last layer is the embedding's.

    Attributes:
        vocabulary: number of different tokens.
        positions: the most tokens of a sequence.
        width: numbers of a token.
        heads: of the attention.
        layers: blocks.
    """

    vocabulary: int = 50257
    positions: int = 1024
    width: int = 768
    heads: int = 12
    layers: int = 12

    @nn.compact
    def __call__(self, tokens: jax.Array) -> jax.Array:
        """Returns logits of the next token, for each of the tokens [batch, length]."""
        words = nn.Embed(self.vocabulary, self.width)
        places = nn.Embed(self.positions, self.width)
        x = words(tokens) + places(jnp.arange(tokens.shape[1]))
        for _ in range(self.layers):
            x = x + Attention(self.heads)(nn.LayerNorm()(x))
            y = nn.gelu(nn.Dense(4 * self.width)(nn.LayerNorm()(x)))
            x = x + nn.Dense(self.width)(y)
        return words.attend(nn.LayerNorm()(x))


class Attention(nn.Module):
    """Attention of each token to itself and those before it, by several heads."""

    heads: int

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        batch, length, width = x.shape
        parts = nn.Dense(3 * width)(x).reshape(batch, length, 3, self.heads, width // self.heads)
        q, k, v = (parts[:, :, part] for part in range(3))
        mixed = jax.nn.dot_product_attention(q, k, v, is_causal=True)
        return nn.Dense(width)(mixed.reshape(x.shape))
