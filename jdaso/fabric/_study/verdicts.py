"""Verdicts of a study: at each setting, the effect of another fabric (library, ...) in words."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence
from typing import Literal

import numpy as np

from .equivalence import ALPHA, MOST_REPLICATES, Outcome, judge
from .factors import Level
from .measured import Key, MeasuredLaunch, RowsError, rank
from .ratios import Pairs, Ratio, bootstrap_ratio, pairs_of

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
    """The verdict on a level of a factor against a reference, at one setting.

    Attributes:
        setting: all factors but the one that is compared.
        factor: the factor that is compared, such as "fabric".
        reference: its level in the denominator.
        level: its level that is judged.
        said: the verdict.
        ratio: seconds of `level` / of `reference`: geometric mean, and the interval of the tests.
        bootstrap: the same with the bootstrap's interval; None without replicates.
        margin: the relative difference that matters.
        alpha: probability of an error; the interval is one of ``1 - 2 alpha``.
        p_not_slower: see `Judged`.
        p_not_faster: see `Judged`.
        more: advised number of further replicates; None if beyond any study.
        alone: replicates that only one of the two has.
        lacks: see `Pairs`.
    """

    setting: Key
    factor: str
    reference: Level
    level: Level
    said: Said
    ratio: Ratio
    bootstrap: Ratio | None
    margin: float
    alpha: float
    p_not_slower: float
    p_not_faster: float
    more: int | None
    alone: int
    lacks: tuple[str, ...] = ()

    @property
    def pair(self) -> str:
        """The two levels: "10g against 1g"."""
        return f"{self.level} against {self.reference}"

    @property
    def interval(self) -> str:
        """The ratio with its interval, as far as there are any, in words."""
        ratio, low, high = self.ratio.value, self.ratio.low, self.ratio.high
        if self.ratio.replicates < 2:
            return f"ratio {ratio:.3f}, no interval" if self.ratio.replicates else "no ratio"
        return f"ratio {ratio:.3f}, {1 - 2 * self.alpha:.0%} interval {low:.3f} to {high:.3f}"

    @property
    def words(self) -> str:
        """The verdict as a sentence: with n, interval and margin."""
        alone = f", {self.alone} without a partner" if self.alone else ""
        n, margin = self.ratio.replicates, f"{self.margin:.3g}"
        return f"{self._effect()} ({self.interval}, n = {n}, margin {margin}{alone})"

    def _effect(self) -> str:
        if self.said == "slower" and self.ratio.low >= 2:
            return f"slower by a factor of {self.ratio.low:.3g} to {self.ratio.high:.3g}"
        if self.said == "slower":
            return f"slower by {self.ratio.low - 1:.1%} to {self.ratio.high - 1:.1%}"
        if self.said == "faster":
            return f"faster by {1 - self.ratio.high:.1%} to {1 - self.ratio.low:.1%}"
        return self.said if self.said == "no significant effect" else lacking(self.more, self.lacks)


def lacking(more: int | None, lacks: Sequence[str] = ()) -> str:
    """Formats the advice on replicates; see `Verdict.more`, and `Pairs.lacks`."""
    if lacks:
        return f"not enough data: launches are {', '.join(lacks)} (mend this, then --again)"
    if more is None:
        return f"not enough data: more than {MOST_REPLICATES} replicates at this spread and margin"
    return f"not enough data: {more} more replicate{'s' * (more != 1)}"


def verdicts(
    launches: Sequence[MeasuredLaunch],
    margin: float = MARGIN,
    *,
    factor: str = "fabric",
    reference: str | None = None,
    alpha: float = ALPHA,
) -> list[Verdict]:
    """Judges all pairs of a factor's levels, or all against `reference`, at each setting.

    Only rows of status "ok" count. The tests of `jdaso.fabric._study.equivalence` decide.

    Args:
        launches: from `read_launches`.
        margin: the relative difference of seconds that matters.
        factor: the factor to compare.
        reference: the level to compare with, as text; None compares each with each.
        alpha: probability of an error, in each verdict.

    Raises:
        RowsError: fewer than two levels, or an unknown reference.
    """
    levels = {str(level): level for level in levels_of(launches, factor)}
    if len(levels) < 2:
        raise RowsError(
            f"A verdict compares two levels of {factor}, the study has "
            f"{', '.join(levels) or 'none'}. Declare a second one, or compare another factor."
        )
    if reference is not None and reference not in levels:
        raise RowsError(f"No {factor} is named {reference!r}. Choose one of {', '.join(levels)}.")
    compared = [two for two in itertools.combinations(levels, 2) if reference is None]
    compared += [(reference, other) for other in levels if reference not in (None, other)]
    pairs = [pair for a, b in compared for pair in pairs_of(launches, levels[a], levels[b], factor)]
    return [verdict_of(pair, margin, alpha) for pair in pairs]


def levels_of(launches: Sequence[MeasuredLaunch], factor: str) -> list[Level]:
    """Returns the levels of a factor that rows have, numbers in the order of their size."""
    found = {launch.factors[factor] for launch in launches if launch.factors.get(factor)}
    return sorted(found, key=lambda level: rank(((factor, level),)))


def verdict_of(pair: Pairs, margin: float, alpha: float = ALPHA) -> Verdict:
    """Judges one pair."""
    found = judge(pair.logs, margin, alpha)
    value, low, high = map(float, np.exp([found.mean, found.low, found.high]))
    return Verdict(
        setting=pair.setting,
        factor=pair.factor,
        reference=pair.reference,
        level=pair.level,
        said=SAID[found.outcome],
        ratio=Ratio(value, low, high, replicates=len(pair.logs)),
        bootstrap=bootstrap_ratio(pair.logs, 1 - 2 * alpha) if len(pair.logs) else None,
        margin=margin,
        alpha=alpha,
        p_not_slower=found.p_not_slower,
        p_not_faster=found.p_not_faster,
        more=found.more,
        alone=pair.alone,
        lacks=pair.lacks,
    )
