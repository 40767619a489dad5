"""Cells of a study in numbers: the spread of their seconds, and a step's split."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from .measured import Key, MeasuredLaunch, good_cells
from .ratios import spread_of


@dataclasses.dataclass(frozen=True)
class Split:
    """An iteration's mean seconds in parts: ``seconds = compute + exposed``.

    Means, since they add up if iterations differ: a step that starts an exchange, one that waits.

    Attributes:
        compute: the same work without a network.
        exposed: all else; a little below 0 by chance if nothing is exposed.
        hidden: ``communication - exposed``, at least 0: communication behind compute; None if the
            time that communication took was not measured.
    """

    compute: float
    exposed: float
    hidden: float | None


@dataclasses.dataclass(frozen=True)
class Summary:
    """Seconds of one cell: of all iterations of its replicates.

    Attributes:
        factors: of the cell.
        median: in seconds.
        low: 5 % of the iterations took less.
        high: 95 % took less.
        replicates: n.
        iterations: of all replicates.
        split: None if compute was not measured.
    """

    factors: Key
    median: float
    low: float
    high: float
    replicates: int
    iterations: int
    split: Split | None


def summaries(launches: Sequence[MeasuredLaunch]) -> list[Summary]:
    """Describes each cell that has numbers, in the order of factors."""
    found = []
    for key, some in good_cells(launches).items():
        seconds = np.concatenate([launch.seconds for launch in some])
        found.append(Summary(key, *spread_of(seconds), len(some), seconds.size, _split(some)))
    return found


def _split(launches: Sequence[MeasuredLaunch]) -> Split | None:
    seconds, compute, communication = (
        _mean([getattr(one, name) for one in launches])
        for name in ("seconds", "compute_seconds", "communication_seconds")
    )
    if seconds is None or compute is None:
        return None
    exposed = seconds - compute
    hidden = None
    if communication is not None:  # of fragments in flight side by side: not more than compute
        hidden = min(compute, max(0.0, communication - max(0.0, exposed)))
    return Split(compute, exposed, hidden)


def _mean(columns: Sequence[np.ndarray]) -> float | None:
    """Returns the mean over all launches; None if one of them lacks the column."""
    whole = all(column.size for column in columns)
    return float(np.mean(np.concatenate(columns))) if whole else None
