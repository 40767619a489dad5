"""Placements of one optimizer's trees on the devices of a node."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax.core import Tracer

from .._exchange.placing import Divisions, axes_of, facts_of, placed, said
from .._exchange.within_node import names_of
from .._jax.axes import bound_axes
from .._jax.in_trace import in_trace
from .._jax.types import LocalAxis, PyTree, ShapeDtype
from .._payload.layout import Division, describe, text_of
from .._payload.placement import Placement, divisions_of, joined
from .._session import Session

Known = dict[Any, Placement | None]
"""Placements of trees, by their shapes."""


class Placements:
    """Placements of the parameters and of the inner state.

    Inside ``jit`` a tracer has its sharding only on a mesh whose axes are Explicit. Elsewhere a
    tree is assumed to have the sharding that the user gave, or that a tree of the same structure
    and shapes had in `init`. If the tree has another one, XLA moves the tree first: the numbers
    are the same. Inside ``shard_map`` only the user knows the sharding.

    Args:
        session: the nodes.
        init: the inner optimizer's `init`.
        sharded: a tree of `PartitionSpec` like the parameters, or a prefix of one; None if the user
            gave none.
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
        self._made_in_trace = in_trace()

    @property
    def axes(self) -> tuple[str, ...]:
        """The axes that the user's specs name."""
        return axes_of(self._sharded)

    @property
    def axes_of_losses(self) -> tuple[str, ...]:
        """The axes over which the devices of a node have losses of their own.

        Those of `local_axis`, and those that the user's specs name, where `jax.shard_map` has bound
        them: there each device has its part of the batch, or all have equal losses.
        """
        bound = bound_axes()
        return *names_of(self._local_axis), *(name for name in self.axes if name in bound)

    def note(self, params: PyTree, state: PyTree) -> None:
        """Notes the placements of parameters and inner state; does nothing with tracers."""
        for known, tree in ((self._params, params), (self._inner, state)):
            traced = any(isinstance(x, Tracer) for x in jax.tree.leaves(tree))
            if self._session.sends and not traced:
                known[_key(tree)] = found = placed(self._session, tree)
                self._session.optimizers.note_placement(_key(tree), found)

    def of(self, params: PyTree) -> Placement | None:
        """The placement of the parameters; None if none is divided over several devices.

        Raises:
            ValueError: the user's specs do not fit the parameters or the axes.
        """
        told = lambda axes, inside: divisions_of(self._sharded, params, axes, inside=inside)  # noqa: E731
        return self._of(params, self._params, told)

    def of_inner(self, state: PyTree, params: PyTree) -> Placement | None:
        """The placement of the inner state, whose copies of the parameters are divided like these.

        Raises:
            ValueError: see `of`; or the copies cannot be found.
        """
        if not jax.tree.leaves(state):
            return None
        told = lambda axes, inside: self._of_copies(state, params, axes, inside)  # noqa: E731
        return self._of(state, self._inner, told)

    def of_both(self, params: PyTree, state: PyTree, whole: PyTree = ()) -> Placement | None:
        """The placement of parameters, inner state, and undivided leaves, one after another."""
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

    def facts(
        self, params: PyTree, state: PyTree
    ) -> tuple[list[tuple[str, str]], ValueError | None]:
        """Facts about divisions, on which all nodes must agree.

        Returns:
            The facts; an error to raise once the nodes have compared them, if the user's specs do
            not fit. So the others do not wait for a node that has raised.
        """
        found = [("the setting sharded", text_of(self._sharded))]
        try:
            found += facts_of(self.of(params), params)
            of_inner = facts_of(self.of_inner(state, params), state)
        except ValueError as error:
            return [("the setting sharded", f"one that is refused: {error}")], error
        return [*found, *((f"{what} of the inner state", fact) for what, fact in of_inner)], None

    def _of(self, tree: PyTree, known: Known, divisions: Divisions) -> Placement | None:
        """The placement of a tree: the known one, else that of its types, else the user's.

        `optax.inject_hyperparams` makes an optimizer in each trace. It knows of no `init`, so the
        placement is the one that a tree of these shapes had in the last `init` of the session.
        """
        if not self._session.sends:
            return None
        if bound_axes():
            return self._said(divisions)
        key = _key(tree)
        if (earlier := known.get(key)) is not None and any(earlier.divisions):
            return earlier
        found = placed(self._session, tree)
        if (found is None or not any(found.divisions)) and earlier is None:
            found = self._said(divisions) or self._of_others(tree) or found
        if found is not None:
            known[key] = found
        return known.get(key)

    def _of_others(self, tree: PyTree) -> Placement | None:
        """The placement of such a tree in `init`, if this optimizer was made again in a trace."""
        return self._session.optimizers.placement_of(_key(tree)) if self._made_in_trace else None

    def _said(self, divisions: Divisions) -> Placement | None:
        """The placement that the user's specs give."""
        if self._sharded is None:
            return None
        return said(self._session, self._local_axis, self.axes, divisions)

    def _of_copies(
        self, state: PyTree, params: PyTree, axes: dict[str, int], inside: bool
    ) -> tuple[Division, ...]:
        """The divisions of the inner state's leaves."""
        of_params = divisions_of(self._sharded, params, axes, inside=inside)
        flat, structure = jax.tree.flatten(params)
        numbers = jax.tree.unflatten(structure, range(len(flat)))
        leaves = jax.tree.leaves(state)
        try:
            copies = optax.tree_utils.tree_map_params(
                self._init, lambda _, k: k, state, numbers, transform_non_params=lambda _: -1
            )
            pairs = list(zip(jax.tree.leaves(copies), leaves, strict=True))
            # Sums of rows, for example, are not divided as their matrix is.
            alike = [k >= 0 and jnp.shape(x) == jnp.shape(flat[k]) for k, x in pairs]
            found = [
                of_params[k] if same else () for (k, _), same in zip(pairs, alike, strict=True)
            ]
            unknown = [
                k >= 0 and bool(of_params[k]) and not x
                for (k, _), x in zip(pairs, found, strict=True)
            ]
            if inside and any(unknown):
                raise ValueError("it keeps arrays of other shapes for divided parameters")
            return tuple(found)
        except Exception as error:
            if not inside:  # XLA moves what is placed otherwise
                return ((),) * len(leaves)
            raise ValueError(
                "sharded= divides the parameters, and jdaso cannot find their copies in the inner "
                f"optimizer's state ({error}). Inside jax.shard_map it must know which leaves are "
                "divided: call update under plain jax.jit with sharded arrays instead."
            ) from error


def _shapes(tree: PyTree, shapes: Sequence[tuple[int, ...]]) -> PyTree:
    """A tree's dtypes, with these shapes."""
    flat, structure = jax.tree.flatten(tree)
    pairs = zip(shapes, flat, strict=True)
    return jax.tree.unflatten(structure, [ShapeDtype(x, jnp.result_type(y)) for x, y in pairs])


def _key(tree: PyTree) -> Any:
    """Shapes and dtypes; `init` may be given other containers (those of Flax nnx) than `update`."""
    return tuple((leaf.shape, leaf.dtype) for leaf in describe(tree))
