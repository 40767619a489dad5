"""Layout of leaves in chunks: the place of each leaf's numbers."""

from __future__ import annotations

import bisect
import dataclasses
import hashlib
import itertools
import math
import re
from functools import cache, cached_property
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from .._jax.types import PyTree

BLOCK = 256
"""The width of every row is a multiple of this, and so of the blocks of any wire."""

BARE = "(the array itself)"
"""Path of the only leaf of a tree that is a single array."""

LEAST_MESSAGE = 64 * 2**10
"""Float32 bytes from one node to another below which a tree is not cut into more chunks."""


Division = tuple[tuple[tuple[str, int], ...], ...]
"""The mesh axes, with their sizes, over which each dimension of a leaf is divided; empty: none."""


@dataclasses.dataclass(frozen=True)
class Leaf:
    """One leaf of a tree: its path, shape and dtype.

    Attributes:
        path: its path.
        shape: its shape; of a leaf that is divided over devices, the shape of one device's shard.
        dtype: its dtype.
        division: the axes that divide the leaf.
    """

    path: str
    shape: tuple[int, ...]
    dtype: str
    division: Division = ()

    @property
    def exchanged(self) -> bool:
        """True for float and complex leaves with elements; other leaves are not exchanged."""
        key = self.dtype.startswith("key<")  # a name that only JAX can resolve
        return not key and is_float(self.dtype) and math.prod(self.shape) > 0

    @property
    def size(self) -> int:
        """Length of the leaf in float32 numbers; a complex number takes two."""
        return math.prod(self.shape) * (2 if "complex" in self.dtype else 1)

    @property
    def shards(self) -> int:
        """The number of different shards; 1 if each device has the whole leaf."""
        return math.prod(size for axes in self.division for _, size in axes)

    @property
    def whole(self) -> tuple[int, ...]:
        """The shape of all shards together."""
        if not self.division:
            return self.shape
        parts = (math.prod(size for _, size in axes) for axes in self.division)
        return tuple(n * k for n, k in zip(self.shape, parts, strict=True))

    @property
    def reals(self) -> tuple[int, ...]:
        """The leaf's shape in float32 numbers."""
        return (*self.shape, 2) if "complex" in self.dtype else self.shape

    def __str__(self) -> str:
        return f"{self.dtype}[{','.join(map(str, self.shape))}]"


@dataclasses.dataclass(frozen=True)
class Layout:
    """The packing of one tree for `nodes` nodes; equal layouts pack alike."""

    leaves: tuple[Leaf, ...]
    nodes: int
    chunk_size: int
    align: int = 1  # leaves begin at multiples of it, with zeros between them

    @property
    def exchanged(self) -> tuple[Leaf, ...]:
        """The leaves that travel."""
        return tuple(leaf for leaf in self.leaves if leaf.exchanged)

    @cached_property
    def offsets(self) -> tuple[int, ...]:
        """The start of each leaf in the vector, followed by the end of the vector."""
        ends = itertools.accumulate((self._room(leaf) for leaf in self.exchanged), initial=0)
        return tuple(ends)

    @cached_property
    def fingerprint(self) -> str:
        """A hash, the same in every process, that no two layouts share."""
        return hashlib.blake2b(repr(self).encode(), digest_size=8).hexdigest()

    def _room(self, leaf: Leaf) -> int:
        return -(-leaf.size // self.align) * self.align

    @property
    def size(self) -> int:
        """Number of float32 numbers, without padding at the end."""
        return self.offsets[-1]

    def leaf_at(self, chunk: int, index: int) -> int:
        """The number of the leaf that holds element `index` of a chunk."""
        place = sum(self.widths[:chunk]) * self.nodes + index
        return bisect.bisect_right(self.offsets, place) - 1

    @cached_property
    def widths(self) -> tuple[int, ...]:
        """Length of each chunk's rows. An empty tree has one chunk of one block."""
        full, rest = divmod(self.size, self.chunk_size)
        widths = [self.chunk_size // self.nodes] * full
        if rest or not full:
            widths.append(max(-(-rest // (self.nodes * BLOCK)), 1) * BLOCK)
        return tuple(widths)


def is_float(dtype: object) -> bool:
    """Returns whether numbers of this dtype can be averaged."""
    return jnp.issubdtype(dtype, jnp.inexact)  # pyright: ignore[reportArgumentType]


_ADDRESS = re.compile(r" at 0x[0-9a-f]+")


def text_of(value: Any) -> str:
    """The text of a value, without the places in memory of functions that it may hold."""
    return _ADDRESS.sub("", str(value))


def describe(tree: PyTree) -> tuple[Leaf, ...]:
    """Path, shape and dtype of every leaf; works on tracers too, and on leaves described before."""
    flat, _ = jax.tree_util.tree_flatten_with_path(tree)
    found = []
    for path, leaf in flat:
        if isinstance(leaf, Leaf):
            found.append(leaf)
            continue
        where = path_of(path)
        if not _is_array(leaf):
            raise TypeError(
                f"Leaf {where} is {_kind_of(leaf)}, and jdaso takes trees of arrays and numbers. "
                "Leave it out, for example with equinox.filter(model, equinox.is_array) or "
                "flax.nnx.state(model, flax.nnx.Param)."
            )
        found.append(Leaf(where, tuple(jnp.shape(leaf)), _name_of(dtype_of(leaf))))
    return tuple(found)


def dtype_of(leaf: Any) -> Any:
    """The dtype that JAX gives an array or a number."""
    # Tracing a step calls this thousands of times; `result_type` takes 20 times as long.
    return leaf.dtype if isinstance(leaf, jax.Array) else jnp.result_type(leaf)


_name_of = cache(str)


def path_of(path: Any) -> str:
    """The path of a leaf, for messages; `BARE` for a tree that is a single array."""
    return jax.tree_util.keystr(path) or BARE


def _is_array(leaf: Any) -> bool:
    """Returns whether JAX accepts a leaf as numbers; dtypes and their names do not count."""
    if isinstance(leaf, jax.Array | bool | int | float | complex):
        return True
    if isinstance(leaf, str | bytes | type) or not (
        hasattr(leaf, "shape") and hasattr(leaf, "dtype")
    ):
        return False
    try:
        jnp.result_type(leaf)
    except TypeError:
        return False
    return True


def _kind_of(leaf: Any) -> str:
    """A short description of a leaf that is not an array."""
    text = repr(leaf)
    kind = "an array of" if isinstance(leaf, np.ndarray | np.generic) else "of type"
    name = leaf.dtype if isinstance(leaf, np.ndarray | np.generic) else type(leaf).__name__
    return f"{kind} {name} ({text if len(text) < 60 else text[:57] + '...'})"


def chunk_bytes_of(total_bytes: int, nodes: int, most: int) -> int:
    """Float32 bytes of a chunk, for at least four chunks, so that they overlap.

    At most `most`, and at least `LEAST_MESSAGE` per message: below that the network's latency would
    dominate.
    """
    return min(most, max(-(-total_bytes // 4), nodes * LEAST_MESSAGE))


def layout_of(tree: PyTree, nodes: int, chunk_bytes: int, align: int = 1) -> Layout:
    """The layout of a tree.

    Args:
        tree: arrays, tracers or shapes.
        nodes: P, the number of rows.
        chunk_bytes: the approximate float32 bytes of a chunk.
        align: leaves begin at multiples of it (of `Wire.block`, so that each has its own scales).
    """
    unit = nodes * BLOCK
    return Layout(describe(tree), nodes, max(chunk_bytes // 4 // unit, 1) * unit, align)
