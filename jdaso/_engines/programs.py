"""The arithmetic of late exchanges on the host: one program a chunk, one pass over memory each.

The programs run on a CPU device of the host's own, in the thread that calls them: one of the
channel's. A callback of a step must not call them. JAX may wait there for the step itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

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
from .saved import OuterForm

_CACHE_NUMBERS = 2**16
"""Numbers of a NumPy pass whose operands stay in a core's cache."""


class Owed(NamedTuple):
    """Error feedback of a chunk: ``sent (error + residual) + kept paid``, the residual in one row.

    Attributes:
        error: what the wire lost of the numbers sent, ``[nodes, width]``.
        paid: the error feedback that they were sent with, or None.
        residual: rounding error of the part of the sum that this node formed, ``[width]``, or None
            if `error` has it.
        node: the row of that part.
        sent: the share that the merge took in from all nodes.
        kept: the share of the node's own parameters that it left in place.
    """

    error: Any
    paid: Any
    residual: Any
    node: np.int32
    sent: np.float32
    kept: np.float32


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
        self._whole = whole
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
            return self._init(self._put(tuple(anchor)))

    def encode(
        self, numbers: np.ndarray, anchor: Any, weight: Any, owed: Owed | None, *, keeps: bool
    ) -> tuple[np.ndarray, Any, Any]:
        """Numbers as they are sent: weighted differences to the common point, plus error feedback.

        Args:
            numbers: a chunk of the snapshot, ``[nodes, width]``.
            anchor: the same chunk of the common point, for a narrow wire.
            weight: of this node; None if the nodes have none.
            owed: the error feedback; None for none.
            keeps: whether the error feedback is returned too.

        Returns:
            Encoded rows, what they lost (None for the float32 wire), and the error feedback.
        """
        given = self._put(numbers), anchor, weight, owed
        rows, error, fed = _encode(*given, wire=self._wire, keeps=keeps)
        return np.asarray(rows), error, fed

    def returned(self, error: Any, rows: np.ndarray, residual: Any, node: Any, living: Any) -> Any:
        """Error feedback if a result is discarded: its mean comes back to what was lost."""
        return _returned(self._put(error), rows, residual, np.int32(node), living, wire=self._wire)

    def targets(
        self, rows: Sequence[np.ndarray], anchor: Sequence[Any], outer: PyTree, factor: np.float32
    ) -> tuple[Sequence[Any], PyTree]:
        """The target of the rule, by chunk, and the rule's new state.

        Args:
            rows: encoded sums of all nodes; float32 rows are overwritten.
            anchor: the common point; empty if there is none.
            outer: the rule's state.
            factor: scales the sums as if all nodes had sent with weight 1.
        """
        nodes = np.float32(self._layout.nodes)
        if self._wire.narrow:
            means = tuple(
                _mean(self._put(row), point, factor, nodes, wire=self._wire)
                for row, point in zip(rows, anchor, strict=True)
            )
        else:
            means = tuple(rows)
            for row in rows:
                scale(row, factor, np.float32(1) / nodes)
        if self._own_target:
            return self._target(self._put(means), self._put(tuple(anchor)), self._put(outer))
        return means, outer

    def _target_of_chunks(
        self, means: Chunks, anchor: Chunks, outer: PyTree
    ) -> tuple[Chunks, PyTree]:
        target, outer = self._rule.target(
            self._tree(means), self._tree(anchor) if anchor else (), outer
        )
        leaves = strip(target)
        return pack(self._layout, self._whole.cut(leaves) if self._whole else leaves), outer

    def _tree(self, chunks: Chunks) -> PyTree:
        leaves = unpack(self._layout, chunks)
        return self._dress(self._whole.assemble(leaves) if self._whole else leaves)

    def _put(self, tree: PyTree) -> PyTree:
        return jax.device_put(tree, self._cpu)


