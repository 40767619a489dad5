"""The different elements of an array, their places and numbers.

A split array is sorted (`_sort`), which brings equal elements together. Complex numbers, and arrays
that are whole on each node, are counted by NumPy.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from ._array import Array, as_array
from ._layout import ArrayLayout
from ._move import laid, resplit
from ._reduce import index_type
from ._scan import cumulative_sum
from ._shape import concat, ravel, reshape
from ._sort import neighbours, sorted_with_places


class UniqueAll(NamedTuple):
    """The result of `unique_all`.

    Attributes:
        values: the different elements, in ascending order.
        indices: the first place of each, in the flat array.
        inverse_indices: the index of each element's value; of the array's shape.
        counts: the number of times that each occurs.
    """

    values: Array
    indices: Array
    inverse_indices: Array
    counts: Array


class UniqueCounts(NamedTuple):
    """The result of `unique_counts`; see `UniqueAll`."""

    values: Array
    counts: Array


class UniqueInverse(NamedTuple):
    """The result of `unique_inverse`; see `UniqueAll`."""

    values: Array
    inverse_indices: Array


class _Sorted(NamedTuple):
    """A sorted line, the places that its elements had, and where a different one begins."""

    line: Array
    places: Array
    first: Array


def _sorted(x: Array) -> _Sorted:
    line, places = sorted_with_places(resplit(ravel(x), 0))
    return _Sorted(line, places, Array(jnp.asarray(neighbours(line)), line.layout, line.world))


def _whole(x: Array) -> UniqueAll:
    """The result for an array that is whole on each node."""
    x = resplit(x, None)
    line = np.asarray(x.block).reshape(-1)
    if line.dtype.kind == "V":  # bfloat16, for example: NumPy sorts its NaN to arbitrary places
        line = line.astype(np.float32)
    found = np.unique(
        line,
        return_index=True,
        return_inverse=True,
        return_counts=True,
        equal_nan=False,
    )
    values, *numbers = found
    places, inverse, counts = (jnp.asarray(one, index_type(x.size)) for one in numbers)
    blocks = jnp.asarray(values, x.dtype), places, inverse.reshape(x.shape), counts
    return UniqueAll(*(Array(one, ArrayLayout(one.shape), x.world) for one in blocks))


def _is_whole(x: Array) -> bool:
    return x.split is None or x.dtype.kind == "c"


def unique_values(x: Any) -> Array:
    """The different elements, in ascending order; each NaN counts separately.

    Moves what `sort` moves, and two numbers from each node; complex numbers to all nodes.
    """
    x = as_array(x)
    if _is_whole(x):
        return _whole(x).values
    found = _sorted(x)
    return found.line[found.first]


def unique_counts(x: Any) -> UniqueCounts:
    """The different elements, in ascending order, and the number of times that each occurs.

    Moves what `sort` moves, some numbers from each node, and the places of the different elements.
    """
    x = as_array(x)
    if _is_whole(x):
        return UniqueCounts(_whole(x).values, _whole(x).counts)
    found = _sorted(x)
    return UniqueCounts(found.line[found.first], _counts(found))


def unique_inverse(x: Any) -> UniqueInverse:
    """The different elements, and for each element its index among them; of the array's shape.

    Moves what `sort` moves, and the index of each element back to its place.
    """
    x = as_array(x)
    if _is_whole(x):
        return UniqueInverse(_whole(x).values, _whole(x).inverse_indices)
    found = _sorted(x)
    return UniqueInverse(found.line[found.first], _inverse(found, x))


def unique_all(x: Any) -> UniqueAll:
    """The different elements, their first places, each element's index in them, and their counts.

    Moves what `unique_counts` and `unique_inverse` move.
    """
    x = as_array(x)
    if _is_whole(x):
        return _whole(x)
    found = _sorted(x)
    values, places = found.line[found.first], found.places[found.first]
    return UniqueAll(values, places, _inverse(found, x), _counts(found))


def _counts(found: _Sorted) -> Array:
    """The distances between the beginnings of different elements."""
    line = found.line
    begin, own = line.layout.begins[line.world.node], len(line.block)
    every = Array(begin + jnp.arange(own), line.layout, line.world)
    places = every[found.first]
    end = as_array(jnp.asarray([line.size]))[: min(1, line.size)]
    return laid(concat([places[1:], end]), places.layout) - places


def _inverse(found: _Sorted, x: Array) -> Array:
    """The number of each element's value, at the element's place."""
    kind = index_type(x.size)
    numbers = cumulative_sum(found.first, dtype=kind) - 1
    flat = ArrayLayout((x.size,)).over(0, x.world.nodes)
    return reshape(_put(numbers, np.asarray(found.places.block), flat), x.shape)


def _put(x: Array, places: np.ndarray, layout: ArrayLayout) -> Array:
    """Elements of a line at other places: each moves once, with its place."""
    node, nodes = x.world.node, x.world.nodes
    ends = np.array(layout.begins) + np.array(layout.counts)
    owner = np.searchsorted(ends, places, side="right")
    sizes = x.world.numbers(np.bincount(owner, minlength=nodes))[:, node]
    shapes = [(int(size),) for size in sizes]
    numbers, local = np.asarray(x.block), places - np.array(layout.begins)[owner]
    block = np.empty(layout.block_shape(node), numbers.dtype)
    columns = []
    for column in (numbers, local.astype(np.int64)):
        parts = x.world.trade([jnp.asarray(column[owner == k]) for k in range(nodes)], shapes)
        columns.append(np.concatenate(parts))
    block[columns[1]] = columns[0]
    return Array(jnp.asarray(block), layout, x.world)
