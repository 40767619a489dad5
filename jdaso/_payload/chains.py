"""Sums and differences of many leaves as one operation of a compiled step, and an order of leaves.

XLA compiles a loop for each leaf of a new shape. On a CPU one call of compiled code
(`_jax/ffi/chain.h`) handles all leaves instead; the results are the same.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import core
from jax.extend.core import Primitive
from jax.interpreters import batching, mlir

from .._jax.axes import bound_axes
from .._jax.ffi import library
from .._jax.host_call import register_lowering


def by_leaf(
    signs: str,
    formula: Callable[..., Any],
    *groups: Sequence[Any],
    into: int | None = None,
) -> list[Any]:
    """``formula(x0, x1, ...)`` of each leaf, which is ``x0 + x1 - x2`` for the signs ``"+-"``.

    Float32 leaves of one shape, on no mesh and in no ``vmap`` or ``shard_map``, are computed
    together, the others by the formula.

    Args:
        signs: one for each group after the first.
        formula: the same for one leaf, of any dtypes.
        groups: the terms of each leaf.
        into: the group whose memory the results may take.
    """
    terms = list(zip(*groups, strict=True))
    together = [] if bound_axes() else [k for k, each in enumerate(terms) if _fit(each)]
    args = [x for column in zip(*(terms[k] for k in together), strict=True) for x in column]
    sums = _chain.bind(*args, signs=signs, into=into) if args else []
    found = dict(zip(together, sums, strict=True))
    return [found[k] if k in found else formula(*each) for k, each in enumerate(terms)]


def behind(leaves: Sequence[jax.Array], others: Sequence[Any]) -> tuple[list[Any], list[Any]]:
    """The leaves and others, unchanged; operations on the results run after all that made these.

    XLA drops an optimization barrier before it orders a CPU's loops, and keeps a call. The call
    does nothing: its results lie where its operands do, and of arrays that the caller keeps XLA
    passes it copies. Where `by_leaf` goes by the formula, there is a barrier only.
    """
    every = [*leaves, *others]
    if not bound_axes() and all(map(_is_plain, every)):
        every = _chain.bind(*every, signs="", into=0)
    else:
        every = jax.lax.optimization_barrier(every)
    return list(every[: len(leaves)]), list(every[len(leaves) :])


def _fit(terms: Sequence[Any]) -> bool:
    return all(_is_plain(x) and x.shape == terms[0].shape for x in terms)


def _is_plain(x: Any) -> bool:
    if isinstance(x, np.ndarray) or not isinstance(x, jax.Array):
        return False
    about: Any = jax.typeof(x)
    return x.dtype == jnp.float32 and not about.weak_type and about.sharding.mesh.empty


_chain = Primitive("jdaso_chain")
_chain.multiple_results = True


def _chain_by_leaf(*args: jax.Array, signs: str, into: int | None = None) -> list[jax.Array]:
    """The sums of leaves whose terms come group by group."""
    del into
    if not signs:
        return list(jax.lax.optimization_barrier(args))
    count = len(args) // (1 + len(signs))
    sums = list(args[:count])
    for k, sign in enumerate(signs, start=1):
        terms = args[k * count : (k + 1) * count]
        sums = [x + y if sign == "+" else x - y for x, y in zip(sums, terms, strict=True)]
    return sums


def _abstract_chain(*args: Any, signs: str, **_: Any) -> Any:
    return [core.ShapedArray(x.shape, x.dtype) for x in args[: len(args) // (1 + len(signs))]]


def _lower_chain(ctx: Any, *args: Any, signs: str, into: int | None) -> Any:
    context = ctx.module_context
    devices = getattr(context.axis_context, "num_devices", 1)
    target = library.chain_target(context.platforms, devices)
    if target is None:
        return mlir.lower_fun(_chain_by_leaf, True)(ctx, *args, signs=signs)
    count = len(args) // (1 + len(signs))
    places = {} if into is None else {into * count + k: k for k in range(count)}
    lower = jax.ffi.build_ffi_lowering_function(target, operand_output_aliases=places)
    return lower(ctx, *args, signs=signs).results


def _map_chain(args: Any, axes: Any, *, signs: str, into: int | None) -> Any:
    del into
    found = jax.vmap(functools.partial(_chain_by_leaf, signs=signs), tuple(axes))(*args)
    return found, [0] * len(found)


_chain.def_impl(_chain_by_leaf)
_chain.def_abstract_eval(_abstract_chain)
register_lowering(_chain, _lower_chain)
batching.primitive_batchers[_chain] = _map_chain
