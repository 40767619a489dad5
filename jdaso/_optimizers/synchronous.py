"""The baseline: gradients of all nodes averaged at every step."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import optax

from .._exchange.exact import same_on_virtual_nodes
from .._exchange.exchange import CHUNK_BYTES
from .._exchange.order import after, after_last
from .._exchange.trace_marks import COMPUTE, any_of, mark
from .._exchange.within_node import (
    check_gradients,
    mean_gradients_locally,
    mean_locally,
    refuse_other_axes,
)
from .._jax.transformations import require_transformation
from .._jax.types import LocalAxis, PyTree
from .._payload.explicit import on_its_mesh
from .._payload.layout import describe
from .._payload.trees import zeros_like
from .._payload.wire import Wire, wire_of
from .._rules.loss import mean_of_untold
from .._session import Session
from .agree import agree_on_init
from .inner import refuse_line_search, update_with
from .placements import Placements
from .settings import check_blocking, check_on_drift, check_scalars, require_params
from .state import SynchronousState
from .synchronous_means import SynchronousMeans, SynchronousUpdate


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
        sharded: a `PartitionSpec` for each parameter, as a tree like them or a prefix of one, if
            they are divided over the node's devices. Needed inside ``shard_map``, and where
            ``init`` is called inside ``jit`` on a mesh with Auto axes; otherwise ``init`` finds it.
            A shard is averaged with the same shard of the other nodes; none is ever gathered.
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
        ``blocking="parameters"`` only as ``mean_loss=``, from the previous update). ``weight=`` (a
        scalar, at least 0; 1 by default) is this node's weight in the means, such as the number of
        its samples.

    Raises:
        TypeError: `inner` is not an optax transformation.
        ValueError: a setting is out of range; or, with several nodes, `inner` holds a line search.

    On failure: an error on one node raises `NodeError` on all nodes.

    Example:
        >>> import jdaso, optax
        >>> session = jdaso.Session()
        >>> tx = jdaso.synchronous(optax.sgd(0.1), session=session)
        >>> session.close()
    """
    require_transformation(inner, "jdaso.synchronous: inner")
    check_blocking(blocking)
    check_on_drift(on_drift)
    if wire_of(wire).narrow and blocking == "parameters":
        raise ValueError(
            f'wire={wire!r} rounds, and parameters are never rounded: use blocking="gradients", or '
            'wire="float32".'
        )
    update_inner = update_with(inner)
    number, several = session.optimizers.number(), session.num_nodes > 1
    placements = Placements(session, inner.init, sharded, local_axis)
    about = local_axis, on_drift, chunk_bytes, name
    means = SynchronousMeans(session, number, placements, wire_of(wire), *about)

    def init(params: PyTree) -> SynchronousState:
        session.require_usable()
        what = f"synchronous, number {number}, {wire}, {blocking}, {name}"
        settings = {"chunk_bytes": chunk_bytes, "on_drift": on_drift}
        facts = [("the optimizer", what)]
        facts += [(f"the setting {key}", str(value)) for key, value in settings.items()]
        inner_state = inner.init(params)
        placements.note(params, inner_state)
        placed, refused = placements.facts(params, inner_state)
        if several:
            refuse_line_search(inner_state, "jdaso.synchronous")
        agree_on_init(session, params, inner_state, facts, about_inner=placed)
        if refused is not None:
            raise refused
        session.optimizers.register(number, lambda: facts)
        error = zeros_like(params) if means.wire.narrow and several else ()
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
        check_scalars("synchronous", value=value, weight=weight)
        session.require_usable()
        if session.sends:
            where = "jdaso.synchronous(...).update"
            refuse_other_axes(local_axis, where, sharded=placements.axes)
        if several:
            describe(params)  # raises if a leaf is not an array
        averages = several and blocking == "gradients"
        check_gradients(updates, params, "jdaso.synchronous", local_axis, between_nodes=averages)
        if several:
            refuse_line_search(state.inner, "jdaso.synchronous")
        if weight is not None:  # about 1, in any unit: a narrow wire's range is limited
            weight = jnp.asarray(weight, jnp.float32) / state.weight
        step = after_last(session, same_on_virtual_nodes(session, state.step))
        state = state._replace(step=step)
        updates = mean_gradients_locally(updates, local_axis)
        loss = mean_locally(value, placements.axes_of_losses or None)
        u = SynchronousUpdate(params, updates, state, loss, weight)
        if averages:
            u = means.of_gradients(u)
        given = {}
        if u.value is not None:
            loss = mean_of_untold(u.state.losses) if several else u.value
            given = {"value": u.value, "mean_loss": loss}
        updates, new = update_inner(u.updates, state.inner, params, given, **extra)
        u = u._replace(updates=updates)
        if several and not averages:
            u, new = means.of_parameters(u, new)
        step = after(mark(session, COMPUTE, state.step, any_of(u.updates)), state.step + 1)
        return u.updates, u.state._replace(step=step, inner=new)

    # optax's protocol names its own aliases of Any for states.
    if not several:
        return optax.GradientTransformationExtraArgs(init, update)  # pyright: ignore
    return optax.GradientTransformationExtraArgs(on_its_mesh(init), on_its_mesh(update))  # pyright: ignore
