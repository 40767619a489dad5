"""Placements of divided leaves as the user tells them, and as nodes compare them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
from jax.sharding import PartitionSpec

from .._compat import bound_axes, varies
from .._payload.layout import Division, describe
from .._payload.placement import Placement, spec
from .._session import Session
from .._types import LocalAxis, PyTree
from .within_node import names_of

Divisions = Callable[[dict[str, int], bool], tuple[Division, ...]]
"""Returns the divisions that the user's specs give on a mesh of these axes; the second argument
tells that the arrays are shards, inside `jax.shard_map`."""


def said(
    session: Session, local_axis: LocalAxis, axes: tuple[str, ...], divisions: Divisions
) -> Placement | None:
    """The placement that the user's specs give, where the caller is.

    Args:
        session: the nodes.
        local_axis: axes of devices that hold copies.
        axes: the axes that the specs name.
        divisions: what they give.

    Raises:
        ValueError: an axis is named twice, or JAX tracks along it what differs.
    """
    twice = [name for name in names_of(local_axis) if name in axes]
    if twice:
        raise ValueError(
            f"local_axis={local_axis!r} names axis {twice[0]!r}, over which sharded= divides "
            "parameters: local_axis is for devices that hold copies. Name each axis in one of the "
            "two."
        )
    bound = bound_axes()
    for name in axes:
        if name in bound and varies(jax.lax.axis_index(name), name):
            raise ValueError(
                f"sharded= divides parameters over axis {name!r} of a jax.shard_map with "
                "check_vma=True, under which the branches of a step have different types. Pass "
                "check_vma=False to jax.shard_map."
            )
    mesh: Any = None
    if not bound and len(session.devices) == 1:
        return None
    if not bound:
        mesh = jax.sharding.get_abstract_mesh()
        mesh = session.mesh if mesh.empty else mesh
    known = {str(name): int(size) for name, size in (bound or mesh.shape).items()}
    found = divisions(known, bool(bound))
    return Placement(mesh, tuple(known.items()), found) if any(found) else None


def axes_of(specs: PyTree) -> tuple[str, ...]:
    """The axes that a tree of `PartitionSpec` names."""
    is_spec = lambda x: isinstance(x, PartitionSpec)  # noqa: E731
    leaves = filter(is_spec, jax.tree.leaves(specs, is_leaf=is_spec))
    entries = [entry for each in leaves for entry in each]
    names = [x for entry in entries for x in (entry if isinstance(entry, tuple) else (entry,))]
    return tuple(dict.fromkeys(x for x in names if x is not None))


def facts_of(placement: Placement | None, tree: PyTree) -> list[tuple[str, str]]:
    """Divisions of leaves, on which all nodes must agree; their numbers of devices may differ."""
    leaves = describe(tree)
    divisions = [()] * len(leaves) if placement is None else placement.divisions
    sizes = "" if placement is None else f" over {dict(placement.axes)}"
    pairs = zip(leaves, divisions, strict=True)
    return [
        (f"the division of leaf {leaf.path}", f"{spec(x)}{sizes}" if x else "none")
        for leaf, x in pairs
    ]
