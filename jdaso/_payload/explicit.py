"""Meshes with Explicit axes, JAX's default, where an array's sharding is part of its type.

There an array that is in parts can be neither flattened nor indexed, and the branches of a `cond`
must give equal shardings. On meshes with Auto axes, and without a mesh, all of this does nothing.
"""

from __future__ import annotations

from typing import Any

import jax
from jax.core import Tracer
from jax.sharding import NamedSharding, PartitionSpec, reshard

from .._types import PyTree


def replicated(x: Any) -> Any:
    """An array of which each device holds all; the same array where that is so already."""
    spec = _explicit_spec(x)
    return x if not any(spec) else _moved(x, x, PartitionSpec(*(None for _ in spec)))


def placed_like(x: Any, like: Any) -> Any:
    """`x` in the parts in which `like` is held; both have one shape, but for more axes of `x`."""
    spec = _explicit_spec(like)
    before = _explicit_spec(x)
    if not any(spec) and not any(before):
        return x
    spec = (*spec, *(None for _ in range(x.ndim - len(spec))))
    return x if spec == before else _moved(x, like if any(spec) else x, PartitionSpec(*spec))


def can_be_placed_like(like: Any) -> bool:
    """Returns whether new numbers can be: under `vmap` outside jit only a context has devices."""
    return not isinstance(like, Tracer) or not jax.sharding.get_abstract_mesh().empty


def alike(new: PyTree, old: PyTree) -> PyTree:
    """`placed_like` for all leaves of two equal trees, as a `cond` wants what its branches give."""
    return jax.tree.map(placed_like, new, old)


def _explicit_spec(x: Any) -> tuple[Any, ...]:
    """Over which Explicit axes each dimension is spread; empty without such axes."""
    if not isinstance(x, jax.Array):
        return ()
    sharding = jax.typeof(x).sharding  # pyright: ignore[reportAttributeAccessIssue]
    if sharding.mesh.empty or not sharding.mesh.explicit_axes:
        return ()
    return tuple(sharding.spec)


def _moved(x: jax.Array, on: jax.Array, spec: PartitionSpec) -> jax.Array:
    """`x` on the mesh of another array."""
    mesh: Any = jax.typeof(on).sharding.mesh  # pyright: ignore[reportAttributeAccessIssue]
    if not isinstance(on, Tracer):  # outside of jit JAX wants the devices
        mesh = on.sharding.mesh  # pyright: ignore[reportAttributeAccessIssue]
    return reshard(x, NamedSharding(mesh, spec))
