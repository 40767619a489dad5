"""Trees of arrays to real float32 leaves, and back."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from .._jax.types import Leaves, PyTree
from .chains import by_leaf
from .explicit import can_be_placed_like, placed_like
from .layout import describe, dtype_of, is_float


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

    They can be summed exactly if all nodes but one hold zeros.
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
    """`tree` with new values for the leaves that `to_halves` converted."""
    new = iter(halves)

    def restore(old):
        if is_float(jnp.result_type(old)) or np.size(old) == 0:
            return old
        low, high = jnp.moveaxis(next(new).astype(jnp.uint32), -1, 0)
        return placed_like(_from_words(low | (high << np.uint32(16)), old), old)

    return jax.tree.map(restore, tree)


def to_numbers(tree: PyTree) -> Leaves:
    """All leaves as float32: first those that are averaged, then the others as halves."""
    return (*to_leaves(tree), *to_halves(tree))


def to_arrays(tree: PyTree) -> tuple[Any, ...]:
    """All leaves with elements, as they are, in the order of `to_numbers`; keys as their data."""
    leaves = [x for x in jax.tree.leaves(tree) if np.size(x) > 0]
    floats = [x for x in leaves if travels(x)]
    rest = [jax.random.key_data(x) if _is_key(x) else x for x in leaves if not travels(x)]
    return *floats, *rest


def dress(tree: PyTree, leaves: Leaves) -> PyTree:
    """Float32 leaves in the structure of a tree, so that optax can map a state with its parameters.

    Leaves that are not exchanged become empty.
    """
    new = iter(leaves)
    none = lambda: jnp.zeros(0, jnp.float32)  # noqa: E731
    return jax.tree.map(lambda old: next(new) if travels(old) else none(), tree)


def zeros_like(tree: PyTree) -> PyTree:
    """`dress` of zeros; mapped over the tree, so that optax recognizes a copy of the parameters."""

    def zeros(leaf: Any) -> jax.Array:
        (about,) = describe(leaf)
        if not about.exchanged:
            return jnp.zeros(0, jnp.float32)
        new = jnp.zeros(about.reals, jnp.float32)
        return placed_like(new, leaf) if can_be_placed_like(leaf) else new

    return jax.tree.map(zeros, tree)


def apply_updates(params: PyTree, updates: PyTree, into: int | None = None) -> PyTree:
    """Parameters plus updates, as optax adds them; parameters whose update is None stay unchanged.

    Equinox gives None as the gradient of leaves it does not differentiate; optax passes None on.

    Args:
        params: the parameters.
        updates: a tree like them.
        into: 1 if the sums may take the memory of the updates; see `chains.by_leaf`.
    """
    flat, structure = jax.tree.flatten(updates, is_leaf=is_none)
    found = structure.flatten_up_to(params)
    added = [k for k, update in enumerate(flat) if update is not None]
    groups = [found[k] for k in added], [flat[k] for k in added]
    for k, x in zip(added, by_leaf("+", optax.apply_updates, *groups, into=into), strict=True):
        found[k] = x
    return jax.tree.unflatten(structure, found)


def is_none(x: Any) -> bool:
    """Makes `jax.tree.map` treat None as a leaf."""
    return x is None


def strip(tree: PyTree) -> Leaves:
    """The leaves that `dress` put into a tree."""
    return tuple(leaf for leaf in jax.tree.leaves(tree) if leaf.size > 0)


def travels(x) -> bool:
    """Returns whether a leaf of a tree is exchanged: a float or complex array with elements."""
    return is_float(dtype_of(x)) and np.size(x) > 0


def _is_key(x) -> bool:
    return jnp.issubdtype(jnp.result_type(x), jax.dtypes.prng_key)


def _to_words(x) -> jax.Array:
    """The bits of an array without floats; 64-bit numbers get a last axis of two words."""
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
    if x.dtype in (jnp.bfloat16, jnp.float16):
        # XLA may drop the rounding of a sum that is widened at once, as on GPUs; it keeps this one.
        return rounded(x, x.dtype)
    return x.astype(jnp.float32)


def rounded(x: Any, dtype: Any) -> jax.Array:
    """Numbers rounded to a dtype of 16 bits, as float32."""
    about, wide = jnp.finfo(dtype), jnp.asarray(x, jnp.float32)
    found = jax.lax.reduce_precision(wide, about.nexp, about.nmant)
    if dtype != jnp.float16:
        return found
    # `reduce_precision` turns float16's subnormal numbers, multiples of 2^-24, into 0.
    unit = float(about.smallest_subnormal)
    small = jax.lax.round(wide / unit, jax.lax.RoundingMethod.TO_NEAREST_EVEN) * unit
    return jnp.where(jnp.abs(wide) < float(about.smallest_normal), small, found)


def _from_reals(new: jax.Array, old) -> jax.Array:
    dtype = jnp.result_type(old)
    if jnp.issubdtype(dtype, jnp.complexfloating):
        return jax.lax.complex(new[..., 0], new[..., 1]).astype(dtype)
    return new.astype(dtype)
