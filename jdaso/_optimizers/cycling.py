"""The end of an update: merges late results and starts what is due, or takes exact means.

No update both starts an exchange and takes a mean. The two are conditions of their own: only the
second replaces the inner state, and a condition inside of another copies what it may replace.
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
        first = (step == between.phases.warmup_steps) & u.act.start[0]
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


def end_phase(late: Sequence[LateExchange], sharing: Sharing, u: Update) -> Update:
    """Takes the exact mean, and gives the inner state the second moments of the next phase.

    Args:
        late: the late exchanges of all fragments, which have been merged.
        sharing: the second moments.
        u: the update.
    """
    session, step = late[0].between.session, u.state.step
    u = u.after(mark(session, COMPUTE, step, step))

    def mean(u: Update) -> Update:
        end = lambda u: u.with_state(inner=sharing.end(u.state.inner))  # noqa: E731
        return mean_of_everything(late[0].exchanges, late, when(~u.act.blocking, end, u))

    u = when(u.act.mean, mean, u)
    if sharing.moments:
        begin = lambda u: u.with_state(inner=sharing.begin(u.state.inner))  # noqa: E731
        u = when(u.act.begins, begin, u)
    return u


def _merge(late: LateExchange) -> Callable[[Update], Update]:
    def merge(u: Update) -> Update:
        step, u = u.state.step, late.merge(u)
        return u.after(mark(late.between.session, MERGE, step, u.state.ticket[late.index]))

    return merge
