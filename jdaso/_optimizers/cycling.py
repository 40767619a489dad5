"""The end of an update: merges late results and starts what is due, or takes exact means.

No update both starts an exchange and takes a mean. The two are conditions of their own: only a mean
replaces second moments, and a condition inside of another copies what it may replace.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import jax.numpy as jnp

from .._exchange.trace_marks import COMPUTE, MERGE, mark
from .blocking import mean_of_everything, sum_of_first
from .conditions import when
from .late import LateExchange
from .shared_moments import Sharing
from .update import Update


def exchange_late(late: Sequence[LateExchange], u: Update) -> Update:
    """Merges, then starts: each snapshot holds the latest merge.

    A start sends the parameters as rounded by optax's addition, not the merge result itself.

    Args:
        late: the late exchanges of all fragments.
        u: the update.
    """
    exchanges, between, step = late[0].exchanges, late[0].between, u.state.step
    u = u.after(mark(between.session, COMPUTE, step, step))
    if late[0].late.anchored:
        first = u.act.start[0] & (u.state.started[0] < 0)
        for each in late:
            u = when(first, each.begin, u)
    for each in late:
        u = when(u.act.merge[each.index], _merge(each), u)
    bits = jnp.int32(0)
    if not late[0].late.anchored or between.on_drift == "ignore":  # each start covers its anchor
        bits = sum_of_first(exchanges, u.params, u.state.step)
    for each in late:
        u = when(u.act.start[each.index], lambda u, each=each: each.start(u, bits), u)
    return u


def take_mean(late: Sequence[LateExchange], sharing: Sharing, u: Update) -> Update:
    """Takes the exact mean if one is due.

    Second moments become those of all nodes before the mean that ends cycling, and a node's own in
    the last update of the warm-up.

    Args:
        late: the late exchanges of all fragments, which have been merged.
        sharing: the second moments.
        u: the update.
    """

    def mean(u: Update) -> Update:
        step = u.state.step
        u = u.after(mark(late[0].between.session, COMPUTE, step, step))
        u = when(~u.act.blocking, sharing.end, u)
        return mean_of_everything(late[0].exchanges, late, u)

    u = when(u.act.mean, mean, u)
    return when(u.act.last_warmup, sharing.begin, u) if sharing.moments else u


def _merge(late: LateExchange) -> Callable[[Update], Update]:
    def merge(u: Update) -> Update:
        step, u = u.state.step, late.merge(u)
        return u.after(mark(late.between.session, MERGE, step, u.state.ticket[late.index]))

    return merge
