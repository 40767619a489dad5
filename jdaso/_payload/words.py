"""Words of a header: their places, and their special values; no JAX."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

HEADER = 11
"""32-bit words that follow the numbers of each row; named below."""

LOSS_SUM, LOSS_WEIGHT, WEIGHT, BAD_LEAF, STEP, CHECKSUM = range(6)
STATUS = HEADER - 1
TIMES = slice(6, STATUS)
"""Words of a header. The sum of this node's weighted losses since its last start (`UNKNOWN` if one
of them is not known), and the sum of their weights; the weight by which its numbers are multiplied;
1 + the first leaf that is not finite (0: none); completed updates; checksum of the replicated
leaves (`Common`), else 0; the status, one of the values below, and on the wire the number of the
optimizer that sends (`signed`); the four words of `_rules.measured.Times`."""

WELL, FAILED, GONE = range(3)
"""Values of the status: all is well; the host met an error; the node has failed."""

UNKNOWN = np.float32(-3e38)
"""In place of an unknown sum of losses. Finite: ``jax_debug_nans`` and ``jax_debug_infs`` end a run
in which any number is not finite, even a NaN that only stands for "nothing"."""

LEFT_OUT = np.int32(np.iinfo(np.int32).max)
"""Stands for a checksum: this node's numbers are not finite and are left out."""

LIFT, LIFTED = np.float32(1e30), np.float32(1e12)
"""Factor of weights below 0, so that no sum of weights hides them; the least size of such sums."""


def signed(owner: int) -> int:
    """The status word of an optimizer's header on the wire; `WELL` if the optimizer has no number.

    Optimizers of equal shapes share a channel, and nodes that call them in different orders would
    average the numbers of one with those of another.
    """
    return GONE + owner if owner > 0 else WELL


def senders(heads: np.ndarray) -> dict[int, int]:
    """The optimizer's number in each living node's header, on the host."""
    words = enumerate(heads[:, STATUS].tolist())
    return {node: max(word - GONE, 0) for node, word in words if word not in (GONE, FAILED)}


def bury(heads: np.ndarray, living: Sequence[int]) -> np.ndarray:
    """Headers, on the host. Failed nodes get a copy of the first living node's, with weight 0."""
    dead = [node for node in range(len(heads)) if node not in living]
    heads = np.array(heads)
    heads[dead] = heads[living[0]]
    heads[dead, STATUS], heads[dead, CHECKSUM] = GONE, LEFT_OUT
    for word in (LOSS_SUM, LOSS_WEIGHT, WEIGHT, BAD_LEAF):
        heads[dead, word] = 0  # 0.0, too
    return heads


class Facts(NamedTuple):
    """The facts in the headers of an exchange, on the host.

    Attributes:
        living: the number of nodes that have not failed.
        factor: scales a sum as if all nodes had sent with weight 1.
        lost: scales rounding errors for the error feedback: the next exchange adds them to a mean
            over the living.
        weight: the sum of the weights of nodes that count; 1 if it is 0.
        finite: whether the numbers of all nodes are finite.
        merges: whether the result can be merged: finite, and not all weights are 0.
    """

    living: np.float32
    factor: np.float32
    lost: np.float32
    weight: np.float32
    finite: bool
    merges: bool


def facts_of(heads: np.ndarray) -> Facts:
    """The facts in headers, int32 ``[nodes, HEADER]``."""
    alive = heads[:, STATUS] != GONE
    counted = alive & (heads[:, BAD_LEAF] == 0)
    weights = np.where(counted, np.ascontiguousarray(heads[:, WEIGHT]).view(np.float32), 0)
    total = np.sum(weights, dtype=np.float32)
    whole = total if total > 0 else np.float32(1)
    living, finite = np.float32(alive.sum()), not heads[:, BAD_LEAF].any()
    return Facts(
        living=living,
        factor=np.float32(len(heads)) / whole,
        lost=living / whole,
        weight=whole,
        finite=finite,
        merges=finite and bool((weights > 0).any()),
    )
