"""What a step costs on a cluster that is not there: times of exchanges from alpha and beta.

The network is described by two numbers, as usual: a message of m bytes takes ``alpha + m / beta``.
What crosses it is what jdaso's engines really send: for each chunk an all-to-all and an all-gather,
each of which moves (P - 1) / P of the chunk through every node's link. The host's part is
described by the rate at which it copies memory, and the bytes that each stage reads and writes.
"""

from __future__ import annotations

import dataclasses
import math
import statistics

from ..._exchange.exchange import CHUNK_BYTES
from ..._payload.layout import BLOCK, chunk_bytes_of
from ..._payload.wire import WIRES

WIRE_BYTES = {name: w.encoded_width(BLOCK) * w.dtype.itemsize / BLOCK for name, w in WIRES.items()}
"""Bytes a number takes on a wire; int8 carries a float32 scale for each block."""

_PASSES = {"float32": (6, 7), "narrow": (11, 12)}
"""About how often a start and a merge read or write the size of the parameters, on a CPU: counted
in the step that XLA compiles for merge "paper", and one more each for the snapshot of "corrected".
A copy is two passes.
"""
_PASSES_BLOCKING = 12
"""The same of a mean that a step waits for: packed, copied out, summed, copied back, unpacked."""
_PASSES_A_STEP = 2
"""Of every step: updates leave a condition through memory, and are read again."""
_COPY_SHARE = 0.65
"""Speed of these passes, of a plain copy's. Fitted by hand to one run (benchmarks/NOTES.md)."""


@dataclasses.dataclass(frozen=True)
class Fabric:
    """A cluster, as far as the time of a step depends on it.

    Attributes:
        nodes: P.
        bits_per_second: of one node's link, each way.
        latency_seconds: alpha: what a message takes besides its bytes.
        efficiency: the share of the link's bits that are numbers; the rest are headers.
        copy_bytes_per_second: at which a node's host copies memory (bytes copied, so read and
            written once); shared by the nodes of one machine.
        staging_bytes_per_second: between a node's accelerators and its host's memory.
        accelerators: whether the steps run on them; else packing and merging cost the host's
            memory, and so do the optimizer's own passes.
        jitter_seconds: standard deviation of a node's step time. Whoever waits for all nodes at
            each step waits for the slowest.

    Raises:
        ValueError: a number is out of its range.
    """

    nodes: int
    bits_per_second: float
    latency_seconds: float = 20e-6
    efficiency: float = 0.95
    copy_bytes_per_second: float = 10e9
    staging_bytes_per_second: float = 20e9
    accelerators: bool = True
    jitter_seconds: float = 0.0

    def __post_init__(self) -> None:
        if self.nodes < 1:
            raise ValueError(f"nodes must be at least 1, got {self.nodes}.")
        for name in ("bits_per_second", "copy_bytes_per_second", "staging_bytes_per_second"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} must be above 0, got {getattr(self, name)}.")
        for name in ("latency_seconds", "jitter_seconds"):
            if not 0 <= getattr(self, name) < math.inf:
                raise ValueError(f"{name} must be 0 or more, got {getattr(self, name)}.")
        if not 0 < self.efficiency <= 1:
            raise ValueError(f"efficiency is a share, 0 to 1, got {self.efficiency}.")

    @property
    def bytes_per_second(self) -> float:
        """Of numbers, through one node's link, each way."""
        return self.bits_per_second / 8 * self.efficiency

    @property
    def wait_for_slowest(self) -> float:
        """Expected seconds by which the slowest of P nodes is behind their mean, after one step."""
        share = (self.nodes - 0.375) / (self.nodes + 0.25)  # Blom's estimate of the largest
        return self.jitter_seconds * max(statistics.NormalDist().inv_cdf(share), 0.0)


@dataclasses.dataclass(frozen=True)
class Training:
    """What is trained, and how often its nodes talk.

    Attributes:
        parameters: numbers that are exchanged.
        step_seconds: of one node's step with nothing between nodes: gradients, local averages and
            the optimizer.
        sync_every: B.
        delay: S.
        wire: format of exchanges.
        chunk_bytes: most float32 bytes that travel at once.

    Raises:
        ValueError: a number is out of its range.
    """

    parameters: int
    step_seconds: float
    sync_every: int = 4
    delay: int = 4
    wire: str = "bfloat16"
    chunk_bytes: int = CHUNK_BYTES

    def __post_init__(self) -> None:
        if self.parameters < 1:
            raise ValueError(f"parameters must be at least 1, got {self.parameters}.")
        if not 0 < self.step_seconds < math.inf:
            raise ValueError(f"step_seconds must be above 0, got {self.step_seconds}.")
        if not 1 <= self.delay <= self.sync_every:
            raise ValueError(
                f"delay must be within 1..sync_every, got delay={self.delay} with "
                f"sync_every={self.sync_every}."
            )
        if self.wire not in WIRE_BYTES:
            raise ValueError(f"wire must be one of {', '.join(WIRE_BYTES)}, got {self.wire!r}.")


@dataclasses.dataclass(frozen=True)
class Prediction:
    """What a step takes, in the mean over a cycle; seconds.

    Attributes:
        step_seconds: of a step, all in all.
        bare_seconds: of the same step with nothing exchanged.
        exchange_seconds: from an exchange's start to its result.
        handling_seconds: packing, copying and merging, a step.
        exposed_seconds: for which a step waits for the network (or for a slower node).
        bytes_per_step: that a node sends.
        sync_every: steps from one exchange to the next.
    """

    step_seconds: float
    bare_seconds: float
    exchange_seconds: float
    handling_seconds: float
    exposed_seconds: float
    bytes_per_step: float
    sync_every: int = 1

    @property
    def hidden_share(self) -> float:
        """Of the exchange's time, the share during which the node computed."""
        if self.exchange_seconds == 0:
            return 1.0
        return max(0.0, 1 - self.sync_every * self.exposed_seconds / self.exchange_seconds)


