"""A cluster, and a training on it: all that a prediction depends on."""

from __future__ import annotations

import dataclasses
import math
import statistics

from ..._exchange.exchange import CHUNK_BYTES
from ..._payload.wire import WIRES
from ..._rules.phases import largest_count

WIRE_BYTES = {name: wire.bytes_per_number for name, wire in WIRES.items()}
"""Bytes per number on a wire, the scales of blockwise wires included."""


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
        if self.chunk_bytes < 1:
            raise ValueError(f"chunk_bytes must be at least 1, got {self.chunk_bytes}.")
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
