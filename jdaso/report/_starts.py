"""The starts of the runs in a folder, and which of them are the latest run."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import NamedTuple

from ._rows import RunPart

Start = dict[int, RunPart]
"""The part of each node that recorded the start."""

_Key = tuple[float, int]


class Placed(NamedTuple):
    """The part of a node in one start, and its place in the run.

    Attributes:
        part: its rows.
        offset: seconds from the run's beginning to the part's.
        below: its steps from this one on were made again by a later start.
    """

    part: RunPart
    offset: float
    below: float


def starts_of(files: Iterable[list[RunPart]]) -> list[Start]:
    """Returns the starts in their order; a start has the same time on all nodes.

    The order is that of the parts in each file: the clock of a later start may be behind.
    """
    starts: dict[_Key, Start] = {}
    orders: list[list[_Key]] = []
    for parts in files:
        times = [part.time for part in parts]
        keys = [(time, times[:k].count(time)) for k, time in enumerate(times)]
        for key, part in zip(keys, parts, strict=True):
            starts.setdefault(key, {})[part.node] = part
        orders.append(keys)
    return [starts[key] for key in _merged(orders)]


def latest_run(starts: list[Start]) -> list[Start]:
    """Returns the starts of the latest run.

    A run begins with a start that repeats all steps of a run that had ended.
    """
    begin, ended = 0, False
    for k, start in enumerate(starts):
        first = first_step(start)
        if ended and first <= min(map(first_step, starts[begin:k])) < math.inf:
            begin = k
        ended = any(part.ended for part in start.values()) or (ended and math.isinf(first))
    return starts[begin:]


def placed(starts: list[Start]) -> dict[int, list[Placed]]:
    """Returns the parts of each node, by its number, with their places in the run."""
    found: dict[int, list[Placed]] = {node: [] for start in starts for node in sorted(start)}
    zero, end = min(part.begin for part in starts[0].values()), 0.0
    for k, start in enumerate(starts):
        below = min(map(first_step, starts[k + 1 :]), default=math.inf)
        for node, part in start.items():
            found[node].append(Placed(part, max(part.begin - zero, end), below))
        end = max(found[node][-1].offset + part.seconds for node, part in start.items())
    return dict(sorted(found.items()))


def has_left(node: int, starts: list[Start]) -> bool:
    """Returns whether the latest start went on with fewer nodes, without this one."""
    return min(part.num_nodes for part in starts[-1].values()) <= node


def first_step(start: Start) -> float:
    """Returns the first step of a start; infinity if it has none."""
    some = [part for part in start.values() if part.phases]
    return min((part.columns["step"][0] for part in some), default=math.inf)


def _merged(orders: list[list[_Key]]) -> list[_Key]:
    """Returns all keys, in an order that agrees with each file; else the earliest comes first."""
    found: list[_Key] = []
    while orders := [keys for keys in orders if keys]:
        heads = {keys[0] for keys in orders}
        free = [key for key in heads if not any(key in keys[1:] for keys in orders)]
        found.append(min(free or heads))
        orders = [[key for key in keys if key != found[-1]] for keys in orders]
    return found
