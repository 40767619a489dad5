"""Means that the step waits for, and how updates carry their result."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from ._exchange import Exchange, Received, checksum, loss_words
from ._packing import from_leaves, pack, to_leaves, travels, unpack
from ._session import Session
from ._types import Leaves, PyTree
from ._wire import header


def require_params(params: PyTree | None, name: str) -> PyTree:
    """The parameters, or an error that says to pass them."""
    if params is None:
        raise ValueError(
            f"jdaso.{name} needs the parameters, got params=None. "
            "Call tx.update(grads, state, params)."
        )
    return params


def check_blocking(blocking: str) -> None:
    """Raises unless it is one of the two ways to average while waiting."""
    if blocking not in ("gradients", "parameters"):
        raise ValueError(f'blocking must be "gradients" or "parameters", got {blocking!r}.')


def same_on_virtual_nodes(session: Session, tree: PyTree) -> PyTree:
    """Tells ``vmap`` that these scalars are the same on all virtual nodes, so that `cond` stays."""
    if not session.simulated or session.num_nodes == 1:
        return tree
    return jax.tree.map(lambda x: jax.lax.pmax(x, session.node_axis), tree)


def blocking_header(params: PyTree, value: Any, step: jax.Array) -> jax.Array:
    """Header of a mean that the step waits for; at step 0 with the checksum of the parameters."""
    leaves = to_leaves(params)
    first = jax.lax.cond(step == 0, lambda: checksum(leaves), lambda: jnp.int32(0))
    given = value is not None
    loss = jnp.asarray(value, jnp.float32) if given else jnp.float32(0)
    return header(loss_sum=loss, loss_count=jnp.float32(given), step=step, checksum=first)


def mean_value(value: Any, heads: jax.Array) -> Any:
    """The loss averaged over the nodes."""
    if value is None:
        return None
    sums, counts = loss_words(heads)
    return (jnp.sum(sums) / jnp.sum(counts)).astype(jnp.result_type(value))


def rounded(exchange: Exchange, leaves: Leaves) -> Leaves:
    """Leaves as the wire rounds them."""
    wire, layout = exchange.wire, exchange.layout
    return unpack(layout, tuple(wire.decode(wire.encode(c)) for c in pack(layout, leaves)))


def exact_mean(
    exchange: Exchange, tree: PyTree, head: jax.Array, step: jax.Array
) -> tuple[PyTree, Received]:
    """Float32 mean over nodes of a tree's float leaves; the others stay as they are."""
    received = exchange.total(to_leaves(tree), head, step)
    nodes = exchange.layout.nodes
    return from_leaves(tree, tuple(total / nodes for total in received.total)), received


def difference(target: Leaves, params: PyTree, updates: PyTree) -> PyTree:
    """Updates that lead from `params` to `target`; leaves that do not travel keep theirs."""
    steps = tuple(end - start for end, start in zip(target, to_leaves(params), strict=True))
    leading = from_leaves(params, steps)
    return jax.tree.map(
        lambda old, param, new: new.astype(jnp.result_type(old)) if travels(param) else old,
        updates,
        params,
        leading,
    )
