"""Cuts a line of costs into stages of balanced cost, with the least traffic between them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

_WIDEST = 1500
"""The most places considered for one cut; if there are more, those with the least traffic."""


class LineValue(NamedTuple):
    """A value that is made at one place of the line and used at later ones."""

    made: int
    used: tuple[int, ...]  # in ascending order
    bytes: float  # received by each later stage that uses the value


class CutError(ValueError):
    """A program cannot be cut into the requested number of stages."""


def best_cuts(
    costs: Sequence[float],
    values: Sequence[LineValue],
    stages: int,
    *,
    allowed: Sequence[int],
    balance: float,
    forced: Sequence[int] = (),
) -> list[int]:
    """Returns the ``stages - 1`` places between stages, in ascending order.

    The largest stage costs at most ``max(balance * mean, the least possible)``. Among all cuts
    within that limit these have the least traffic: the sum over stages of the bytes that enter
    them. A value that several later stages use goes to each of them. The sum has one term per
    stage, which depends only on the stage's two ends, so a table over (stages so far, place) finds
    the least sum exactly (dynamic programming). Ties go to the cuts whose largest stage is smaller.

    Args:
        costs: cost of each place of the line, at least 0.
        values: values that flow from place to place.
        stages: number of stages.
        allowed: places p where a cut may be, between p - 1 and p; in ascending order.
        balance: at least 1.
        forced: the places among `allowed` where a cut must be.

    Raises:
        CutError: there are not enough places to cut at.
    """
    ends = [0, *(p for p in allowed if 0 < p < len(costs)), len(costs)]
    if len(ends) - 1 < stages:
        raise CutError(f"It has {len(ends) - 2} places at which it can be cut.")
    if len(forced) > stages - 1:
        raise CutError(f"{len(forced)} cuts are requested, too many for {stages} stages.")
    total = np.concatenate([[0.0], np.cumsum(np.asarray(costs, np.float64))])
    mean = total[-1] / stages
    limit = max(balance * mean, _least_maximum(total, ends, stages, forced)) * (1 + 1e-9)
    traffic = _Traffic(values, len(costs))
    sure = _longest_first(total, ends, stages, forced, limit)
    # After k stages that end at a place: (bytes, largest stage, the previous cut).
    table: list[dict[int, tuple[float, float, int]]] = [{0: (0.0, 0.0, 0)}]
    for k in range(1, stages + 1):
        here = _within_reach(total, ends, k, stages, limit, traffic, sure[k - 1])
        row: dict[int, tuple[float, float, int]] = {}
        for begin, (size, largest, _) in table[-1].items():
            reach = here[(here > begin) & (total[here] - total[begin] <= limit)]
            reach = reach[[not any(begin < f < end for f in forced) for end in reach.tolist()]]
            if not len(reach):
                continue
            entering = traffic.entering(begin, reach)
            for end, more in zip(reach.tolist(), entering.tolist(), strict=True):
                cost = float(total[end] - total[begin])
                found = (size + more, max(largest, cost), begin)
                if end not in row or found < row[end]:
                    row[end] = found
        table.append(row)
    place, cuts = len(costs), []
    for k in range(stages, 1, -1):
        place = table[k][place][2]
        cuts.append(place)
    return cuts[::-1]


def bytes_entering(values: Sequence[LineValue], cuts: Sequence[int], length: int) -> list[float]:
    """Returns the bytes that each stage receives."""
    traffic, edges = _Traffic(values, length), [0, *cuts, length]
    pairs = zip(edges, edges[1:], strict=False)
    return [float(traffic.entering(begin, np.array([end]))[0]) for begin, end in pairs]


class _Traffic:
    """The bytes that enter a stage, for all stages that begin at one place."""

    def __init__(self, values: Sequence[LineValue], length: int):
        self._values, self._begins = values, [[] for _ in range(length + 1)]
        for k, value in enumerate(values):
            self._begins[value.made].append(k)
        self._live: dict[int, list[int]] = {}
        self._crossing = np.zeros(length + 2)
        for value in values:
            if value.used:
                self._crossing[value.made + 1] += value.bytes
                self._crossing[value.used[-1] + 1] -= value.bytes
        self._crossing = np.cumsum(self._crossing)

    def crossing(self, places: np.ndarray) -> np.ndarray:
        """Returns the bytes of values made before each place and used after it."""
        return self._crossing[places]

    def entering(self, begin: int, ends: np.ndarray) -> np.ndarray:
        """Returns the bytes that enter each stage [begin, end), for all `ends`."""
        first, size = [], []
        for value in self._live_at(begin):
            first.append(value.used[int(np.searchsorted(value.used, begin))])
            size.append(value.bytes)
        order = np.argsort(first, kind="stable")
        sums = np.concatenate([[0.0], np.cumsum(np.asarray(size, np.float64)[order])])
        return sums[np.searchsorted(np.asarray(first, np.int64)[order], ends, side="left")]

    def _live_at(self, begin: int) -> Iterator[LineValue]:
        if not self._live:
            live: list[int] = []
            for place, new in enumerate(self._begins):
                live = [k for k in live if self._values[k].used[-1] >= place]
                self._live[place] = live
                live = live + [k for k in new if self._values[k].used]
        return (self._values[k] for k in self._live[begin])


def _least_maximum(
    total: np.ndarray, ends: Sequence[int], stages: int, forced: Sequence[int]
) -> float:
    """Returns the least cost that the largest of `stages` stages can have."""

    def fits(limit: float) -> bool:
        return _longest_first(total, ends, stages, forced, limit)[-1] == ends[-1]

    low, high = total[-1] / stages, float(total[-1])
    if fits(low):
        return float(low)
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (low, middle) if fits(middle) else (middle, high)
    return high


def _longest_first(
    total: np.ndarray, ends: Sequence[int], stages: int, forced: Sequence[int], limit: float
) -> list[int]:
    """Returns the ends of stages, each as long as `limit` and the number of later ones allow."""
    places, found, at = np.asarray(ends), [], 0
    stops = [int(np.searchsorted(places, f)) for f in forced]
    for k in range(1, stages + 1):
        last = int(np.searchsorted(total[places], total[places[at]] + limit, side="right")) - 1
        at = min([last, len(places) - 1 - (stages - k), *(stop for stop in stops if stop > at)])
        found.append(int(places[at]))
    return found


def _within_reach(
    total: np.ndarray,
    ends: Sequence[int],
    k: int,
    stages: int,
    limit: float,
    traffic: _Traffic,
    sure: int,
) -> np.ndarray:
    """Returns places where the k-th stage can end: k stages reach them, the rest reach the end.

    `sure` is one of them, so that a valid continuation is always left.
    """
    places = np.asarray(ends)
    if k == stages:
        return places[-1:]
    inside = places[k : len(places) - (stages - k)]
    inside = inside[total[inside] <= k * limit]
    inside = inside[total[-1] - total[inside] <= (stages - k) * limit]
    if len(inside) > _WIDEST:
        crossing = traffic.crossing(inside)
        near = np.abs(total[inside] - k * total[-1] / stages)
        kept = np.lexsort((near, crossing))[:_WIDEST]
        even = np.linspace(0, len(inside) - 1, math.isqrt(_WIDEST)).astype(int)
        inside = np.union1d(inside[np.concatenate([kept, even])], [sure])
    return inside
