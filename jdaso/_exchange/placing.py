"""Placements of divided leaves, as the user specifies them, and as nodes compare them."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from typing import Any

import jax
from jax.sharding import PartitionSpec

from .._jax.axes import bound_axes, mesh_in_context, varies
from .._jax.types import LocalAxis, PyTree
from .._jax.world import spans_processes
from .._payload.layout import Division, describe, path_of
from .._payload.placement import Placement, placement_of, spec
from .._session import Session
from .within_node import names_of

Divisions = Callable[[dict[str, int], bool], tuple[Division, ...]]
"""Returns the divisions that the user's specs give on a mesh of these axes; the second argument
is True if the arrays are shards, inside `jax.shard_map`."""


def said(
    session: Session, local_axis: LocalAxis, axes: tuple[str, ...], divisions: Divisions
) -> Placement | None:
    """The placement that the user's specs give in the caller's context.

    Args:
        session: the nodes.
        local_axis: axes of devices that hold copies.
        axes: the axes that the specs name.
        divisions: the divisions that they give.

    Raises:
        ValueError: an axis is named twice, or JAX tracks what differs along that axis.
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
    # Inside jax.shard_map all devices make each call, also those of trees without divided leaves.
    said_any = any(found) or bool(axes and bound)
    return _here(session, Placement(mesh, tuple(known.items()), found)) if said_any else None


def placed(session: Session, tree: PyTree, *, whole: bool = False) -> Placement | None:
    """The placement of arrays on this node's devices, as far as their shardings give it.

    Args:
        session: the nodes.
        tree: the arrays.
        whole: whether to return one even if no array is divided, and the node has one rank.
    """
    return _here(session, placement_of(tree, whole=whole or session.joined))


def undivided(session: Session, tree: PyTree) -> Placement:
    """The placement of a tree that each of a node's devices holds whole."""
    bound, mesh = bound_axes(), None
    if not bound:
        mesh = jax.sharding.get_abstract_mesh()
        mesh = session.mesh if mesh.empty else mesh
    axes = tuple((str(name), int(size)) for name, size in (mesh.shape if mesh else bound).items())
    divisions = tuple(() for _ in jax.tree.leaves(tree))
    found = _here(session, Placement(mesh, axes, divisions))
    assert found is not None
    return found


def _here(session: Session, placement: Placement | None) -> Placement | None:
    """A placement with the numbers of this rank's devices, if the node has several ranks.

    Where only the names of axes are known, their devices are taken to be in the session's order; a
    call from another device is refused.

    Raises:
        ValueError: the mesh does not have all devices of the node.
    """
    if placement is None or not session.joined:
        return placement
    mesh, known = placement.mesh, session.devices
    mesh = mesh if isinstance(mesh, jax.sharding.Mesh) else mesh_in_context()
    if mesh is not None:
        known = list(mesh.devices.flat)
    if placement.devices != len(session.devices):
        raise ValueError(
            f"{session.topology.prefix()} A step runs on {placement.devices} devices (axes "
            f"{dict(placement.axes)}), and this node of {session.ranks_per_node} ranks has "
            f"{len(session.devices)}. Make the mesh of all of them: jax.make_mesh(shape, names, "
            "devices=session.devices), or session.mesh."
        )
    own = [k for k, device in enumerate(known) if device.process_index == jax.process_index()]
    return dataclasses.replace(placement, own=tuple(own))


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


def agree_on_shards(session: Session, what: str, tree: PyTree) -> None:
    """Raises on all ranks unless rank i of each node has the shards that rank i of node 0 has.

    Ranks of one node may have any shards, and the same mesh may list devices in any order; but rank
    i of a node exchanges with rank i of the others.

    Args:
        session: the nodes, of several ranks each.
        what: the nodes' action, as a verb.
        tree: arrays.
    """
    said = list(map(json.loads, session.all_ranks.everyone(what, json.dumps(_begins(tree)))))
    for rank, mine in enumerate(said):
        for path, begins in mine.items():
            first = rank % session.ranks_per_node
            if begins != said[first].get(path, begins):
                names = session.topology.name(rank), session.topology.name(first)
                lies = [_lies(one) for one in (begins, said[first][path])]
                raise session.control.error(
                    f"Leaf {path} lies {lies[0]} on {names[0]}, and {lies[1]} on {names[1]}, with "
                    "which it is exchanged. Place it the same way on all nodes, and list the "
                    "devices of each node's mesh in the same order, as session.mesh does."
                )


def _lies(begins: list[list[int]] | None) -> str:
    return "on one rank" if begins is None else f"in shards that begin at {begins}"


def _begins(tree: PyTree) -> dict[str, list[list[int]] | None]:
    """The places where this rank's shards of leaves begin; None for those it has alone."""
    return {
        path_of(path): [[x.start or 0 for x in shard.index] for shard in leaf.addressable_shards]
        if spans_processes(leaf)
        else None
        for path, leaf in jax.tree_util.tree_flatten_with_path(tree)[0]
    }
