"""Late cool-down updates, which leave identical bits on all nodes."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from .._jax.types import Leaves, PyTree
from .._payload.checksums import fingerprints
from .._payload.header import header
from .._payload.trees import apply_updates, from_leaves, to_leaves, travels
from .exchange import Exchange
from .host import HostExchange
from .order import token_of
from .received import Received
from .updates import difference, exchanged
from .within_node import mean_locally


def land_alike(
    exchange: Exchange, target: Leaves, params: PyTree, updates: PyTree, step: jax.Array
) -> tuple[Leaves, jax.Array]:
    """`target`, with 0 where nodes or devices would otherwise differ; a token for `order.after`.

    ``p + (t - p)`` rounds. If the nodes' p differ in the last bit and t is far from p, they may
    arrive at different t. Sometimes no update takes all nodes to one point except
    ``p + (-p) = 0``, which an element that changes its sign passes anyway.
    """
    of_copies = exchange.local_axis is not None and exchange.placement is None
    if isinstance(exchange, HostExchange) and not of_copies:
        return _on_host(exchange, target, params, updates, step)
    moved = difference(from_leaves(params, target), params, updates)
    landed = to_leaves(apply_updates(params, moved))
    # Few enough bits that float32 sums of these integers are exact.
    bits = 24 - exchange.layout.nodes.bit_length()
    prints = tuple(fingerprints(leaf, bits).astype(jnp.float32) for leaf in landed)

    def total(leaves: Leaves, step: jax.Array) -> Received:
        return exchange.total(leaves, header(step=step), step)

    received = total(prints, step)
    # Compares sums: XLA turns division by a constant into a product, so means would be inexact.
    odd = tuple(
        (received.living * x != y).astype(jnp.float32)
        for x, y in zip(prints, received.total, strict=True)
    )
    odd = mean_locally(odd, exchange.local_axis)
    # Adding cannot remove a NaN: if one node holds it, the others still go to the target.
    odd = tuple(jnp.where(jnp.isfinite(x), y, x - x) for x, y in zip(landed, odd, strict=True))
    # `number` is never negative. XLA cannot know, so it runs the whole first sum before the next.
    number = sum((jnp.sum(x) for x in odd), jnp.float32(0))  # or NaN, which is not < 0
    found = total(odd, jnp.where(number < 0, 0, step))
    landed = (jnp.where(x > 0, 0.0, t) for x, t in zip(found.total, target, strict=True))
    return tuple(landed), token_of(found.heads)


def _on_host(
    exchange: HostExchange, target: Leaves, params: PyTree, updates: PyTree, step: jax.Array
) -> tuple[Leaves, jax.Array]:
    """Like `land_alike`, computed by the host: XLA takes some 15 ms for each leaf."""
    own = tuple(x for x in jax.tree.leaves(params) if travels(x))
    dtypes = [None if x is None else jnp.result_type(x) for _, x in exchanged(params, updates)]
    found = exchange.land(target, own, dtypes, header(step=step), step)
    return found.total, token_of(found.heads)
