"""Compiles long stages in parts, and parts that compute the same only once.

A compiler takes as long for the hundredth block of a deep network as for the first. So a stage
with very many equations is cut once more, at its narrowest places. There, arrays of the same shapes
flow from block to block, so hundreds of blocks need only a handful of programs.
"""

from __future__ import annotations

from .._plan.line import Line

_LONG = 800
"""Stages with more equations are cut."""

_LEAST = 40
"""The fewest equations of a part, unless it lies between two wide places."""


def segment_cuts(line: Line, begin: int, end: int) -> list[int]:
    """Returns places at which to cut the stage [begin, end) for the compiler; none if it is short.

    A cut is where the fewest results of all places in the stage cross it.
    """
    program = line.program
    if end - begin <= _LONG or program.scans:
        return []
    crossing = _crossing(line)
    least = min(crossing[place] for place in range(begin + 1, end))
    cuts, last = [], begin
    for place in range(begin + 1, end):
        narrow = crossing[place] <= least and place not in line.inside_spans
        if narrow and crossing[place - 1] > least and place - last >= _LEAST:
            cuts.append(place)
            last = place
    return cuts


def _crossing(line: Line) -> list[int]:
    """Returns the number of results that cross each place."""
    change = [0] * (len(line.places) + 2)
    for value in line.values:
        change[value.made + 1] += 1
        change[value.used[-1] + 1] -= 1
    total, out = 0, []
    for step in change:
        total += step
        out.append(total)
    return out
