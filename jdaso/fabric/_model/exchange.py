"""The cost of a step on a cluster you do not have: times of exchanges from alpha and beta.

Two numbers describe the network, as usual: a message of m bytes takes ``alpha + m / beta``. The
messages are those that jdaso's engines send: for each chunk an all-to-all and an all-gather, each
of which moves (P - 1) / P of the chunk through every node's link. The host is described by the rate
at which it copies memory, and by the bytes that each stage reads and writes.
"""

from __future__ import annotations

import dataclasses
import math
import statistics

from ..._exchange.exchange import CHUNK_BYTES
from ..._payload.layout import chunk_bytes_of
from ..._payload.wire import WIRES
from ..._rules.measured import MOST_SHARE
from ..._rules.phases import MOST_STEPS, largest_count

WIRE_BYTES = {name: wire.bytes_per_number for name, wire in WIRES.items()}
"""Bytes per number on a wire, the scales of blockwise wires included."""

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
class Fabric:
    """A cluster: the properties that determine the time of a step.

    Attributes:
        nodes: P.
        bits_per_second: of one node's link, each way.
        latency_seconds: alpha: the time of a message apart from its bytes.
        efficiency: the share of the link's bits that carry numbers; the rest are headers.
        copy_bytes_per_second: rate at which a node's host copies memory (bytes copied, so each
            read and written once); shared by the nodes of one machine.
        staging_bytes_per_second: rate between a node's accelerators and its host's memory.
        accelerators: whether the steps run on accelerators; if not, packing and merging use the
            host's memory, and so do the optimizer's own passes.
        jitter_seconds: standard deviation of a node's step time. A node that waits for all others
            at each step waits for the slowest.

    Raises:
        ValueError: a number is out of range.
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
        """Rate of numbers, without headers, through one node's link, each way."""
        return self.bits_per_second / 8 * self.efficiency

    @property
    def wait_for_slowest(self) -> float:
        """Expected seconds by which the slowest of P nodes is behind their mean after one step."""
        share = (self.nodes - 0.375) / (self.nodes + 0.25)  # Blom's estimate of the largest
        return self.jitter_seconds * max(statistics.NormalDist().inv_cdf(share), 0.0)


@dataclasses.dataclass(frozen=True)
class Training:
    """The training: its size, its step time, and the settings of its exchanges.

    Attributes:
        parameters: numbers that are exchanged.
        step_seconds: time of one node's step without exchanges between nodes: gradients, local
            averages and the optimizer.
        sync_every: B.
        delay: S.
        wire: format of exchanges.
        chunk_bytes: the most float32 bytes sent at once.
        fragments: F, or ``"auto"``, as in `jdaso.Phases`.

    Raises:
        ValueError: a number is out of range.
    """

    parameters: int
    step_seconds: float
    sync_every: int = 4
    delay: int = 4
    wire: str = "bfloat16"
    chunk_bytes: int = CHUNK_BYTES
    fragments: int | str = "auto"

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
        if self.fragments != "auto" and (
            isinstance(self.fragments, str)
            or self.fragments < 1
            or self.sync_every % self.fragments
        ):
            raise ValueError(
                f'fragments must be "auto" or divide sync_every={self.sync_every}, got '
                f"{self.fragments!r}."
            )

    @property
    def count(self) -> int:
        """F."""
        if isinstance(self.fragments, str):
            return largest_count(self.sync_every, 4 * self.parameters)
        return self.fragments


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
    if fabric.accelerators:  # their memory is fast: only the copies to the host count
        moved = training.parameters * WIRE_BYTES[training.wire]
        return 2 * moved / fabric.staging_bytes_per_second, 0.0
    passes = sum(_PASSES["float32" if training.wire == "float32" else "narrow"])
    one = _pass_seconds(fabric, training)
    return passes * one, _PASSES_A_STEP * one


def _pass_seconds(fabric: Fabric, training: Training) -> float:
    """Returns the time to read or write all parameters once in a host's memory."""
    return 4 * training.parameters / 2 / (_COPY_SHARE * fabric.copy_bytes_per_second)


def _fragment_seconds(fabric: Fabric, training: Training) -> float:
    """Returns the time of one fragment's exchange."""
    parameters = math.ceil(training.parameters / training.count)
    return exchange_seconds(fabric, parameters, training.wire, training.chunk_bytes)


