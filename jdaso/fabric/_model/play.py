"""A simulation of a pipeline's step, action by action, over modelled links."""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Sequence
from typing import NamedTuple

from .settings import Fabric

LOCAL_LATENCY_SECONDS = 1e-6
"""The time of a message between two partitions of one node, apart from its bytes; typical."""

Order = Sequence[Sequence[tuple[bool, int, int]]]
"""The actions of each rank in order: (backward, stage, micro-batch)."""


class Traffic(NamedTuple):
    """The message from a stage's forward pass of a micro-batch; as many bytes flow back."""

    from_stage: int
    to_stage: int
    bytes: float


class Played(NamedTuple):
    """One action of a simulated step."""

    backward: bool
    stage: int
    microbatch: int
    begin_seconds: float
    end_seconds: float


class PlayedLinks:
    """The links between ranks; messages leave in the order in which they were sent.

    A message leaves when its node's link is free, occupies the link for ``bytes / beta`` and
    arrives alpha later. Between two ranks of one node the host's copy replaces the link. With
    accelerators a message is first staged into the host's memory, and out of it at its destination.
    Incoming traffic is not limited: in a pipeline it is as much as outgoing traffic.
    """

    def __init__(self, fabric: Fabric | None, partitions_per_node: int) -> None:
        self._fabric, self._per_node = fabric, partitions_per_node
        self._free: dict[tuple[int, bool], float] = defaultdict(float)

    def arrival(self, now: float, sender: int, receiver: int, size: float) -> float:
        """Returns the arrival time of a message that is ready at `now`."""
        fabric = self._fabric
        if fabric is None or sender == receiver:
            return now
        node = sender // self._per_node
        local = node == receiver // self._per_node
        staging = size / fabric.staging_bytes_per_second if fabric.accelerators else 0.0
        rate = fabric.copy_bytes_per_second if local else fabric.bytes_per_second
        alpha = LOCAL_LATENCY_SECONDS if local else fabric.latency_seconds
        left = max(now + staging, self._free[node, local]) + size / rate
        self._free[node, local] = left
        return left + alpha + staging


def chain(stages: int, size: float = 0.0) -> tuple[Traffic, ...]:
    """Returns traffic with the same bytes from each stage to the next."""
    return tuple(Traffic(s, s + 1, size) for s in range(stages - 1))


def play(
    order: Order,
    forward_seconds: Sequence[float],
    backward_seconds: Sequence[float],
    traffic: Sequence[tuple[int, int, float]] | None = None,
    *,
    fabric: Fabric | None = None,
    partitions_per_node: int = 1,
) -> list[list[Played]]:
    """Returns the start and end of each action of a step; a list for each rank.

    An action begins when its rank has finished the previous one and its inputs have arrived: for
    forward(s, m), the messages to s from earlier stages' forward passes of m; for backward(s, m),
    those from the stages that s had sent to, and forward(s, m) itself.

    Args:
        order: of each rank, ``(backward, stage, microbatch)``, as the `order` from
            `jdaso.pipeline.make_schedule`.
        forward_seconds: of each stage, for a micro-batch.
        backward_seconds: the same for the backward pass.
        traffic: ``(from stage, to stage, bytes)`` for a micro-batch; if None, each stage needs the
            one before it.
        fabric: its links carry the messages; if None, messages take no time.
        partitions_per_node: ranks that share a node.

    Raises:
        ValueError: the order deadlocks; the text lists which rank waits for which action.
    """
    traffic = chain(len(forward_seconds)) if traffic is None else traffic
    home = {stage: rank for rank, actions in enumerate(order) for _, stage, _ in actions}
    sends: dict[tuple[bool, int], list[tuple[int, float]]] = defaultdict(list)
    inputs: dict[tuple[bool, int], int] = defaultdict(int)
    for source, target, size in traffic:
        sends[False, source].append((target, size))
        sends[True, target].append((source, size))
        inputs[False, target] += 1
        inputs[True, source] += 1
    links = PlayedLinks(fabric, partitions_per_node)
    missing = {
        (back, stage, microbatch): inputs[back, stage]
        + back  # a backward pass also needs its own forward pass
        for actions in order
        for back, stage, microbatch in actions
    }
    done: list[list[Played]] = [[] for _ in order]
    busy = [False] * len(order)
    events: list[tuple[float, int, bool, tuple[bool, int, int]]] = []  # the number breaks ties
    number = 0

    def begin(rank: int, now: float) -> None:
        nonlocal number
        if busy[rank] or len(done[rank]) == len(order[rank]):
            return
        back, stage, microbatch = order[rank][len(done[rank])]
        if missing[back, stage, microbatch]:
            return
        end = now + (backward_seconds if back else forward_seconds)[stage]
        busy[rank] = True
        done[rank].append(Played(back, stage, microbatch, now, end))
        number += 1
        heapq.heappush(events, (end, number, True, (back, stage, microbatch)))

    for rank in range(len(order)):
        begin(rank, 0.0)
    while events:
        now, _, ended, (back, stage, microbatch) = heapq.heappop(events)
        rank = home[stage]
        if ended:
            busy[rank] = False
            if not back:
                missing[True, stage, microbatch] -= 1
            for target, size in sends[back, stage]:
                number += 1
                arrival = links.arrival(now, rank, home[target], size)
                heapq.heappush(events, (arrival, number, False, (back, target, microbatch)))
        else:
            missing[back, stage, microbatch] -= 1
        begin(rank, now)
    if stuck := [rank for rank in range(len(order)) if len(done[rank]) < len(order[rank])]:
        waits = ", ".join(f"rank {rank} at {order[rank][len(done[rank])]}" for rank in stuck)
        raise ValueError(
            "The order does not end; (backward, stage, micro-batch) that never get their inputs: "
            f"{waits}."
        )
    return done
