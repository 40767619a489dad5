"""What a loss is once it is traced: one flat list of equations."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
from jax.ad_checkpoint import checkpoint_name
from jax.extend.core import JaxprEqn, Var

from ..._types import PyTree
from .equations import Atom

_MARK = "jdaso.pipeline.boundary"


def boundary(tree: PyTree) -> PyTree:
    """Marks a place in a model where it may be cut: between what was made before and after it.

    ``boundary(x) = x``; the last array of the tree to be made ends a stage. With as many marks as
    cuts these are the cuts; with more, the best of them; with fewer, all of them and others.
    Outside of a pipeline it does nothing.

    Args:
        tree: arrays that the rest of the model goes on with.

    Returns:
        The same.

    Example:
        >>> import jax.numpy as jnp
        >>> from jdaso import pipeline
        >>> h = pipeline.boundary(jnp.ones(3))
    """
    return jax.tree.map(lambda x: checkpoint_name(x, _MARK), tree)


def is_mark(eqn: JaxprEqn) -> bool:
    """Whether an equation comes from `boundary`."""
    return eqn.primitive.name == "name" and eqn.params["name"] == _MARK


@dataclasses.dataclass(frozen=True)
class Rows:
    """Rows [begin, end) of the leading axis of a parameter's leaf; all of it where end is None."""

    leaf: int
    begin: int = 0
    end: int | None = None


@dataclasses.dataclass(frozen=True)
class Program:
    """The loss of one micro-batch: equations in an order in which they can be computed.

    Attributes:
        eqns: the equations that its results need; calls are entered, and scans over layers are
            taken apart into their iterations.
        params: the variables of the parameters' leaves.
        state: those of the model's state.
        batch: those of the batch's leaves.
        rows: variables that stand for rows of a parameter that nothing uses whole.
        consts: arrays that the loss closes over.
        outs: what it gives: the loss, the new state, then the leaves of its auxiliary output.
        scans: of an equation that is one iteration of a scan: which scan, and which iteration.
    """

    eqns: tuple[JaxprEqn, ...]
    params: tuple[Var, ...]
    state: tuple[Var, ...]
    batch: tuple[Var, ...]
    rows: dict[Var, Rows]
    consts: dict[Var, Any]
    outs: tuple[Atom, ...]
    scans: dict[int, tuple[int, int]]
