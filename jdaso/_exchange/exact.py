"""Exact means, which the step waits for, and their headers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from .._jax.host_call import host_call
from .._jax.types import Leaves, PyTree, ShapeDtype
from .._payload.chains import by_leaf
from .._payload.header import (
    counted,
    header,
    loss_words,
    sum_of_loss,
)
from .._payload.layout import Division
from .._payload.placement import Placement
from .._payload.trees import (
    dress,
    from_halves,
    from_leaves,
    to_halves,
    to_leaves,
)
from .._payload.words import GONE, STATUS
from .._rules.loss import mean_of_untold
from .._session import Session
from .exchange import Exchange
from .received import Received
from .replicated import Common
from .updates import select, weighed


def same_on_virtual_nodes(session: Session, tree: PyTree) -> PyTree:
    """Marks scalars as equal on all virtual nodes, so that ``vmap`` keeps `cond` a `cond`."""
    if not session.simulated or session.num_nodes == 1:
        return tree
    return jax.tree.map(lambda x: jax.lax.pmax(x, session.node_axis), tree)


def blocking_header(
    value: Any,
    step: jax.Array,
    sum_of_bits: jax.Array,
    weight: Any = None,
    loss_weight: Any = None,
) -> jax.Array:
    """Header of a mean that the step waits for; `weight` is this node's.

    Losses of several steps are added up, so the weights of all of them need one unit; by default
    `loss_weight` is `weight`.
    """
    weight = jnp.asarray(1.0 if weight is None else weight, jnp.float32)
    loss_weight = weight if loss_weight is None else loss_weight
    return header(
        loss_sum=sum_of_loss(value, loss_weight),
        loss_weight=loss_weight,
        weight=weight,
        step=step,
        checksum=sum_of_bits,
    )


def warn_past_end(session: Session, total_steps: int, step: jax.Array) -> jax.Array:
    """Returns 0; warns once when the run passes its end. If the 0 is unused, JAX drops the call."""

    def warn(_: Any) -> np.int32:
        session.optimizers.warn_past_end(total_steps)
        return np.int32(0)

    def call() -> jax.Array:
        return host_call(
            warn,
            ShapeDtype((), jnp.int32),
            step,
            holder=session,
            everywhere=session.joined,
            joined=session.joined,
        )

    if session.simulated:
        return jnp.int32(0)
    return jax.lax.cond(step == total_steps, call, lambda: jnp.int32(0))


class Parameters(NamedTuple):
    """Replicated state of blocking steps; the field's name appears in errors."""

    params: PyTree  # exchanged leaves; others are local to a node


def common_of(params: PyTree, due: Any, placement: Placement | None = None) -> Common:
    """The parameters, as state that must be replicated on all nodes."""
    divisions = () if placement is None else placement.divisions
    return Common(Parameters(dress(params, to_leaves(params))), due, divisions)


def sum_of_bits(exchange: Exchange, tree: PyTree, divisions: Sequence[Division] = ()) -> jax.Array:
    """Checksum of a tree. If this node's devices disagree, a value that no other node has."""
    total = exchange.checksum(tree, divisions)
    if exchange.local_axis is None:
        return total
    least, most = (f(total, exchange.local_axis) for f in (jax.lax.pmin, jax.lax.pmax))
    return jnp.where(least == most, most, most + 1 + exchange.ask_node())


def mean_value(value: Any, heads: jax.Array) -> Any:
    """The loss averaged over the nodes; NaN, as `mean_of_untold` has it, if none is finite."""
    if value is None:
        return None
    mean = mean_of_untold(tuple(jnp.sum(words) for words in loss_words(heads)))
    return mean.astype(jnp.result_type(value))


class About(NamedTuple):
    """All that a node sends with the numbers of an exact mean.

    Attributes:
        head: this node's header.
        step: completed updates.
        common: the state whose checksum is in the header.
        weight: this node's weight; None if all nodes weigh 1.
    """

    head: jax.Array
    step: jax.Array
    common: Common | None = None
    weight: Any = None


def exact_mean(exchange: Exchange, tree: PyTree, about: About) -> tuple[PyTree, Received]:
    """Weighted float32 mean over nodes of a tree's float leaves; the others stay unchanged."""
    sent = weighed(about.weight, to_leaves(tree))
    received = exchange.mean(sent, about.head, about.step, about.common)
    return from_leaves(tree, received.total), received


