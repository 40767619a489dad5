"""Ratios of seconds between two levels, replicate by replicate, with bootstrap intervals."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence

import numpy as np
from jaxtyping import Float64
from scipy import stats

from .factors import Level
from .measured import Key, MeasuredLaunch, key_of, rank
from .rows import OK

CONFIDENCE = 0.9
"""Interval from 5 to 95 %, like that of two one-sided tests at 5 %."""
_RESAMPLES = 2000
_SEED = 20200808

Logs = Float64[np.ndarray, " replicates"]


@dataclasses.dataclass(frozen=True, eq=False)
class Pairs:
    """Two levels of a factor, such as two fabrics, that are compared at one setting.

    Iterations of one launch share its placement, its connections and the state of the machine in
    these minutes, so they are not independent: a thousand of them are still one launch. The unit
    is the replicate, which enters by the median of its iterations. Replicate k of both levels ran
    in the same stretch of time, so their ratio is free of the machine's drift; the pairs are the
    blocks of a randomized block design.

    Attributes:
        setting: all factors but the one that is compared.
        factor: the factor that is compared, such as "fabric".
        reference: its level in the denominator.
        level: its level in the numerator.
        logs: natural logarithm of (median seconds of `level` / of `reference`), by replicate.
        alone: replicates in which only one of the two levels has numbers; they are not used.
        lacks: statuses of launches without numbers, if these leave fewer than two pairs.
    """

    setting: Key
    factor: str
    reference: Level
    level: Level
    logs: Logs
    alone: int = 0
    lacks: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class Ratio:
    """The geometric mean of the ratios of n replicates, with an interval.

    Attributes:
        value: ``exp(mean(log ratios))``; above 1 the level is slower than the reference.
        low: lower end of the interval.
        high: upper end.
        replicates: n.
    """

    value: float
    low: float
    high: float
    replicates: int


def pairs_of(
    launches: Iterable[MeasuredLaunch], reference: Level, level: Level, factor: str = "fabric"
) -> list[Pairs]:
    """Pairs two levels at each setting at which both were launched, in the order of factors."""
    medians: dict[Key, dict[Level, dict[int, float]]] = {}
    failed: dict[Key, set[str]] = {}
    for launch in launches:
        own = launch.factors.get(factor)
        if own in (reference, level):
            setting = key_of(launch.factors, without=[factor])
            of_setting = medians.setdefault(setting, {})
            of_level = of_setting.setdefault(own, {})
            if launch.status == OK:
                of_level[launch.replicate] = launch.median
            else:
                failed.setdefault(setting, set()).add(launch.status)
    found = []
    for setting in sorted(medians, key=rank):
        both = medians[setting]
        if reference in both and level in both:
            common = sorted(both[reference].keys() & both[level].keys())
            alone = both[reference].keys() ^ both[level].keys()
            logs = np.log([both[level][k] / both[reference][k] for k in common])
            lacks = tuple(sorted(failed.get(setting, ()))) if len(logs) < 2 else ()
            found.append(Pairs(setting, factor, reference, level, logs, len(alone), lacks))
    return found


def bootstrap_ratio(logs: Logs, confidence: float = CONFIDENCE) -> Ratio:
    """Resamples replicates and returns the ratio with its bootstrap interval (BCa).

    The random numbers have a fixed seed: the same rows give the same interval. With few replicates
    the interval is too narrow (it reflects only their own spread); verdicts use the interval of
    Student's t.

    Args:
        logs: log ratios in the order of replicates, at least 1.
        confidence: of the interval.

    Reference: Efron and Tibshirani, An Introduction to the Bootstrap (1993), chapter 14.
    """
    mean = float(np.mean(logs))
    low = high = mean
    if len(logs) > 1 and np.ptp(logs) > 1e-12:  # equal numbers have no spread to resample
        found = stats.bootstrap(
            (logs,),
            np.mean,
            vectorized=True,
            n_resamples=_RESAMPLES,
            confidence_level=confidence,
            rng=np.random.default_rng(_SEED),
        ).confidence_interval
        low, high = float(found.low), float(found.high)
    return Ratio(*map(float, np.exp([mean, low, high])), replicates=len(logs))


def spread_of(values: Sequence[float] | np.ndarray) -> tuple[float, float, float]:
    """Returns the median, and the numbers below which 5 and 95 % lie."""
    low, median, high = np.quantile(np.asarray(values, float), [0.05, 0.5, 0.95])
    return float(median), float(low), float(high)