def predict(fabric: Fabric, training: Training, *, exchange_scale: float = 1.0) -> Prediction:
    """Predicts a step of `jdaso.daso` while it cycles.

    A fragment's exchange may take S steps. The step that merges it waits for any time beyond that,
    and all F exchanges of a cycle must fit on the link::

        exposed = max(0, F * (exchange + (slowest node's lag after B steps) - S * step),
                      F * exchange - B * step)
        cycle   = B * step + start + merge + exposed

    Args:
        fabric: the cluster.
        training: the training.
        exchange_scale: factor on the modelled time of an exchange.
    """
    bare = training.step_seconds
    if fabric.nodes == 1:
        return Prediction(bare, bare, 0.0, 0.0, 0.0, 0.0)
    handling, each = handling_seconds(fabric, training)
    exchange = exchange_scale * _fragment_seconds(fabric, training)
    every, lag = training.sync_every, fabric.wait_for_slowest * math.sqrt(training.sync_every)
    count, step = training.count, bare + each
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


@dataclasses.dataclass(frozen=True)
class Advice:
    """One way to hide everything: a wire, and the smallest S at which nothing is exposed."""

    training: Training
    prediction: Prediction


def advise(
    fabric: Fabric,
    training: Training,
    *,
    least_steps: int | None = None,
    most_steps: int = MOST_STEPS,
    exchange_seconds_measured: float | None = None,
) -> list[Advice]:
    """Finds B, S and wire that hide all exchanges: one for each wire that can, fastest step first.

    For each wire, B is the smallest with which nothing is exposed (see `predict`) and a cycle's
    starts and merges take at most 5 % of its steps, as in ``Phases(sync_every="auto")``; if they
    take more with every B, the smallest with which nothing is exposed. S is the smallest for that
    B. Steps within 1 % of each other count as equal; then the smaller B comes first (nodes drift
    less), then the wider wire.

    Args:
        fabric: the cluster.
        training: the training; B and S are those of a measured run, if there is one.
        least_steps: the smallest B to consider, ``training.sync_every`` by default.
        most_steps: wires that would need a larger B are left out.
        exchange_seconds_measured: the time of an exchange on ``training.wire`` in a run
            (``Stats.exchange_seconds / Stats.exchanges``), used instead of the model's; the other
            wires scale from it by their bytes.

    Raises:
        ValueError: `most_steps` is less than 1, or the measured time is not above 0.
    """
    if most_steps < 1:
        raise ValueError(f"most_steps must be at least 1, got {most_steps}.")
    if exchange_seconds_measured is not None and not 0 < exchange_seconds_measured < math.inf:
        raise ValueError(
            "The time of an exchange must be above 0: Stats.exchange_seconds / Stats.exchanges of "
            f"a run in which some ended; got {exchange_seconds_measured} s."
        )
    found, scale = [], 1.0
    if exchange_seconds_measured is not None and fabric.nodes > 1:
        scale = exchange_seconds_measured / _fragment_seconds(fabric, training)
    least = training.sync_every if least_steps is None else least_steps
    for wire in WIRE_BYTES:
        hidden = []
        for every in _intervals(training, least, most_steps):
            of_wire = dataclasses.replace(training, wire=wire, sync_every=every, delay=1)
            advice = _least_delay(fabric, of_wire, min(every, most_steps), scale)
            hidden += [advice] * (advice is not None)
            if advice is not None and _held_share(fabric, of_wire) <= MOST_SHARE:
                found.append(advice)
                break
        else:
            found += hidden[:1]
    fastest = min((a.prediction.step_seconds for a in found), default=0.0)

    def rank(advice: Advice) -> tuple[bool, int, float]:
        chosen, near = advice.training, advice.prediction.step_seconds <= 1.01 * fastest
        return not near, chosen.sync_every, -WIRE_BYTES[chosen.wire]

    return sorted(found, key=rank)


def _held_share(fabric: Fabric, training: Training) -> float:
    """Returns the share of a cycle's steps that its starts and merges take."""
    if fabric.nodes == 1:
        return 0.0
    held, _ = handling_seconds(fabric, training)
    return held / (training.sync_every * training.step_seconds)


def _intervals(training: Training, least: int, most_steps: int) -> list[int]:
    """Returns the B that fragments allow, in the order in which to try them."""
    every = range(least, max(most_steps, least) + 1)
    return [b for b in every if isinstance(training.fragments, str) or not b % training.fragments]


def _least_delay(fabric: Fabric, training: Training, most: int, scale: float) -> Advice | None:
    """Returns the smallest S up to `most` that hides the exchanges; None if none does."""

    def with_delay(delay: int) -> Advice:
        chosen = dataclasses.replace(training, delay=delay)
        return Advice(chosen, predict(fabric, chosen, exchange_scale=scale))

    if with_delay(most).prediction.exposed_seconds > 0:
        return None
    delays = map(with_delay, range(1, most + 1))
    return next(advice for advice in delays if advice.prediction.exposed_seconds == 0)
