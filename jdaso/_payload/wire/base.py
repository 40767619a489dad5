"""The verbs of a wire format, and shared code: headers in rows, and sums of rows."""

from __future__ import annotations

import abc
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from ..layout import BLOCK as BLOCK
from ..words import HEADER


class Wire(abc.ABC):
    """A wire format. All verbs but `first_bad` take NumPy arrays on hosts, JAX arrays on devices.

    Attributes:
        name: the name that users write.
        dtype: of the buffers that MPI gets (bfloat16 and scales travel as bits).
        narrow: whether numbers lose bits, so that error feedback is needed.
        block: how many numbers are encoded together; leaves begin at multiples of it.
    """

    name: ClassVar[str]
    dtype: ClassVar[np.dtype]
    narrow: ClassVar[bool]
    block: ClassVar[int] = 1

    @abc.abstractmethod
    def encode(self, rows: Any) -> Any:
        """Float32 ``[..., width]`` to the wire's dtype ``[..., encoded_width]``."""

    @abc.abstractmethod
    def decode(self, rows: Any) -> Any:
        """The result of `encode` back to float32."""

    @abc.abstractmethod
    def first_bad(self, rows: np.ndarray) -> int | None:
        """Index of the first number in encoded rows ``[n, w]`` that is not finite, on the host.

        If all are finite, this takes one or two passes and no copy.
        """

    def encoded_width(self, width: int) -> int:
        """Length of an encoded row."""
        return width

    @property
    def bytes_per_number(self) -> float:
        """Bytes on the wire for each number, the scales of blocks included."""
        return self.encoded_width(BLOCK) * self.dtype.itemsize / BLOCK

    @property
    def header_width(self) -> int:
        """Length of a header in a row, in elements of `dtype`."""
        return HEADER * 4 // self.dtype.itemsize

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and vars(self) == vars(other)

    def __hash__(self) -> int:
        return hash(type(self))


def attach(wire: Wire, rows: jax.Array, head: jax.Array) -> jax.Array:
    """Encoded rows ``[nodes, w]`` with the header's bits at the end of each.

    The bits are integers: as floats, header words could be NaN and trip ``jax_debug_nans``.
    """
    whole = np.dtype(f"uint{8 * wire.dtype.itemsize}")
    bits = bits_as(head, whole).reshape(-1)
    bits = jnp.broadcast_to(bits, (rows.shape[0], bits.size))
    return jnp.concatenate([bits_as(rows, whole), bits], axis=-1)


def detach(wire: Wire, rows: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Encoded rows, and the header of every node as int32 ``[nodes, HEADER]``."""
    bits = rows[:, -wire.header_width :]
    words = bits.reshape(rows.shape[0], HEADER, -1) if wire.dtype.itemsize < 4 else bits
    return bits_as(rows[:, : -wire.header_width], wire.dtype), bits_as(words, np.int32)


def sum_rows(wire: Wire, rows: Any) -> Any:
    """Sum of encoded rows ``[nodes, w]`` in float32, first row first: the same bits everywhere."""
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


def bits_as(x: Any, dtype: Any) -> Any:
    """The same bits as another dtype; a narrower dtype adds a last axis, a wider one removes it."""
    if isinstance(x, jax.Array):
        return jax.lax.bitcast_convert_type(x, dtype)
    x, dtype = np.ascontiguousarray(x), np.dtype(dtype)
    if dtype.itemsize == x.itemsize:
        return x.view(dtype)
    shape = (*x.shape, -1) if dtype.itemsize < x.itemsize else x.shape[:-1]
    return x.reshape(-1).view(dtype).reshape(shape)


def first_not_finite(rows: np.ndarray) -> int | None:
    """Index of the first float32 number that is not finite."""
    with np.errstate(over="ignore", invalid="ignore"):
        if np.isfinite(np.add.reduce(rows, axis=None)):
            return None
    return first_of(~np.isfinite(rows))


def first_of(bad: np.ndarray) -> int | None:
    """Index of the first True; None if there is none (a sum of finite numbers may overflow)."""
    return int(bad.argmax()) if bad.any() else None
