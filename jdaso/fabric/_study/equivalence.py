"""Equal, different or undecided: two one-sided tests for a margin, and advice on replicates.

With ``d`` the mean log ratio of n replicates and ``b = log(1 + margin)``, there are three outcomes.
Each outcome rejects what contradicts it, by Student's t test at `alpha`:

- equal: both ``d <= -b`` and ``d >= b`` are rejected (TOST; Schuirmann 1987)
- different: ``d <= b`` is rejected (slower), or ``d >= -b`` (faster): beyond the margin, not just
  beyond 0, so that a study that is run again does not turn from equal to different by chance
- undecided: neither; more replicates decide, unless the ratio lies at the margin itself

A link that differs by the margin or more is called equal with a probability of at most `alpha`; one
within the margin is called slower, or faster, with at most `alpha`. Adding replicates and judging
again is another look at the data: after k looks these are at most ``k * alpha``.
"""

from __future__ import annotations

import bisect
import dataclasses
import warnings
from collections.abc import Callable
from typing import Literal

import numpy as np
from scipy import stats

from .ratios import Logs

ALPHA = 0.05
POWER = 0.8
MOST_REPLICATES = 1000
_FIRST = 3
"""Replicates to begin with: the fewest whose spread is meaningful."""

Outcome = Literal["equal", "slower", "faster", "undecided"]


@dataclasses.dataclass(frozen=True)
class Judged:
    """The outcome for one comparison.

    Attributes:
        outcome: see the module.
        mean: mean log ratio; NaN without replicates.
        low: lower end of its ``1 - 2 alpha`` interval, by Student's t; NaN below 2 replicates.
        high: upper end.
        p_not_slower: p value against ``d >= b``; NaN below 2 replicates. That against ``d <= b``
            is ``1 - p_not_slower``; the TOST's p is the larger of this and the next.
        p_not_faster: p value against ``d <= -b``.
        more: advised number of further replicates; 0 if decided, None if more than
            `MOST_REPLICATES` would be needed.
    """

    outcome: Outcome
    mean: float
    low: float
    high: float
    p_not_slower: float
    p_not_faster: float
    more: int | None


def judge(logs: Logs, margin: float, alpha: float = ALPHA) -> Judged:
    """Judges the log ratios of one comparison.

    Args:
        logs: one for each replicate.
        margin: the relative difference that matters, above 0: 0.05 for 5 %. The bounds are
            ``1 + margin`` and ``1 / (1 + margin)``, so that swapping the two changes nothing.
        alpha: probability of an error.

    Raises:
        ValueError: the margin or alpha is out of range, or a log ratio is not finite.
    """
    if not 0 < margin < np.inf:
        raise ValueError(f"margin must be above 0, as 0.05 for 5 %, got {margin}.")
    if not 0 < alpha < 0.5:
        raise ValueError(f"alpha must be within 0 to 0.5, got {alpha}.")
    if not np.isfinite(logs).all():
        raise ValueError(f"log ratios must be finite, got {logs}. Leave the failed rows out.")
    n, bound = len(logs), float(np.log1p(margin))
    if n < 2:
        mean, none = float(logs[0]) if n else float("nan"), float("nan")
        return Judged("undecided", mean, none, none, none, none, more=_FIRST - n)
    with warnings.catch_warnings():  # equal numbers: no spread, and t is infinite, as it should be
        warnings.filterwarnings("ignore", category=RuntimeWarning)
        not_slower, not_faster = _p(logs, bound, "less"), _p(logs, -bound, "greater")
        low, high = _interval(logs, 1 - 2 * alpha)
    outcome: Outcome = (
        "equal" if max(not_slower, not_faster) < alpha
        else "slower" if 1 - not_slower < alpha
        else "faster" if 1 - not_faster < alpha
        else "undecided"
    )  # fmt: skip
    more = more_replicates(logs, (low, high), bound, alpha) if outcome == "undecided" else 0
    return Judged(outcome, float(np.mean(logs)), low, high, not_slower, not_faster, more)


