"""Trees of arrays to chunks of rows, and back.

The float leaves of a tree, as float32, are one long vector. It is cut into chunks, so that the
first can be on the wire while the last is still being packed, and each chunk into one row a node:
``[nodes, width]``. Row p is the part that node p will sum. Where the last chunk does not fill its
rows, zeros do.

A compiled step need not join its leaves to that vector: a late exchange takes and brings them as
they are, a few at a time (`Segment`), and the host puts them where they belong.
"""

from __future__ import annotations

import bisect
import dataclasses
import itertools
import math
from collections.abc import Sequence
from functools import cached_property
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from ._explicit import can_be_placed_like, placed_like, replicated
from ._types import Chunks, Leaves, PyTree

BLOCK = 256
"""Elements that share a scale on the int8 wire; every row is a whole number of blocks."""

BARE = "(the array itself)"
"""Path of the only leaf of a tree that is one bare array."""

LEAST_MESSAGE = 64 * 2**10
"""Float32 bytes from one node to another below which a tree is not cut into more chunks."""


@dataclasses.dataclass(frozen=True)
class Leaf:
    """One leaf of a tree: its path, shape and dtype."""

    path: str
    shape: tuple[int, ...]
    dtype: str

    @property
    def exchanged(self) -> bool:
        """Float and complex leaves with elements; integers, booleans and keys stay as they are."""
        key = self.dtype.startswith("key<")  # a name that only JAX knows
        return not key and is_float(self.dtype) and math.prod(self.shape) > 0

    @property
    def size(self) -> int:
        """Its length in float32 numbers; a complex number takes two."""
        return math.prod(self.shape) * (2 if "complex" in self.dtype else 1)

    @property
    def reals(self) -> tuple[int, ...]:
        """Its shape in float32 numbers."""
        return (*self.shape, 2) if "complex" in self.dtype else self.shape

    def __str__(self) -> str:
        return f"{self.dtype}[{','.join(map(str, self.shape))}]"


class Segment(NamedTuple):
    """Leaves ``first`` to ``last - 1``, elements ``begin`` to ``end - 1`` of the vector."""

    first: int
    last: int
    begin: int
    end: int


