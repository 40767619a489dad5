"""Parts of an update that are due only in some steps."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import jax
import jax.numpy as jnp
from jax.core import Tracer
from jax.extend.core import jaxpr_as_fun

from .._jax.cpus import computes_on_cpus
from .._payload.explicit import placed_like

T = TypeVar("T")


def when(condition: jax.Array, function: Callable[[T], T], x: T) -> T:
    """``function(x)`` if the condition holds, else `x`.

    Only leaves that the function replaces pass through. JAX traces the function first.

    On CPUs this is a conditional. On GPUs it is a loop of at most one turn, which XLA runs in
    place: a conditional has a result in memory of its own, to which XLA copies what passes through,
    in each step that has nothing to do. On an H200 a step of Adam with 160 leaves has 1.25 copies
    of the parameters in temporary arrays with loops, and 4.01 with conditionals; on CPUs loops save
    nothing, and compile longer (benchmarks/NOTES.md).
    """
    if not isinstance(condition, Tracer):  # outside of jit JAX would compile each of them anew
        return _called(function, x) if condition else x
    return (_as_condition if computes_on_cpus() else _as_loop)(condition, function, x)


def _called(function: Callable[[T], T], x: T) -> T:
    old, tree = jax.tree.flatten(x)
    pairs = zip(tree.flatten_up_to(function(x)), old, strict=True)
    return jax.tree.unflatten(tree, [y if y is x else placed_like(y, x) for y, x in pairs])


def _as_condition(condition: jax.Array, function: Callable[[T], T], x: T) -> T:
    old, tree = jax.tree.flatten(x)
    replaced: list[int] = []

    def yes() -> list[jax.Array]:
        new = tree.flatten_up_to(function(x))
        replaced[:] = [
            k for k, pair in enumerate(zip(old, new, strict=True)) if pair[0] is not pair[1]
        ]
        return [placed_like(new[k], old[k]) for k in replaced]

    found = jax.lax.cond(condition, yes, lambda: [jnp.asarray(old[k]) for k in replaced])
    for k, leaf in zip(replaced, found, strict=True):
        old[k] = leaf
    return jax.tree.unflatten(tree, old)


def _as_loop(condition: jax.Array, function: Callable[[T], T], x: T) -> T:
    old, tree = jax.tree.flatten(x)
    arrays = [k for k, leaf in enumerate(old) if isinstance(leaf, jax.Array)]

    def flat(*leaves: jax.Array) -> list[jax.Array]:
        given = list(old)
        for k, leaf in zip(arrays, leaves, strict=True):
            given[k] = leaf
        new = tree.flatten_up_to(function(jax.tree.unflatten(tree, given)))
        return [placed_like(new[k], given[k]) for k in arrays]

    # Traced once to find what is replaced: the other arrays are not part of the loop's state.
    closed = jax.make_jaxpr(flat)(*(old[k] for k in arrays))
    ins, outs = closed.jaxpr.invars, closed.jaxpr.outvars
    replaced = [n for n in range(len(arrays)) if outs[n] is not ins[n]]

    def turn(carried: tuple[jax.Array, list[jax.Array]]) -> tuple[jax.Array, list[jax.Array]]:
        due, leaves = carried
        given = [old[k] for k in arrays]
        for n, leaf in zip(replaced, leaves, strict=True):
            given[n] = leaf
        new = jaxpr_as_fun(closed)(*given)
        return ~due, [new[n] for n in replaced]

    start = condition, [old[arrays[n]] for n in replaced]
    _, found = jax.lax.while_loop(lambda carried: carried[0], turn, start)
    for n, leaf in zip(replaced, found, strict=True):
        old[arrays[n]] = leaf
    return jax.tree.unflatten(tree, old)
