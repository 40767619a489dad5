"""Exchanges of virtual nodes: sums along an axis that ``vmap`` or ``shard_map`` binds."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp

from .._payload.wire import Wire, attach, detach, sum_rows
from .._session import Session
from .received import Reduced


def reduce_virtual(
    session: Session, wire: Wire, chunks: Sequence[jax.Array], head: jax.Array
) -> Reduced:
    """Sums encoded chunks over the axis of the virtual nodes."""
    axis = session.node_axis

    def each(x: jax.Array) -> jax.Array:
        """Tells `vmap` to hold one x a node, also where it knows all to be the same."""
        return jnp.where(jax.lax.axis_index(axis) >= 0, x, x)

    def all_to_all(rows: jax.Array) -> jax.Array:
        return jax.lax.all_to_all(each(rows), axis, split_axis=0, concat_axis=0, tiled=True)

    return _reduce(wire, chunks, head, all_to_all, lambda row: jax.lax.all_gather(each(row), axis))


def _reduce(
    wire: Wire,
    chunks: Sequence[jax.Array],
    head: jax.Array,
    all_to_all: Callable[[jax.Array], jax.Array],
    all_gather: Callable[[jax.Array], jax.Array],
) -> Reduced:
    """What `_engine._reduce` does on the host; the last chunk carries the header."""
    rows, lost, heads = [], [], head
    for k, chunk in enumerate(chunks):
        last = k == len(chunks) - 1
        received = all_to_all(attach(wire, chunk, head) if last else chunk)
        if last:
            received, heads = detach(wire, received)
        total = sum_rows(wire, received)
        encoded = wire.encode(total)
        lost.append(total - wire.decode(encoded) if wire.narrow else total[:0])
        rows.append(all_gather(encoded))
    return tuple(rows), tuple(lost), heads