@dataclasses.dataclass(frozen=True)
class Layout:
    """How one tree is packed for `nodes` nodes; equal layouts pack alike."""

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
        """Where each leaf begins in the vector; and, last, where the vector ends."""
        ends = itertools.accumulate((self._room(leaf) for leaf in self.exchanged), initial=0)
        return tuple(ends)

    def _room(self, leaf: Leaf) -> int:
        return -(-leaf.size // self.align) * self.align

    @property
    def size(self) -> int:
        """Float32 numbers in all, without padding at the end."""
        return self.offsets[-1]

    def leaf_at(self, chunk: int, index: int) -> int:
        """The number of the leaf that holds element `index` of a chunk."""
        place = sum(self.widths[:chunk]) * self.nodes + index
        return bisect.bisect_right(self.offsets, place) - 1

    @cached_property
    def segments(self) -> tuple[Segment, ...]:
        """Runs of whole leaves that just reach a chunk's size; one is empty if there are none."""
        found, first = [], 0
        for last in range(1, len(self.exchanged) + 1):
            begin, end = self.offsets[first], self.offsets[last]
            if end - begin >= self.chunk_size or last == len(self.exchanged):
                found.append(Segment(first, last, begin, end))
                first = last
        return tuple(found) or (Segment(0, 0, 0, 0),)

    @cached_property
    def widths(self) -> tuple[int, ...]:
        """Length of a row, for each chunk. An empty tree has one chunk of one block."""
        full, rest = divmod(self.size, self.chunk_size)
        widths = [self.chunk_size // self.nodes] * full
        if rest or not full:
            widths.append(max(-(-rest // (self.nodes * BLOCK)), 1) * BLOCK)
        return tuple(widths)


def is_float(dtype: object) -> bool:
    """Whether numbers of this dtype can be averaged."""
    return jnp.issubdtype(dtype, jnp.inexact)  # pyright: ignore[reportArgumentType]


def describe(tree: PyTree) -> tuple[Leaf, ...]:
    """Path, shape and dtype of every leaf; works on tracers too."""
    flat, _ = jax.tree_util.tree_flatten_with_path(tree)
    found = []
    for path, leaf in flat:
        where = path_of(path)
        if not _is_array(leaf):
            raise TypeError(
                f"Leaf {where} is {_kind_of(leaf)}, and jdaso takes trees of arrays and numbers. "
                "Leave it out, for example with equinox.filter(model, equinox.is_array) or "
                "flax.nnx.state(model, flax.nnx.Param)."
            )
        found.append(Leaf(where, tuple(np.shape(leaf)), str(jnp.result_type(leaf))))
    return tuple(found)


def path_of(path: Any) -> str:
    """The path of a leaf, for messages; that of a tree which is one bare array is not empty."""
    return jax.tree_util.keystr(path) or BARE


def _is_array(leaf: Any) -> bool:
    """Returns whether JAX takes it for numbers; a dtype, or its name, has a dtype and is none."""
    if isinstance(leaf, bool | int | float | complex):
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
    """A leaf that is no array, in a few words."""
    text = repr(leaf)
    kind = "an array of" if isinstance(leaf, np.ndarray | np.generic) else "of type"
    name = leaf.dtype if isinstance(leaf, np.ndarray | np.generic) else type(leaf).__name__
    return f"{kind} {name} ({text if len(text) < 60 else text[:57] + '...'})"


def chunk_bytes_of(total_bytes: int, nodes: int, most: int) -> int:
    """How many float32 bytes go into a chunk: at least four chunks, so that they overlap.

    But no more than `most`, and no messages of less than `LEAST_MESSAGE`, where the network's
    latency would count for more.
    """
    return min(most, max(-(-total_bytes // 4), nodes * LEAST_MESSAGE))


def layout_of(tree: PyTree, nodes: int, chunk_bytes: int, align: int = 1) -> Layout:
    """The layout of a tree.

    Args:
        tree: arrays, tracers or shapes.
        nodes: P, the number of rows.
        chunk_bytes: about how many bytes of float32 go into a chunk.
        align: leaves begin at multiples of it (of `BLOCK`, so that each has scales of its own).
    """
    unit = nodes * BLOCK
    return Layout(describe(tree), nodes, max(chunk_bytes // 4 // unit, 1) * unit, align)


def to_leaves(tree: PyTree) -> Leaves:
    """The exchanged leaves as float32; a complex leaf gets a last axis (real, imaginary)."""
    return tuple(_to_reals(x) for x in jax.tree.leaves(tree) if travels(x))


def from_leaves(tree: PyTree, leaves: Leaves) -> PyTree:
    """`tree` with its exchanged leaves replaced, each in its own dtype."""
    new = iter(leaves)

    def replace(old: Any) -> Any:
        return placed_like(_from_reals(next(new), old), old) if travels(old) else old

    return jax.tree.map(replace, tree)


def to_halves(tree: PyTree) -> Leaves:
    """The leaves that are not averaged (integers, booleans, keys), as float32 numbers of 16 bits.

    These can be summed exactly where all nodes but one hold zeros.
    """
    halves = []
    for leaf in jax.tree.leaves(tree):
        if is_float(jnp.result_type(leaf)) or np.size(leaf) == 0:
            continue
        words = _to_words(leaf)
        pair = [words & np.uint32(0xFFFF), words >> np.uint32(16)]
        halves.append(jnp.stack(pair, axis=-1).astype(jnp.float32))
    return tuple(halves)


def from_halves(tree: PyTree, halves: Leaves) -> PyTree:
    """`tree` with the leaves replaced that `to_halves` took."""
    new = iter(halves)

    def restore(old):
        if is_float(jnp.result_type(old)) or np.size(old) == 0:
            return old
        low, high = jnp.moveaxis(next(new).astype(jnp.uint32), -1, 0)
        return placed_like(_from_words(low | (high << np.uint32(16)), old), old)

    return jax.tree.map(restore, tree)


def to_numbers(tree: PyTree) -> Leaves:
    """All leaves as float32: first those that are averaged, then the others' halves."""
    return (*to_leaves(tree), *to_halves(tree))


def from_numbers(tree: PyTree, numbers: Leaves) -> PyTree:
    """`tree` with its leaves replaced by what `to_numbers` gave."""
    floats = len(to_leaves(tree))
    return from_halves(from_leaves(tree, numbers[:floats]), numbers[floats:])


def dress(tree: PyTree, leaves: Leaves) -> PyTree:
    """Float32 leaves in the structure of a tree, so that optax can map a state with its parameters.

    Leaves that do not travel become empty.
    """
    new = iter(leaves)
    none = lambda: jnp.zeros(0, jnp.float32)  # noqa: E731
    return jax.tree.map(lambda old: next(new) if travels(old) else none(), tree)


def zeros_like(tree: PyTree) -> PyTree:
    """What `dress` makes of zeros; mapped, so that optax knows it for a copy of the parameters."""

    def zeros(leaf: Any) -> jax.Array:
        (about,) = describe(leaf)
        if not about.exchanged:
            return jnp.zeros(0, jnp.float32)
        new = jnp.zeros(about.reals, jnp.float32)
        return placed_like(new, leaf) if can_be_placed_like(leaf) else new

    return jax.tree.map(zeros, tree)


def apply_updates(params: PyTree, updates: PyTree) -> PyTree:
    """Parameters plus updates, as optax adds them; where an update is None they stay.

    Equinox gives None as the gradient of what is not differentiated, and optax passes it on.
    """

    def add(update: Any, old: Any) -> Any:
        return old if update is None else optax.apply_updates(old, update)

    return jax.tree.map(add, updates, params, is_leaf=is_none)


def is_none(x: Any) -> bool:
    """Tells `jax.tree.map` to take None for a leaf."""
    return x is None


def strip(tree: PyTree) -> Leaves:
    """The leaves that `dress` put into a tree."""
    return tuple(leaf for leaf in jax.tree.leaves(tree) if leaf.size > 0)


def pack(layout: Layout, leaves: Leaves) -> Chunks:
    """Float32 leaves to chunks; `unpack` undoes it."""
    vectors = []
    for leaf, (begin, end) in zip(leaves, itertools.pairwise(layout.offsets), strict=True):
        vectors.append(leaf)
        if end - begin > leaf.size:
            vectors.append(jnp.zeros(end - begin - leaf.size, jnp.float32))
    return cut(layout, tuple(vectors))


def cut(layout: Layout, vectors: Leaves) -> Chunks:
    """Chunks of the vector that these arrays make, one after another."""
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


def joined(arrays: Sequence[jax.Array], kinds: int) -> Leaves:
    """One vector for each of `kinds` dtypes, which alternate: arrays k, k + kinds, ... are alike.

    An accelerator joins them at a thousandth of what it costs to copy each to the host by itself.
    """
    if not arrays:
        return ()
    groups = (arrays[k::kinds] for k in range(kinds))
    return tuple(jnp.concatenate([x.reshape(-1) for x in group]) for group in groups)


def parted(vectors: Sequence[np.ndarray], sizes: Sequence[int]) -> tuple[np.ndarray, ...]:
    """Undoes `joined` on the host, with views: the arrays of these sizes, flat."""
    begins, found = [0] * len(vectors), []
    for k, size in enumerate(sizes):
        kind = k % len(vectors)
        found.append(vectors[kind][begins[kind] : begins[kind] + size])
        begins[kind] += size
    return tuple(found)


def unpadded(layout: Layout, chunks: Chunks, size: int | None = None) -> Leaves:
    """The first `size` numbers of chunks (all, without padding), one vector a chunk.

    `cut` takes them like the leaves that they hold.
    """
    left, vectors = layout.size if size is None else size, []
    for chunk in chunks:
        if left > 0:
            vectors.append(chunk.reshape(-1)[:left])
        left -= chunk.size
    return tuple(vectors)


def travels(x) -> bool:
    """Whether a leaf of a tree is exchanged: a float or complex array with elements."""
    return is_float(jnp.result_type(x)) and np.size(x) > 0


def _is_key(x) -> bool:
    return jnp.issubdtype(jnp.result_type(x), jax.dtypes.prng_key)


def _to_words(x) -> jax.Array:
    """The bits of an array that holds no floats; 64-bit numbers get a last axis of two words."""
    x = jnp.asarray(jax.random.key_data(x) if _is_key(x) else x)
    if x.dtype.itemsize < 4:
        x = x.astype(jnp.int32)
    return jax.lax.bitcast_convert_type(x, jnp.uint32)


def _from_words(words: jax.Array, old) -> jax.Array:
    if _is_key(old):
        return jax.random.wrap_key_data(words, impl=jax.random.key_impl(old))
    dtype = jnp.result_type(old)
    if dtype.itemsize < 4:
        return jax.lax.bitcast_convert_type(words, jnp.int32).astype(dtype)
    return jax.lax.bitcast_convert_type(words, dtype)


def _to_reals(x) -> jax.Array:
    x = jnp.asarray(x)
    if jnp.iscomplexobj(x):
        return jnp.stack([x.real, x.imag], axis=-1).astype(jnp.float32)
    return x.astype(jnp.float32)


def _from_reals(new: jax.Array, old) -> jax.Array:
    dtype = jnp.result_type(old)
    if jnp.issubdtype(dtype, jnp.complexfloating):
        return jax.lax.complex(new[..., 0], new[..., 1]).astype(dtype)
    return new.astype(dtype)