def encoded(numbers: np.ndarray, wire: Wire) -> tuple[np.ndarray, np.ndarray]:
    """Encoded rows of a chunk, and what they lost."""
    put = jax.device_put(numbers, private_cpu_device())
    rows, error, _ = _encode(put, None, None, None, wire=wire, keeps=False)
    return np.asarray(rows), np.asarray(error)


def decoded(rows: np.ndarray, wire: Wire) -> np.ndarray:
    """Rows back to float32."""
    return np.asarray(_decode(jax.device_put(rows, private_cpu_device()), wire=wire))


def owed_on_host(owed: Owed) -> np.ndarray:
    """Error feedback of a chunk, by NumPy: a step's callback must not wait for JAX."""
    found = np.array(owed.error)
    if owed.residual is not None:
        found[owed.node] += np.asarray(owed.residual)
    found *= owed.sent
    return found if owed.paid is None else found + owed.kept * np.asarray(owed.paid)


def subtract_from(target: Any, numbers: np.ndarray) -> None:
    """``numbers <- target - numbers``."""
    np.subtract(np.asarray(target), numbers, out=numbers)


def scale(numbers: np.ndarray, *factors: np.float32) -> None:
    """Multiplies numbers in place by each factor in turn, in one pass."""
    for part in _parts(numbers):
        for factor in factors:
            if factor != 1:
                np.multiply(part, factor, out=part)


def divide(numbers: np.ndarray, divisor: np.float32) -> None:
    """Divides numbers in place."""
    if divisor != 1:
        np.divide(numbers, divisor, out=numbers)


def is_finite(numbers: np.ndarray) -> bool:
    """Returns whether all numbers are finite."""
    return all(bool(np.isfinite(part).all()) for part in _parts(np.asarray(numbers)))


def _parts(numbers: np.ndarray) -> Iterator[np.ndarray]:
    """Parts that stay in a core's cache from one operation to the next."""
    flat = numbers.reshape(-1)
    for begin in range(0, flat.size, _CACHE_NUMBERS):
        yield flat[begin : begin + _CACHE_NUMBERS]


@partial(jax.jit, static_argnames=("wire", "keeps"))
def _encode(
    numbers: Any, anchor: Any, weight: Any, owed: Owed | None, *, wire: Wire, keeps: bool
) -> tuple[Any, Any, Any]:
    send = numbers if anchor is None else numbers - anchor
    if weight is not None:
        send = jnp.where(weight > 0, weight * send, jnp.zeros_like(send))
    fed = None if owed is None else _owed(owed)
    if fed is not None:
        send = send + fed
    elif keeps:
        fed = jnp.zeros_like(send)
    rows = wire.encode(send)
    return rows, send - wire.decode(rows) if wire.narrow else None, fed if keeps else None


@partial(jax.jit, static_argnames="wire")
def _decode(rows: Any, *, wire: Wire) -> Any:
    return wire.decode(rows)


@jax.jit
def _owed(owed: Owed) -> Any:
    error = owed.error
    if owed.residual is not None:
        error = _add_row(error, owed.node, owed.residual)
    found = owed.sent * error
    return found if owed.paid is None else found + owed.kept * owed.paid


@partial(jax.jit, static_argnames="wire")
def _returned(error: Any, rows: Any, residual: Any, node: Any, living: Any, *, wire: Wire) -> Any:
    return _add_row(error + wire.decode(rows) / living, node, residual)


def _add_row(rows: Any, node: Any, row: Any) -> Any:
    mine = jnp.arange(rows.shape[0])[:, None] == node
    return rows + jnp.where(mine, row[None], jnp.zeros_like(row)[None])


@partial(jax.jit, static_argnames="wire")
def _mean(rows: Any, anchor: Any, factor: Any, nodes: Any, *, wire: Wire) -> Any:
    """Mean of the snapshots, from the sum of differences to the common point."""
    total = nodes * anchor + factor * wire.decode(rows)
    return total * (1 / nodes)  # a step's compiler does the same with a division by a constant
