"""Placements: the division of leaves over the devices of a node, given by arrays or users."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np
import optax
from jax.core import Tracer
from jax.sharding import NamedSharding, PartitionSpec

from .._jax.types import PyTree
from .explicit import explicit_sharding, placed_on
from .layout import Division, Leaf, describe
from .trees import is_none


@dataclasses.dataclass(frozen=True)
class Placement:
    """The division of a tree's leaves over the devices of a node.

    Attributes:
        mesh: the devices' mesh; None inside a `jax.shard_map` that has bound its axes.
        axes: the mesh's axes with their sizes, in order.
        divisions: those of the leaves, in the order of the tree.
        own: the numbers of this rank's devices, if the node has several ranks; else None.
    """

    mesh: Any
    axes: tuple[tuple[str, int], ...]
    divisions: tuple[Division, ...]
    own: tuple[int, ...] | None = None

    def of(self, *divisions: Sequence[Division]) -> Placement:
        """The same devices, for the leaves of several trees, one tree after another."""
        return dataclasses.replace(self, divisions=sum(map(tuple, divisions), ()))

    def leaves(self, tree: PyTree) -> tuple[Leaf, ...]:
        """The leaves of a tree with their divisions; a divided one has the shape of a shard."""
        pairs = zip(describe(tree), self.divisions, strict=True)
        return tuple(self._divided(leaf, division) for leaf, division in pairs)

    def shards(self, leaves: Sequence[Leaf]) -> tuple[Leaf, ...]:
        """One device's shards of whole leaves."""
        whole = dataclasses.replace(self, mesh=self.mesh or self.axes)
        pairs = zip(leaves, self.divisions, strict=True)
        return tuple(whole._divided(leaf, division) for leaf, division in pairs)

    def whole(self, shape: Sequence[int], division: Division) -> tuple[int, ...]:
        """The shape of a leaf with shards of this shape."""
        parts = [math.prod(size for _, size in axes) for axes in division] or [1] * len(shape)
        return tuple(n * k for n, k in zip(shape, parts, strict=True))

    def along(self, tree: PyTree, other: PyTree) -> Placement:
        """The placement of another tree, like this one's but with None for some of its leaves.

        Gradients are those of the first tree of `optax.LookaheadParams`.
        """
        flat, structure = jax.tree.flatten(other, is_leaf=is_none)
        numbers = jax.tree.unflatten(jax.tree.structure(tree), range(len(self.divisions)))
        if isinstance(numbers, optax.LookaheadParams):
            numbers = numbers.fast
        places = structure.flatten_up_to(numbers)
        pairs = zip(flat, places, strict=True)
        return self.of([self.divisions[place] for x, place in pairs if x is not None])

    def _divided(self, leaf: Leaf, division: Division) -> Leaf:
        if leaf.division or not division:
            return leaf
        shape = leaf.shape
        if self.mesh is not None:
            parts = [math.prod(size for _, size in axes) for axes in division]
            shape = tuple(n // k for n, k in zip(shape, parts, strict=True))
        return dataclasses.replace(leaf, shape=shape, division=division)

    def inside(
        self, function: Callable[..., Any], given: Sequence[Division], gives: PyTree
    ) -> Callable[..., Any]:
        """Turns a function of shards into one of whole arrays, but not inside `jax.shard_map`.

        Args:
            function: called once for each device, with its shards.
            given: divisions of its arguments.
            gives: a tree like its result, with a `PartitionSpec` for each array; see `spec`.
        """
        if self.mesh is None:
            return function
        specs = tuple(map(spec, given))
        mapped = jax.shard_map(
            function, mesh=self.mesh, in_specs=specs, out_specs=gives, check_vma=False
        )
        return lambda *args: mapped(*map(placed_on, args, specs))

    @property
    def devices(self) -> int:
        """The number of devices."""
        return math.prod(size for _, size in self.axes)

    @property
    def here(self) -> Sequence[int]:
        """The numbers of the devices that this rank drives."""
        return range(self.devices) if self.own is None else self.own

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the axes."""
        return tuple(name for name, _ in self.axes)

    def copies(self, division: Division) -> tuple[tuple[str, int], ...]:
        """The axes along which devices hold copies of a leaf with that division."""
        divided = {name for axes in division for name, _ in axes}
        return tuple((name, size) for name, size in self.axes if name not in divided and size > 1)

    def device(self) -> jax.Array:
        """This device's number, where `inside` calls the function."""
        return jax.lax.axis_index(self.names)

    def shard(self, division: Division, device: int) -> int:
        """The number of a device's shard of a leaf with that division."""
        sizes = [size for _, size in self.axes]
        places = np.unravel_index(device, sizes)
        place = {name: int(at) for (name, _), at in zip(self.axes, places, strict=True)}
        number = 0
        for name, size in (axis for axes in division for axis in axes):
            number = number * size + place[name]
        return number


def placement_of(tree: PyTree, *, whole: bool = False) -> Placement | None:
    """Returns the placement of arrays on several devices of a mesh; None if none is divided.

    Known for arrays, and for tracers on meshes whose axes are Explicit.

    Args:
        tree: the arrays.
        whole: whether to return a placement even if no array is divided.
    """
    shardings = [_sharding(x) for x in jax.tree.leaves(tree)]
    known = [x for x in shardings if x is not None]
    divided = [x for x in known if any(_division(x, len(x.spec)))] or (known if whole else [])
    if not divided:
        return None
    mesh = divided[0].mesh
    axes = tuple((str(name), int(size)) for name, size in mesh.shape.items())
    alike = (x if x is not None and x.mesh.shape == mesh.shape else None for x in shardings)
    pairs = zip(alike, jax.tree.leaves(tree), strict=True)
    divisions = tuple(() if x is None else _division(x, np.ndim(leaf)) for x, leaf in pairs)
    return Placement(mesh, axes, divisions)


def divisions_of(
    specs: PyTree, tree: PyTree, axes: Mapping[str, int], *, inside: bool = False
) -> tuple[Division, ...]:
    """The divisions of a tree's leaves that a tree of `PartitionSpec` gives.

    Args:
        specs: a tree like the other, or a prefix of one; None for leaves that are not divided.
        tree: arrays.
        axes: the mesh axes and their sizes.
        inside: whether these are shards, inside `jax.shard_map`, and not whole arrays.

    Raises:
        ValueError: a spec names an unknown axis, has more dimensions than its leaf, or cannot
            divide a dimension; or the trees do not match.
    """
    is_spec = lambda x: x is None or isinstance(x, PartitionSpec)  # noqa: E731
    flat, structure = jax.tree.flatten(specs, is_leaf=is_spec)
    try:
        parts = structure.flatten_up_to(tree)
    except ValueError as error:
        raise ValueError(
            f"sharded= is {specs!r}, which is neither a tree like the parameters nor a prefix of "
            f"one: {error}. Give each parameter a PartitionSpec, or each branch one for all in it."
        ) from error
    each = [x for x, part in zip(flat, parts, strict=True) for _ in jax.tree.leaves(part)]
    pairs = zip(each, describe(tree), strict=True)
    return tuple(_told(x, leaf, axes, inside=inside) for x, leaf in pairs)


def _told(given: Any, leaf: Leaf, axes: Mapping[str, int], *, inside: bool) -> Division:
    """The division of a leaf that a spec gives."""
    if not isinstance(given, PartitionSpec | None):
        raise ValueError(f"sharded= has {given!r} for {leaf.path}, expected a PartitionSpec.")
    entries = [x if isinstance(x, tuple) else (x,) for x in given or ()]
    for name in (name for entry in entries for name in entry if name is not None):
        if name not in axes:
            raise ValueError(
                f"sharded= divides parameter {leaf.path}, {leaf}, over axis {name!r}, which is not "
                f"bound here; the axes are {', '.join(map(repr, axes)) or 'none'}. Name axes of "
                "the mesh that the step runs on, and under plain jax.jit set it with jax.set_mesh."
            )
    if len(entries) > len(leaf.shape):
        raise ValueError(
            f"sharded= gives {given} for parameter {leaf.path}, {leaf}, which has "
            f"{len(leaf.shape)} dimensions."
        )
    entries += [(None,)] * (len(leaf.shape) - len(entries))
    found = tuple(
        tuple((name, axes[name]) for name in entry if name is not None and axes[name] > 1)
        for entry in entries
    )
    for length, dimension in zip(leaf.shape, found, strict=True):
        parts = math.prod(size for _, size in dimension)
        if length % parts and not inside:
            raise ValueError(
                f"sharded= gives {given} for parameter {leaf.path}, {leaf}: {length} cannot be "
                f"divided into {parts} equal parts. Leave that dimension out (None), or pad it."
            )
    return found if any(found) else ()


def kept(tree: PyTree) -> PyTree:
    """Shardings for results like these arrays: that of an array on a mesh, None for others."""
    return jax.tree.map(_sharding, tree)


def joined(
    placements: Sequence[Placement | None], trees: Sequence[PyTree], whole: PyTree
) -> Placement | None:
    """The placement of a tree that begins with the leaves of others, and is not divided after them.

    Args:
        placements: of the others.
        trees: the others.
        whole: the tree.
    """
    known = [x for x in placements if x is not None]
    if not known:
        return None
    found: list[Division] = []
    for placement, tree in zip(placements, trees, strict=True):
        alike = placement is not None and placement.axes == known[0].axes
        count = len(jax.tree.leaves(tree))
        found += placement.divisions if placement is not None and alike else [()] * count
    rest = len(jax.tree.leaves(whole)) - len(found)
    return known[0].of(found, [()] * rest)


def spec(division: Division) -> PartitionSpec:
    """A division as JAX writes it."""
    return PartitionSpec(*(tuple(name for name, _ in axes) or None for axes in division))


def _sharding(x: Any) -> NamedSharding | None:
    """The sharding of an array over several devices; None if there is none, or it is not known."""
    if not isinstance(x, jax.Array):
        return None
    traced = isinstance(x, Tracer)
    found = explicit_sharding(x) if traced else x.sharding
    if not isinstance(found, NamedSharding) or found.mesh.empty:
        return None
    return None if traced and found.mesh.auto_axes else found  # a type has the Explicit axes only


def _division(sharding: NamedSharding, dimensions: int) -> Division:
    """The axes of each dimension; empty if no axis of several devices divides the array."""
    sizes, found = dict(sharding.mesh.shape), []
    for entry in (*sharding.spec, *(None for _ in range(dimensions - len(sharding.spec)))):
        names = entry if isinstance(entry, tuple) else (entry,)
        found.append(tuple((str(n), int(sizes[n])) for n in names if sizes.get(n, 1) > 1))
    return tuple(found) if any(found) else ()