def exchange_seconds(fabric: Fabric, parameters: int, wire: str, chunk_bytes: int) -> float:
    """``2 (P - 1) alpha`` for each chunk, ``2 (P - 1) / P bytes / beta``, and the last chunk's sum.

    The sums of all other chunks are hidden behind the chunks that follow.
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
    """What a cycle's start and merge cost (packing, copying, the merge rule), and every step."""
    if fabric.accelerators:  # their own memory is so fast that only the way to the host counts
        moved = training.parameters * WIRE_BYTES[training.wire]
        return 2 * moved / fabric.staging_bytes_per_second, 0.0
    passes = sum(_PASSES["float32" if training.wire == "float32" else "narrow"])
    one = _pass_seconds(fabric, training)
    return passes * one, _PASSES_A_STEP * one


def _pass_seconds(fabric: Fabric, training: Training) -> float:
    """Reading or writing all parameters once in a host's memory; a copy is two of these."""
    return 4 * training.parameters / 2 / (_COPY_SHARE * fabric.copy_bytes_per_second)


def predict(fabric: Fabric, training: Training, *, exchange_scale: float = 1.0) -> Prediction:
    """A step of `jdaso.daso` while it cycles.

    An exchange may take S steps. What it takes longer, the step that merges it waits for::

        exposed = max(0, exchange + (slowest node's lag after B steps) - S * step)
        cycle   = B * step + start + merge + exposed

    Args:
        fabric: the cluster.
        training: what is trained.
        exchange_scale: how many times as long as modelled an exchange takes.
    """
    bare = training.step_seconds
    if fabric.nodes == 1:
        return Prediction(bare, bare, 0.0, 0.0, 0.0, 0.0)
    handling, each = handling_seconds(fabric, training)
    exchange = exchange_scale * exchange_seconds(
        fabric, training.parameters, training.wire, training.chunk_bytes
    )
    every, lag = training.sync_every, fabric.wait_for_slowest * math.sqrt(training.sync_every)
    exposed = max(0.0, exchange + lag - training.delay * (bare + each))
    handling = each + handling / every
    step = bare + handling + exposed / every
    sent = 2 * (fabric.nodes - 1) / fabric.nodes * training.parameters * WIRE_BYTES[training.wire]
    return Prediction(step, bare, exchange, handling, exposed / every, sent / every, every)


def predict_synchronous(
    fabric: Fabric, training: Training, *, behind_backward: float = 0.0
) -> Prediction:
    """A step that averages float32 gradients over all nodes by a ring, and waits.

    Args:
        fabric: the cluster.
        training: what is trained; `wire`, `sync_every` and `delay` are not used.
        behind_backward: share of the step behind which the averages of its first gradients may
            hide, as Horovod and DistributedDataParallel do it; 0 for one average after the step.

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


@dataclasses.dataclass(frozen=True)
class Advice:
    """One way to hide everything: a wire, and the smallest S at which nothing is exposed."""

    training: Training
    prediction: Prediction


def advise(
    fabric: Fabric,
    training: Training,
    *,
    most_steps: int = 64,
    exchange_seconds_measured: float | None = None,
) -> list[Advice]:
    """Which B, S and wire hide everything: one for each wire that can, the fastest step first.

    For each wire S is the smallest with ``exchange + lag <= S * step``, and B the larger of S and
    `training.sync_every`. Steps within 1 % of each other count as equal; then the smaller B comes
    first (nodes drift less), then the wider wire.

    Args:
        fabric: the cluster.
        training: its `sync_every` is the smallest B that is wanted.
        most_steps: wires that would need a larger B are left out.
        exchange_seconds_measured: what an exchange on ``training.wire`` took in a run
            (``Stats.exchange_seconds / Stats.exchanges``), in place of the model's; the other
            wires scale from it by their bytes.

    Raises:
        ValueError: `most_steps` is less than 1, or the measured time is not above 0.
    """
    if most_steps < 1:
        raise ValueError(f"most_steps must be at least 1, got {most_steps}.")
    if exchange_seconds_measured is not None and not 0 < exchange_seconds_measured < math.inf:
        raise ValueError(
            "What an exchange took must be above 0: Stats.exchange_seconds / Stats.exchanges of a "
            f"run in which some ended; got {exchange_seconds_measured} s."
        )
    found, scale = [], 1.0
    if exchange_seconds_measured is not None and fabric.nodes > 1:
        modelled = exchange_seconds(
            fabric, training.parameters, training.wire, training.chunk_bytes
        )
        scale = exchange_seconds_measured / modelled
    for wire in ("float32", "bfloat16", "int8"):
        for delay in range(1, most_steps + 1):
            every = max(delay, training.sync_every)
            chosen = dataclasses.replace(training, wire=wire, sync_every=every, delay=delay)
            prediction = predict(fabric, chosen, exchange_scale=scale)
            if prediction.exposed_seconds == 0:
                found.append(Advice(chosen, prediction))
                break
    fastest = min((a.prediction.step_seconds for a in found), default=0.0)

    def rank(advice: Advice) -> tuple[bool, int, float]:
        chosen, near = advice.training, advice.prediction.step_seconds <= 1.01 * fastest
        return not near, chosen.sync_every, -WIRE_BYTES[chosen.wire]

    return sorted(found, key=rank)
