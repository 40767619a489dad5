"""What crosses the network: float32 rows to the bytes of a wire format, and back.

The same formulas for the device (jax.numpy) and for the host (NumPy), so that both give the same
bits. Narrow formats carry differences with error feedback (see `_averaging`), never weights.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from .explicit import replicated
from .layout import BLOCK
from .words import HEADER

_FLOAT16_MAX = 65504.0
_INT8_LEAST_SCALE = 2.0**-120


@dataclasses.dataclass(frozen=True)
class Wire:
    """A wire format.

    Attributes:
        name: as users write it.
        dtype: of the buffers that MPI sees (bfloat16 and scales travel as bits).
        narrow: whether numbers lose bits, so that error feedback is needed.
    """

    name: str
    dtype: np.dtype
    narrow: bool

    def encoded_width(self, width: int) -> int:
        """Length of an encoded row."""
        return width + 4 * width // BLOCK if self.name == "int8" else width

    @property
    def header_width(self) -> int:
        """Length of a header in a row."""
        return HEADER * 4 // self.dtype.itemsize

    def encode(self, rows: Any) -> Any:
        """Float32 ``[..., width]`` to the wire's dtype ``[..., encoded_width]``.

        bfloat16 and float16 round to the nearest, ties to even (float16 saturates). What is not
        finite stays so; of int8, the scale of its block. int8 rounds
        ``v / scale`` in blocks of 256, ``scale = max|v| / 127``; the scales follow the numbers.
        Blocks below 1e-34 become zeros: XLA flushes subnormal numbers, NumPy does not.
        """
        if self.name == "float32":
            return rows
        xp = jnp if isinstance(rows, jax.Array) else np
        if self.name == "int8":
            blocks = rows.reshape(*rows.shape[:-1], -1, BLOCK)
            # A product: XLA would make one of a division by 127, and NumPy would not.
            scale = xp.max(xp.abs(blocks), axis=-1, keepdims=True) * np.float32(1 / 127)
            scale = xp.where(scale < np.float32(_INT8_LEAST_SCALE), np.float32(0), scale)
            safe = xp.where(scale > 0, scale, np.float32(1))
            numbers = xp.round(blocks / safe).astype(np.int8)
            pair = [_bits(numbers, np.uint8), _bits(scale, np.uint8)]
            return xp.concatenate([x.reshape(*rows.shape[:-1], -1) for x in pair], axis=-1)
        if self.name == "float16":
            most = xp.clip(rows, np.float32(-_FLOAT16_MAX), np.float32(_FLOAT16_MAX))
            rows = xp.where(xp.isfinite(rows), most, rows)
        return _bits(rows.astype(self.name if xp is jnp else _NUMPY[self.name]), np.uint16)

    def encode_leaf(self, leaf: jax.Array) -> tuple[jax.Array, ...]:
        """A float32 leaf as its numbers on the wire and, on int8, its scales.

        The numbers as the leaf is shaped; on int8 as bytes, filled up to whole blocks.
        """
        leaf = replicated(leaf)
        if self.name != "int8":
            return (self.encode(leaf),)
        flat = leaf.reshape(-1)
        flat = jnp.pad(flat, (0, -flat.size % BLOCK))
        row = self.encode(flat.reshape(1, -1))[0]
        return row[: flat.size], _bits(row[flat.size :].reshape(-1, 4), np.float32)

    def decode_leaf(self, parts: Sequence[jax.Array], shape: tuple[int, ...]) -> jax.Array:
        """What `encode_leaf` gave, or whole blocks cut from it, as float32."""
        if self.name != "int8":
            return self.decode(parts[0]).reshape(shape)
        numbers, scales = parts
        blocks = _bits(numbers, np.int8).reshape(-1, BLOCK).astype(jnp.float32)
        return (blocks * scales[:, None]).reshape(-1)[: math.prod(shape)].reshape(shape)

    @property
    def parts(self) -> tuple[tuple[np.dtype, int], ...]:
        """Of what `encode_leaf` gives: dtype, and for how many numbers an element stands."""
        if self.name == "int8":
            return (np.dtype(np.uint8), 1), (np.dtype(np.float32), BLOCK)
        return ((self.dtype, 1),)

    def first_bad(self, rows: np.ndarray) -> int | None:
        """Index of the first number in encoded rows ``[n, w]`` that is not finite, on the host.

        One or two passes and no copy where all are. On int8 it is the first of its block.
        """
        block = 1
        if self.name == "int8":
            width = rows.shape[1] * BLOCK // (BLOCK + 4)
            rows, block = _bits(rows[:, width:].reshape(len(rows), -1, 4), np.float32), BLOCK
        if rows.dtype == np.float32:
            with np.errstate(over="ignore", invalid="ignore"):
                if np.isfinite(np.add.reduce(rows, axis=None)):
                    return None
            bad = ~np.isfinite(rows)
        else:
            infinity = np.uint16(_INFINITY[self.name])
            sign = np.uint16(0x8000)
            if rows.max() < infinity + sign and rows.view(np.int16).max() < infinity:
                return None
            bad = (rows & ~sign) >= infinity
        return int(bad.argmax()) * block if bad.any() else None  # a finite sum may overflow

    def decode(self, rows: Any) -> Any:
        """What `encode` gave, as float32."""
        if self.name == "float32":
            return rows
        if self.name == "int8":
            xp = jnp if isinstance(rows, jax.Array) else np
            width = rows.shape[-1] * BLOCK // (BLOCK + 4)
            numbers = _bits(rows[..., :width], np.int8).reshape(*rows.shape[:-1], -1, BLOCK)
            scales = xp.asarray(rows[..., width:]).reshape(*numbers.shape[:-1], 4)
            scale = _bits(scales, np.float32).reshape(*numbers.shape[:-1], 1)
            return (numbers.astype(np.float32) * scale).reshape(*rows.shape[:-1], width)
        if not isinstance(rows, jax.Array) and self.name == "bfloat16":
            return np.left_shift(rows, 16, dtype=np.uint32).view(np.float32)
        return _bits(rows, _NUMPY[self.name]).astype(np.float32)


_INFINITY = {"bfloat16": 0x7F80, "float16": 0x7C00}
_NUMPY = {"bfloat16": np.dtype(jnp.bfloat16), "float16": np.dtype(np.float16)}

WIRES = {
    "float32": Wire("float32", np.dtype(np.float32), narrow=False),
    "bfloat16": Wire("bfloat16", np.dtype(np.uint16), narrow=True),
    "float16": Wire("float16", np.dtype(np.uint16), narrow=True),
    "int8": Wire("int8", np.dtype(np.uint8), narrow=True),
}


def wire_of(name: str) -> Wire:
    """The wire format of that name."""
    if name not in WIRES:
        raise ValueError(f"wire must be one of {', '.join(WIRES)}, got {name!r}.")
    return WIRES[name]


def attach(wire: Wire, rows: jax.Array, head: jax.Array) -> jax.Array:
    """Encoded rows ``[nodes, w]`` with the header's bits at the end of each.

    As integers: as floats a header's words could be NaN, which ``jax_debug_nans`` takes for one.
    """
    whole = np.dtype(f"uint{8 * wire.dtype.itemsize}")
    bits = _bits(head, whole).reshape(-1)
    bits = jnp.broadcast_to(bits, (rows.shape[0], bits.size))
    return jnp.concatenate([_bits(rows, whole), bits], axis=-1)


def detach(wire: Wire, rows: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Encoded rows, and the header of every node as int32 ``[nodes, HEADER]``."""
    bits = rows[:, -wire.header_width :]
    words = bits.reshape(rows.shape[0], HEADER, -1) if wire.dtype.itemsize < 4 else bits
    return _bits(rows[:, : -wire.header_width], wire.dtype), _bits(words, np.int32)


def sum_rows(wire: Wire, rows: Any) -> Any:
    """Sum of encoded rows ``[nodes, w]`` in float32, first row first: the same bits anywhere."""
    total = wire.decode(rows[0])
    if isinstance(rows, jax.Array):
        for row in rows[1:] if rows.shape[0] <= 16 else ():
            total = total + wire.decode(row)
        if rows.shape[0] > 16:
            add = lambda p, total: total + wire.decode(rows[p])  # noqa: E731
            total = jax.lax.fori_loop(1, rows.shape[0], add, total)
        return total
    total = total.copy() if not wire.narrow else total
    for row in rows[1:]:
        np.add(total, wire.decode(row), out=total)
    return total


def _bits(x: Any, dtype: Any) -> Any:
    """The same bits as another dtype; a narrower one adds a last axis, a wider one takes it."""
    if isinstance(x, jax.Array):
        return jax.lax.bitcast_convert_type(x, dtype)
    x, dtype = np.ascontiguousarray(x), np.dtype(dtype)
    if dtype.itemsize == x.itemsize:
        return x.view(dtype)
    shape = (*x.shape, -1) if dtype.itemsize < x.itemsize else x.shape[:-1]
    return x.reshape(-1).view(dtype).reshape(shape)
