"""One statement over many settings, settled without extra errors for their number.

At each of m settings one of two things may be sure: the claim, or its contrary.

- holds: the claim is sure at every setting, each by its own test at `alpha`. Nothing is corrected:
  a claim that is wrong somewhere passes the test there with at most `alpha` (an intersection-union
  test; Berger 1982, Technometrics 24).
- does not hold: its contrary is sure at one setting or more, after Holm's correction for m tests.
  So a claim that is right everywhere is refuted with a probability of at most `alpha`.
- not enough data: neither.

The contrary of no effect has two sides, and its p value is twice the smaller one: a single setting
can have the verdict "slower", while a claim about it alone is still open.
"""

from __future__ import annotations

import dataclasses
from typing import Literal

import numpy as np
from jaxtyping import Float64

from .equivalence import ALPHA

Answer = Literal["holds", "does not hold", "not enough data"]
Ps = Float64[np.ndarray, " settings"]


@dataclasses.dataclass(frozen=True, eq=False)
class Settled:
    """A claim, settled by the p values of its settings.

    Attributes:
        said: the answer.
        places: the answer at each setting.
        claim: p value of the claim at each.
        contrary: p value of its contrary, after Holm's correction.
    """

    said: Answer
    places: list[Answer]
    claim: Ps
    contrary: Ps


def settle(expects: str, not_slower: Ps, not_faster: Ps, alpha: float = ALPHA) -> Settled:
    """Settles a claim; see the module.

    Args:
        expects: one of `EXPECTED`.
        not_slower: p value against ``d >= b`` at each setting; NaN where there is none.
        not_faster: against ``d <= -b``.
        alpha: probability of an error.
    """
    none = np.maximum(not_slower, not_faster)
    otherwise = np.minimum(1, 2 * np.minimum(1 - not_slower, 1 - not_faster))
    sure, contrary = {
        "slower": (1 - not_slower, not_slower),
        "faster": (1 - not_faster, not_faster),
    }.get(expects, (none, otherwise))
    sure, contrary = np.nan_to_num(sure, nan=1.0), holm(np.nan_to_num(contrary, nan=1.0))
    places: list[Answer] = [
        "holds" if p < alpha else "does not hold" if q < alpha else "not enough data"
        for p, q in zip(sure, contrary, strict=True)
    ]
    said: Answer = (
        "does not hold" if "does not hold" in places
        else "not enough data" if "not enough data" in places
        else "holds"
    )  # fmt: skip
    return Settled(said, places, sure, contrary)


def holm(ps: Ps) -> Ps:
    """Corrects p values for their number m: the i-th smallest to ``max_{j <= i} (m - j + 1) p_j``.

    Then the probability of any below `alpha` by chance is at most `alpha`, however they depend on
    each other (SciPy has corrections for another aim, a rate of false discoveries).

    >>> holm(np.array([0.01, 0.04, 0.03])).tolist()
    [0.03, 0.06, 0.06]

    Reference: Holm, Scandinavian Journal of Statistics 6 (1979).
    """
    order = np.argsort(ps)
    corrected = np.maximum.accumulate(np.arange(len(ps), 0, -1) * ps[order])
    found = np.empty_like(corrected)
    found[order] = np.minimum(1, corrected)
    return found