def exact_mean_and_first(
    exchange: Exchange, tree: PyTree, halves: Leaves, about: About
) -> tuple[PyTree, Leaves, Received]:
    """Like `exact_mean`, with numbers from `to_halves`, which become node 0's."""
    sent = weighed(about.weight, to_leaves(tree))
    first = exchange.ask_node() == 0
    whole = tuple(jnp.where(first, x, jnp.zeros_like(x)) for x in halves)
    found = exchange.total((*sent, *whole), about.head, about.step, about.common)
    means = tuple(x / exchange.layout.nodes for x in found.scaled(found.total[: len(sent)]))
    return from_leaves(tree, means), found.total[len(sent) :], found


def exact_mean_of_finite(exchange: Exchange, tree: PyTree, about: About) -> tuple[PyTree, Received]:
    """Like `exact_mean`, but over the nodes whose numbers are all finite.

    If the exchange has `raise_nonfinite`, all nodes raise instead.
    """
    own = to_leaves(tree)
    means, received = _mean_of_finite(exchange, own, weighed(about.weight, own), len(own), about)
    return from_leaves(tree, means), received


class Everything(NamedTuple):
    """All that one exact mean makes equal on all nodes; the fields' names appear in errors."""

    params: PyTree
    inner: PyTree
    whole: Leaves


class OwnNumbers(NamedTuple):
    """The numbers of a mean of everything.

    Attributes:
        params: a tree like the parameters.
        own: the leaves of that tree.
        owed: error feedback, added to the weighted leaves; None for none.
        inner: the inner state.
        owed_inner: error feedback by leaf number, added to weighted leaves of the inner state.
    """

    params: PyTree
    own: Leaves
    owed: Leaves | None
    inner: PyTree
    owed_inner: Mapping[int, jax.Array]


def exact_mean_of_everything(
    exchange_of: Callable[[PyTree], Exchange], numbers: OwnNumbers, about: About
) -> tuple[Leaves, PyTree, Received]:
    """Exact mean of parameters and inner state over the nodes whose numbers are finite.

    Integers, booleans and keys of the inner state become node 0's, even if node 0's floats
    are left out.

    Args:
        exchange_of: returns the exchange of a tree.
        numbers: this node's.
        about: the header, and what it covers.

    Returns:
        The leaves of the parameters' mean; the inner state; the exchange's result.
    """
    own, inner = numbers.own, numbers.inner
    leaves, whole = to_leaves(inner), to_halves(inner)
    exchange = exchange_of(Everything(numbers.params, inner, whole))
    mine = exchange.ask_node() == 0
    whole = tuple(jnp.where(mine, half, jnp.zeros_like(half)) for half in whole)
    sent = weighed(about.weight, own)
    if numbers.owed is not None:
        sent = tuple(by_leaf("+", jnp.add, sent, numbers.owed, into=0))
    weighted = tuple(
        leaf + numbers.owed_inner[k] if k in numbers.owed_inner else leaf
        for k, leaf in enumerate(weighed(about.weight, leaves))
    )
    both = (*own, *leaves, *whole), (*sent, *weighted, *whole)
    floats = len(own) + len(leaves)
    means, received = _mean_of_finite(exchange, *both, floats, about)
    mean, rest, halves = means[: len(own)], means[len(own) : floats], means[floats:]
    if halves and exchange.session.control.survives:
        gone = received.heads[0, STATUS] == GONE
        first = jnp.argmax(received.heads[:, STATUS] != GONE)
        kept = to_halves(inner)
        halves = jax.lax.cond(
            gone, lambda: _of_one(exchange_of(kept), kept, first, about.step), lambda: halves
        )
    inner = from_halves(from_leaves(inner, rest), halves)
    return mean, inner, received


def _of_one(exchange: Exchange, halves: Leaves, node: jax.Array, step: jax.Array) -> Leaves:
    """Returns the numbers of one node; this node's own, if that node has failed too."""
    mine = exchange.ask_node() == node
    sent = tuple(jnp.where(mine, half, jnp.zeros_like(half)) for half in halves)
    received = exchange.total(sent, header(step=step), step)
    return select(received.heads[node, STATUS] == GONE, halves, received.total)


def _mean_of_finite(
    exchange: Exchange,
    own: Leaves,
    sent: Leaves,
    count: int,
    about: About,
) -> tuple[Leaves, Received]:
    """Mean of the first `count` leaves over nodes where these are all finite; sum of the rest.

    `sent` is already weighted. If no node's numbers are finite, each node keeps its `own`.
    """
    received = exchange.mean_of_finite(sent, count, about.head, about.step, about.common)
    means = received.total
    if not exchange.raise_nonfinite:  # otherwise nodes raise, and `own` is not needed
        finite = jnp.any(counted(received.heads))
        pairs = zip(means[:count], own[:count], strict=True)
        means = (*(jnp.where(finite, *pair) for pair in pairs), *means[count:])
    return means, received
