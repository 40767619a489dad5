"""DASO: parameters averaged between nodes every few steps, and merged late."""

from __future__ import annotations

from typing import Any

import optax

from .._exchange.exchange import CHUNK_BYTES
from .._exchange.within_node import check_gradients, refuse_other_axes, require_axis
from .._jax.transformations import require_transformation
from .._jax.types import LocalAxis, PyTree
from .._payload.explicit import on_its_mesh
from .._payload.wire import Wire, wire_of
from .._rules.merge import Merge, merge_of
from .._rules.phases import Phases
from .._session import Session
from .agree import agree_on_init
from .between import Between
from .completion import register
from .copies import Finder
from .exchanges import Exchanges
from .find_lengths import LengthsFinder
from .find_moments import MomentsFinder
from .inner import not_finite, refuse_line_search, refuse_not_finite, update_with
from .placements import Placements
from .settings import (
    check_blocking,
    check_on_drift,
    check_rule,
    check_scalars,
    check_shared,
    refuse_narrow_floats,
    require_params,
    warn_of_gain,
    warn_of_own_lengths,
    warn_of_own_moments,
)
from .shared_moments import Sharing
from .stages import UpdateStages
from .state import DasoState, init_state
from .update_lengths import SharedLengths


def daso(
    inner: optax.GradientTransformation,
    *,
    phases: Phases,
    session: Session,
    local_axis: LocalAxis = None,
    sharded: PyTree = None,
    wire: str | Wire = "float32",
    merge: str | Merge = "corrected",
    blocking: str = "gradients",
    second_moments: str = "shared",
    update_lengths: str = "shared",
    on_nonfinite: str = "raise",
    on_drift: str = "raise",
    chunk_bytes: int = CHUNK_BYTES,
    name: str = "daso",
) -> optax.GradientTransformationExtraArgs:
    """Distributed asynchronous and selective optimization.

    Gradients are averaged inside the node at every step. While cycling, every B steps a node starts
    to send its parameters (with fragments, each part in its turn: see `Phases`) to the other nodes
    and goes on computing. S steps later their average is merged at its true age a (P nodes,
    snapshots ``s_p``, current ``x``)::

        "corrected":  x <- x + (mean_p s_p - s)
        "paper":      x <- (2a x + sum_p s_p) / (2a + P)
        outer(tx):    x <- x + (t' - s),  t' = t + tx(t - mean_p s_p)

    In warm-up and cool-down the nodes average gradients and wait (exact float32 means, whatever
    the wire). The last cycling update completes the exchange in flight and ends with an exact mean
    of parameters and of the inner state. The next two updates repeat this mean, because
    ``p + (t - p)`` rounds. From the third cool-down update on all nodes hold identical bits: a few
    elements may still differ then, as they keep changing sign by more than their own size; these
    are set to 0 for that one update. With one node this is exactly `inner`.

    Put `daso` last in an ``optax.chain``: the new parameters are those that `daso` decides.

    Args:
        inner: any optax transformation. Copies of the parameters in its state, to which it pulls
            them back (master weights, schedule-free's z), move with each merge.
        phases: when the nodes exchange.
        session: the nodes.
        local_axis: the axis of the node's devices that hold copies, if ``update`` is called inside
            ``shard_map`` or ``pmap`` over them, or a tuple of axes; None under plain ``jit``. With
            several nodes, an axis of several devices that nothing names is refused.
        sharded: a `PartitionSpec` for each parameter, as a tree like them or a prefix of one, if
            they are divided over the node's devices. Needed inside ``shard_map``, and where
            ``init`` is called inside ``jit`` on a mesh with Auto axes; otherwise ``init`` finds it.
            A shard is averaged with the same shard of the other nodes; none is ever gathered.
        wire: ``"float32"``, or the narrow ``"bfloat16"``, ``"int8"`` and ``"int4"``, which send the
            difference to the last common point, with error feedback: the rounding error of one
            exchange is added to the next, and nothing is lost. ``"auto"`` takes the one with the
            shortest exchanges on the slowest link and host, measured here; all nodes must then make
            the optimizer together. Virtual nodes have no link and use float32.
        merge: ``"corrected"``, which keeps all of a node's progress meanwhile; ``"paper"``, which
            keeps ``2a / (2a + P)`` of it; or `jdaso.outer`.
        blocking: ``"gradients"``, or ``"parameters"`` to average parameters and the inner state
            after `inner` in the blocking phases, as HeAT does (equal for SGD, not for Adam). An
            `inner` that takes gradients of single examples needs ``"parameters"``.
        second_moments: ``"shared"``, or ``"own"``. The gradients of one of P nodes are noisier than
            their mean. While cycling, Adam's second moments v would be up to P times those of
            synchronous training, and its steps up to ``sqrt(P)`` times too short. ``"shared"``
            gives `inner` ``mu^2 + (v - mu^2) / P`` in place of v, where ``mu^2`` is the square of
            the mean gradient as estimated from the first moments. This sends nothing. The nodes'
            noise must be independent: with the same examples on all nodes use ``"own"``. The
            moments are found in the state of Adam and similar optimizers (records with ``mu`` and
            ``nu``: adam, adamw, nadam, lamb, amsgrad, ...). Other optimizers, and
            ``blocking="parameters"``, use their own.
        update_lengths: ``"shared"``, or ``"own"``. Muon and Lion make updates of a fixed length,
            however noisy the gradients. The mean of those of P nodes is shorter than one, up to
            ``sqrt(P)`` times, where synchronous training keeps the full length. ``"shared"``
            multiplies such updates, while cycling, by what the mean has lost: the ratio of a node's
            own progress between two merges to that of all nodes, smoothed, for each parameter. This
            sends nothing. A trial finds such updates among parameters whose records have ``mu`` and
            no ``nu``. Parameters that are divided over a node's devices, other merge rules than
            ``"corrected"``, and ``blocking="parameters"`` keep their own.
        on_nonfinite: reaction to NaN or infinity in the snapshot of any node whose weight is not 0:
            all nodes ``"raise"``, or all nodes ``"skip"`` that merge, with a warning. ``"skip"``
            leaves the node out of an exact mean. That node keeps its own numbers (optax adds, and
            adding cannot remove NaN) until `finalize` gives it the others' mean; until then all
            nodes skip each merge of the fragments concerned.
        on_drift: reaction if replicated values differ between nodes in any bit:
            parameters in warm-up, and in the cool-down from its fourth update on; the common point
            of narrow wires and outer optimizers; the phases. A checksum travels with each
            exchange. All nodes ``"raise"``, naming leaf and node, or ``"ignore"`` it.
        chunk_bytes: maximum float32 bytes sent at once.
        name: distinguishes optimizers that share a session.

    Returns:
        A transformation whose ``update`` needs ``params`` and takes the local loss as ``value=``
        (a scalar; needed by phases that follow the loss). If nodes process different numbers
        of samples, pass each node's as ``weight=`` (a scalar, at least 0; 1 by default). Every mean
        over nodes is then weighted, ``sum_p w_p x_p / sum_p w_p``; a late mean uses the mean of the
        weights since the last start. All nodes pass a weight or none does. A node of weight 0 makes
        no step of its own and follows the others. Other arguments go to `inner`. With a loss,
        `inner` also gets ``mean_loss=``: the mean over nodes of the losses received since its last
        update (NaN if none; 1e30 where ``jax_debug_nans`` refuses NaN). An `inner` that refuses
        ``value=`` or ``mean_loss=`` is called without it.

    Raises:
        TypeError: `inner` is not an optax transformation.
        ValueError: a setting is out of range, or does not fit the others; or, with several nodes,
            `inner` holds a line search, undoes merges through state that cannot be moved, or begins
            with state that is not finite.

    On failure: an error on one node raises `NodeError` on all nodes, naming that node. Numbers in
    flight are never dropped: if a run ends early, `finalize` merges them.

    Example:
        >>> import jax.numpy as jnp, jdaso, optax
        >>> session = jdaso.Session()
        >>> phases = jdaso.Phases(total_steps=100, warmup_steps=10, cooldown_steps=10)
        >>> tx = jdaso.daso(optax.adam(1e-3), phases=phases, session=session)
        >>> params = {"w": jnp.ones(3)}
        >>> state = tx.init(params)
        >>> updates, state = tx.update({"w": jnp.ones(3)}, state, params, value=1.0)
        >>> session.close()

    Reference: arXiv 2104.05588, section III.
    """
    require_transformation(inner, "jdaso.daso: inner")
    check_blocking(blocking)
    check_on_drift(on_drift)
    if on_nonfinite not in ("raise", "skip"):
        raise ValueError(f'on_nonfinite must be "raise" or "skip", got {on_nonfinite!r}.')
    if phases.by_loss is None and phases.local_every > 1 and local_axis is None:
        raise ValueError(
            f"local_every={phases.local_every} lets the devices of a node diverge and needs a "
            "local_axis: call update inside shard_map or pmap and name its axis."
        )
    check_shared("second_moments", second_moments)
    check_shared("update_lengths", update_lengths)
    update_inner = update_with(inner)
    rule = merge_of(merge)
    check_rule(rule, session)
    warn_of_gain(rule, phases, session)
    late = blocking == "gradients" and session.num_nodes > 1 and phases.cycling_steps > 0
    shares = second_moments == "shared" and late
    follows = update_lengths == "shared" and late and rule.follows_mean
    placements = Placements(session, inner.init, sharded, local_axis)
    earlier = session.optimizers.trials
    between = Between(
        session=session,
        number=session.optimizers.number(),
        phases=phases,
        rule=rule,
        named_wire=None if wire == "auto" else wire_of(wire),
        local_axis=local_axis,
        blocking=blocking,
        on_nonfinite=on_nonfinite,
        on_drift=on_drift,
        chunk_bytes=chunk_bytes,
        name=name,
        placements=placements,
        moments=MomentsFinder(inner.init, update_inner, earlier) if shares else None,
        lengths=LengthsFinder(inner.init, update_inner, earlier) if follows else None,
    )
    finder = Finder(inner.init, update_inner)
    if wire == "auto":
        session.fastest_wire()  # measured here, where all nodes are

    def init(params: PyTree) -> DasoState:
        session.require_usable()
        inner_state = inner.init(params)
        placements.note(params, inner_state)
        if session.num_nodes > 1:
            refuse_line_search(inner_state, "jdaso.daso")
        if between.merges:
            finder.at_init(params, inner_state)
        exchanges = Exchanges(between, params)
        lengths, sharing = SharedLengths(exchanges), Sharing(exchanges)
        placed, refused = placements.facts(params, inner_state)
        wrong = not_finite(inner_state) if between.merges else ""
        about_inner = [sharing.fact, lengths.fact, *placed]
        about_inner.append(("the inner optimizer's numbers", wrong or "finite"))
        agree_on_init(session, params, inner_state, between.facts, about_inner=about_inner)
        if refused is not None:
            raise refused
        if session.num_nodes > 1:
            refuse_narrow_floats(params)
        refuse_not_finite(wrong, "jdaso.daso")
        measured = between.named_wire is None
        session.optimizers.register(between.number, lambda: between.facts, measured=measured)
        session.control.known.name_phases(phases.name)
        if between.moments is not None:
            moments = between.moments.find(params)
            warn_of_own_moments(moments.missed, moments.failure, session)
        if between.lengths is not None:
            warn_of_own_lengths(between.lengths.find(params).failure, session)
        if session.num_nodes > 1:  # `finalize` may come before the first update
            register(between, params)
        return init_state(exchanges, sharing.init(inner_state), lengths.init())

    def update(
        updates: PyTree,
        state: DasoState,
        params: PyTree | None = None,
        *,
        value: Any = None,
        weight: Any = None,
        **extra: Any,
    ) -> tuple[PyTree, DasoState]:
        params = require_params(params, "daso")
        check_scalars("daso", value=value, weight=weight)
        session.require_usable()
        if local_axis is not None:
            require_axis(local_axis)
        if session.sends:
            refuse_other_axes(local_axis, "jdaso.daso(...).update", sharded=placements.axes)
        averages = session.num_nodes > 1 and blocking == "gradients"
        check_gradients(updates, params, "jdaso.daso", local_axis, between_nodes=averages)
        stages = UpdateStages(Exchanges(between, params), update_inner, finder)
        if session.num_nodes == 1:
            return stages.alone(updates, state, params, value, extra)
        refuse_line_search(state.inner, "jdaso.daso")
        register(between, params)
        u = stages.begin(updates, state, params, value, weight, extra)
        u = stages.average_in_node(u)
        u = stages.average_gradients(u)
        u = stages.apply_inner(u)
        u = stages.count(u)
        u = stages.meet(u)
        u = stages.exchange(u)
        return stages.end(u)

    # optax's protocol names its own aliases of Any for states.
    if session.num_nodes == 1:
        return optax.GradientTransformationExtraArgs(init, update)  # pyright: ignore
    return optax.GradientTransformationExtraArgs(on_its_mesh(init), on_its_mesh(update))  # pyright: ignore
