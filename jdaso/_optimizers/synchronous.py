"""The baseline: gradients of all nodes averaged at every step."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Int

from .._exchange.exact import (
    About,
    blocking_header,
    common_of,
    exact_mean,
    mean_value,
    same_on_virtual_nodes,
    sum_of_bits,
)
from .._exchange.exchange import CHUNK_BYTES
from .._exchange.make import exchange_of
from .._exchange.order import after
from .._exchange.trace_marks import COMPUTE, any_of, mark
from .._exchange.updates import difference, select, weighed, widened
from .._exchange.within_node import (
    check_gradients,
    mean_gradients_locally,
    mean_locally,
    refuse_other_axes,
)
from .._jax.types import LocalAxis, PyTree
from .._payload.explicit import alike, on_its_mesh
from .._payload.header import loss_words, mean_weight, none_weighs
from .._payload.layout import describe
from .._payload.trees import (
    apply_updates,
    dress,
    from_leaves,
    is_none,
    strip,
    to_leaves,
    zeros_like,
)
from .._payload.wire import Wire, wire_of
from .._rules.loss import mean_of_untold, sum_of_losses
from .._session import Session
from .agree import agree_on_init
from .inner import refuse_line_search, update_with
from .learning_rate import select_inner
from .placements import Placements
from .settings import check_blocking, check_on_drift, require_params


class SynchronousState(NamedTuple):
    """State of `synchronous`."""

    step: Int[Array, ""]  # completed updates; the same on all nodes
    inner: optax.OptState  # the same on all nodes
    # Error feedback of a narrow wire, a float32 tree like the parameters; differs between nodes.
    error: PyTree
    weight: Float[Array, ""]  # mean over the nodes, as last received; the same on all nodes
    losses: Float[Array, 2]  # sum and weight of the last losses received; the same on all nodes


def synchronous(
    inner: optax.GradientTransformation,
    *,
    session: Session,
    local_axis: LocalAxis = None,
    sharded: PyTree = None,
    wire: str | Wire = "float32",
    blocking: str = "gradients",
    on_drift: str = "raise",
    chunk_bytes: int = CHUNK_BYTES,
    name: str = "synchronous",
) -> optax.GradientTransformationExtraArgs:
    """Averages gradients over all devices of all nodes, then applies `inner`; each step waits.

    ``g <- mean_p g_p``, then ``inner``: as one process would do with the nodes' batches joined. A
    narrow wire sends ``g + e`` rounded, and carries the rounding error e to the next step.

    Args:
        inner: any optax transformation.
        session: the nodes.
        local_axis: the axis of the node's devices that hold copies, if ``update`` is called inside
            ``shard_map`` or ``pmap`` over them, or a tuple of axes; None under plain ``jit``. With
            several nodes, an axis of several devices that nothing names is refused.
        sharded: `PartitionSpec` of each parameter, a tree like them or the beginning of one, for
            parameters that are divided over the node's devices. Needed inside ``shard_map``, and
            where ``init`` is called inside ``jit`` on a mesh with Auto axes; otherwise ``init``
            sees it. A shard meets the same shard of the other nodes; none is ever gathered.
        wire: ``"float32"``, ``"bfloat16"``, ``"int8"`` or ``"int4"``.
        blocking: ``"gradients"``, or ``"parameters"`` to average parameters and the inner state
            after `inner` instead (equal for SGD, not for Adam; float32 only). An `inner` that takes
            gradients of single examples needs ``"parameters"``.
        on_drift: reaction if nodes hold different parameters before an update: all nodes
            ``"raise"``, naming leaf and node, or ``"ignore"`` it. A checksum travels with each
            exchange.
        chunk_bytes: maximum float32 bytes sent at once.
        name: distinguishes optimizers of equal shapes that share a session.

    Returns:
        A transformation whose ``update`` needs ``params`` and takes the local loss as ``value=``;
        `inner` gets the loss averaged over the nodes as ``value=`` and as ``mean_loss=`` (with
        ``blocking="parameters"`` only as ``mean_loss=``, from the update before). ``weight=`` (a
        scalar, at least 0; 1 by default) is this node's weight in the means, such as the number of
        its samples.

    Raises:
        ValueError: a setting is out of its range; or, with several nodes, `inner` holds a line
            search.

    On failure: an error on one node raises `NodeError` on all nodes.

    Example:
        >>> import jdaso, optax
        >>> session = jdaso.Session()
        >>> tx = jdaso.synchronous(optax.sgd(0.1), session=session)
        >>> session.close()
    """
    check_blocking(blocking)
    check_on_drift(on_drift)
    if wire_of(wire).narrow and blocking == "parameters":
        raise ValueError(
            f'wire={wire!r} rounds, and parameters are never rounded: use blocking="gradients", or '
            'wire="float32".'
        )
    update_inner = update_with(inner)
    number = session.optimizers.number()
    placements = Placements(session, inner.init, sharded, local_axis)

    def init(params: PyTree) -> SynchronousState:
        session.require_usable()
        what = f"synchronous, number {number}, {wire}, {blocking}, {name}"
        settings = {"chunk_bytes": chunk_bytes, "on_drift": on_drift}
        facts = [("the optimizer", what)]
        facts += [(f"the setting {key}", str(value)) for key, value in settings.items()]
        inner_state = inner.init(params)
        placements.note(params, inner_state)
        placed, refused = placements.facts(params, inner_state)
        if session.num_nodes > 1:
            refuse_line_search(inner_state, "jdaso.synchronous")
        agree_on_init(session, params, inner_state, facts, about_inner=placed)
        if refused is not None:
            raise refused
        session.optimizers.register(number, facts)
        narrow = wire_of(wire).narrow and session.num_nodes > 1
        error = zeros_like(params) if narrow else ()
        step, weight = jnp.zeros((), jnp.int32), jnp.ones((), jnp.float32)
        return SynchronousState(step, inner_state, error, weight, jnp.zeros(2, jnp.float32))

    def update(
        updates: PyTree,
        state: SynchronousState,
        params: PyTree | None = None,
        *,
        value: Any = None,
        weight: Any = None,
        **extra: Any,
    ) -> tuple[PyTree, SynchronousState]:
        params = require_params(params, "synchronous")
        session.require_usable()
        if session.sends:
            where = "jdaso.synchronous(...).update"
            refuse_other_axes(local_axis, where, sharded=placements.axes)
        several = session.num_nodes > 1
        if several:
            describe(params)  # raises if a leaf is not an array
        averages = several and blocking == "gradients"
        check_gradients(updates, params, "jdaso.synchronous", local_axis, between_nodes=averages)
        if several:
            refuse_line_search(state.inner, "jdaso.synchronous")
        updates = mean_gradients_locally(updates, local_axis)
        value = mean_locally(value, local_axis)
        step = same_on_virtual_nodes(session, state.step)
        error, losses = state.error, state.losses
        placed = placements.of(params)
        exchange = exchange_of(
            updates,
            session,
            wire=wire,
            local_axis=local_axis,
            name=name,
            owner=number,
            chunk_bytes=chunk_bytes,
            placement=None if placed is None else placed.along(params, updates),
        )
        heard = state.weight
        if weight is not None:  # about 1, in any unit: a narrow wire's range is limited
            weight = jnp.asarray(weight, jnp.float32) / state.weight
        due = (step == 0) | (on_drift != "ignore")
        common = common_of(params, due, placed)

        def make_header() -> jax.Array:
            bits = jax.lax.cond(
                due,
                lambda: sum_of_bits(exchange, common.tree, common.divisions),
                lambda: jnp.int32(0),
            )
            return blocking_header(value, step, bits, weight)

        if several and blocking == "gradients":
            head = make_header()
            sent = weighed(weight, to_leaves(updates))
            if exchange.wire.narrow:
                mine = jax.tree.map(_of_gradient, updates, error, is_leaf=is_none)
                sent = tuple(map(jnp.add, sent, strip(mine)))
            received = exchange.total(sent, head, step, common)
            heard = heard * mean_weight(received.heads)
            totals = received.scaled(received.total)
            means = tuple(total / session.num_nodes for total in totals)
            if exchange.wire.narrow:
                lost = dress(updates, received.owed(received.lost))
                error = alike(jax.tree.map(_replaced, lost, error, is_leaf=is_none), error)
            updates = from_leaves(updates, means)
            value = mean_value(value, received.heads)
            losses = sum_of_losses(*loss_words(received.heads))
        given = {}
        if value is not None:
            given = {"value": value, "mean_loss": mean_of_untold(losses) if several else value}
        updates, inner_state = update_inner(updates, state.inner, params, given, **extra)
        if several and blocking == "parameters":
            updates = widened(updates, params)
            if weight is not None:  # a node out of data only follows the others
                still = jax.tree.map(jnp.zeros_like, updates)
                updates = select(weight > 0, updates, still)
                inner_state = select_inner(weight > 0, inner_state, state.inner)
            both = (apply_updates(params, updates), inner_state)
            exact = exchange_of(
                both,
                session,
                local_axis=local_axis,
                name=name,
                owner=number,
                chunk_bytes=chunk_bytes,
                placement=placements.of_both(params, state.inner),
            )
            head = make_header()
            (target, inner_state), received = exact_mean(
                exact, both, About(head, step, common, weight)
            )
            if weight is not None:
                none = none_weighs(received.heads)
                target, inner_state = select(none, both, (target, inner_state))
            updates = difference(target, params, updates)
            heard = heard * mean_weight(received.heads)
            losses = sum_of_losses(*loss_words(received.heads))
        step = after(mark(session, COMPUTE, step, any_of(updates)), step + 1)
        return updates, SynchronousState(step, inner_state, error, heard, losses)

    # optax's protocol names its own aliases of Any for states.
    if session.num_nodes == 1:
        return optax.GradientTransformationExtraArgs(init, update)  # pyright: ignore
    return optax.GradientTransformationExtraArgs(on_its_mesh(init), on_its_mesh(update))  # pyright: ignore


def _of_gradient(gradient: Any, error: PyTree) -> PyTree:
    """The error feedback of a gradient on a narrow wire; None if the gradient is None."""
    return None if gradient is None else error


def _replaced(new: Any, old: PyTree) -> PyTree:
    """The new error feedback; the old one if the gradient is None, so the state keeps its tree."""
    return old if new is None else new
