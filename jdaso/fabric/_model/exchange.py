"""The cost of a step on a cluster you do not have: times of exchanges from alpha and beta.

Two numbers describe the network, as usual: a message of m bytes takes ``alpha + m / beta``. The
messages are those that jdaso's engines send: for each chunk an all-to-all and an all-gather, each
of which moves (P - 1) / P of the chunk through every node's link. The host is described by the rate
at which it copies memory, and by the bytes that each stage reads and writes.
"""

from __future__ import annotations

import dataclasses
import math

from ..._payload.layout import chunk_bytes_of
from .settings import WIRE_BYTES, Fabric, Training

_PASSES = {"float32": (6, 7), "narrow": (11, 12)}
"""Approximate passes of a start and a merge over the parameters on a CPU, each a read or a write
of all of them: counted in XLA's compiled step for merge "paper", plus one each for the snapshot of
"corrected". A copy is two passes.
"""
_PASSES_BLOCKING = 12
"""Passes of a mean that a step waits for: packed, copied out, summed, copied back, unpacked."""
_PASSES_A_STEP = 2
"""Passes of every step: updates leave a condition through memory, and are read again."""
_COPY_SHARE = 0.65
"""Speed of these passes relative to a plain copy. Fitted to one run (benchmarks/NOTES.md)."""


@dataclasses.dataclass(frozen=True)
class Prediction:
    """The predicted time of a step, in seconds, averaged over a cycle.

    Attributes:
        step_seconds: total time of a step.
        bare_seconds: time of the same step without exchanges.
        exchange_seconds: from a fragment's start to its result.
        handling_seconds: packing, copying and merging, per step.
        exposed_seconds: time that a step waits for the network (or for a slower node).
        bytes_per_step: bytes that a node sends.
        sync_every: steps from one exchange of a fragment to its next.
        fragments: F.
    """

    step_seconds: float
    bare_seconds: float
    exchange_seconds: float
    handling_seconds: float
    exposed_seconds: float
    bytes_per_step: float
    sync_every: int = 1
    fragments: int = 1

    @property
    def hidden_share(self) -> float:
        """The share of the exchanges' time during which the node computed."""
        if self.exchange_seconds == 0:
            return 1.0
        of_cycle = self.fragments * self.exchange_seconds
        return max(0.0, 1 - self.sync_every * self.exposed_seconds / of_cycle)


def exchange_seconds(fabric: Fabric, parameters: int, wire: str, chunk_bytes: int) -> float:
    """``2 (P - 1) alpha`` for each chunk, ``2 (P - 1) / P bytes / beta``, and the last chunk's sum.

    The sums of all other chunks are hidden behind the chunks that follow them.
    """
    nodes = fabric.nodes
    if nodes == 1:
        return 0.0
    each = chunk_bytes_of(4 * parameters, nodes, chunk_bytes)
    chunks = math.ceil(4 * parameters / each)
    on_link = 2 * (nodes - 1) / nodes * parameters * WIRE_BYTES[wire] / fabric.bytes_per_second
    last = min(each, 4 * parameters) / fabric.copy_bytes_per_second
    return 2 * chunks * (nodes - 1) * fabric.latency_seconds + on_link + last


def handling_seconds(fabric: Fabric, training: Training) -> tuple[float, float]:
    """Returns the cost of a cycle's start and merge (packing, copying, the rule), and per step."""
    if fabric.accelerators:  # their memory is fast: only the copies to the host and back count
        moved = 4 * training.parameters  # float32 on any wire: the host encodes
        return 2 * moved / fabric.staging_bytes_per_second, 0.0
    passes = sum(_PASSES["float32" if training.wire == "float32" else "narrow"])
    one = _pass_seconds(fabric, training)
    return passes * one, _PASSES_A_STEP * one


def _pass_seconds(fabric: Fabric, training: Training) -> float:
    """Returns the time to read or write all parameters once in a host's memory."""
    return 4 * training.parameters / 2 / (_COPY_SHARE * fabric.copy_bytes_per_second)


def fragment_seconds(fabric: Fabric, training: Training) -> float:
    """Returns the time of one fragment's exchange."""
    parameters = math.ceil(training.parameters / training.count)
    return exchange_seconds(fabric, parameters, training.wire, training.chunk_bytes)


def predict(fabric: Fabric, training: Training, *, exchange_scale: float = 1.0) -> Prediction:
    """Predicts a step of `jdaso.daso` while it cycles.

    A fragment's exchange may take S steps. The step that merges it waits for any time beyond that,
    and all F exchanges of a cycle must fit on the link::

        exposed = max(0, F * (exchange + (slowest node's lag after B / F steps) - S * step),
                      F * exchange - B * step)
        cycle   = B * step + start + merge + exposed

    With jitter this is a lower bound: a merge that need not wait leaves nodes apart, and over many
    cycles some drift further than between two merges.

    Args:
        fabric: the cluster.
        training: the training.
        exchange_scale: factor on the modelled time of an exchange.
    """
    bare = training.step_seconds
    if fabric.nodes == 1:
        return Prediction(bare, bare, 0.0, 0.0, 0.0, 0.0)
    handling, each = handling_seconds(fabric, training)
    exchange = exchange_scale * fragment_seconds(fabric, training)
    every, count, step = training.sync_every, training.count, bare + each
    lag = fabric.wait_for_slowest * math.sqrt(every / count)  # since the last merge of any fragment
    late = count * (exchange + lag - training.delay * step)
    exposed = max(0.0, late, count * exchange - every * step)
    handling = each + handling / every
    step = bare + handling + exposed / every
    sent = 2 * (fabric.nodes - 1) / fabric.nodes * training.parameters * WIRE_BYTES[training.wire]
    return Prediction(step, bare, exchange, handling, exposed / every, sent / every, every, count)


def predict_synchronous(
    fabric: Fabric, training: Training, *, behind_backward: float = 0.0
) -> Prediction:
    """Predicts a step that averages float32 gradients over all nodes by a ring, and waits.

    Args:
        fabric: the cluster.
        training: the training; `wire`, `sync_every` and `delay` are not used.
        behind_backward: share of the step that can hide the averages of its first gradients, as
            in Horovod and DistributedDataParallel; 0 for one average after the step.

    Raises:
        ValueError: the share is not within 0 to 1.
    """
    if not 0 <= behind_backward <= 1:
        raise ValueError(f"behind_backward is a share of a step, 0 to 1, got {behind_backward}.")
    bare = training.step_seconds
    if fabric.nodes == 1:
        return Prediction(bare, bare, 0.0, 0.0, 0.0, 0.0)
    exchange = exchange_seconds(fabric, training.parameters, "float32", training.chunk_bytes)
    exposed = max(0.0, exchange - behind_backward * bare) + fabric.wait_for_slowest
    sent = 2 * (fabric.nodes - 1) / fabric.nodes * training.parameters * 4
    if fabric.accelerators:
        handling = 2 * 4 * training.parameters / fabric.staging_bytes_per_second
    else:
        handling = _PASSES_BLOCKING * _pass_seconds(fabric, training)
    return Prediction(bare + exposed + handling, bare, exchange, handling, exposed, sent)
