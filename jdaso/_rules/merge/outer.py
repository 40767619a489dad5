"""Merge ``jdaso.outer(optimizer)``: an optimizer step between the nodes, as in DiLoCo."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import jax
import jax.numpy as jnp
import optax

from ..._jax.transformations import require_transformation
from ..._jax.types import PyTree
from .base import Merge

_TRIAL_STEPS = 200


@dataclasses.dataclass(frozen=True)
class Outer(Merge):
    """``t' = t + update(t - mean_p s_p)``, ``x' = x + (t' - s)``; see `outer`.

    Attributes:
        optimizer: the outer optimizer.
    """

    optimizer: optax.GradientTransformation

    name = "outer"
    keeps_progress = needs_anchor = True

    def init(self, params: PyTree) -> PyTree:
        """The outer optimizer's state."""
        return self.optimizer.init(params)

    def target(self, mean: PyTree, anchor: PyTree, outer: PyTree) -> tuple[PyTree, PyTree]:
        """See `Merge.target`."""
        slope = jax.tree.map(jnp.subtract, anchor, mean)
        updates, outer = self.optimizer.update(slope, outer, anchor)
        return jax.tree.map(jnp.add, anchor, updates), outer

    def gain(self) -> float | None:
        """The distance that the optimizer finally moves per step for each unit of a constant slope.

        ``lr / (1 - momentum)`` for SGD: 1 follows the nodes' mean, more runs ahead of it. None if
        the distance is not proportional to the slope, as with Adam.
        """

        def distance(slope: Any) -> Any:
            def step(state: PyTree, _: None) -> tuple[PyTree, Any]:
                update, state = self.optimizer.update(slope, state, jnp.zeros_like(slope))
                return state, -jnp.sum(jnp.asarray(update))

            return jax.lax.scan(step, self.optimizer.init(slope), length=_TRIAL_STEPS)[1][-1]

        slopes = jnp.asarray([[1.0], [2.0]], jnp.float32)
        with jax.ensure_compile_time_eval():
            once, twice = (float(x) for x in jax.vmap(distance)(slopes))
        return once if math.isclose(2 * once, twice, rel_tol=1e-3) else None


def outer(transformation: optax.GradientTransformation) -> Outer:
    """A merge rule that takes an optimizer step between the nodes, as DiLoCo does.

    All nodes hold a common anchor ``t``, the parameters before the first cycling update. The mean
    of the snapshots gives a pseudo-gradient that is the same on all nodes, ``g = t - mean_p s_p``;
    the outer optimizer steps, ``t' = t + update(g)``; each node follows and keeps the progress it
    made meanwhile, ``x' = x + (t' - s)``. With ``optax.sgd(1.0)`` this is ``"corrected"``.

    Args:
        transformation: the outer optimizer, called on the host, with float32 leaves, while the step
            runs. Each fragment has its own call, with that fragment's leaves: a norm over the tree
            is one over the fragment. ``Phases(fragments=1)`` gives it all leaves at once.

    Raises:
        TypeError: `transformation` is not an optax transformation.

    Example:
        >>> import jdaso, optax
        >>> nesterov = optax.sgd(0.7, momentum=0.9, nesterov=True)
        >>> rule = jdaso.outer(nesterov)

    Reference: DiLoCo, arXiv 2311.08105, algorithm 1; delayed as in arXiv 2501.18512. (The slopes
    ``s_p - mean_p s_p`` would add up to zero over the nodes, which would lose the momentum of the
    common motion on which DiLoCo depends.)
    """
    require_transformation(transformation, "jdaso.outer: the outer optimizer")
    return Outer(transformation)
