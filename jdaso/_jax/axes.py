"""Mesh axes around the caller's trace, calls in a trace, and new variables of a jaxpr."""

from __future__ import annotations

import itertools
from typing import Any
from weakref import WeakKeyDictionary

import jax
from jax._src import core as _core  # no public name lists the bound axes
from jax._src import mesh as _mesh  # the public get_mesh raises inside jit
from jax.extend.core import Var


def mesh_in_context() -> jax.sharding.Mesh | None:
    """The mesh, with its devices, that the user has set with `jax.set_mesh`."""
    found = _mesh.get_concrete_mesh()
    return None if found is None or found.empty else found


def new_var(aval: Any) -> Var:
    """A jaxpr variable that nothing else uses."""
    return Var(aval)


_calls: WeakKeyDictionary[Any, int] = WeakKeyDictionary()
"""Calls of `place_in_trace` in a trace, and traces within it that have some."""

_places: WeakKeyDictionary[Any, int] = WeakKeyDictionary()
"""The number of a trace within the trace around it."""


def place_in_trace() -> str:
    """A name for this call that no other call in the same program has, the same on all nodes.

    Counts calls in the trace of a function; bodies of branches, loops and inner functions have
    traces of their own: ``"2"`` is the third call, ``"2.0"`` the first in the third body.
    """
    stack = [_core.trace_ctx.trace]  # from the innermost
    while (around := getattr(stack[-1], "parent_trace", None)) is not None:
        if isinstance(around, _core.EvalTrace):  # not within a program
            break
        stack.append(around)
    stack.reverse()
    for around, trace in itertools.pairwise(stack):
        if trace not in _places:
            _places[trace] = _next(around)
    numbers = [*(_places[trace] for trace in stack[1:]), _next(stack[-1])]
    return ".".join(map(str, numbers))


def _next(trace: Any) -> int:
    _calls[trace] = number = _calls.get(trace, -1) + 1
    return number


def varies(x: Any, axis: str) -> bool:
    """Returns whether JAX tracks (``check_vma=True``) that x differs along a mapped axis."""
    kind = jax.typeof(x)
    counted = getattr(kind, "mat", None)
    return axis in (counted.varying if counted is not None else getattr(kind, "vma", ()))


def bound_axes() -> dict[Any, int]:
    """Sizes of the axes of ``shard_map``, ``pmap`` and ``vmap`` around the caller's trace."""
    return dict(_core.get_axis_env().axis_sizes)


def unmapped_axes() -> dict[Any, int]:
    """Sizes of the mesh axes that a ``shard_map(axis_names=...)`` around the caller omits."""
    mesh = jax.sharding.get_abstract_mesh()
    if not mesh.manual_axes:
        return {}
    return {name: n for name, n in mesh.shape.items() if name not in mesh.manual_axes}
