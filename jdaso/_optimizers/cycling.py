"""The end of an update: merges late results, then takes exact means, then starts what is due."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import jax.numpy as jnp

from .._exchange.trace_marks import COMPUTE, MERGE, mark
from .blocking import mean_of_everything, sum_of_first
from .conditions import when
from .late import LateExchange
from .shared_moments import Sharing
from .update import Update


def exchange_late(late: Sequence[LateExchange], sharing: Sharing, u: Update) -> Update:
    """Merges, takes the exact mean, then starts: each snapshot holds the latest merge.

    A start sends the parameters as rounded by optax's addition, not the merge result itself.

    Args:
        late: the late exchanges of all fragments.
        sharing: the second moments.
        u: the update.
    """
    exchanges, between = late[0].exchanges, late[0].between
    session, step = between.session, u.state.step
    u = u.after(mark(session, COMPUTE, step, step))
    if late[0].late.anchored:
        first = (step == between.phases.warmup_steps) & u.act.start[0]
        for each in late:
            u = when(first, each.begin, u)
    for each in late:
        u = when(u.act.merge[each.index], _merge(each), u)

    def mean(u: Update) -> Update:
        end = lambda u: u.with_state(inner=sharing.end(u.state.inner))  # noqa: E731
        return mean_of_everything(exchanges, late, when(~u.act.blocking, end, u))

    u = when(u.act.mean, mean, u)
    bits = jnp.int32(0)
    if not late[0].late.anchored or between.on_drift == "ignore":  # each start covers its anchor
        bits = sum_of_first(exchanges, u.params, u.state.step)
    for each in late:
        u = when(u.act.start[each.index], lambda u, each=each: each.start(u, bits), u)
    return u.with_state(step=step)


def _merge(late: LateExchange) -> Callable[[Update], Update]:
    def merge(u: Update) -> Update:
        step, u = u.state.step, late.merge(u)
        return u.after(mark(late.between.session, MERGE, step, u.state.ticket[late.index]))

    return merge
