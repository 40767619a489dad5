"""Means of one `jdaso.daso` that a step waits for: of gradients, and of everything."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from .._exchange.exact import (
    About,
    OwnNumbers,
    blocking_header,
    common_of,
    exact_mean,
    exact_mean_of_everything,
    exact_mean_of_finite,
    sum_of_bits,
    warn_past_end,
)
from .._exchange.land import land_alike
from .._exchange.order import after, token_of
from .._exchange.received import Received
from .._exchange.replicated import Common
from .._exchange.updates import difference
from .._jax.types import Leaves, PyTree
from .._payload.header import counted, loss_words, none_weighs
from .._payload.trees import apply_updates, dress, from_leaves, to_leaves
from .._payload.words import LEFT_OUT
from .._rules.loss import count_loss
from .between import Between
from .copies import places_in_leaves
from .exchanges import Exchanges
from .late import LateExchange
from .state import DasoState, weight_since_starts
from .update import Update


def mean_of_gradients(exchanges: Exchanges, u: Update) -> tuple[PyTree, Received]:
    """Exact mean; with ``on_nonfinite="skip"`` over the nodes whose gradients are finite."""
    between, step = exchanges.between, u.state.step
    bits, common = _common(exchanges, u.params, u.state.inner, step)
    head = _header(between, u, u.value, bits, u.weight)
    mean = exact_mean if between.on_nonfinite == "raise" else exact_mean_of_finite
    exchange = exchanges.of_gradients(u.updates)
    return mean(exchange, u.updates, About(head, step, common, u.weight))


def mean_of_everything(exchanges: Exchanges, late: Sequence[LateExchange], u: Update) -> Update:
    """Exact mean of parameters and of the inner state, with all remaining error feedback.

    The error feedback is added to the parameters and to copies of them.

    If no node had a batch since the last start, all have the same weight. From the third cool-down
    update on, elements that still differ are made equal.

    Args:
        exchanges: those of the parameters.
        late: the late exchanges of all fragments.
        u: the update.
    """
    between, step = exchanges.between, u.state.step
    params, state, weight = u.params, u.state, u.weight
    own, owed = to_leaves(apply_updates(params, u.updates, into=1)), None
    owed_inner: dict[int, jax.Array] = {}
    if weight is not None:
        weight = weight_since_starts(state, weight)
    if between.wire.narrow:
        owed = error = _feedback(own, late, state)  # already weighted
        places = places_in_leaves(state.inner, u.copies)
        owed_inner = {place: error[number] for place, number in places.items()}
        held = (x.late.without_feedback(y) for x, y in zip(late, state.held, strict=True))
        state = state._replace(held=tuple(held), started=jnp.full_like(state.started, -1))
    given, bits, common = None, jnp.int32(0), None
    if between.blocking == "parameters":
        # Parameters only: moments of local gradients differ, and the mean makes them equal.
        given = u.value
        bits, common = _common(exchanges, params, (), step)
    numbers = OwnNumbers(params, own, owed, state.inner, owed_inner)

    def mean_of(weight: Any) -> tuple[tuple[Leaves, PyTree, jax.Array], Received]:
        head = _header(between, u, given, bits, weight)
        about = About(head, step, common, weight)
        own, inner, received = exact_mean_of_everything(exchanges.of_everything, numbers, about)
        return (own, inner, token_of(received.heads)), received

    mean, received = mean_of(weight)
    if weight is not None:
        first, none = mean, none_weighs(received.heads)
        mean = jax.lax.cond(none, lambda: mean_of(None)[0], lambda: first)
    leaves, inner, token = mean
    phase = count_loss(state.phase, *loss_words(received.heads))
    third = step >= between.phases.total_steps - between.phases.cooldown_steps + 2
    # If no node's numbers are finite, each has kept its own, and they have no common target.
    leaves, token = jax.lax.cond(
        third & (u.apart | received.apart) & jnp.any(counted(received.heads)),
        lambda: land_alike(exchanges.of_params, leaves, params, u.updates, step),
        lambda: (leaves, token),
    )
    updates = difference(from_leaves(params, leaves), params, u.updates, into=0)
    state = state._replace(inner=inner, phase=phase)
    return u._replace(updates=updates, state=state).after(token)


def _feedback(own: Leaves, late: Sequence[LateExchange], state: DasoState) -> Leaves:
    """The error feedback of all fragments, as leaves; zeros for those that never started."""
    leaves = tuple(map(jnp.zeros_like, own))
    for each in late:
        numbers, token = each.feedback(state)
        leaves = each.fragment.put(leaves, numbers)
        state = state._replace(started=after(token, state.started))
    return leaves


def is_settled(between: Between, step: jax.Array) -> jax.Array:
    """True if all nodes hold identical bits before this blocking update.

    In warm-up they always do; in the cool-down, once its third update is done.
    """
    phases = between.phases
    end = phases.total_steps - phases.cooldown_steps
    # XLA cannot know that no step is below 0: checksums, too, come after the calls before them.
    settled = step >= 0 if phases.cycling_steps == 0 else step < phases.warmup_steps
    return settled if between.on_drift == "ignore" else settled | (step >= end + 3)


def sum_of_first(exchanges: Exchanges, params: PyTree, step: jax.Array) -> jax.Array:
    """Checksum of the parameters before the first cycling update; 0 at other steps."""
    between = exchanges.between
    first = 0 if between.on_drift == "ignore" else between.phases.warmup_steps
    return jax.lax.cond(
        step == first,
        lambda: _bits(exchanges, dress(params, to_leaves(params))),
        lambda: jnp.int32(0),
    )


def _header(between: Between, u: Update, value: Any, bits: jax.Array, weight: Any) -> jax.Array:
    """The header of an exact mean; warns once when the run passes its end."""
    # Updates past the end all block, so updates that do not block need no check.
    warned = warn_past_end(between.session, between.phases.total_steps, u.state.step)
    step = after(warned, u.state.step)
    return blocking_header(value, step, bits, weight, loss_weight=u.given_weight)


def _common(
    exchanges: Exchanges, params: PyTree, inner: PyTree, step: jax.Array
) -> tuple[jax.Array, Common]:
    """Checksum of the state that must be replicated before a blocking update, and that state.

    The checksum covers the parameters; until the nodes have settled, the inner state too. A bit
    that flips in an inner state after that changes the parameters one update later.
    """
    settled = is_settled(exchanges.between, step)
    due = settled & ((step == 0) | (exchanges.between.on_drift != "ignore"))
    common = common_of(params, due, exchanges.placement)
    none = lambda: jnp.int32(0)  # noqa: E731
    bits = jax.lax.cond(
        settled,
        lambda: jax.lax.cond(due, lambda: _sum_of_params(exchanges, params), none),
        lambda: _bits(exchanges, (common.tree, inner), inner),
    )
    return bits, common


def _bits(exchanges: Exchanges, tree: PyTree, inner: PyTree = ()) -> jax.Array:
    """The checksum of a tree that has the leaves of parameters, then of an inner state."""
    exchange, divisions = exchanges.of_bits(inner)
    return sum_of_bits(exchange, tree, divisions)


def _sum_of_params(exchanges: Exchanges, params: PyTree) -> jax.Array:
    leaves, placement = to_leaves(params), exchanges.placement
    total = _bits(exchanges, dress(params, leaves))
    if exchanges.between.on_nonfinite == "raise":
        return total
    finite = jnp.all(jnp.asarray([jnp.all(jnp.isfinite(leaf)) for leaf in leaves], bool))
    if placement is not None and placement.mesh is None:  # of this device's shards only
        names = tuple(name for name, _ in placement.axes)
        finite = jax.lax.pmin(finite.astype(jnp.int32), names) > 0
    return jnp.where(finite, total, LEFT_OUT)
