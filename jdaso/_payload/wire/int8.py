"""Wire ``"int8"``: a quarter of the bytes; each block of 256 numbers has its own scale."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ..explicit import replicated
from .base import BLOCK, Wire, bits_as, first_not_finite

_LEAST_SCALE = np.float32(2.0**-120)
"""Blocks below 1e-34 become zeros: XLA flushes subnormal numbers, NumPy does not."""


class Int8(Wire):
    """``round(v / scale)`` in blocks of 256, ``scale = max|v| / 127``; scales follow the numbers.

    If a block holds a number that is not finite, its scale is not finite either.
    """

    name, dtype, narrow, block = "int8", np.dtype(np.uint8), True, BLOCK

    def encoded_width(self, width: int) -> int:
        """One byte per number, and four per block."""
        return width + 4 * width // BLOCK

    def encode(self, rows: Any) -> Any:
        """Float32 ``[..., width]`` to bytes ``[..., width + 4 width / 256]``."""
        xp = jnp if isinstance(rows, jax.Array) else np
        blocks = rows.reshape(*rows.shape[:-1], -1, BLOCK)
        # A product: XLA would turn a division by 127 into one, and NumPy would not.
        scale = xp.max(xp.abs(blocks), axis=-1, keepdims=True) * np.float32(1 / 127)
        scale = xp.where(scale < _LEAST_SCALE, np.float32(0), scale)
        safe = xp.where(scale > 0, scale, np.float32(1))
        numbers = xp.round(blocks / safe).astype(np.int8)
        pair = [bits_as(numbers, np.uint8), bits_as(scale, np.uint8)]
        return xp.concatenate([x.reshape(*rows.shape[:-1], -1) for x in pair], axis=-1)

    def decode(self, rows: Any) -> Any:
        """Bytes to float32."""
        xp = jnp if isinstance(rows, jax.Array) else np
        width = rows.shape[-1] * BLOCK // (BLOCK + 4)
        numbers = bits_as(rows[..., :width], np.int8).reshape(*rows.shape[:-1], -1, BLOCK)
        scales = xp.asarray(rows[..., width:]).reshape(*numbers.shape[:-1], 4)
        scale = bits_as(scales, np.float32).reshape(*numbers.shape[:-1], 1)
        return (numbers.astype(np.float32) * scale).reshape(*rows.shape[:-1], width)

    @property
    def parts(self) -> tuple[tuple[np.dtype, int], ...]:
        """Numbers, and scales."""
        return (np.dtype(np.uint8), 1), (np.dtype(np.float32), BLOCK)

    def encode_leaf(self, leaf: jax.Array) -> tuple[jax.Array, ...]:
        """A leaf's numbers as bytes, padded to whole blocks, and its scales."""
        flat = replicated(leaf).reshape(-1)
        flat = jnp.pad(flat, (0, -flat.size % BLOCK))
        row = self.encode(flat.reshape(1, -1))[0]
        return row[: flat.size], bits_as(row[flat.size :].reshape(-1, 4), np.float32)

    def decode_leaf(self, parts: Sequence[jax.Array], shape: tuple[int, ...]) -> jax.Array:
        """The result of `encode_leaf`, or whole blocks cut from it, back to float32."""
        numbers, scales = parts
        blocks = bits_as(numbers, np.int8).reshape(-1, BLOCK).astype(jnp.float32)
        return (blocks * scales[:, None]).reshape(-1)[: math.prod(shape)].reshape(shape)

    def first_bad(self, rows: np.ndarray) -> int | None:
        """As `Wire.first_bad`; returns the first number of the bad block."""
        width = rows.shape[1] * BLOCK // (BLOCK + 4)
        scales = bits_as(rows[:, width:].reshape(len(rows), -1, 4), np.float32)
        found = first_not_finite(scales)
        return None if found is None else found * BLOCK
