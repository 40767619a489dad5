"""Wire ``"bfloat16"``: half the bytes; a number keeps its range and 8 significant bits."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from .base import Wire, bits_as, first_of

_INFINITY, _SIGN = np.uint16(0x7F80), np.uint16(0x8000)


class BFloat16(Wire):
    """bfloat16 numbers, rounded to nearest, ties to even. Numbers that are not finite stay so."""

    name, dtype, narrow = "bfloat16", np.dtype(np.uint16), True

    def encode(self, rows: Any) -> Any:
        """Float32 ``[..., width]`` to bits ``[..., width]``."""
        return bits_as(rows.astype(jnp.bfloat16), np.uint16)

    def decode(self, rows: Any) -> Any:
        """Bits to float32.

        Uses a shift, not a conversion from bfloat16: XLA may drop a conversion there and back
        (``xla_allow_excess_precision``, which GPUs use), and with it the rounding error that error
        feedback needs.
        """
        if isinstance(rows, jax.Array):
            return bits_as(rows.astype(jnp.uint32) << np.uint32(16), jnp.float32)
        return np.left_shift(rows, 16, dtype=np.uint32).view(np.float32)

    def first_bad(self, rows: np.ndarray) -> int | None:
        """See `Wire.first_bad`; tests the bits for an exponent of all ones."""
        if rows.max() < _INFINITY + _SIGN and rows.view(np.int16).max() < _INFINITY:
            return None
        return first_of((rows & ~_SIGN) >= _INFINITY)
