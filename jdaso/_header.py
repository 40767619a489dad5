"""What a node tells the others beside the numbers: the words of a header, and what they hold."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ._packing import Layout
from ._types import Chunks, Leaves

HEADER = 8
"""32-bit words that follow the numbers of each row; named below."""

LOSS_SUM, LOSS_COUNT, BAD_LEAF, STEP, CHECKSUM, EXCHANGE_SECONDS, STEP_SECONDS, STATUS = range(8)
"""Words of a header. Sums of this node's losses and their number since its last start; 1 + the
first leaf that is not finite (0: none); completed updates; checksum of the parameters at step 0, of
parameters and inner state in the cool-down, else 0; measured seconds of the last exchange and of a
step; 1 where the host met an error."""


def header(
    *,
    step: Any,
    loss_sum: Any = 0.0,
    loss_count: Any = 0.0,
    bad_leaf: Any = 0,
    checksum: Any = 0,
) -> jax.Array:
    """A header as int32 ``[HEADER]``; float words by their bits. The host adds the other words."""
    row = [jnp.int32(0)] * HEADER
    for place, word in ((LOSS_SUM, loss_sum), (LOSS_COUNT, loss_count)):
        row[place] = jax.lax.bitcast_convert_type(jnp.asarray(word, jnp.float32), jnp.int32)
    for place, word in ((BAD_LEAF, bad_leaf), (STEP, step), (CHECKSUM, checksum)):
        row[place] = jnp.asarray(word, jnp.int32)
    return jnp.stack(row)


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
    """
    if not leaves:
        return jnp.int32(0)
    bits = jnp.concatenate([leaf.reshape(-1) for leaf in leaves])
    bits = jax.lax.bitcast_convert_type(bits, jnp.uint32)
    # Mixed, not only multiplied: else +1 here and -1 there would cancel in the sum.
    mixed = bits ^ (jax.lax.iota(jnp.uint32, bits.size) * np.uint32(2654435761))
    mixed *= np.uint32(2246822519)
    mixed = (mixed ^ (mixed >> 15)) * np.uint32(3266489917)
    total = jnp.sum(mixed ^ (mixed >> 13), dtype=jnp.uint32)
    return jax.lax.bitcast_convert_type(total, jnp.int32)


def loss_words(heads: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Sums of the nodes' losses and their numbers, ``[nodes]`` each; 0 of nodes left out."""
    words, finite = _floats(heads), heads[:, BAD_LEAF] == 0
    return jnp.where(finite, words[:, LOSS_SUM], 0.0), jnp.where(finite, words[:, LOSS_COUNT], 0.0)


def time_words(heads: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Measured seconds of an exchange and of a step, ``[nodes]`` each."""
    words = _floats(heads)
    return words[:, EXCHANGE_SECONDS], words[:, STEP_SECONDS]


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
    bad = [(node, int(leaf)) for node, leaf in enumerate(heads[:, BAD_LEAF]) if leaf]
    if bad:
        where = "; ".join(f"node {node}, leaf {leaves[leaf - 1]}" for node, leaf in bad)
        return (
            f"Parameters are not finite (NaN or infinite): {where}. Lower the learning rate, "
            'clip gradients, or leave such exchanges out with on_nonfinite="skip".'
        )
    sums = heads[:, CHECKSUM].tolist()
    odd = [node for node, value in enumerate(sums) if value != sums[0]]
    if steps[0] == 0 and odd:
        return (
            f"Parameters differ at the first update: nodes {odd} from node 0. Give all nodes "
            "the same with params = jdaso.broadcast(params, session) before tx.init."
        )
    return None


def _floats(words: jax.Array) -> jax.Array:
    return jax.lax.bitcast_convert_type(words, jnp.float32)
