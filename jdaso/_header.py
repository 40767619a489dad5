"""What a node tells the others beside the numbers: the words of a header, and what they hold."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ._explicit import replicated
from ._packing import Layout
from ._types import Chunks, Leaves

HEADER = 9
"""32-bit words that follow the numbers of each row; named below."""

LOSS_SUM, LOSS_WEIGHT, WEIGHT, BAD_LEAF, STEP, CHECKSUM = range(6)
EXCHANGE_SECONDS, STEP_SECONDS, STATUS = range(6, HEADER)
"""Words of a header. Sums of this node's weighted losses (`UNKNOWN`: one of them is not known) and
of their weights since its last start; the weight of what it sends, which is multiplied by it; 1 +
the first leaf that is not finite (0: none); completed updates; checksum of what is to be the same
on all nodes (`Common`), else 0; measured seconds of the last exchange and of a step; one of the
following."""

WELL, FAILED, GONE = range(3)
"""What the status says: nothing; the host met an error; the node has died."""

UNKNOWN = np.float32(-3e38)
"""In place of a sum of losses. Finite: ``jax_debug_nans`` and ``jax_debug_infs`` end a run in which
any number is not, NaN that only stands for "nothing" included."""

LEFT_OUT = np.int32(np.iinfo(np.int32).max)
"""In place of a checksum: this node's numbers are not finite, and count no more."""

_ROW = 1024

_LIFT, _LIFTED = np.float32(1e30), np.float32(1e12)
"""Factor of weights below 0, so that no sum of weights hides them; the least size of such sums."""


def header(
    *,
    step: Any,
    loss_sum: Any = UNKNOWN,
    loss_weight: Any = 0.0,
    weight: Any = 1.0,
    bad_leaf: Any = 0,
    checksum: Any = 0,
) -> jax.Array:
    """A header as int32 ``[HEADER]``; float words by their bits. The host adds the other words."""
    row = [jnp.int32(0)] * HEADER
    floats = (LOSS_SUM, loss_sum), (LOSS_WEIGHT, loss_weight), (WEIGHT, weight)
    for place, word in floats:
        row[place] = jax.lax.bitcast_convert_type(jnp.asarray(word, jnp.float32), jnp.int32)
    for place, word in ((BAD_LEAF, bad_leaf), (STEP, step), (CHECKSUM, checksum)):
        row[place] = jnp.asarray(word, jnp.int32)
    return jnp.stack(row)


def sum_of_loss(value: Any, weight: Any) -> jax.Array:
    """A node's loss times its weight, float32; `UNKNOWN` where it is None or not finite."""
    weighs = jnp.asarray(weight) > 0
    if value is None:
        return jnp.where(weighs, UNKNOWN, jnp.float32(0))
    loss = jnp.asarray(value, jnp.float32)
    known = jnp.isfinite(loss)
    total = jnp.where(known, weight * jnp.where(known, loss, jnp.float32(0)), UNKNOWN)
    return jnp.where(weighs, total, jnp.float32(0))


def add_losses(total: Any, loss: Any) -> jax.Array:
    """Sum of two losses, float32; `UNKNOWN` where one of them is, or is not finite."""
    pair = [jnp.asarray(x, jnp.float32) for x in (total, loss)]
    known = [is_known(x) for x in pair]
    least = [jnp.where(*both, jnp.float32(0)) for both in zip(known, pair, strict=True)]
    return jnp.where(known[0] & known[1], least[0] + least[1], UNKNOWN)


def is_known(loss: Any) -> jax.Array:
    """Marks losses, or sums of them, that are finite and not `UNKNOWN`."""
    return jnp.isfinite(loss) & (loss > UNKNOWN / 2)


