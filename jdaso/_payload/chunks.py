"""Trees of arrays to chunks of rows, and back.

The float leaves of a tree, as float32, form one long vector. It is cut into chunks, so that the
first can be on the wire while the last is still being packed. Each chunk has one row per node:
``[nodes, width]``. Row p is the part that node p will sum. If the last chunk does not fill its
rows, it is padded with zeros.

Compiled steps do not join their leaves into that vector for a late exchange: the host takes and
returns them as they are.
"""

from __future__ import annotations

import itertools

import jax
import jax.numpy as jnp

from .._jax.types import Chunks, Leaves
from .explicit import replicated
from .layout import Layout


def pack(layout: Layout, leaves: Leaves) -> Chunks:
    """Float32 leaves to chunks; the inverse of `unpack`."""
    vectors = []
    for leaf, (begin, end) in zip(leaves, itertools.pairwise(layout.offsets), strict=True):
        vectors.append(leaf)
        if end - begin > leaf.size:
            vectors.append(jnp.zeros(end - begin - leaf.size, jnp.float32))
    return cut(layout, tuple(vectors))


def cut(layout: Layout, vectors: Leaves) -> Chunks:
    """Chunks of the vector formed by these arrays, one after another."""
    chunks, flat = [], [replicated(vector).reshape(-1) for vector in vectors]
    begin = 0
    for width in layout.widths:
        end = begin + width * layout.nodes
        pieces, offset = [], 0
        for leaf in flat:
            low, high = max(begin - offset, 0), min(end - offset, leaf.size)
            if low < high:
                pieces.append(jax.lax.slice(leaf, (low,), (high,)))
            offset += leaf.size
        if end > layout.size:
            pieces.append(jnp.zeros(end - max(begin, layout.size), jnp.float32))
        chunks.append(jnp.concatenate(pieces).reshape(layout.nodes, width))
        begin = end
    return tuple(chunks)


def unpack(layout: Layout, chunks: Chunks) -> Leaves:
    """Chunks to float32 leaves, in the shapes that `to_leaves` gave."""
    flat = [chunk.reshape(-1) for chunk in chunks]
    leaves = []
    for leaf, offset in zip(layout.exchanged, layout.offsets, strict=False):
        pieces, begin = [], 0
        for chunk in flat:
            low, high = max(offset - begin, 0), min(offset + leaf.size - begin, chunk.size)
            if low < high:
                pieces.append(jax.lax.slice(chunk, (low,), (high,)))
            begin += chunk.size
        leaves.append(jnp.concatenate(pieces).reshape(leaf.reals))
    return tuple(leaves)
