"""Exchanges of virtual nodes: sums along an axis that ``vmap`` or ``shard_map`` binds.

An exchange in flight is carried in the optimizer's state.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from .._jax.types import Chunks, Leaves, PyTree, ShapeDtype
from .._payload.checksums import checksum
from .._payload.chunks import pack, unpack
from .._payload.layout import Division
from .._payload.trees import to_numbers
from .._payload.wire import Wire, attach, detach, sum_rows
from .._session import Session
from .exchange import Exchange
from .received import Received, Reduced
from .replicated import Common


class VirtualExchange(Exchange):
    """Exchanges of one tree between virtual nodes; see `Exchange`."""

    @property
    def node(self) -> jax.Array:
        """This node's number, traced."""
        return jax.lax.axis_index(Session.node_axis)

    def ask_node(self) -> jax.Array:
        """See `node`."""
        return self.node

    def checksum(self, tree: PyTree, divisions: Sequence[Division] = ()) -> jax.Array:
        """See `Exchange.checksum`; virtual nodes have one device."""
        del divisions
        return checksum(to_numbers(tree))

    def total(
        self, leaves: Leaves, head: jax.Array, step: jax.Array, common: Common | None = None
    ) -> Received:
        """See `Exchange.total`."""
        del step
        layout, wire, chunks = self.layout, self.wire, pack(self.layout, leaves)
        encoded = [wire.encode(chunk) for chunk in chunks]
        total, residual, heads = self.checked(reduce_virtual(wire, encoded, head), common)
        lost = ()
        if wire.narrow:
            sent = unpack(layout, tuple(wire.decode(chunk) for chunk in encoded))
            pairs = zip(leaves, sent, residual, strict=True)
            lost = tuple(x - y + z for x, y, z in pairs)
        return Received(total, lost, heads)

    def checked(self, reduced: Reduced, common: Common | None) -> tuple[Leaves, Leaves, jax.Array]:
        """The sums by leaf, the rounding errors of this node's part, and the checked headers."""
        rows, lost, heads = reduced
        checked = self.report(heads, common)
        rows = _after(jnp.max(checked - heads), rows)
        total = unpack(self.layout, tuple(self.wire.decode(row) for row in rows))
        if not self.wire.narrow:
            return total, (), checked
        mine = jnp.arange(self.layout.nodes)[:, None] == self.node
        parts = tuple(jnp.where(mine, part, jnp.zeros_like(part)) for part in lost)
        return total, unpack(self.layout, parts), checked

    def _raise_if(
        self, wrong: jax.Array, heads: jax.Array, common: Common | None, report: Callable[..., Any]
    ) -> jax.Array:
        # The headers are the same on all virtual nodes; pmax lets vmap keep `cond`.
        # vmap allows no effects there, so the callback is pure. The use of its result keeps it, and
        # XLA may call a pure callback even where the branch is not taken.
        wrong = jax.lax.pmax(wrong.astype(jnp.int32), Session.node_axis) > 0
        heads = jax.lax.pmax(heads, Session.node_axis)
        callback = partial(jax.pure_callback, vmap_method="sequential")

        def call() -> jax.Array:
            prints = jnp.zeros(0, jnp.int32)
            if common is not None:
                prints = common.prints(self.node, self.local_axis)
            prints = jax.lax.all_gather(prints, Session.node_axis)
            return callback(report, ShapeDtype((), jnp.int32), heads, prints)

        return heads + jax.lax.cond(wrong, call, lambda: jnp.int32(0))


def reduce_virtual(wire: Wire, chunks: Sequence[jax.Array], head: jax.Array) -> Reduced:
    """Sums encoded chunks over the axis of the virtual nodes; the last chunk carries the header."""
    axis = Session.node_axis

    def each(x: jax.Array) -> jax.Array:
        """Keeps one x per node under `vmap`, even if all are equal."""
        return jnp.where(jax.lax.axis_index(axis) >= 0, x, x)

    rows, lost, heads = [], [], head
    for k, chunk in enumerate(chunks):
        last = k == len(chunks) - 1
        sent = each(attach(wire, chunk, head) if last else chunk)
        received = jax.lax.all_to_all(sent, axis, split_axis=0, concat_axis=0, tiled=True)
        if last:
            received, heads = detach(wire, received)
        total = sum_rows(wire, received)
        encoded = wire.encode(total)
        lost.append(total - wire.decode(encoded) if wire.narrow else total[:0])
        rows.append(jax.lax.all_gather(each(encoded), axis))
    return tuple(rows), tuple(lost), heads


def _after(zero: jax.Array, rows: Chunks) -> Chunks:
    """Makes `rows` depend on `zero`: if they are used, `zero` is kept and computed first."""
    last = rows[-1]
    first = jnp.where(zero == 0, last[0, 0], jnp.zeros((), last.dtype))
    return (*rows[:-1], last.at[0, 0].set(first))
