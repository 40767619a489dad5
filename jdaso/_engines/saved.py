"""A version as arrays to save, leaf by leaf, so that another layout finds its numbers in them."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from functools import cached_property
from typing import Any, NamedTuple

import jax
import numpy as np
import optax

from .._jax.types import PyTree
from .._payload.whole import Whole
from .._rules.merge import Merge

COMMON = ("heads", "anchor", "outer")
"""Beginnings of the names of arrays that are the same on all nodes."""


class Saved(NamedTuple):
    """A version as named arrays; a saved run goes on with it.

    Attributes:
        by_leaf: flat arrays, one for each leaf of the layout.
        others: arrays that do not belong to leaves.
    """

    by_leaf: dict[str, list[np.ndarray]]
    others: dict[str, np.ndarray]


@dataclasses.dataclass(frozen=True)
class OuterForm:
    """The saved form of a merge rule's state: copies of the parameters by leaf, and all else.

    Attributes:
        rule: the rule.
        params: shapes of the leaves as the rule sees them.
        shapes: shapes of its state.
        whole: the leaves whose shards the layout has, if the rule sees whole leaves.
    """

    rule: Merge
    params: PyTree
    shapes: PyTree
    whole: Whole | None = None

    @cached_property
    def _flat(self) -> list[Any]:
        return jax.tree.leaves(self.shapes)

    @cached_property
    def _rows(self) -> list[list[int]]:
        """The indices of the arrays in the state, for each kind of copy, such as momentum."""
        flat, structure = jax.tree.flatten(self.params)
        sized = [k for k, x in enumerate(flat) if math.prod(x.shape)]
        if not self._flat or not sized:
            return []
        numbers = jax.tree.unflatten(structure, [*range(len(flat))])
        try:
            found = optax.tree_utils.tree_map_params(
                self.rule.init,
                lambda _, k: k,
                self.shapes,
                numbers,
                transform_non_params=lambda _: -1,
            )
        except Exception:  # an optimizer may do anything with optax's stand-in for parameters
            return []
        of_leaf: dict[int, list[int]] = {k: [] for k in sized}
        for at, (k, x) in enumerate(zip(jax.tree.leaves(found), self._flat, strict=True)):
            if k in of_leaf and x.shape == flat[k].shape:
                of_leaf[k].append(at)
        if len({len(x) for x in of_leaf.values()}) > 1:  # an optimizer that masks some leaves
            return []
        return [list(row) for row in zip(*of_leaf.values(), strict=True)]

    @cached_property
    def _others(self) -> list[int]:
        """The indices of the other arrays that have elements."""
        copies = [at for row in self._rows for at in row]
        return [k for k, x in enumerate(self._flat) if math.prod(x.shape) and k not in copies]

    @property
    def moves(self) -> bool:
        """True if another layout can use the state: all other arrays are single numbers."""
        return all(math.prod(self._flat[k].shape) == 1 for k in self._others)

    def taken(self, state: PyTree) -> tuple[dict[str, list[np.ndarray]], dict[str, np.ndarray]]:
        """The state's arrays, as `Saved` has them."""
        flat = list(map(np.asarray, jax.tree.leaves(state)))
        copies = {}
        for number, row in enumerate(self._rows):
            leaves: Sequence[Any] = [flat[at] for at in row]
            if self.whole is not None:
                leaves = self.whole.cut(leaves)
            copies[f"outer{number}"] = [x.reshape(-1) for x in leaves]
        return copies, {f"outer_{number}": flat[at] for number, at in enumerate(self._others)}

    def given(self, saved: Saved) -> PyTree | None:
        """The state; None if none was saved.

        Raises:
            ValueError: an array has another size.
        """
        if not self._flat:
            return self.shapes
        flat = [np.zeros(x.shape, x.dtype) for x in self._flat]
        if len(self._rows) + len(self._others) == 0:
            return jax.tree.unflatten(jax.tree.structure(self.shapes), flat)
        if not any(name.startswith("outer") for name in (*saved.by_leaf, *saved.others)):
            return None
        for number, row in enumerate(self._rows):
            leaves = saved.by_leaf[f"outer{number}"]
            for at, x in zip(
                row, self._leaves(leaves, [flat[at].shape for at in row]), strict=True
            ):
                flat[at][...] = x
        for number, at in enumerate(self._others):
            flat[at][...] = saved.others[f"outer_{number}"].reshape(flat[at].shape)
        return jax.tree.unflatten(jax.tree.structure(self.shapes), flat)

    def _leaves(
        self, by_leaf: Sequence[np.ndarray], shapes: Sequence[tuple[int, ...]]
    ) -> Sequence[np.ndarray]:
        """The leaves that the rule sees, from those of the layout."""
        if self.whole is not None:
            pairs = zip(by_leaf, self.whole.shards.exchanged, strict=True)
            return self.whole.put_together([_padded(x, shard.reals) for x, shard in pairs])
        return [_padded(x, shape) for x, shape in zip(by_leaf, shapes, strict=True)]


def _padded(x: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """Numbers in a shape, with zeros after them."""
    size = math.prod(shape)
    if x.size > size:
        raise ValueError(f"{x.size} numbers, expected {size}")
    return np.pad(x, (0, size - x.size)).reshape(shape)
