"""The parts of the parameters that each rank of a pipeline holds."""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.dtypes import canonicalize_dtype

from ..._jax.types import PyTree
from ..._payload.layout import describe
from .program import RowRange
from .stage import Stage


@dataclasses.dataclass(frozen=True)
class Unit:
    """Rows of a leaf that the same stages use: the smallest part that a rank holds.

    Attributes:
        leaf: the number of the leaf.
        begin: its first row.
        end: the row after its last.
        users: the stages that use the unit, in ascending order. The rank of the first one holds the
            unit and sends it to the others at every step.
    """

    leaf: int
    begin: int
    end: int
    users: tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class Holding:
    """The units of all parameters, and the ranks that hold them.

    A rank's own tree of parameters has the structure of the whole one, but each leaf has only the
    rows that the rank holds. Scalar leaves become arrays of length 1 there.

    Attributes:
        tree: structure of the parameters.
        scalars: numbers of the leaves without axes.
        shapes: shapes of the whole leaves.
        dtypes: dtypes of the leaves on devices: float32 for NumPy's float64 unless JAX has 64 bits.
        units: all units, by leaf and row.
        ranks: number of ranks; stage s belongs to rank ``s % ranks``.
    """

    tree: Any
    scalars: tuple[int, ...]
    shapes: tuple[tuple[int, ...], ...]
    dtypes: tuple[Any, ...]
    units: tuple[Unit, ...]
    ranks: int

    @classmethod
    def of(cls, params: PyTree, stages: Sequence[Stage], ranks: int) -> Holding:
        """Finds the units that stages use; rows that no stage uses belong to the first stage."""
        leaves, tree = jax.tree.flatten(params)
        users: dict[int, dict[tuple[int, int], set[int]]] = defaultdict(lambda: defaultdict(set))
        for stage in stages:
            for piece in stage.pieces.values():
                end = _rows(leaves[piece.leaf].shape) if piece.end is None else piece.end
                users[piece.leaf][piece.begin, end].add(stage.number)
        units: list[Unit] = []
        for leaf, array in enumerate(leaves):
            edges = {0, _rows(array.shape)}.union(*users[leaf])
            found: list[Unit] = []
            for begin, end in _pairs(sorted(edges)):
                spans = users[leaf].items()
                here = {s for (first, last), of in spans if first <= begin < last for s in of}
                unit = Unit(leaf, begin, end, tuple(sorted(here)) or (0,))
                if found and found[-1].users == unit.users:
                    unit = dataclasses.replace(unit, begin=found.pop().begin)
                found.append(unit)
            everyone = {s for of in users[leaf].values() for s in of}
            units += found or [Unit(leaf, 0, 0, tuple(sorted(everyone)) or (0,))]  # no rows
        scalars = tuple(k for k, leaf in enumerate(leaves) if not leaf.shape)
        shapes = tuple(tuple(leaf.shape) or (1,) for leaf in leaves)
        dtypes = tuple(np.dtype(canonicalize_dtype(leaf.dtype)) for leaf in leaves)
        return cls(tree, scalars, shapes, dtypes, tuple(units), ranks)

    @cached_property
    def _of_leaf(self) -> list[list[int]]:
        """The numbers of each leaf's units, in the order of their rows."""
        found: list[list[int]] = [[] for _ in self.shapes]
        for k, unit in enumerate(self.units):
            found[unit.leaf].append(k)
        return found

    @cached_property
    def _of_rank(self) -> list[tuple[list[int], list[int]]]:
        """The numbers of the units that each rank holds, and of those it holds or uses."""
        found: list[tuple[list[int], list[int]]] = [([], []) for _ in range(self.ranks)]
        for k, unit in enumerate(self.units):
            found[self.owner(unit)][0].append(k)
            for rank in (self.owner(unit), *self.borrowers(unit)):
                found[rank][1].append(k)
        return found

    def owner(self, unit: Unit) -> int:
        """Returns the rank that holds a unit."""
        return unit.users[0] % self.ranks

    def spans(self, piece: RowRange, available: Collection[int]) -> list[tuple[int, slice, slice]]:
        """Returns the units that a piece consists of, in the order of its rows.

        Args:
            piece: rows of a leaf.
            available: numbers of the units to choose from.

        Returns:
            For each unit its number, the unit's rows that the piece has, and the piece's rows
            that the unit has.
        """
        found = []
        for k in self._of_leaf[piece.leaf]:
            unit = self.units[k]
            last = self.shapes[piece.leaf][0] if piece.end is None else piece.end
            begin, end = max(unit.begin, piece.begin), min(unit.end, last)
            if k in available and (begin < end or unit.begin == unit.end):
                inside = slice(begin - unit.begin, end - unit.begin)
                found.append((k, inside, slice(begin - piece.begin, end - piece.begin)))
        return found

    def whole(self, units: Mapping[int, Any]) -> PyTree:
        """Joins all units to the whole tree, as NumPy arrays."""
        leaves = []
        for leaf in range(len(self.shapes)):
            mine = [units[k] for k in self._of_leaf[leaf]]
            array = mine[0] if len(mine) == 1 else np.concatenate(mine)
            leaves.append(array.reshape(()) if leaf in self.scalars else array)
        return jax.tree.unflatten(self.tree, leaves)

    def stage_of_row(self, leaf: int, row: int) -> int:
        """Returns the first stage that uses a row of a leaf."""
        units = (self.units[k] for k in self._of_leaf[leaf])
        return next((u.users[0] for u in units if u.begin <= row < u.end), 0)

    def lent_to(self, stages: Sequence[Stage]) -> Holding:
        """Returns the same units, held by the same ranks, but used by other stages."""
        units = []
        for unit in self.units:
            users = {
                stage.number
                for stage in stages
                for piece in stage.pieces.values()
                if piece.leaf == unit.leaf
                and (piece.begin < unit.end or unit.begin == unit.end)
                and (piece.end is None or unit.begin < piece.end)
            }
            first = unit.users[0]
            units.append(dataclasses.replace(unit, users=(first, *sorted(users - {first}))))
        return dataclasses.replace(self, units=tuple(units))

    def owners(self, leaf: int) -> list[int]:
        """Returns the ranks that hold rows of a leaf."""
        return sorted({self.owner(self.units[k]) for k in self._of_leaf[leaf]})

    def rows_held(self, leaf: int, rank: int) -> int:
        """Returns the number of rows of a leaf that a rank holds."""
        units = (self.units[k] for k in self._of_leaf[leaf])
        return sum(unit.end - unit.begin for unit in units if self.owner(unit) == rank)

    def borrowers(self, unit: Unit) -> list[int]:
        """Returns the ranks that use a unit but do not hold it."""
        return sorted({stage % self.ranks for stage in unit.users} - {self.owner(unit)})

    def used_by(self, rank: int) -> list[int]:
        """Returns the numbers of the units that a rank's stages use, or that the rank holds."""
        return self._of_rank[rank][1]

    def owned_by(self, rank: int) -> list[int]:
        """Returns the numbers of the units that a rank holds."""
        return self._of_rank[rank][0]

    def unit_shape(self, unit: Unit) -> tuple[int, ...]:
        """Returns the shape of a unit's array."""
        return (unit.end - unit.begin, *self.shapes[unit.leaf][1:])

    def take(self, leaves: Sequence[Any], unit: Unit) -> Any:
        """Cuts a unit's rows out of the whole leaves."""
        return leaves[unit.leaf].reshape(self.shapes[unit.leaf])[unit.begin : unit.end]

    def own(self, leaves: Sequence[Any], rank: int) -> PyTree:
        """Makes a rank's own tree from the whole leaves."""
        units = {k: self.take(leaves, self.units[k]) for k in self.owned_by(rank)}
        return self.join(units, rank, np)

    def whole_structs(self) -> PyTree:
        """Returns the shapes and dtypes of the whole tree."""
        leaves = [
            jax.ShapeDtypeStruct(() if k in self.scalars else shape, dtype)
            for k, (shape, dtype) in enumerate(zip(self.shapes, self.dtypes, strict=True))
        ]
        return jax.tree.unflatten(self.tree, leaves)

    def own_structs(self, rank: int) -> PyTree:
        """Returns the shapes and dtypes of a rank's own tree."""
        leaves = [
            jax.ShapeDtypeStruct((self.rows_held(leaf, rank), *shape[1:]), self.dtypes[leaf])
            for leaf, shape in enumerate(self.shapes)
        ]
        return jax.tree.unflatten(self.tree, leaves)

    def unlike(self, tree: PyTree, rank: int) -> str:
        """Returns what distinguishes a tree from a rank's own; "" if nothing does."""
        own = self.own_structs(rank)
        if jax.tree.structure(tree) != self.tree:
            return (
                f"The tree is {jax.tree.structure(tree)}, and that of the parameters {self.tree}."
            )
        for want, leaf in zip(describe(own), jax.tree.leaves(tree), strict=True):
            found = f"{jnp.result_type(leaf)}{list(jnp.shape(leaf))}"
            if 0 not in want.shape and found != f"{want.dtype}{list(want.shape)}":
                return (
                    f"Leaf {want.path} is {found} on partition {rank}, and the parameter "
                    f"{want.dtype}{list(want.shape)}. Convert the tree to the parameters' dtypes."
                )
        return ""

    def join(self, units: Mapping[int, Any], rank: int, xp: Any) -> PyTree:
        """Makes a rank's own tree from the units it holds; `xp` is NumPy or jax.numpy."""
        out = []
        for leaf, shape in enumerate(self.shapes):
            mine = [k for k in self._of_leaf[leaf] if self.owner(self.units[k]) == rank]
            if not mine:
                out.append(np.zeros((0, *shape[1:]), self.dtypes[leaf]))
            elif len(mine) == 1:
                out.append(xp.asarray(units[mine[0]]))
            else:
                out.append(xp.concatenate([units[k] for k in mine]))
        return jax.tree.unflatten(self.tree, out)

    def split(self, tree: PyTree, rank: int) -> dict[int, Any]:
        """Cuts a rank's own tree into the units it holds."""
        leaves, units, at = jax.tree.leaves(tree), {}, defaultdict(int)
        for k in self.owned_by(rank):
            unit = self.units[k]
            leaf, begin = leaves[unit.leaf], at[unit.leaf]
            whole = unit.end - unit.begin == leaf.shape[0]
            at[unit.leaf] += unit.end - unit.begin
            units[k] = leaf if whole else leaf[begin : begin + unit.end - unit.begin]
        return units


def _rows(shape: Sequence[int]) -> int:
    return shape[0] if len(shape) else 1


def _pairs(edges: Sequence[int]) -> list[tuple[int, int]]:
    return list(zip(edges, edges[1:], strict=False))
