"""Meshes with Explicit axes, JAX's default, where an array's sharding is part of its type.

On such a mesh a sharded array can be neither flattened nor indexed, and the branches of a `cond`
must give equal shardings. On meshes with Auto axes, and without a mesh, all of this does nothing.
"""

from __future__ import annotations

from typing import Any

import jax
from jax.core import Tracer
from jax.sharding import NamedSharding, PartitionSpec, reshard

from .._types import PyTree


def replicated(x: Any) -> Any:
    """The array with all of it on each device; the same array if it already is replicated."""
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


def can_be_placed_like(like: Any) -> bool:
    """Returns whether new arrays can be placed; under `vmap` outside jit only a context can."""
    return not isinstance(like, Tracer) or not jax.sharding.get_abstract_mesh().empty


def alike(new: PyTree, old: PyTree) -> PyTree:
    """`placed_like` for all leaves of two equal trees, as the branches of a `cond` need it."""
    return jax.tree.map(placed_like, new, old)


def _explicit_spec(x: Any) -> tuple[Any, ...]:
    """The Explicit axes over which each dimension is sharded; empty without such axes."""
    if not isinstance(x, jax.Array):
        return ()
    sharding = jax.typeof(x).sharding  # pyright: ignore[reportAttributeAccessIssue]
    if sharding.mesh.empty or not sharding.mesh.explicit_axes:
        return ()
    return tuple(sharding.spec)


def _moved(x: jax.Array, on: jax.Array, spec: PartitionSpec) -> jax.Array:
    """`x` resharded on the mesh of another array."""
    mesh: Any = jax.typeof(on).sharding.mesh  # pyright: ignore[reportAttributeAccessIssue]
    if not isinstance(on, Tracer):  # outside of jit JAX needs the devices
        mesh = on.sharding.mesh  # pyright: ignore[reportAttributeAccessIssue]
    return reshard(x, NamedSharding(mesh, spec))
