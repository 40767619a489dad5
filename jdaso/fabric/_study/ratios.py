"""Ratios of seconds between two fabrics, replicate by replicate, with bootstrap intervals."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence

import numpy as np
from jaxtyping import Float64
from scipy import stats

from .measured import Key, Launch, key_of, rank

CONFIDENCE = 0.9
"""From 5 to 95 %, as the interval that belongs to two one-sided tests at 5 %."""
_RESAMPLES = 2000
_SEED = 20200808

Logs = Float64[np.ndarray, " replicates"]


@dataclasses.dataclass(frozen=True, eq=False)
class Pairs:
    """Two fabrics that are compared at one setting.

    Iterations of one launch share its placement, its connections and the state of the machine in
    these minutes, so they are not independent: a thousand of them are still one launch. The unit
    is the replicate, which enters by the median of its iterations. Replicate k of both fabrics ran
    in the same stretch of time, so their ratio is free of the machine's drift; the pairs are the
    blocks of a randomized block design.

    Attributes:
        setting: all factors but the fabric.
        reference: the fabric below the fraction line.
        fabric: the fabric above it.
        logs: natural logarithm of (median seconds on `fabric` / on `reference`), by replicate.
        alone: replicates in which only one of the two fabrics has numbers; they are not used.
    """

    setting: Key
    reference: str
    fabric: str
    logs: Logs
    alone: int = 0


@dataclasses.dataclass(frozen=True)
class Ratio:
    """The geometric mean of the ratios of n replicates, with an interval.

    Attributes:
        value: ``exp(mean(log ratios))``; above 1 the fabric is slower than the reference.
        low: lower end of the interval.
        high: upper end.
        replicates: n.
    """

    value: float
    low: float
    high: float
    replicates: int


def pairs_of(launches: Iterable[Launch], reference: str, fabric: str) -> list[Pairs]:
    """Pairs two fabrics at each setting at which both were launched, in the order of factors."""
    medians: dict[Key, dict[str, dict[int, float]]] = {}
    for launch in launches:
        if launch.fabric in (reference, fabric):
            of_setting = medians.setdefault(key_of(launch.factors, without=["fabric"]), {})
            of_fabric = of_setting.setdefault(launch.fabric, {})
            if launch.status == "ok":
                of_fabric[launch.replicate] = launch.median
    found = []
    for setting in sorted(medians, key=rank):
        both = medians[setting]
        if reference in both and fabric in both:
            common = sorted(both[reference].keys() & both[fabric].keys())
            alone = both[reference].keys() ^ both[fabric].keys()
            ratios = [both[fabric][k] / both[reference][k] for k in common]
            found.append(Pairs(setting, reference, fabric, np.log(ratios), len(alone)))
    return found


def bootstrap_ratio(logs: Logs, confidence: float = CONFIDENCE) -> Ratio:
    """Resamples replicates and returns the ratio with its bootstrap interval (BCa).

    The random numbers have a fixed seed: the same rows give the same interval. With few replicates
    the interval is too narrow (it knows no other spread than theirs); verdicts use the interval of
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
