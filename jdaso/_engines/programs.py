"""The merge rule on the host: from sums of numbers to targets.

The rule's programs run on a CPU device of the host's own, in the thread that calls them: one of the
channel's (see `passes`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from .._jax.cpus import private_cpu_device
from .._jax.types import Chunks, Leaves, PyTree
from .._payload.chunks import pack, unpack
from .._payload.layout import Layout
from .._payload.trees import strip
from .._payload.whole import Whole
from .._payload.wire import Wire
from .._rules.merge import Merge
from . import recycled
from .passes import passes_of
from .saved import OuterForm


class Programs:
    """The programs of one layout, wire and merge rule.

    Args:
        layout: the layout.
        wire: the wire format.
        rule: the merge rule.
        dress: gives float32 leaves the structure of the parameters, as the rule sees them.
        whole: the leaves whose shards the layout has, if they are divided over devices.
    """

    def __init__(
        self,
        layout: Layout,
        wire: Wire,
        rule: Merge,
        dress: Callable[[Leaves], PyTree],
        whole: Whole | None = None,
    ):
        self._layout, self._wire, self._rule, self._dress = layout, wire, rule, dress
        self._whole, self.passes = whole, passes_of(wire)
        self._cpu = private_cpu_device()
        self._own_target = type(rule).target is not Merge.target
        self._target = jax.jit(self._target_of_chunks)
        # A program that uses none of its arguments would run on the step's device, after the step.
        self._init = jax.jit(lambda anchor: rule.init(self._tree(anchor)), keep_unused=True)
        leaves = (layout if whole is None else whole.layout).exchanged
        shapes = [jax.ShapeDtypeStruct(leaf.reals, jnp.float32) for leaf in leaves]
        self.anchor_shapes = jax.eval_shape(dress, tuple(shapes))
        self.outer_shapes = jax.eval_shape(rule.init, self.anchor_shapes)
        self.outer_form = OuterForm(rule, self.anchor_shapes, self.outer_shapes, whole)

    def outer(self, anchor: Sequence[Any]) -> PyTree:
        """The rule's state before the first exchange."""
        if not jax.tree.leaves(self.outer_shapes):
            return self.outer_shapes
        with jax.default_device(self._cpu):
            return self._init(jax.device_put(tuple(anchor), self._cpu))

    def merge(
        self,
        rows: Sequence[np.ndarray],
        anchor: Sequence[np.ndarray],
        outer: PyTree,
        factor: np.float32,
        numbers: Sequence[np.ndarray],
        *,
        returns: bool,
    ) -> tuple[Sequence[np.ndarray], PyTree]:
        """The rule's target, by chunk, and the rule's new state.

        Args:
            rows: encoded sums of all nodes; float32 rows may be overwritten.
            anchor: the common point; empty if there is none.
            outer: the rule's state.
            factor: scales the sums as if all nodes had sent with weight 1.
            numbers: the snapshot; takes the numbers that a merge needs (`Merge.merge`).
            returns: whether the target is returned.
        """
        keeps = self._rule.keeps_progress
        points = anchor if self._wire.narrow else [None] * len(rows)
        places = [None] * len(rows)
        if self._own_target:
            narrow = self._wire.narrow
            places = [recycled.empty(x.shape, np.float32) for x in numbers] if narrow else rows
        elif returns:
            places = [recycled.empty(x.shape, np.float32) for x in numbers]
        for row, point, place, x in zip(rows, points, places, numbers, strict=True):
            taken = {} if self._own_target else {"numbers": x, "subtracts": keeps}
            self.passes.mean(row, point, factor, into=place, **taken)
        if not self._own_target:
            return [place for place in places if place is not None], outer
        given = jax.device_put((tuple(places), tuple(anchor), outer), self._cpu)
        target, outer = self._target(*given)
        target = list(map(np.asarray, target))
        for chunk, x in zip(target, numbers, strict=True):
            if keeps:
                np.subtract(chunk, x, out=x)
            else:
                np.copyto(x, chunk)
        return target, outer

    def _target_of_chunks(
        self, means: Chunks, anchor: Chunks, outer: PyTree
    ) -> tuple[Chunks, PyTree]:
        target, outer = self._rule.target(
            self._tree(means), self._tree(anchor) if anchor else (), outer
        )
        leaves = tuple(x.astype(jnp.float32) for x in strip(target))
        return pack(self._layout, self._whole.cut(leaves) if self._whole else leaves), outer

    def _tree(self, chunks: Chunks) -> PyTree:
        leaves = unpack(self._layout, chunks)
        return self._dress(self._whole.assemble(leaves) if self._whole else leaves)
