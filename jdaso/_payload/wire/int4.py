"""Wire ``"int4"``: 0.133 of the bytes; each block of 64 numbers has its own scale."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from .base import bits_as
from .bfloat16 import BFloat16
from .blocks import Blockwise

_LOW, _HIGH, _FOUR = np.uint16(0x000F), np.uint16(0x00F0), np.uint16(4)


class _Scales(BFloat16):
    """bfloat16 with a rounding that no compiler drops as excess precision."""

    def encode(self, rows: Any) -> Any:
        """See `BFloat16.encode`."""
        if isinstance(rows, jax.Array):
            rows = jax.lax.reduce_precision(rows, exponent_bits=8, mantissa_bits=7)
        return super().encode(rows)


class Int4(Blockwise):
    """15 levels from ``-max|v|`` to ``max|v|``; the scale of 64 numbers is a bfloat16.

    A level times a scale has 11 significant bits: exact in float32, so that a sum of two rows is
    the same with and without a fused multiply-add.
    """

    name, block, levels, per_byte, scales = "int4", 64, 7, 2, _Scales()

    def pack(self, numbers: Any) -> Any:
        """Numbers 2k and 2k + 1 share a byte, 2k in its lower half."""
        pairs = bits_as(numbers.reshape(*numbers.shape[:-1], -1, 2), np.uint16)
        return ((pairs & _LOW) | ((pairs >> _FOUR) & _HIGH)).astype(np.uint8)

    def unpack(self, data: Any) -> Any:
        """Each byte as two signed numbers; shifts spread their signs."""
        pairs = data.astype(np.uint16)
        pairs = (pairs & _LOW) | ((pairs & _HIGH) << _FOUR)
        numbers = bits_as(pairs, np.int8).reshape(*data.shape[:-1], -1)
        return (numbers << np.int8(4)) >> np.int8(4)
