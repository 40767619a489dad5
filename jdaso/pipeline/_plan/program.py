"""A traced loss: one flat list of equations."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
from jax.ad_checkpoint import checkpoint_name
from jax.extend.core import JaxprEqn, Var

from ..._jax.types import PyTree
from .equations import Atom

_MARK = "jdaso.pipeline.boundary"


def boundary(tree: PyTree) -> PyTree:
    """Marks a place where a model may be cut: between the arrays made before and after it.

    ``boundary(x) = x``; a stage ends with the last array of the tree to be made. With as many marks
    as cuts, the cuts are the marks; with more marks, the best of them; with fewer, all of them and
    further places. Outside a pipeline `boundary` does nothing.

    Args:
        tree: arrays that the rest of the model continues with.

    Returns:
        The tree, unchanged.

    Example:
        >>> import jax.numpy as jnp
        >>> from jdaso import pipeline
        >>> h = pipeline.boundary(jnp.ones(3))
    """
    return jax.tree.map(lambda x: checkpoint_name(x, _MARK), tree)


def is_mark(eqn: JaxprEqn) -> bool:
    """Returns whether an equation comes from `boundary`."""
    return eqn.primitive.name == "name" and eqn.params["name"] == _MARK


@dataclasses.dataclass(frozen=True)
class RowRange:
    """Rows [begin, end) of the leading axis of a parameter's leaf; all rows if `end` is None."""

    leaf: int
    begin: int = 0
    end: int | None = None


@dataclasses.dataclass(frozen=True)
class Program:
    """The loss of one micro-batch: equations in an order in which they can be computed.

    Attributes:
        eqns: the equations that the results need; calls are replaced by their equations, and scans
            over layers by their iterations.
        params: variables of the parameters' leaves.
        state: variables of the model's state.
        batch: variables of the batch's leaves.
        rows: variables that stand for rows of a parameter that no equation uses whole.
        consts: arrays that the loss closes over.
        outs: its results: the loss, the new state, then the leaves of its auxiliary output.
        scans: maps an equation that is one iteration of a scan to (scan, iteration).
    """

    eqns: tuple[JaxprEqn, ...]
    params: tuple[Var, ...]
    state: tuple[Var, ...]
    batch: tuple[Var, ...]
    rows: dict[Var, RowRange]
    consts: dict[Var, Any]
    outs: tuple[Atom, ...]
    scans: dict[int, tuple[int, int]]
