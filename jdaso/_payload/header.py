"""Header of an exchange: the words that a node sends with its numbers, and their contents."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from .._jax.types import Leaves
from .words import (
    BAD_LEAF,
    CHECKSUM,
    GONE,
    HEADER,
    LIFT,
    LOSS_SUM,
    LOSS_WEIGHT,
    STATUS,
    STEP,
    TIMES,
    UNKNOWN,
    WEIGHT,
)


def header(
    *,
    step: Any,
    loss_sum: Any = UNKNOWN,
    loss_weight: Any = 0.0,
    weight: Any = 1.0,
    bad_leaf: Any = 0,
    checksum: Any = 0,
) -> jax.Array:
    """A header as int32 ``[HEADER]``; float words as bits. The host fills in the other words."""
    row = [jnp.int32(0)] * HEADER
    floats = (LOSS_SUM, loss_sum), (LOSS_WEIGHT, loss_weight), (WEIGHT, weight)
    for place, word in floats:
        row[place] = jax.lax.bitcast_convert_type(jnp.asarray(word, jnp.float32), jnp.int32)
    for place, word in ((BAD_LEAF, bad_leaf), (STEP, step), (CHECKSUM, checksum)):
        row[place] = jnp.asarray(word, jnp.int32)
    return jnp.stack(row)


def sum_of_loss(value: Any, weight: Any) -> jax.Array:
    """A node's loss times its weight, float32; `UNKNOWN` if the loss is None or not finite."""
    weighs = jnp.asarray(weight) > 0
    if value is None:
        return jnp.where(weighs, UNKNOWN, jnp.float32(0))
    loss = jnp.asarray(value, jnp.float32)
    known = jnp.isfinite(loss)
    total = jnp.where(known, weight * jnp.where(known, loss, jnp.float32(0)), UNKNOWN)
    return jnp.where(weighs, total, jnp.float32(0))


def add_losses(total: Any, loss: Any) -> jax.Array:
    """Sum of two losses, float32; `UNKNOWN` if one of them is `UNKNOWN` or not finite."""
    pair = [jnp.asarray(x, jnp.float32) for x in (total, loss)]
    known = [is_known(x) for x in pair]
    least = [jnp.where(*both, jnp.float32(0)) for both in zip(known, pair, strict=True)]
    return jnp.where(known[0] & known[1], least[0] + least[1], UNKNOWN)


def is_known(loss: Any) -> jax.Array:
    """Marks losses, or sums of them, that are finite and not `UNKNOWN`."""
    return jnp.isfinite(loss) & (loss > UNKNOWN / 2)


def first_bad_leaf(leaves: Leaves) -> jax.Array:
    """1 + the number of the first leaf that is not finite; 0 if all are finite."""
    if not leaves:
        return jnp.int32(0)
    good = jnp.stack([jnp.all(jnp.isfinite(leaf)) for leaf in leaves])
    return jnp.where(jnp.all(good), 0, 1 + jnp.argmin(good)).astype(jnp.int32)


def differ(words: jax.Array) -> jax.Array:
    """Returns whether the nodes' words differ."""
    return jnp.any(words != words[0])


def loss_words(heads: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Sums of the nodes' losses and their weights, ``[nodes]`` each; 0 for nodes left out."""
    sums, weights = _floats(heads, LOSS_SUM), _floats(heads, LOSS_WEIGHT)
    known = (heads[:, BAD_LEAF] == 0) & is_known(sums)
    sums, weights = (jnp.where(known, words, jnp.float32(0)) for words in (sums, weights))
    return sums, weights


def weight_of_all(heads: jax.Array) -> jax.Array:
    """Sum of the weights of nodes that are not left out; 1 if all are 0."""
    total = jnp.sum(_weights(heads))
    return jnp.where(total > 0, total, 1.0)


def none_weighs(heads: jax.Array) -> jax.Array:
    """Returns whether the weights of all nodes that are not left out are 0."""
    return ~jnp.any(_weights(heads) > 0)


def weights_are_wrong(heads: jax.Array) -> jax.Array:
    """Returns whether a node gave an invalid weight."""
    weights = _floats(heads, WEIGHT)
    return jnp.any(~(jnp.isfinite(weights) & (weights >= 0)))


def time_words(heads: jax.Array) -> tuple[jax.Array, ...]:
    """Times that the nodes measured: the fields of `_rules.measured.Times`, ``[nodes]`` each."""
    return tuple(_floats(heads, word) for word in range(HEADER)[TIMES])


def mean_weight(heads: jax.Array) -> jax.Array:
    """The mean weight of the nodes that are not left out; 1 if all weights are 0."""
    nodes = jnp.sum(counted(heads), dtype=jnp.float32)
    mean = jnp.sum(_weights(heads)) / jnp.maximum(nodes, 1.0)
    return jnp.where(mean > 0, mean, 1.0)


def lift_below_zero(weight: jax.Array) -> jax.Array:
    """Multiplies an (invalid) weight below 0, so that a sum with other weights still shows it."""
    lifted = jnp.clip(weight, -1e7, -1e-12) * LIFT  # finite, and below any sum
    return jnp.where(weight < 0, lifted, weight)


def living(heads: jax.Array) -> jax.Array:
    """The number of nodes that have not failed, float32."""
    return jnp.sum(heads[:, STATUS] != GONE, dtype=jnp.float32)


def counted(heads: jax.Array) -> jax.Array:
    """Marks nodes that a mean counts: they have not failed, and sent only finite numbers."""
    return (heads[:, BAD_LEAF] == 0) & (heads[:, STATUS] != GONE)


def _weights(heads: jax.Array) -> jax.Array:
    return jnp.where(counted(heads), _floats(heads, WEIGHT), 0.0)


def _floats(heads: jax.Array, word: int) -> jax.Array:
    """One word of all nodes; only this one, since integer words could be NaN as floats."""
    return jax.lax.bitcast_convert_type(heads[:, word], jnp.float32)
