"""Mesh axes around the caller's trace, and new variables of a jaxpr."""

from __future__ import annotations

from typing import Any

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
