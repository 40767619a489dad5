"""Equations of a jaxpr as functions, and facts about their arrays."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Var, jaxpr_as_fun

from ..._jax.axes import new_var

REMAT = ("remat2", "checkpoint", "remat")
"""Calls whose results are recomputed in the backward pass."""

Atom = Any
"""A `Var` or a `Literal`."""


def struct_of(atom: Atom) -> jax.ShapeDtypeStruct:
    """Returns the shape and dtype of an atom's array."""
    return jax.ShapeDtypeStruct(atom.aval.shape, atom.aval.dtype)


def is_inexact(atom: Atom) -> bool:
    """Returns whether an atom's array holds real or complex floating-point numbers."""
    return jnp.issubdtype(atom.aval.dtype, jnp.inexact)


def new_like(atom: Atom, rows: int) -> Var:
    """Makes a variable for an array like an atom's, but with `rows` rows."""
    return new_var(atom.aval.update(shape=(rows, *atom.aval.shape[1:])))


def jaxpr_of(eqns: Sequence[JaxprEqn], ins: Sequence[Var], outs: Sequence[Atom]) -> Jaxpr:
    """Makes a jaxpr of equations."""
    info = jax.make_jaxpr(lambda: None)().jaxpr.debug_info
    info = info._replace(arg_names=("",) * len(ins), result_paths=("",) * len(outs))
    return Jaxpr((), list(ins), list(outs), list(eqns), debug_info=info)


def function_of(
    eqns: Sequence[JaxprEqn], ins: Sequence[Var], outs: Sequence[Atom]
) -> Callable[..., list[jax.Array]]:
    """Makes equations a function that maps `ins` to `outs`."""
    return jaxpr_as_fun(ClosedJaxpr(jaxpr_of(eqns, ins, outs), ()))


def derivative_of(eqn: JaxprEqn) -> tuple[Callable[..., Any], list[Any], list[Any]]:
    """Makes the backward pass of an equation.

    Returns:
        A function; the shapes and dtypes of its two arguments. The first argument is the arrays of
        the equation's variables, in the order of their first use; the second is the cotangents of
        its floating-point results. The function returns the cotangents of its floating-point
        arguments.
    """
    ins = list(dict.fromkeys(atom for atom in eqn.invars if isinstance(atom, Var)))
    floats = [k for k, var in enumerate(ins) if is_inexact(var)]
    outs = [var for var in eqn.outvars if is_inexact(var)]
    run = function_of([eqn], ins, outs)

    def derivative(args: Sequence[Any], cotangents: Sequence[Any]) -> Any:
        def of_floats(*given: Any) -> Any:
            whole = list(args)
            for k, x in zip(floats, given, strict=True):
                whole[k] = x
            return run(*whole)

        return jax.vjp(of_floats, *(args[k] for k in floats))[1](list(cotangents))

    return derivative, [struct_of(var) for var in ins], [struct_of(var) for var in outs]


def bytes_of(array: Any) -> int:
    """Returns the bytes of an array, or of a variable's array."""
    struct = struct_of(array) if isinstance(array, Var) else array
    size = 8 if is_key(struct) else np.dtype(struct.dtype).itemsize
    return int(np.prod(struct.shape, dtype=np.int64)) * size


def is_key(array: Any) -> bool:
    """Returns whether an array holds keys of `jax.random.key`."""
    return jnp.issubdtype(array.dtype, jax.dtypes.prng_key)
