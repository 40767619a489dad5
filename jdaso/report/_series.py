"""Numbers as they are drawn: the nodes' mean, and long series made short."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from jaxtyping import Float64

from ._runs import Run

BINS = 100

Series = Float64[np.ndarray, " points"]


class Thinned(NamedTuple):
    """A series in at most so many bins; of each bin what is in it.

    Attributes:
        x: the mean of its places, rising.
        low: its least number.
        mean: its mean.
        high: its largest.
    """

    x: Series
    low: Series
    mean: Series
    high: Series


def thin(x: Series, y: Series, bins: int = BINS) -> Thinned:
    """Makes a series short without losing a peak: least, mean and largest number of each bin.

    Bins are equally wide in `x`. The least and the largest number of the whole series are kept;
    a series with no more points than bins is kept as it is. Numbers that are not finite are left
    out.

    Args:
        x: where they are, not falling.
        y: the numbers.
        bins: how many are left at most.
    """
    finite = np.isfinite(x) & np.isfinite(y)
    x, y = x[finite], y[finite]
    if x.size <= bins:
        return Thinned(x, y, y, y)
    width = (x[-1] - x[0]) or 1.0
    place = np.minimum(((x - x[0]) / width * bins).astype(np.int64), bins - 1)
    begins = np.flatnonzero(np.diff(place, prepend=-1))
    counts = np.diff(begins, append=x.size)
    return Thinned(
        np.add.reduceat(x, begins) / counts,
        np.minimum.reduceat(y, begins),
        np.add.reduceat(y, begins) / counts,
        np.maximum.reduceat(y, begins),
    )


def over_nodes(run: Run, names: tuple[str, ...]) -> dict[str, Series]:
    """Columns as means over the nodes that have a row of a step, by step; NaN where none has."""
    steps = np.concatenate([node.columns["step"] for node in run.nodes])
    unique, place = np.unique(steps, return_inverse=True)
    found = {"step": unique}
    for name in names:
        column = np.concatenate([node.column(name) for node in run.nodes])
        known = np.isfinite(column)
        sums = np.bincount(place[known], column[known], minlength=unique.size)
        counts = np.bincount(place[known], minlength=unique.size)
        found[name] = np.divide(sums, counts, out=np.full(unique.size, np.nan), where=counts > 0)
    return found


def of_run(run: Run, name: str, against: str) -> tuple[Series, Series]:
    """A column against "step" or "seconds", where it has numbers, in their order."""
    columns = over_nodes(run, (name, "seconds"))
    x, y = columns[against], columns[name]
    known = np.isfinite(x) & np.isfinite(y)
    order = np.argsort(x[known], kind="stable")
    return x[known][order], y[known][order]