def first_bad_leaf(layout: Layout, chunks: Chunks) -> jax.Array:
    """1 + the number of the first leaf that is not finite; 0 where all are."""
    ends, begin = np.array(layout.offsets[1:], np.int64), 0
    found = jnp.int32(0)
    for chunk in chunks:
        good = jnp.isfinite(chunk).reshape(-1)
        leaf = jnp.sum(
            jnp.argmin(good) >= np.clip(ends - begin, 0, good.size).astype(np.int32),
            dtype=jnp.int32,
        )
        found = jnp.where((found > 0) | jnp.all(good), found, leaf + 1)
        begin += good.size
    return found


def differ(words: jax.Array) -> jax.Array:
    """Whether the nodes' words are not all the same."""
    return jnp.any(words != words[0])


def fingerprints(chunk: jax.Array, bits: int) -> jax.Array:
    """Each element as a whole number below ``2**bits`` that two floats share only by chance."""
    words = jax.lax.bitcast_convert_type(chunk, jnp.uint32)
    return (words * np.uint32(2654435761)) >> np.uint32(32 - bits)


def checksum(leaves: Leaves) -> jax.Array:
    """A number that two sets of bits share only by chance.

    It joins the leaves first: a copy, but XLA takes some 30 ms for each leaf that is added apart.
    And it adds rows first, which XLA's CPU backend does many at a time.
    """
    if not leaves:
        return jnp.int32(0)
    mixed = _mixed(leaves)
    whole = mixed.size // _ROW * _ROW
    rows = jnp.sum(mixed[:whole].reshape(-1, _ROW), axis=0, dtype=jnp.uint32)
    total = jnp.sum(rows, dtype=jnp.uint32) + jnp.sum(mixed[whole:], dtype=jnp.uint32)
    return jax.lax.bitcast_convert_type(total, jnp.int32)


def checksums(leaves: Leaves) -> jax.Array:
    """One for each leaf, int32 ``[leaves]``; slow, but one program whatever their number."""
    if not leaves:
        return jnp.zeros(0, jnp.int32)
    mixed, ends = _mixed(leaves), np.cumsum([leaf.size for leaf in leaves], dtype=np.int32)
    place = jnp.searchsorted(ends, jax.lax.iota(jnp.int32, mixed.size), side="right")
    totals = jnp.zeros(len(leaves), jnp.uint32).at[place].add(mixed)
    return jax.lax.bitcast_convert_type(totals, jnp.int32)


def _mixed(leaves: Leaves) -> jax.Array:
    bits = jnp.concatenate([replicated(leaf).reshape(-1) for leaf in leaves])
    bits = jax.lax.bitcast_convert_type(bits, jnp.uint32)
    # Mixed, not only multiplied: else +1 here and -1 there would cancel in the sum.
    mixed = bits ^ (jax.lax.iota(jnp.uint32, bits.size) * np.uint32(2654435761))
    mixed *= np.uint32(2246822519)
    mixed = (mixed ^ (mixed >> 15)) * np.uint32(3266489917)
    return mixed ^ (mixed >> 13)


