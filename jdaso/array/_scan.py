"""Running sums and products, differences, and parts of matrices on one side of a diagonal."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ._array import Array, as_array, method
from ._elementwise import not_equal, subtract
from ._index import getitem
from ._layout import ArrayLayout, axis_of, replaced
from ._shape import broadcast_to, concat
from ._varied import varied


class _ScanRule(NamedTuple):
    """A running reduction, the reduction of a whole block, and the joining of two results."""

    run: Callable[..., jax.Array]
    whole: Callable[..., jax.Array]
    join: Callable[..., jax.Array]


def _running(
    x: Any, axis: int | None, dtype: Any, rule: _ScanRule, *, include_initial: bool
) -> Array:
    """A running reduction: each node's own, joined with the totals of the nodes before it."""
    x = as_array(x)
    if axis is None and x.ndim != 1:
        raise ValueError(f"An array of {x.ndim} axes needs one to run along. Give axis=...")
    along = axis_of(axis or 0, x.ndim)
    kind = rule.whole(jnp.zeros((0,), x.dtype)).dtype if dtype is None else dtype
    block = rule.run(x.block, axis=along, dtype=kind)
    if x.split == along:
        total = rule.whole(x.block, axis=along, keepdims=True, dtype=block.dtype)
        totals = varied(x.world.gather(total[None], (1,) * x.world.nodes), x.world)
        # All nodes use all totals; otherwise a derivative would be a reduction that some leave out.
        before = jnp.arange(x.world.nodes).reshape(-1, *(1,) * x.ndim) < x.world.node
        nothing = rule.whole(jnp.zeros((0,), block.dtype), dtype=block.dtype)
        others = rule.whole(jnp.where(before, totals, nothing), axis=0, dtype=block.dtype)
        block = rule.join(block, others)
    found = Array(block, x.layout, x.world)
    return _begun(found, along, rule) if include_initial else found


def _begun(x: Array, axis: int, rule: _ScanRule) -> Array:
    """The array with the initial value of a running reduction in front: on the first node."""
    shape, counts, split = replaced(x.shape, axis, x.shape[axis] + 1), x.counts, x.split
    if split == axis:
        counts = (counts[0] + 1, *counts[1:])
    layout, block = ArrayLayout(shape, split, counts), x.block
    if split != axis or x.world.node == 0:
        nothing = jnp.zeros(replaced(block.shape, axis, 0), x.dtype)
        block = jnp.concatenate([rule.whole(nothing, axis=axis, keepdims=True), block], axis)
    return Array(block.astype(x.dtype), layout, x.world)


@method("cumulative_sum")
def cumulative_sum(
    x: Any, *, axis: int | None = None, dtype: Any = None, include_initial: bool = False
) -> Array:
    """Running sums along an axis, with `include_initial` a 0 before them.

    Moves one row of totals from each node along the split.
    """
    rule = _ScanRule(jnp.cumulative_sum, jnp.sum, jnp.add)
    return _running(x, axis, dtype, rule, include_initial=include_initial)


@method("cumulative_prod")
def cumulative_prod(
    x: Any, *, axis: int | None = None, dtype: Any = None, include_initial: bool = False
) -> Array:
    """Running products along an axis, with `include_initial` a 1 before them.

    Moves one row of totals from each node along the split.
    """
    rule = _ScanRule(jnp.cumulative_prod, jnp.prod, jnp.multiply)
    return _running(x, axis, dtype, rule, include_initial=include_initial)


@method("diff")
def diff(x: Any, *, axis: int = -1, n: int = 1, prepend: Any = None, append: Any = None) -> Array:
    """Differences of neighbours along an axis, n times. Moves rows across the nodes' borders.

    Args:
        x: the array.
        axis: the axis.
        n: the number of times.
        prepend: rows, or a number for all of a row, before the first one; None: none.
        append: the same after the last one.

    Of booleans, the result marks neighbours that differ.

    Raises:
        ValueError: n is negative.
    """
    x = as_array(x)
    along = axis_of(axis, x.ndim)
    if n < 0:
        raise ValueError(f"diff takes differences 0 times or more, got n={n}.")
    if n == 0:
        return x
    row = replaced(x.shape, along, 1)
    ends = [
        one if one is None or np.ndim(one) else broadcast_to(one, row) for one in (prepend, append)
    ]
    parts = [one for one in (ends[0], x, ends[1]) if one is not None]
    x = concat(parts, axis=along) if len(parts) > 1 else x
    lead, between = (slice(None),) * along, not_equal if x.dtype == bool else subtract
    for _ in range(n):
        x = between(getitem(x, (*lead, slice(1, None))), getitem(x, (*lead, slice(None, -1))))
    return x


def _beside(x: Any, k: int, keep: Callable[[jax.Array, int], jax.Array]) -> Array:
    """Elements on one side of a diagonal, 0 elsewhere: nothing moves."""
    x = as_array(x)
    if x.ndim < 2:
        raise ValueError(f"tril and triu take matrices, the shape is {x.shape}.")
    first = [0, 0]
    if x.split is not None and x.split >= x.ndim - 2:
        first[x.split - x.ndim] = x.layout.begins[x.world.node]
    rows = jnp.arange(x.block.shape[-2])[:, None] + first[-2]
    columns = jnp.arange(x.block.shape[-1]) + first[-1]
    return Array(
        jnp.where(keep(columns - rows, k), x.block, jnp.zeros((), x.dtype)), x.layout, x.world
    )


@method("tril")
def tril(x: Any, *, k: int = 0) -> Array:
    """Elements on and below a diagonal, 0 above. Nothing moves."""
    return _beside(x, k, lambda distance, k: distance <= k)


@method("triu")
def triu(x: Any, *, k: int = 0) -> Array:
    """Elements on and above a diagonal, 0 below. Nothing moves."""
    return _beside(x, k, lambda distance, k: distance >= k)
