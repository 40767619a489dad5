"""Wire ``"int8"``: a quarter of the bytes; each block of 256 numbers has its own scale."""

from __future__ import annotations

from typing import Any

import numpy as np

from .base import bits_as
from .blocks import Blockwise
from .float32 import Float32


class Int8(Blockwise):
    """255 levels from ``-max|v|`` to ``max|v|``; the scale of 256 numbers is a float32."""

    name, block, levels, per_byte, scales = "int8", 256, 127, 1, Float32()

    def pack(self, numbers: Any) -> Any:
        """A byte per number."""
        return bits_as(numbers, np.uint8)

    def unpack(self, data: Any) -> Any:
        """The bytes as signed numbers."""
        return bits_as(data, np.int8)
