"""The last updates of a cool-down, which leave the same bits on all nodes."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from .._payload.checksums import fingerprints
from .._payload.header import header
from .._payload.trees import apply_updates
from .._types import Chunks, PyTree
from .exchange import Exchange
from .received import Received
from .updates import difference
from .within_node import mean_locally


def land_alike(
    exchange: Exchange, target: Chunks, params: PyTree, updates: PyTree, step: jax.Array
) -> Chunks:
    """`target`, but 0 in the elements that would not become the same on all nodes and devices.

    ``p + (t - p)`` rounds. Where the nodes' p differ in the last bit and t is far from p, they may
    get different t; it can happen that no update at all takes them to one point but
    ``p + (-p) = 0``, on the way of an element that changes its sign.
    """
    # Whole numbers so small that float32 sums of them are exact.
    bits = 24 - exchange.layout.nodes.bit_length()
    moved = difference(exchange.unpack(params, target), params, updates)
    landed = exchange.pack(apply_updates(params, moved))
    prints = tuple(fingerprints(chunk, bits).astype(jnp.float32) for chunk in landed)

    def total(chunks: Chunks, step: jax.Array) -> Received:
        return exchange.total(chunks, header(step=step), step)

    received = total(prints, step)
    # XLA makes a product of a division by a constant, so that a mean of equals would be inexact.
    odd = tuple(
        (received.living * x != y).astype(jnp.float32)
        for x, y in zip(prints, received.total, strict=True)
    )
    odd = mean_locally(odd, exchange.local_axis)
    # No step leads away from NaN: where a node holds it, the others go to the target.
    odd = tuple(jnp.where(jnp.isfinite(x), y, x - x) for x, y in zip(landed, odd, strict=True))
    # Never negative, which XLA does not know: all of the first sum comes before the second.
    number = sum((jnp.sum(x) for x in odd), jnp.float32(0))  # or NaN, which is not < 0
    odd = total(odd, jnp.where(number < 0, 0, step)).total
    return tuple(jnp.where(x > 0, 0.0, t) for x, t in zip(odd, target, strict=True))
