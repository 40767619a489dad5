"""Characters of a text one after the other: a small decoder-only transformer, and its batches."""

from __future__ import annotations

import gzip
import math
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax


class Transformer(NamedTuple):
    """Sizes; all layers are alike, and characters are read and predicted by one table."""

    length: int  # characters that one sees
    width: int
    heads: int
    layers: int

    def init(self, key: jax.Array) -> dict[str, Any]:
        """Parameters: float32."""
        keys = iter(jax.random.split(key, 2 + 4 * self.layers))
        width = self.width
        params: dict[str, Any] = {
            "characters": jax.random.normal(next(keys), (128, width)) * 0.05,
            "places": jax.random.normal(next(keys), (self.length, width)) * 0.05,
        }
        for k in range(self.layers):
            params[f"layer {k}"] = {
                "attend": dense(next(keys), width, 3 * width),
                "mix": dense(next(keys), width, width) * 0.5,
                "up": dense(next(keys), width, 4 * width),
                "down": dense(next(keys), 4 * width, width) * 0.5,
                "scales": jnp.ones((2, width)),
            }
        return params

    def logits(self, params: dict[str, Any], codes: jax.Array) -> jax.Array:
        """Logits of the next character, ``[texts, length, 128]``, for codes ``[texts, length]``."""
        mask = jnp.where(jnp.tril(jnp.ones((self.length, self.length), bool)), 0.0, -1e9)
        x = params["characters"][codes] + params["places"]
        for k in range(self.layers):
            p = params[f"layer {k}"]
            q, key, v = jnp.split(_normed(x, p["scales"][0]) @ p["attend"], 3, axis=-1)
            q, key, v = (y.reshape(*y.shape[:-1], self.heads, -1) for y in (q, key, v))
            size = math.sqrt(self.width // self.heads)
            weights = jnp.einsum("bihd,bjhd->bhij", q, key) / size + mask
            mixed = jnp.einsum("bhij,bjhd->bihd", jax.nn.softmax(weights), v)
            x = x + mixed.reshape(x.shape) @ p["mix"]
            x = x + jax.nn.gelu(_normed(x, p["scales"][1]) @ p["up"]) @ p["down"]
        return _normed(x, 1.0) @ params["characters"].T

    def score(self, params: dict[str, Any], codes: jax.Array) -> dict[str, jax.Array]:
        """Share of characters predicted, and nats a character, for ``[texts, length + 1]``."""
        logits, answers = self.logits(params, codes[:, :-1]), codes[:, 1:]
        right = (logits.argmax(-1) == answers).mean()
        return {"accuracy": right, "loss": cross_entropy(logits, answers).mean()}


class Texts(NamedTuple):
    """Pieces of one text: int32, ``[texts, length + 1]``."""

    train: jax.Array  # from random places
    test: jax.Array  # of the last twentieth, side by side


def pieces(path: Path, examples: int, length: int) -> Texts:
    """Cuts a gzip file of ASCII."""
    codes = np.frombuffer(gzip.decompress(path.read_bytes()), np.uint8)
    codes = np.where(codes < 128, codes, ord("?")).astype(np.uint8)
    held_out = codes[-(len(codes) // 20) :]
    codes = codes[: -len(held_out)]
    starts = np.random.default_rng(0).integers(0, len(codes) - length, examples)
    places = np.arange(0, len(held_out) - length - 1, length)[:1000]
    cut = np.arange(length + 1)
    return Texts(
        jnp.asarray(codes[starts[:, None] + cut].astype(np.int32)),
        jnp.asarray(held_out[places[:, None] + cut].astype(np.int32)),
    )


def cross_entropy(logits, labels):
    """Nats, for each label."""
    return optax.softmax_cross_entropy_with_integer_labels(logits, labels)


def dense(key, rows, columns):
    """A matrix that keeps the variance."""
    return jax.random.normal(key, (rows, columns)) / math.sqrt(rows)


def _normed(x, scale):
    return x * jax.lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) + 1e-6) * scale
