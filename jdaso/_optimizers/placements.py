"""Placements of one optimizer's trees on the devices of a node."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax.core import Tracer
from jax.sharding import PartitionSpec

from .._compat import bound_axes
from .._exchange.within_node import names_of
from .._payload.layout import Division, describe
from .._payload.shards import Placement, divisions_of, joined, placement_of
from .._session import Session
from .._types import LocalAxis, PyTree, ShapeDtype

Known = dict[Any, Placement | None]
"""Placements of trees, by their shapes."""

Divisions = Callable[[dict[str, int]], tuple[Division, ...]]
"""Returns the divisions that the user's specs give, on a mesh of these axes."""


class Placements:
    """Placements of the parameters and of the inner state.

    Inside ``jit`` a tracer tells its sharding only on a mesh whose axes are Explicit. Elsewhere a
    tree is taken to lie as the user says, or as one of the same structure and shapes did in
    `init`. If it lies otherwise, XLA moves it there first: the numbers are the same. Inside
    ``shard_map`` only the user can tell.

    Args:
        session: the nodes.
        init: the inner optimizer's `init`.
        sharded: a tree of `PartitionSpec` like the parameters, or the beginning of one; None if
            the user says nothing.
        local_axis: axis of the local devices that hold copies, or None.
    """

    def __init__(
        self,
        session: Session,
        init: Callable[..., Any],
        sharded: PyTree = None,
        local_axis: LocalAxis = None,
    ):
        self._session, self._init = session, init
        self._sharded, self._local_axis = sharded, local_axis
        self._params: Known = {}
        self._inner: Known = {}

    @property
    def axes(self) -> tuple[str, ...]:
        """The axes that the user's specs name."""
        leaves = jax.tree.leaves(self._sharded, is_leaf=_is_spec)
        entries = [entry for spec in leaves if _is_spec(spec) for entry in spec]
        names = [x for entry in entries for x in (entry if isinstance(entry, tuple) else (entry,))]
        return tuple(dict.fromkeys(x for x in names if x is not None))

    def note(self, params: PyTree, state: PyTree) -> None:
        """Notes how parameters and inner state lie; does nothing with tracers."""
        for known, tree in ((self._params, params), (self._inner, state)):
            traced = any(isinstance(x, Tracer) for x in jax.tree.leaves(tree))
            if self._session.sends and not traced:
                known[_key(tree)] = placement_of(tree)

    def of(self, params: PyTree) -> Placement | None:
        """The placement of the parameters; None if none is divided over several devices.

        Raises:
            ValueError: the user's specs do not fit the parameters or the axes.
        """
        said = lambda axes: divisions_of(self._sharded, params, axes)  # noqa: E731
        return self._of(params, self._params, said)

    def of_inner(self, state: PyTree, params: PyTree) -> Placement | None:
        """The placement of the inner state, whose copies of the parameters lie as these do.

        Raises:
            ValueError: the same, or the copies cannot be found.
        """
        if not jax.tree.leaves(state):
            return None
        said = lambda axes: self._of_copies(state, params, axes)  # noqa: E731
        return self._of(state, self._inner, said)

    def of_both(self, params: PyTree, state: PyTree, whole: PyTree = ()) -> Placement | None:
        """The placement of parameters, inner state, and what is not divided, after each other."""
        both = params, state
        return joined([self.of(params), self.of_inner(state, params)], both, (both, whole))

    def outside(self, params: PyTree) -> PyTree:
        """Shapes of the parameters as they are outside of `jax.shard_map`, with their placement."""
        leaves, placement = describe(params), self.of(params)
        if placement is None or placement.mesh is not None:
            return _shapes(params, [leaf.shape for leaf in leaves])
        found = _shapes(params, [leaf.whole for leaf in placement.leaves(params)])
        sizes, names = zip(*((size, name) for name, size in placement.axes), strict=True)
        mesh = jax.sharding.AbstractMesh(sizes, names)
        self._params.setdefault(_key(found), dataclasses.replace(placement, mesh=mesh))
        return found

    def facts(self, params: PyTree) -> list[tuple[str, str]]:
        """Placements of divided leaves, which all nodes must share, by leaf."""
        placement = self.of(params)
        if placement is None:
            return []
        pairs = zip(describe(params), placement.divisions, strict=True)
        return [(f"devices of leaf {leaf.path}", str(x)) for leaf, x in pairs if x]

    def _of(self, tree: PyTree, known: Known, divisions: Divisions) -> Placement | None:
        """The placement of a tree: that of its types, else the known one, else the user's."""
        if not self._session.sends:
            return None
        if axes := bound_axes():
            return None if self._sharded is None else self._said(None, axes, divisions)
        key, found = _key(tree), placement_of(tree)
        if found is None and self._sharded is not None and key not in known:
            mesh = jax.sharding.get_abstract_mesh()
            mesh = self._session.mesh if mesh.empty else mesh
            found = self._said(mesh, dict(mesh.shape), divisions)
        if found is not None:
            known.setdefault(key, found)
        return known.get(key)

    def _said(self, mesh: Any, axes: dict[Any, int], divisions: Divisions) -> Placement | None:
        """The placement that the user's specs give."""
        twice = [name for name in names_of(self._local_axis) if name in self.axes]
        if twice:
            raise ValueError(
                f"local_axis={self._local_axis!r} names axis {twice[0]!r}, over which sharded= "
                "divides parameters: local_axis is for devices that hold copies. Name each axis "
                "in one of the two."
            )
        known = tuple((str(name), int(size)) for name, size in axes.items())
        found = divisions(dict(known))
        return Placement(mesh, known, found) if any(found) else None

    def _of_copies(
        self, state: PyTree, params: PyTree, axes: dict[str, int]
    ) -> tuple[Division, ...]:
        """The divisions of the inner state's leaves."""
        of_params = divisions_of(self._sharded, params, axes)
        structure = jax.tree.structure(params)
        numbers = jax.tree.unflatten(structure, range(len(of_params)))
        try:
            copies = optax.tree_utils.tree_map_params(
                self._init, lambda _, k: k, state, numbers, transform_non_params=lambda _: -1
            )
            places = jax.tree.leaves(copies)
            if len(places) != len(jax.tree.leaves(state)):
                raise ValueError("its leaves cannot be told apart")
        except Exception as error:
            if not bound_axes():  # XLA moves what lies otherwise
                return ((),) * len(jax.tree.leaves(state))
            raise ValueError(
                "sharded= divides the parameters, and jdaso cannot find their copies in the inner "
                f"optimizer's state ({error}). Inside jax.shard_map it must know which leaves are "
                "divided: call update under plain jax.jit with sharded arrays instead."
            ) from error
        return tuple(() if k < 0 else of_params[k] for k in places)


def _shapes(tree: PyTree, shapes: Sequence[tuple[int, ...]]) -> PyTree:
    """A tree's dtypes, with these shapes."""
    flat, structure = jax.tree.flatten(tree)
    pairs = zip(shapes, flat, strict=True)
    return jax.tree.unflatten(structure, [ShapeDtype(x, jnp.result_type(y)) for x, y in pairs])


def _is_spec(x: Any) -> bool:
    return isinstance(x, PartitionSpec)


def _key(tree: PyTree) -> Any:
    """Shapes and dtypes; `init` may be given other containers (those of Flax nnx) than `update`."""
    return tuple((leaf.shape, leaf.dtype) for leaf in describe(tree))
