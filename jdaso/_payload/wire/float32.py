"""Wire ``"float32"``: the numbers, unchanged."""

from __future__ import annotations

from typing import Any

import numpy as np

from .base import Wire, first_not_finite


class Float32(Wire):
    """Float32 numbers, without loss."""

    name, dtype, narrow = "float32", np.dtype(np.float32), False

    def encode(self, rows: Any) -> Any:
        """The rows, unchanged."""
        return rows

    def decode(self, rows: Any) -> Any:
        """The rows, unchanged."""
        return rows

    def first_bad(self, rows: np.ndarray) -> int | None:
        """See `Wire.first_bad`; the sum is finite only if each number is."""
        return first_not_finite(rows)
