"""Meshes with Explicit axes, JAX's default, where an array's sharding is part of its type.

On such a mesh a sharded array can be neither flattened nor indexed, and the branches of a `cond`
must give equal shardings. On meshes with Auto axes, and without a mesh, all of this does nothing.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

import jax
from jax.core import Tracer
from jax.sharding import NamedSharding, PartitionSpec, reshard

from .._jax.types import PyTree

Given = ParamSpec("Given")
Gives = TypeVar("Gives")


def replicated(x: Any) -> Any:
    """The array, replicated on all devices; the same array if it already is."""
    spec = _explicit_spec(x)
    return x if not any(spec) else _moved(x, x, PartitionSpec(*(None for _ in spec)))


def placed_like(x: Any, like: Any) -> Any:
    """`x` with the sharding of `like`; equal shapes, but `x` may have more trailing axes."""
    spec = _explicit_spec(like)
    before = _explicit_spec(x)
    if not any(spec) and not any(before):
        return x
    spec = (*spec, *(None for _ in range(x.ndim - len(spec))))
    return x if spec == before else _moved(x, like if any(spec) else x, PartitionSpec(*spec))


def placed_on(x: Any, spec: PartitionSpec) -> Any:
    """`x` with that sharding, where shardings are part of types."""
    before = _explicit_spec(x)
    if not before:
        return x
    # On a mesh that also has Auto axes, types list only the others.
    explicit = _mesh_under(x).explicit_axes
    entries = [tuple(n for n in entry if n in explicit) for entry in map(_names, spec)]
    entries = [entry[0] if len(entry) == 1 else entry or None for entry in entries]
    found = PartitionSpec(*entries, *(None for _ in range(len(before) - len(spec))))
    return x if tuple(found) == before else _moved(x, x, found)


def _names(entry: Any) -> tuple[str, ...]:
    """The axes in an entry of a spec."""
    return entry if isinstance(entry, tuple) else () if entry is None else (entry,)


def explicit_sharding(x: Any) -> NamedSharding | None:
    """The sharding of an array or a tracer, if it is part of its type."""
    spec = _explicit_spec(x)
    return NamedSharding(_mesh_under(x), PartitionSpec(*spec)) if spec else None


def can_be_placed_like(like: Any) -> bool:
    """Returns whether new arrays can be placed; under `vmap` outside jit only a context can."""
    return not isinstance(like, Tracer) or not jax.sharding.get_abstract_mesh().empty


def alike(new: PyTree, old: PyTree) -> PyTree:
    """`placed_like` for all leaves of two equal trees, as the branches of a `cond` require."""
    return jax.tree.map(placed_like, new, old)


def on_its_mesh(function: Callable[Given, Gives]) -> Callable[Given, Gives]:
    """The function, called in the context of the mesh that its arguments' arrays are on.

    New arrays, and arrays from the host, are then replicated on that mesh. Otherwise XLA chooses
    their placement, be it one device or parts: results get other types than the arguments, and
    devices wait for each other in another order. A mesh that the user has set is kept.
    """

    @functools.wraps(function)
    def call(*args: Given.args, **kwargs: Given.kwargs) -> Gives:
        with _mesh_of((args, kwargs)):
            return function(*args, **kwargs)

    return call


def _mesh_of(tree: PyTree) -> contextlib.AbstractContextManager[Any]:
    if not jax.sharding.get_abstract_mesh().empty:
        return contextlib.nullcontext()
    for x in jax.tree.leaves(tree):
        if _explicit_spec(x):
            mesh = _mesh_under(x)
            traced = isinstance(x, Tracer)
            return jax.sharding.use_abstract_mesh(mesh) if traced else jax.set_mesh(mesh)
    return contextlib.nullcontext()


def _explicit_spec(x: Any) -> tuple[Any, ...]:
    """The Explicit axes over which each dimension is sharded; empty without such axes."""
    if not isinstance(x, jax.Array):
        return ()
    sharding = jax.typeof(x).sharding  # pyright: ignore[reportAttributeAccessIssue]
    if sharding.mesh.empty or not sharding.mesh.explicit_axes:
        return ()
    return tuple(sharding.spec)


def _moved(x: jax.Array, on: jax.Array, spec: PartitionSpec) -> jax.Array:
    """`x` on the mesh of another array."""
    return reshard(x, NamedSharding(_mesh_under(on), spec))


def _mesh_under(x: jax.Array) -> Any:
    """The mesh that an array is on; outside of jit JAX needs the devices too."""
    sharding: Any = jax.typeof(x).sharding if isinstance(x, Tracer) else x.sharding  # pyright: ignore[reportAttributeAccessIssue]
    return sharding.mesh
