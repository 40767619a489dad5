"""The end of an update: what is late is merged, then exact means, then what is due is started."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from .._exchange.trace_marks import COMPUTE, MERGE, mark
from .._payload.explicit import alike
from .._payload.trees import dress, to_leaves
from .._types import PyTree
from .between import Between
from .blocking import mean_of_everything, sum_of_first
from .late import LateExchange
from .state import Part
from .update import Update


def exchange_late(between: Between, u: Update) -> Update:
    """Merges, takes the exact mean, then starts: each snapshot holds the latest merge.

    It sends the parameters as optax's addition rounds them, not the merge result itself.
    """
    session, fragments, step = between.session, between.fragments(u.params), u.state.step
    late = [LateExchange(between, fragments, index) for index in range(len(fragments))]
    u = u.after(mark(session, COMPUTE, step, step))
    if between.keeps_anchor:
        u = u.with_state(anchor=_anchor(between, u))
    for each in late:
        u = _merge(each, u)
    new = jax.lax.cond(
        u.act.mean,
        lambda: alike(mean_of_everything(between, u), (u.updates, u.state)),
        lambda: (u.updates, u.state),
    )
    u = u._replace(updates=new[0], state=new[1])
    bits = jnp.int32(0)
    if not between.keeps_anchor or between.on_drift == "ignore":  # each start covers its anchor
        bits = sum_of_first(between, u.params, u.state.step)
    for each in late:
        u = _start(each, u, bits)
    return u.with_state(step=step)


def _anchor(between: Between, u: Update) -> PyTree:
    """The common point; the parameters before the first cycling update are the first."""
    return jax.lax.cond(
        (u.state.step == between.phases.warmup_steps) & u.act.start[0],
        lambda: alike(dress(u.params, to_leaves(u.params)), u.state.anchor),
        lambda: u.state.anchor,
    )


def _merge(late: LateExchange, u: Update) -> Update:
    """Merges a fragment's exchange, if it is due."""
    part, session = late.take(u.params, u.updates, u.state, u.copies), late.between.session

    def merge() -> tuple[Part, jax.Array]:
        new = late.merge(u.params, part, u.state.step, u.copies, weighted=u.weight is not None)
        return alike(new, part), mark(session, MERGE, u.state.step, new.ticket)

    due = u.act.merge[late.index]
    part, token = jax.lax.cond(due, merge, lambda: (part, jnp.int32(0)))
    updates, state = late.put(part, u.params, u.updates, u.state, u.copies)
    return u._replace(updates=updates, state=state).after(token)


def _start(late: LateExchange, u: Update, bits: jax.Array) -> Update:
    """Starts a fragment's exchange, if it is due."""
    part = late.take(u.params, u.updates, u.state, ())

    def start() -> Part:
        new = late.start(u.params, part, u.state.step, bits, weighted=u.weight is not None)
        return alike(new, part)

    part = jax.lax.cond(u.act.start[late.index], start, lambda: part)
    updates, state = late.put(part, u.params, u.updates, u.state, ())
    return u._replace(updates=updates, state=state)
