"""The compiled stages of functions that a pipeline evaluates."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ..._jax.types import PyTree
from .._plan.stages import Stages
from .follow import follow
from .given import require_common
from .grid import Grid
from .work import StageWork

_KEPT = 8
"""Functions and shapes whose programs are kept: a new lambda in each call is a new function."""


class Evaluations:
    """The stages of the last few functions and shapes of batches.

    Args:
        plan: the training plan.
        grid: the nodes.
        wire: format of activations.
    """

    def __init__(self, plan: Stages, grid: Grid, wire: str):
        self._plan, self._grid, self._wire = plan, grid, wire
        self._kept: OrderedDict[Any, StageWork] = OrderedDict()

    def of(self, function: Callable[..., Any], batch: PyTree) -> StageWork:
        """Returns the stages of a function for batches like this; all nodes call this together.

        Raises:
            NodeError: the nodes gave batches of different shapes, or ranks of a pipeline different
                samples.
        """
        session, what = self._grid.session, "evaluate a pipeline"
        leaves, tree = jax.tree.flatten(batch)
        shapes = tree, tuple((np.shape(x), str(jnp.result_type(x))) for x in leaves)
        key = function, *shapes
        session.agree(what, [("the shapes of the batch", str(shapes))])
        if key not in self._kept:
            plan = follow(self._plan, function, self._plan.holding.whole_structs(), batch)
            session.agree(what, [("the plan", plan.digest())])
            require_common(self._grid, plan.microbatches, batch)
            self._kept[key] = StageWork(plan, self._grid.partition, self._wire, train=False)
        self._kept.move_to_end(key)
        if len(self._kept) > _KEPT:
            self._kept.popitem(last=False)
        return self._kept[key]
