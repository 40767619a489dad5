"""Series to be drawn: averaged over the nodes, and thinned if long."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from jaxtyping import Float64

from ._runs import Run

BINS = 100

Series = Float64[np.ndarray, " points"]


class Thinned(NamedTuple):
    """A series in a limited number of bins.

    Attributes:
        x: the mean place in each bin, increasing.
        low: the least number in each bin.
        mean: the mean of each bin.
        high: the largest number in each bin.
    """

    x: Series
    low: Series
    mean: Series
    high: Series


def thin(x: Series, y: Series, bins: int = BINS) -> Thinned:
    """Shortens a series without losing a peak: least, mean and largest number of each bin.

    Bins are equally wide in `x`. The least and the largest number of the whole series are kept; a
    series with no more points than bins is unchanged. Numbers that are not finite are left out.

    Args:
        x: the places, not decreasing.
        y: the numbers.
        bins: the largest number of bins in the result.
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
    """Returns columns averaged over the nodes that have a step's number.

    NaN if no node has one, infinity if the number of a node was not finite.
    """
    steps = np.concatenate([node.columns["step"] for node in run.nodes])
    unique, place = np.unique(steps, return_inverse=True)
    found = {"step": unique}
    for name in names:
        column = np.concatenate([node.column(name) for node in run.nodes])
        known = ~np.isnan(column)
        sums = np.bincount(place[known], column[known], minlength=unique.size)
        counts = np.bincount(place[known], minlength=unique.size)
        found[name] = np.divide(sums, counts, out=np.full(unique.size, np.nan), where=counts > 0)
    return found


def of_run(run: Run, name: str, against: str) -> tuple[Series, Series]:
    """Returns a column against "step" or "seconds", in order, without missing numbers."""
    columns = over_nodes(run, (name, "seconds"))
    x, y = columns[against], columns[name]
    known = np.isfinite(x) & ~np.isnan(y)
    order = np.argsort(x[known], kind="stable")
    return x[known][order], y[known][order]
