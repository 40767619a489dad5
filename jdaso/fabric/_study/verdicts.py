"""Verdicts of a study: for each setting and pair of fabrics, the effect of the network in words."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence
from typing import Literal

import numpy as np

from .equivalence import ALPHA, MOST_REPLICATES, Judged, Outcome, judge
from .measured import Key, Launch, RowsError, good_cells
from .ratios import Pairs, Ratio, bootstrap_ratio, pairs_of, spread_of

MARGIN = 0.05
Said = Literal["no significant effect", "slower", "faster", "not enough data"]
SAID: dict[Outcome, Said] = {
    "equal": "no significant effect",
    "slower": "slower",
    "faster": "faster",
    "undecided": "not enough data",
}


@dataclasses.dataclass(frozen=True)
class Verdict:
    """The verdict on a fabric against a reference, at one setting.

    Attributes:
        setting: all factors but the fabric.
        reference: the fabric below the fraction line.
        fabric: the fabric that is judged.
        said: the verdict.
        ratio: seconds on `fabric` / on `reference`: geometric mean, and the interval of the tests.
        bootstrap: the same with the bootstrap's interval; None without replicates.
        margin: the relative difference that matters.
        alpha: probability of an error; the interval is one of ``1 - 2 alpha``.
        more: advised number of further replicates; None if beyond any study.
        alone: replicates that only one of the two has.
    """

    setting: Key
    reference: str
    fabric: str
    said: Said
    ratio: Ratio
    bootstrap: Ratio | None
    margin: float
    alpha: float
    more: int | None
    alone: int

    @property
    def words(self) -> str:
        """The verdict as a sentence: with n, interval and margin."""
        ratio, low, high = self.ratio.value, self.ratio.low, self.ratio.high
        interval = f"ratio {ratio:.3f}, {1 - 2 * self.alpha:.0%} interval {low:.3f} to {high:.3f}"
        if self.ratio.replicates < 2:
            interval = f"ratio {ratio:.3f}, no interval" if self.ratio.replicates else "no ratio"
        about = f"({interval}, n = {self.ratio.replicates}, margin {self.margin:.3g})"
        if self.alone:
            about = f"{about[:-1]}, {self.alone} without a partner)"
        return f"{self._claim()} {about}"

    def _claim(self) -> str:
        if self.said == "slower" and self.ratio.low >= 2:
            return f"slower by a factor of {self.ratio.low:.3g} to {self.ratio.high:.3g}"
        if self.said == "slower":
            return f"slower by {self.ratio.low - 1:.1%} to {self.ratio.high - 1:.1%}"
        if self.said == "faster":
            return f"faster by {1 - self.ratio.high:.1%} to {1 - self.ratio.low:.1%}"
        if self.said == "no significant effect":
            return self.said
        if self.more is None:
            return f"{self.said}: more than {MOST_REPLICATES} replicates at this spread and margin"
        return f"{self.said}: {self.more} more replicate{'s' * (self.more != 1)}"


@dataclasses.dataclass(frozen=True)
class Summary:
    """Seconds of one cell: of all iterations of its replicates.

    Attributes:
        factors: of the cell.
        median: in seconds.
        low: 5 % of the iterations took less.
        high: 95 % did.
        replicates: n.
        iterations: of all replicates.
        exposed_share: share of the time that was not compute; None if it was not split.
    """

    factors: Key
    median: float
    low: float
    high: float
    replicates: int
    iterations: int
    exposed_share: float | None


def summaries(launches: Sequence[Launch]) -> list[Summary]:
    """Describes each cell that has numbers, in the order of factors."""
    found = []
    for key, some in good_cells(launches).items():
        seconds = np.concatenate([launch.seconds for launch in some])
        compute = [launch.compute_seconds for launch in some if launch.compute_seconds.size]
        exposed = None
        if len(compute) == len(some):
            exposed = 1 - float(np.median(np.concatenate(compute)) / np.median(seconds))
        spread = spread_of(seconds)
        found.append(Summary(key, *spread, len(some), seconds.size, exposed))
    return found


def verdicts(
    launches: Sequence[Launch],
    margin: float = MARGIN,
    *,
    reference: str | None = None,
    alpha: float = ALPHA,
) -> list[Verdict]:
    """Judges all pairs of fabrics, or all against `reference`, at each setting of a study.

    Only rows of status "ok" count. The tests of `jdaso.fabric._study.equivalence` decide.

    Args:
        launches: from `read_launches`.
        margin: the relative difference of seconds that matters.
        reference: the fabric to compare with; None compares each with each.
        alpha: probability of an error, in each verdict.

    Raises:
        RowsError: fewer than two fabrics, or an unknown reference.
    """
    fabrics = sorted({launch.fabric for launch in launches})
    if len(fabrics) < 2:
        raise RowsError(
            f"A verdict compares two fabrics, the study has {', '.join(fabrics) or 'none'}. "
            "Declare a second one."
        )
    if reference is not None and reference not in fabrics:
        raise RowsError(f"No fabric is named {reference!r}. Choose one of {', '.join(fabrics)}.")
    compared = [(a, b) for a, b in itertools.combinations(fabrics, 2) if reference is None]
    compared += [(reference, b) for b in fabrics if reference not in (None, b)]
    pairs = [pair for a, b in compared for pair in pairs_of(launches, a, b)]
    return [_verdict(pair, judge(pair.logs, margin, alpha), margin, alpha) for pair in pairs]


def _verdict(pair: Pairs, found: Judged, margin: float, alpha: float) -> Verdict:
    n = len(pair.logs)
    value, low, high = map(float, np.exp([found.mean, found.low, found.high]))
    return Verdict(
        setting=pair.setting,
        reference=pair.reference,
        fabric=pair.fabric,
        said=SAID[found.outcome],
        ratio=Ratio(value, low, high, n),
        bootstrap=bootstrap_ratio(pair.logs, 1 - 2 * alpha) if n else None,
        margin=margin,
        alpha=alpha,
        more=found.more,
        alone=pair.alone,
    )