def loss_words(heads: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Sums of the nodes' losses and their weights, ``[nodes]`` each; 0 of nodes left out."""
    sums, weights = _floats(heads, LOSS_SUM), _floats(heads, LOSS_WEIGHT)
    known = (heads[:, BAD_LEAF] == 0) & is_known(sums)
    sums, weights = (jnp.where(known, words, jnp.float32(0)) for words in (sums, weights))
    return sums, weights


def weight_of_all(heads: jax.Array) -> jax.Array:
    """Sum of the nodes' weights, but for those that are left out; 1 where all are 0."""
    total = jnp.sum(_weights(heads))
    return jnp.where(total > 0, total, 1.0)


def none_weighs(heads: jax.Array) -> jax.Array:
    """Whether the weights of all nodes are 0, but for those that are left out."""
    return ~jnp.any(_weights(heads) > 0)


def weights_are_wrong(heads: jax.Array) -> jax.Array:
    """Whether a node has given a weight that is none."""
    weights = _floats(heads, WEIGHT)
    return jnp.any(~(jnp.isfinite(weights) & (weights >= 0)))


def time_words(heads: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Measured seconds of an exchange and of a step, ``[nodes]`` each."""
    return _floats(heads, EXCHANGE_SECONDS), _floats(heads, STEP_SECONDS)


def mean_weight(heads: jax.Array) -> jax.Array:
    """Of the nodes that are not left out; 1 where all are 0."""
    nodes = jnp.sum(counted(heads), dtype=jnp.float32)
    mean = jnp.sum(_weights(heads)) / jnp.maximum(nodes, 1.0)
    return jnp.where(mean > 0, mean, 1.0)


def complaint(heads: np.ndarray, leaves: tuple[str, ...]) -> str | None:
    """What is wrong with a run by the headers of an exchange, the same on all nodes; None if fine.

    Args:
        heads: headers of all nodes, on the host.
        leaves: paths of the leaves that were exchanged.
    """
    steps = heads[:, STEP].tolist()
    if len(set(steps)) > 1:
        where = ", ".join(f"node {node} at {at}" for node, at in enumerate(steps))
        return (
            f"The nodes have made different numbers of updates ({where}). Skip updates on all "
            "nodes or on none: put optax.apply_if_finite inside jdaso.daso(...)."
        )
    weights = np.ascontiguousarray(heads[:, WEIGHT]).view(np.float32)
    wrong = [(node, w) for node, w in enumerate(weights) if not (np.isfinite(w) and w >= 0)]
    if wrong:
        said = lambda w: w / _LIFT if -np.inf < w < -_LIFTED else w  # noqa: E731
        where = ", ".join(f"node {node} gave {said(weight):g}" for node, weight in wrong)
        return (
            f"A weight must be finite and at least 0: {where} (in units of the nodes' mean). Give "
            "tx.update(..., weight=) the number of samples, or 0 where there are none."
        )
    bad = [(node, int(leaf)) for node, leaf in enumerate(heads[:, BAD_LEAF]) if leaf]
    if bad:
        where = "; ".join(f"node {node}, leaf {leaves[leaf - 1]}" for node, leaf in bad)
        return (
            f"Parameters are not finite (NaN or infinite): {where}. Lower the learning rate, "
            'clip gradients, or leave such exchanges out with on_nonfinite="skip".'
        )
    return None


def lift_below_zero(weight: jax.Array) -> jax.Array:
    """Multiplies a weight below 0, which is an error, so that a sum with others still shows it."""
    lifted = jnp.clip(weight, -1e7, -1e-12) * _LIFT  # finite, and below any sum
    return jnp.where(weight < 0, lifted, weight)


def living(heads: jax.Array) -> jax.Array:
    """How many nodes have not died, float32."""
    return jnp.sum(heads[:, STATUS] != GONE, dtype=jnp.float32)


def bury(heads: np.ndarray, living: Sequence[int]) -> np.ndarray:
    """Headers, on the host, with those of dead nodes: as the first living one's, of weight 0."""
    dead = [node for node in range(len(heads)) if node not in living]
    heads = np.array(heads)
    heads[dead] = heads[living[0]]
    heads[dead, STATUS], heads[dead, CHECKSUM] = GONE, LEFT_OUT
    for word in (LOSS_SUM, LOSS_WEIGHT, WEIGHT, BAD_LEAF):
        heads[dead, word] = 0  # 0.0, too
    return heads


def counted(heads: jax.Array) -> jax.Array:
    """Which nodes a mean is taken over: they live, and what they sent is finite."""
    return (heads[:, BAD_LEAF] == 0) & (heads[:, STATUS] != GONE)


def _weights(heads: jax.Array) -> jax.Array:
    return jnp.where(counted(heads), _floats(heads, WEIGHT), 0.0)


def _floats(heads: jax.Array, word: int) -> jax.Array:
    """One word of all nodes; the integers among the others could be NaN as floats."""
    return jax.lax.bitcast_convert_type(heads[:, word], jnp.float32)
