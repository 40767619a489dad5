"""Long stages are compiled in parts, and parts that are alike only once.

A compiler takes as long for the hundredth block of a deep network as for the first. Where a stage
has very many equations it is cut once more, at its narrowest places; what follows from one block to
the next is the same arrays in the same shapes, so that hundreds of blocks are a handful of
programs.
"""

from __future__ import annotations

from .._plan.line import Line

_LONG = 800
"""Stages of more equations are cut."""

_LEAST = 40
"""Equations of a part, but for those between two wide places."""


def segment_cuts(line: Line, begin: int, end: int) -> list[int]:
    """Places at which to cut the stage [begin, end) for the compiler; none in a short one.

    Where as few results as anywhere in the stage go from before to after.
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
    """How many results go over each place."""
    change = [0] * (len(line.places) + 2)
    for value in line.values:
        change[value.made + 1] += 1
        change[value.used[-1] + 1] -= 1
    total, out = 0, []
    for step in change:
        total += step
        out.append(total)
    return out
