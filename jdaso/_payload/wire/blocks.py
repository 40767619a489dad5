"""Wires whose numbers share a scale, block by block; a row's scales follow its numbers."""

from __future__ import annotations

import abc
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from .base import Wire, bits_as

_LEAST_SCALE = np.float32(2.0**-120)
"""Blocks with a smaller scale become zeros: XLA flushes subnormal numbers, NumPy does not."""


class Blockwise(Wire):
    """``round(v / scale)`` in blocks, ``scale = max|v| / levels``, as bytes.

    If a block holds a number that is not finite, its scale is not finite either.

    Attributes:
        levels: the largest whole number that is sent.
        per_byte: how many numbers share a byte.
        scales: the wire of the scales.
    """

    dtype, narrow = np.dtype(np.uint8), True
    levels: ClassVar[int]
    per_byte: ClassVar[int]
    scales: ClassVar[Wire]

    @abc.abstractmethod
    def pack(self, numbers: Any) -> Any:
        """int8 ``[..., block]``, within ``levels``, to bytes ``[..., block / per_byte]``."""

    @abc.abstractmethod
    def unpack(self, data: Any) -> Any:
        """The result of `pack` back to int8."""

    def encoded_width(self, width: int) -> int:
        """The bytes of a row's numbers and of their scales."""
        return self._bytes(width) + self.scales.dtype.itemsize * width // self.block

    def encode(self, rows: Any) -> Any:
        """Float32 ``[..., width]`` to bytes ``[..., encoded_width]``."""
        xp = jnp if isinstance(rows, jax.Array) else np
        data, scales = self._encode_blocks(rows)
        pair = [data, bits_as(scales, np.uint8)]
        return xp.concatenate([x.reshape(*rows.shape[:-1], -1) for x in pair], axis=-1)

    def decode(self, rows: Any) -> Any:
        """Bytes to float32."""
        data, scales = self._split(rows)
        return self._decode_blocks(data, scales).reshape(*rows.shape[:-1], -1)

    def first_bad(self, rows: np.ndarray) -> int | None:
        """See `Wire.first_bad`; returns the first number of the bad block."""
        found = self.scales.first_bad(self._split(rows)[1])
        return None if found is None else found * self.block

    def _bytes(self, width: int) -> int:
        return width // self.per_byte

    def _split(self, rows: Any) -> tuple[Any, Any]:
        """The numbers' bytes, and the scales ``[..., blocks]``, of encoded rows."""
        xp = jnp if isinstance(rows, jax.Array) else np
        each = self.scales.dtype.itemsize
        blocks = rows.shape[-1] // (self._bytes(self.block) + each)
        numbers = self._bytes(self.block * blocks)
        scales = xp.asarray(rows[..., numbers:]).reshape(*rows.shape[:-1], blocks, each)
        return rows[..., :numbers], bits_as(scales, self.scales.dtype)

    def _encode_blocks(self, numbers: Any) -> tuple[Any, Any]:
        """Bytes ``[..., blocks, block / per_byte]``, and encoded scales ``[..., blocks, 1]``."""
        xp = jnp if isinstance(numbers, jax.Array) else np
        blocks = numbers.reshape(*numbers.shape[:-1], -1, self.block)
        # A product: XLA would turn a division by a constant into one, and NumPy would not.
        scale = xp.max(xp.abs(blocks), axis=-1, keepdims=True) * np.float32(1 / self.levels)
        scale = xp.where(scale < _LEAST_SCALE, np.float32(0), scale)
        scales = self.scales.encode(scale)
        scale = self.scales.decode(scales)
        # As above: a division of each block by its scale would be a product on some devices only.
        factor = np.float32(1) / xp.where(scale > 0, scale, np.float32(1))
        return self.pack(xp.round(blocks * factor).astype(np.int8)), scales

    def _decode_blocks(self, data: Any, scales: Any) -> Any:
        """Float32 ``[..., blocks, block]``."""
        numbers = self.unpack(data.reshape(*scales.shape, self._bytes(self.block))).astype(
            np.float32
        )
        return numbers * self.scales.decode(scales)[..., None]