def _p(logs: Logs, bound: float, side: Literal["greater", "less"]) -> float:
    """Returns the p value of the mean lying on one side of a bound."""
    return float(np.asarray(stats.ttest_1samp(logs, bound, alternative=side))[1])


def _interval(logs: Logs, confidence: float) -> tuple[float, float]:
    """Returns the interval of the mean by Student's t."""
    found = stats.ttest_1samp(logs, 0.0).confidence_interval(confidence)
    return float(found.low), float(found.high)


Power = Callable[[int, float, float, float, float], float]
"""Count, spread, effect, bound and alpha -> a probability."""


def power(count: int, spread: float, effect: float, bound: float, alpha: float = ALPHA) -> float:
    """Returns the probability that `count` replicates decide.

    Equal, if ``|effect| < bound``: ``F(-t; (effect - b) / se) - F(t; (effect + b) / se)``, else
    different: ``1 - F(t; (|effect| - b) / se)``, with F the distribution of the noncentral t with
    n - 1 degrees of freedom, t its central quantile at 1 - alpha, and ``se = spread / sqrt(n)``.
    For equal links the formula is a lower bound, close at a power of 0.7 and above.

    Args:
        count: n, at least 2.
        spread: standard deviation of a replicate's log ratio.
        effect: the true mean log ratio.
        bound: b.
        alpha: of each one-sided test.

    Reference: Phillips, Journal of Pharmacokinetics and Biopharmaceutics 18 (1990).
    """
    t, error = _quantile(count, alpha), _error(count, spread)
    if abs(effect) < bound:
        above = _below(t, (effect + bound) / error, count)
        return max(0.0, _below(-t, (effect - bound) / error, count) - above)
    return 1 - _below(t, (abs(effect) - bound) / error, count)


def power_below(
    count: int, spread: float, effect: float, bound: float, alpha: float = ALPHA
) -> float:
    """Returns the probability that ``d >= b`` is rejected: ``F(-t; (effect - b) / se)``.

    The arguments are those of `power`.
    """
    t, error = _quantile(count, alpha), _error(count, spread)
    return _below(-t, (effect - bound) / error, count)


def _quantile(count: int, alpha: float) -> float:
    return float(stats.t.ppf(1 - alpha, count - 1))


def _error(count: int, spread: float) -> float:
    return float(max(spread, 1e-9) / np.sqrt(count))


def _below(at: float, shift: float, count: int) -> float:
    """The noncentral t's distribution. Beyond 30 it is 0 or 1, where SciPy may give NaN."""
    return float(stats.nct.cdf(at, count - 1, np.clip(shift, -30, 30)))


def more_replicates(
    logs: Logs,
    interval: tuple[float, float],
    bound: float,
    alpha: float = ALPHA,
    decides: Power = power,
) -> int | None:
    """Advises on further replicates that decide with 80 % probability.

    The plan is for the likely effect, and `decides` gives the probability of the outcome: `power`,
    or `power_below` where only an effect below the bound decides. A spread from few replicates may
    be too small by luck; the plan is for its upper 80 % confidence limit,
    ``s sqrt(v / chi2(0.2, v))`` with v = n - 1 (Browne 1995, Statistics in Medicine 14).

    Returns:
        At least 1; None if more than `MOST_REPLICATES` would be needed.
    """
    n, effect = len(logs), likely_effect(logs, interval)
    limit = stats.chi2.ppf(1 - POWER, n - 1)
    spread = float(np.std(logs, ddof=1) * np.sqrt((n - 1) / limit))
    counts = range(2, MOST_REPLICATES + 1)
    place = bisect.bisect_left(
        counts, POWER, key=lambda count: decides(count, spread, effect, bound, alpha)
    )
    return max(1, counts[place] - n) if place < len(counts) else None


def likely_effect(logs: Logs, interval: tuple[float, float]) -> float:
    """Returns the effect that a plan is for: none if the interval contains 0, else the mean."""
    return 0.0 if interval[0] <= 0 <= interval[1] else float(np.mean(logs))
