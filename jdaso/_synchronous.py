"""The baseline: gradients of all nodes averaged at every step."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Int

from ._agreement import agree_on_init
from ._blocking import (
    blocking_header,
    check_blocking,
    difference,
    exact_mean,
    mean_value,
    require_params,
    rounded,
    same_on_virtual_nodes,
    sum_at_first,
)
from ._exchange import CHUNK_BYTES, Exchange
from ._local import mean_gradients_locally, mean_locally
from ._packing import dress, pack, strip, unpack, zeros_like
from ._session import Session
from ._types import PyTree
from ._wire import wire_of


class SynchronousState(NamedTuple):
    """State of `synchronous`."""

    step: Int[Array, ""]  # completed updates; the same on all nodes
    inner: optax.OptState  # the same on all nodes
    # What a narrow wire has yet to deliver, like the parameters, in float32; differs between nodes.
    error: PyTree


def synchronous(
    inner: optax.GradientTransformation,
    *,
    session: Session,
    local_axis: str | None = None,
    wire: str = "float32",
    blocking: str = "gradients",
    chunk_bytes: int = CHUNK_BYTES,
    name: str = "synchronous",
) -> optax.GradientTransformationExtraArgs:
    """Averages gradients over all devices of all nodes, then applies `inner`; waits every step.

    ``g <- mean_p g_p``, then ``inner``: what one process would do with the nodes' batches joined.
    A narrow wire sends ``g + e`` rounded, and carries the remainder e to the next step.

    Args:
        inner: any optax transformation.
        session: the nodes.
        local_axis: the axis of the node's devices if ``update`` is called inside ``shard_map`` or
            ``pmap`` over them; None under plain ``jit``.
        wire: ``"float32"``, ``"bfloat16"``, ``"float16"`` or ``"int8"``.
        blocking: ``"gradients"``, or ``"parameters"`` to average parameters and the inner state
            after `inner` instead (equal for SGD, not for Adam; float32 only).
        chunk_bytes: most float32 bytes that travel at once.
        name: tells optimizers of equal shapes that share a session apart.

    Returns:
        A transformation whose ``update`` needs ``params`` and takes the local loss as ``value=``;
        `inner` gets the loss averaged over the nodes.

    Raises:
        ValueError: a setting is out of its range.

    On failure: what another node does wrong raises `NodeError` on all nodes.

    Example:
        >>> import jdaso, optax
        >>> session = jdaso.Session()
        >>> tx = jdaso.synchronous(optax.sgd(0.1), session=session)
        >>> session.close()
    """
    check_blocking(blocking)
    if wire_of(wire).narrow and blocking == "parameters":
        raise ValueError(
            f'wire={wire!r} rounds, and weights are never rounded: use blocking="gradients", or '
            'wire="float32".'
        )
    inner = optax.with_extra_args_support(inner)
    number = session.number_optimizer()

    def init(params: PyTree) -> SynchronousState:
        session.require_usable()
        what = f"synchronous, number {number}, {wire}, {blocking}, {name}"
        facts = [("the optimizer", what), ("the setting chunk_bytes", str(chunk_bytes))]
        inner_state = inner.init(params)
        agree_on_init(session, params, inner_state, facts)
        narrow = wire_of(wire).narrow and session.num_nodes > 1
        error = zeros_like(params) if narrow else ()
        return SynchronousState(jnp.zeros((), jnp.int32), inner_state, error)

    def update(
        updates: PyTree,
        state: SynchronousState,
        params: PyTree | None = None,
        *,
        value: Any = None,
        **extra: Any,
    ) -> tuple[PyTree, SynchronousState]:
        params = require_params(params, "synchronous")
        session.require_usable()
        updates = mean_gradients_locally(updates, local_axis)
        value = mean_locally(value, local_axis)
        step = same_on_virtual_nodes(session, state.step)
        error = state.error
        exchange = Exchange.of(
            updates,
            session,
            wire=wire,
            local_axis=local_axis,
            name=name,
            owner=number,
            chunk_bytes=chunk_bytes,
        )
        if session.num_nodes > 1 and blocking == "gradients":
            head = blocking_header(value, step, sum_at_first(params, step))
            sent = exchange.pack(updates)
            if exchange.wire.narrow:
                sent = jax.tree.map(jnp.add, sent, pack(exchange.layout, strip(error)))
            received = exchange.total(sent, head, step)
            means = tuple(total / session.num_nodes for total in received.total)
            updates = exchange.unpack(updates, means)
            if exchange.wire.narrow:
                error = jax.tree.map(jnp.subtract, sent, rounded(exchange.wire, sent))
                error = jax.tree.map(jnp.add, error, received.residual)
                error = dress(updates, unpack(exchange.layout, error))
            value = mean_value(value, received.heads)
        if value is not None:
            extra["value"] = value
        updates, inner_state = inner.update(updates, state.inner, params, **extra)
        if session.num_nodes > 1 and blocking == "parameters":
            both = (optax.apply_updates(params, updates), inner_state)  # pyright: ignore
            exact = Exchange.of(
                both,
                session,
                local_axis=local_axis,
                name=name,
                owner=number,
                chunk_bytes=chunk_bytes,
            )
            head = blocking_header(value, step, sum_at_first(params, step))
            (target, inner_state), _ = exact_mean(exact, both, head, step)
            updates = difference(target, params, updates)
        return updates, SynchronousState(step + 1, inner_state, error)

    # optax's protocol names its own aliases of Any for states.
    return optax.GradientTransformationExtraArgs(init, update)  # pyright: ignore
