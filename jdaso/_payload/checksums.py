"""Checksums of leaves that must be replicated on all nodes."""

from __future__ import annotations

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

from .._jax.ffi.mixing import sum_of_mixed
from .._jax.types import Leaves
from .explicit import replicated

_ROW = 1024


def fingerprints(leaf: jax.Array, bits: int) -> jax.Array:
    """Each element as a whole number below ``2**bits`` that two floats share only by chance."""
    words = jax.lax.bitcast_convert_type(leaf, jnp.uint32)
    return (words * np.uint32(2654435761)) >> np.uint32(32 - bits)


def fingerprints_on_host(array: np.ndarray, bits: int) -> np.ndarray:
    """Like `fingerprints`, of a float32 array on the host."""
    return np.asarray((array.view(np.uint32) * np.uint32(2654435761)) >> np.uint32(32 - bits))


def checksum(leaves: Leaves) -> jax.Array:
    """A number that two different sets of bits share only by chance.

    The leaves are joined first: this costs a copy, but XLA takes some 30 ms for each leaf that is
    added separately. Rows are added first because XLA's CPU backend adds many at a time.
    """
    if not leaves:
        return jnp.int32(0)
    mixed = _mixed(leaves)
    whole = mixed.size // _ROW * _ROW
    rows = jnp.sum(mixed[:whole].reshape(-1, _ROW), axis=0, dtype=jnp.uint32)
    total = jnp.sum(rows, dtype=jnp.uint32) + jnp.sum(mixed[whole:], dtype=jnp.uint32)
    return jax.lax.bitcast_convert_type(total, jnp.int32)


def checksums(leaves: Leaves) -> jax.Array:
    """One checksum per leaf, int32 ``[leaves]``; slow, but one program for any number of leaves."""
    if not leaves:
        return jnp.zeros(0, jnp.int32)
    mixed, ends = _mixed(leaves), np.cumsum([leaf.size for leaf in leaves], dtype=np.int32)
    place = jnp.searchsorted(ends, jax.lax.iota(jnp.int32, mixed.size), side="right")
    totals = jnp.zeros(len(leaves), jnp.uint32).at[place].add(mixed)
    return jax.lax.bitcast_convert_type(totals, jnp.int32)


def checksum_on_host(array: np.ndarray, salt: int = 0) -> int:
    """An array's checksum on the host, an int32; the sum of several is the checksum of all.

    Args:
        array: of any dtype.
        salt: distinguishes arrays whose checksums are added.
    """
    data = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    words = data[: data.size // 4 * 4].view(np.uint32)
    rest = np.zeros(4, np.uint8)
    rest[: data.size % 4] = data[words.size * 4 :]
    begin = salt * 0x3504F333 & 0xFFFFFFFF
    total = sum_of_mixed(words, begin) + sum_of_mixed(rest.view(np.uint32), begin ^ 0x80000000)
    return int(np.uint32(total & 0xFFFFFFFF).view(np.int32))


def checksum_of_all(arrays: Sequence[np.ndarray]) -> np.int32:
    """One checksum of several arrays on the host, an int32."""
    total = sum(checksum_on_host(x, k + 1) for k, x in enumerate(arrays))
    return np.int32(np.uint32(total & 0xFFFFFFFF).view(np.int32))


def _mixed(leaves: Leaves) -> jax.Array:
    bits = jnp.concatenate([replicated(leaf).reshape(-1) for leaf in leaves])
    bits = jax.lax.bitcast_convert_type(bits, jnp.uint32)
    # Mixed, not only multiplied: otherwise +1 here and -1 there would cancel in the sum.
    mixed = bits ^ (jax.lax.iota(jnp.uint32, bits.size) * np.uint32(2654435761))
    mixed *= np.uint32(2246822519)
    mixed = (mixed ^ (mixed >> 15)) * np.uint32(3266489917)
    return mixed ^ (mixed >> 13)
