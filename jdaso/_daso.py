"""DASO: parameters averaged between nodes now and then, and late."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.experimental import io_callback
from jaxtyping import Array, Float, Int

from ._agreement import agree_on_init
from ._blocking import (
    blocking_header,
    check_blocking,
    difference,
    exact_mean,
    exact_mean_of_finite,
    land_alike,
    mean_value,
    require_params,
    same_on_virtual_nodes,
    sum_at_first,
)
from ._exchange import (
    CHUNK_BYTES,
    Exchange,
    Received,
    checksum,
    first_bad_leaf,
    loss_words,
    time_words,
)
from ._local import mean_gradients_locally, mean_locally, require_axis
from ._merge import Merge, merge_of
from ._packing import dress, from_leaves, strip, to_halves, to_leaves
from ._phases import (
    Actions,
    Phases,
    PhaseState,
    count_loss,
    count_start,
    decide,
    end_step,
    fit_delay,
    init_phases,
    select,
)
from ._session import Completion, Session
from ._types import Leaves, PyTree, ShapeDtype
from ._wire import header, wire_of


class DasoState(NamedTuple):
    """State of `daso`: all of it, but for the numbers on the wire, which the session holds."""

    optimizer: Int[Array, ""]  # the session's number for it; the same on all nodes
    step: Int[Array, ""]  # completed updates; the same on all nodes
    ticket: Int[Array, ""]  # the exchange in flight, 0 for none; the same on all nodes
    started: Int[Array, ""]  # step of the last start; the same on all nodes
    drift: Int[Array, ""]  # steps since the node's devices were last equal; the same on all nodes
    phase: PhaseState  # the same on all nodes
    loss: Float[Array, 2]  # sum and number of losses since the last start; differs
    inner: optax.OptState  # differs between nodes while cycling
    anchor: PyTree  # float32 point common to all nodes; () where the rule and wire need none
    snapshot: PyTree  # what this node sent last; () where the rule needs none; differs
    error: PyTree  # what a narrow wire has yet to deliver; () for float32; differs
    outer: PyTree  # state of the outer optimizer; the same on all nodes
    flight: PyTree  # the exchange in flight between virtual nodes; () on real ones


def daso(
    inner: optax.GradientTransformation,
    *,
    phases: Phases,
    session: Session,
    local_axis: str | None = None,
    wire: str = "float32",
    merge: str | Merge = "paper",
    blocking: str = "gradients",
    on_nonfinite: str = "raise",
    chunk_bytes: int = CHUNK_BYTES,
    name: str = "daso",
) -> optax.GradientTransformationExtraArgs:
    """Distributed asynchronous and selective optimization.

    Gradients are averaged inside the node at every step. While cycling, every B steps a node's
    parameters start on their way to the other nodes, and S steps later, while the node computed
    on, the average is merged at its true age a (P nodes, snapshots ``s_p``, current ``x``)::

        "paper":      x <- (2a x + sum_p s_p) / (2a + P)
        "corrected":  x <- x + (mean_p s_p - s)
        outer(tx):    x <- x + (t' - s),  t' = t + tx(t - mean_p s_p)

    In warm-up and cool-down the nodes average gradients and wait (exact float32 means, whatever
    the wire). The last cycling update completes what is in flight and ends with an exact mean of
    parameters and of the inner state, which the next two updates repeat, because ``p + (t - p)``
    rounds. From the third cool-down update on all nodes are bitwise equal: the few elements that
    still differ then, changing their sign by more than their own size time after time, stop at 0
    for that one update. One node is `inner`, exactly.

    Put it last in an ``optax.chain``: it decides what the parameters become.

    Args:
        inner: any optax transformation.
        phases: when the nodes talk.
        session: the nodes.
        local_axis: the axis of the node's devices if ``update`` is called inside ``shard_map`` or
            ``pmap`` over them; None under plain ``jit``.
        wire: ``"float32"``, or the narrow ``"bfloat16"``, ``"float16"``, ``"int8"``, which carry
            the difference to the last common point, with error feedback: what rounding took from
            one exchange goes with the next, and nothing is lost.
        merge: ``"paper"``, ``"corrected"`` or `jdaso.outer`.
        blocking: ``"gradients"``, or ``"parameters"`` to average parameters and the inner state
            after `inner` in the blocking phases, as HeAT does (equal for SGD, not for Adam).
        on_nonfinite: what happens when any node's snapshot holds NaN or infinity: all nodes
            ``"raise"``, or all nodes ``"skip"`` that merge. From an exact mean ``"skip"`` leaves
            out that node; its own numbers stay (optax adds, and nothing leads away from NaN)
            until `finalize` gives it the others' mean.
        chunk_bytes: float32 bytes that travel at once.
        name: tells optimizers of equal shapes that are used in one step apart.

    Returns:
        A transformation whose ``update`` needs ``params`` and takes the local loss as ``value=``
        (a scalar; needed by phases that follow the loss). Other arguments go to `inner`.

    Raises:
        ValueError: a setting is out of its range, or does not fit the others.

    On failure: what one node does wrong raises `NodeError` on all nodes, naming it. Numbers in
    flight are never dropped; where a run ends early, `finalize` merges them.

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
    rule, fmt = merge_of(merge), wire_of(wire)
    check_blocking(blocking)
    if on_nonfinite not in ("raise", "skip"):
        raise ValueError(f'on_nonfinite must be "raise" or "skip", got {on_nonfinite!r}.')
    if phases.by_loss is None and phases.local_every > 1 and local_axis is None:
        raise ValueError(
            f"local_every={phases.local_every} lets the devices of a node part, which needs a "
            "local_axis: call update inside shard_map or pmap and name its axis."
        )
    inner = optax.with_extra_args_support(inner)
    nodes, number = session.num_nodes, session.number_optimizer()
    keeps_anchor = rule.needs_anchor or fmt.narrow
    drifts = phases.max_local_every > 1 and local_axis is not None

    def exchange_of(tree: PyTree, wire: str = "float32", axis: str | None = local_axis) -> Exchange:
        return Exchange.of(
            tree,
            session,
            wire=wire,
            local_axis=axis,
            name=name,
            owner=number,
            chunk_bytes=chunk_bytes,
            raise_nonfinite=on_nonfinite == "raise",
        )

    def init(params: PyTree) -> DasoState:
        session.require_usable()
        settings = [("phases", phases), ("wire", wire), ("merge", rule.name)]
        settings += [("blocking", blocking), ("on_nonfinite", on_nonfinite)]
        settings += [("chunk_bytes", chunk_bytes), ("name", name)]
        facts = [(f"the setting {key}", str(value)) for key, value in settings]
        agree_on_init(session, params, [("the optimizer", f"daso, number {number}"), *facts])
        leaves, frame = (to_leaves(params), params) if nodes > 1 else ((), ())
        # Each field its own buffer: steps that donate their state must not meet one twice.
        zeros = lambda: dress(frame, tuple(map(jnp.zeros_like, leaves)))  # noqa: E731
        zero = lambda: jnp.zeros((), jnp.int32)  # noqa: E731
        return DasoState(
            optimizer=jnp.asarray(number, jnp.int32),
            step=zero(),
            ticket=zero(),
            started=zero(),
            drift=zero(),
            phase=init_phases(phases),
            loss=jnp.zeros(2, jnp.float32),
            inner=inner.init(params),
            anchor=zeros() if keeps_anchor else (),
            snapshot=zeros() if rule.needs_snapshot else (),
            error=zeros() if fmt.narrow else (),
            outer=rule.outer.init(dress(frame, leaves)) if rule.outer is not None else (),
            flight=exchange_of(params, wire).empty_flight() if nodes > 1 else (),
        )

    def update(
        updates: PyTree,
        state: DasoState,
        params: PyTree | None = None,
        *,
        value: Any = None,
        **extra: Any,
    ) -> tuple[PyTree, DasoState]:
        params = require_params(params, "daso")
        session.require_usable()
        if local_axis is not None:
            require_axis(local_axis)
        if nodes == 1:
            updates = mean_gradients_locally(updates, local_axis)
            value = mean_locally(value, local_axis)
            given = {} if value is None else {"value": value}
            updates, inner_state = inner.update(updates, state.inner, params, **given, **extra)
            return updates, state._replace(step=state.step + 1, inner=inner_state)

        _register(params)
        step, ticket, started, drift, phase = same_on_virtual_nodes(
            session, (state.step, state.ticket, state.started, state.drift, state.phase)
        )
        state = state._replace(ticket=ticket, started=started, phase=phase)
        act = decide(phases, phase, step, started, ticket)
        _warn_past_end(session, phases, step)

        value = mean_locally(value, local_axis)
        together = act.blocking | act.start | act.mean | (drift + 1 >= phase.local_every)
        if drifts:
            updates = jax.lax.cond(
                together, lambda: mean_locally(updates, local_axis), lambda: updates
            )
        else:
            updates = mean_gradients_locally(updates, local_axis)

        for_inner, apart = value, jnp.bool_(False)
        if blocking == "gradients":

            def mean_of_gradients() -> tuple[PyTree, Any, PhaseState, jax.Array]:
                head = blocking_header(value, step, _sum_of_bits(params, state, step))
                mean, received = exact_mean(exchange_of(updates), updates, head, step)
                counted = count_loss(phase, *loss_words(received.heads))
                return mean, mean_value(value, received.heads), counted, received.apart

            updates, for_inner, phase, apart = jax.lax.cond(
                act.blocking, mean_of_gradients, lambda: (updates, value, phase, apart)
            )
            state = state._replace(phase=phase)

        given = {} if for_inner is None else {"value": for_inner}
        updates, inner_state = inner.update(updates, state.inner, params, **given, **extra)
        state = state._replace(inner=inner_state)
        if value is not None:
            more = jnp.stack([jnp.asarray(value, jnp.float32), jnp.float32(1)])
            state = state._replace(loss=jnp.where(act.blocking, 0.0, state.loss + more))
        if drifts:
            updates, inner_state = jax.lax.cond(
                together & (drift > 0),
                lambda: _meet(params, updates, state.inner),
                lambda: (updates, state.inner),
            )
            drift = jnp.where(together, 0, drift + 1)
            state = state._replace(inner=inner_state)

        apart &= step > 0
        act = act._replace(mean=act.mean | apart | (act.blocking & (blocking == "parameters")))
        updates, state = jax.lax.cond(
            act.mean | act.merge | act.start,
            lambda: _talk(act, apart, params, updates, state, step, value),
            lambda: (updates, state),
        )
        phase = end_step(phases, state.phase, step)
        state = state._replace(optimizer=jnp.full_like(state.optimizer, number))
        return updates, state._replace(step=step + 1, drift=drift, phase=phase)

    def _meet(params: PyTree, updates: PyTree, inner_state: PyTree) -> tuple[PyTree, PyTree]:
        """The devices of the node have parted: average their parameters and inner states."""
        target = mean_locally(optax.apply_updates(params, updates), local_axis)
        moved = difference(to_leaves(target), params, updates)
        return moved, mean_locally(inner_state, local_axis)

    def _talk(
        act: Actions,
        apart: jax.Array,
        params: PyTree,
        updates: PyTree,
        state: DasoState,
        step: jax.Array,
        value: Any,
    ) -> tuple[PyTree, DasoState]:
        """Merge, then the exact mean, then start: each snapshot holds the latest merge."""
        leaves = to_leaves(optax.apply_updates(params, updates))
        leaves, state = jax.lax.cond(
            act.merge, lambda: _merge(leaves, params, state, step), lambda: (leaves, state)
        )
        leaves, state = jax.lax.cond(
            act.mean,
            lambda: _mean(leaves, apart, params, updates, state, step, value),
            lambda: (leaves, state),
        )
        target = difference(leaves, params, updates)
        updates = select(act.merge | act.mean, target, updates)
        state = jax.lax.cond(act.start, lambda: _start(params, updates, state, step), lambda: state)
        return updates, state

    def _merge(
        leaves: Leaves, params: PyTree, state: DasoState, step: jax.Array
    ) -> tuple[Leaves, DasoState]:
        received = exchange_of(params, wire).wait(state.ticket, state.flight, state.phase.exchanges)
        merged, state = _apply(received, leaves, state, step - state.started)
        phase = count_loss(state.phase, *loss_words(received.heads))
        if session.simulated:
            times = jnp.float32(session.exchange_steps), jnp.float32(1)
        else:
            times = time_words(received.heads)
        phase = fit_delay(phases, phase, *times)
        return merged, state._replace(phase=phase)

    def _apply(
        received: Received, leaves: Leaves, state: DasoState, age: jax.Array
    ) -> tuple[Leaves, DasoState]:
        total, error = received.total, state.error
        frame = state.anchor if keeps_anchor else state.snapshot
        if keeps_anchor or rule.needs_snapshot:
            leaves, total = dress(frame, leaves), dress(frame, total)
        if fmt.narrow:
            total = jax.tree.map(lambda c, d: nodes * c + d, state.anchor, total)
            lost = 1 - rule.kept_share(nodes, age)
            residual = dress(frame, received.residual)
            error = jax.tree.map(lambda e, r: lost * (e + r), error, residual)
        merged = rule(
            leaves, state.snapshot, total, state.anchor, state.outer, nodes=nodes, age=age
        )
        merged, leaves = merged._replace(params=strip(merged.params)), strip(leaves)
        new = state._replace(
            anchor=merged.anchor if keeps_anchor else (), error=error, outer=merged.outer
        )
        kept = state._replace(error=jax.tree.map(jnp.zeros_like, error))
        if on_nonfinite == "raise":
            return merged.params, new._replace(ticket=jnp.zeros_like(state.ticket))
        leaves, state = select(received.finite, (merged.params, new), (leaves, kept))
        return leaves, state._replace(ticket=jnp.zeros_like(state.ticket))

    def _mean(
        leaves: Leaves,
        apart: jax.Array,
        params: PyTree,
        updates: PyTree,
        state: DasoState,
        step: jax.Array,
        value: Any,
    ) -> tuple[Leaves, DasoState]:
        """Exact mean of parameters and of the inner state; pays what the wire still owes.

        From the third cool-down update on, what has not met by then is made to.
        """
        if fmt.narrow:
            leaves = jax.tree.map(jnp.add, leaves, strip(state.error))
            state = state._replace(error=jax.tree.map(jnp.zeros_like, state.error))
        given, bits = None, jnp.int32(0)
        if blocking == "parameters":
            given, bits = value, _sum_of_bits(params, state, step)
        head = blocking_header(given, step, bits)
        target, inner_state, received = exact_mean_of_finite(
            exchange_of, from_leaves(params, leaves), state.inner, head, step
        )
        phase = count_loss(state.phase, *loss_words(received.heads))
        leaves = to_leaves(target)
        third = step >= phases.total_steps - phases.cooldown_steps + 2
        leaves = jax.lax.cond(
            third & (apart | received.apart),
            lambda: land_alike(exchange_of(params), leaves, params, updates, step),
            lambda: leaves,
        )
        return leaves, state._replace(inner=inner_state, phase=phase)

    def _sum_of_bits(params: PyTree, state: DasoState, step: jax.Array) -> jax.Array:
        """Checksum of what is to be the same on all nodes: at first parameters, at last all.

        Where the devices of the node differ, it is one that no other node has.
        """

        def of_all() -> jax.Array:
            total = checksum((*to_leaves((params, state.inner)), *to_halves(state.inner)))
            if local_axis is None:
                return total
            least, most = (f(total, local_axis) for f in (jax.lax.pmin, jax.lax.pmax))
            return jnp.where(least == most, most, most + 1 + exchange_of(params).node)

        cools = (phases.cycling_steps > 0) & (step >= phases.total_steps - phases.cooldown_steps)
        return jax.lax.cond(cools, of_all, lambda: sum_at_first(params, step))

    def _start(params: PyTree, updates: PyTree, state: DasoState, step: jax.Array) -> DasoState:
        leaves = to_leaves(optax.apply_updates(params, updates))
        if session.faults:
            leaves = _inject(session, leaves, step)
        if keeps_anchor:
            first = step == phases.warmup_steps
            start = dress(params, to_leaves(params))
            state = state._replace(anchor=select(first, start, state.anchor))
        send = leaves
        if fmt.narrow:
            base, owed = strip(state.anchor), strip(state.error)
            send = jax.tree.map(lambda s, c, e: s - c + e, leaves, base, owed)
        head = header(
            loss_sum=state.loss[0],
            loss_count=state.loss[1],
            bad_leaf=first_bad_leaf(leaves),
            step=step,
            checksum=jax.lax.cond(
                step == 0, lambda: checksum(to_leaves(params)), lambda: jnp.int32(0)
            ),
        )
        exchange = exchange_of(params, wire)
        ticket, flight, sent = exchange.start(send, head, step, state.phase.exchanges)
        return state._replace(
            ticket=ticket,
            started=step,
            flight=flight,
            phase=count_start(phases, state.phase),
            loss=jnp.zeros_like(state.loss),
            snapshot=dress(params, leaves) if rule.needs_snapshot else (),
            error=dress(params, jax.tree.map(jnp.subtract, send, sent)) if fmt.narrow else (),
        )

    def _register(params: PyTree) -> None:
        """Tells `finalize` how to merge what this optimizer has in flight."""
        exchange = exchange_of(params, wire, None)

        def complete(leaves: Leaves, state: DasoState, in_flight: bool) -> Leaves:
            if in_flight:
                received = exchange.wait(state.ticket, state.flight, state.phase.exchanges)
                leaves, state = _apply(received, leaves, state, state.step - 1 - state.started)
            return jax.tree.map(jnp.add, leaves, strip(state.error)) if fmt.narrow else leaves

        done = Completion(exchange.layout.leaves, complete, on_nonfinite == "skip")
        session.completions[number, done.leaves] = done

    # optax's protocol names its own aliases of Any for states.
    return optax.GradientTransformationExtraArgs(init, update)  # pyright: ignore


def _warn_past_end(session: Session, phases: Phases, step: jax.Array) -> None:
    def warn(step: Any) -> np.int32:
        session.warn_past_end(int(step))
        return np.int32(0)

    def call() -> jax.Array:
        return io_callback(warn, ShapeDtype((), jnp.int32), step)

    if not session.simulated:
        jax.lax.cond(step == phases.total_steps, call, lambda: jnp.int32(0))


def _inject(session: Session, leaves: Leaves, step: jax.Array) -> Leaves:
    """Puts the simulated faults of this step into the first number of the first leaf."""
    node = jax.lax.axis_index(session.node_axis)
    first = leaves[0].reshape(-1)
    for (at_node, at_step), fault in session.faults.items():
        hit = (node == at_node) & (step == at_step)
        first = first.at[0].set(jnp.where(hit, jnp.float32(fault), first[0]))
    return (first.reshape(leaves[0].shape), *leaves[1:])
