"""Claims that are judged: one statement over many settings, with n, interval and margin."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from .claims import EXPECTED, Claim, Factors, compared
from .equivalence import ALPHA, likely_effect, more_replicates, power_below
from .factors import Level
from .measured import Key, MeasuredLaunch, key_of, named
from .ratios import Pairs, pairs_of
from .settled import Answer, settle
from .verdicts import Verdict, lacking, verdict_of

_NAMED = 3
"""Open settings that a sentence names."""


@dataclasses.dataclass(frozen=True)
class ClaimAt:
    """A claim at one setting.

    Attributes:
        verdict: on the setting alone.
        said: the claim's answer here; the contrary after the correction for all settings.
        p_claim: p value of the claim: small if the claim is sure here.
        p_contrary: p value of its contrary, after Holm's correction.
        more: advised number of further replicates; 0 if decided, None if beyond any study.
    """

    verdict: Verdict
    said: Answer
    p_claim: float
    p_contrary: float
    more: int | None

    @property
    def name(self) -> str:
        """The setting and the level."""
        return f"{named(self.verdict.setting)}, {self.verdict.pair}"


@dataclasses.dataclass(frozen=True)
class ClaimFinding:
    """The answer on one claim.

    Attributes:
        claim: the claim.
        said: the answer.
        more: advised number of further replicates: of open settings that are likely to refute the
            claim the fewest, else the most of all; 0 if decided, None if beyond any study.
        places: the claim at each setting, at least one.
    """

    claim: Claim
    said: Answer
    more: int | None
    places: tuple[ClaimAt, ...]

    @property
    def words(self) -> str:
        """The answer as a sentence: with settings, n, the worst interval and margin."""
        counts = [place.verdict.ratio.replicates for place in self.places]
        n = " to ".join(map(str, sorted({min(counts), max(counts)})))
        worst = min(self._decisive, key=self._safety)
        about = f"the worst: {worst.name}: {worst.verdict.interval}; n = {n}"
        return f"{self._answer()} ({about}, margin {worst.verdict.margin:.3g})"

    @property
    def _decisive(self) -> list[ClaimAt]:
        """The settings that the answer rests on."""
        return [place for place in self.places if place.said == self.said]

    def _safety(self, place: ClaimAt) -> float:
        """Distance of an interval from the contrary, on the log scale; the worst has the least."""
        ratio = place.verdict.ratio
        if ratio.replicates < 2:
            return -np.inf
        low, high = np.log([ratio.low, ratio.high])
        sides = {"slower": low, "faster": -high}
        return float(sides.get(self.claim.expects, -max(abs(low), abs(high))))

    def _answer(self) -> str:
        of = f"{len(self.places)} setting{'s' * (len(self.places) > 1)}"
        some = self._decisive
        if self.said == "holds":
            return f"{self.said}: {self.claim.expects} at {of}"
        if self.said == "does not hold":
            return f"{self.said}: surely otherwise at {len(some)} of {of}"
        names = "; ".join(place.name for place in some[:_NAMED])
        names += f"; {len(some) - _NAMED} others" if len(some) > _NAMED else ""
        sure = f"{self.claim.expects} at {len(self.places) - len(some)} of {of}"
        lacks = dict.fromkeys(status for place in some for status in place.verdict.lacks)
        return f"{lacking(self.more, tuple(lacks))}; {sure}, open: {names}"


def findings(
    claims: Sequence[Claim],
    cells: Sequence[Factors],
    launches: Sequence[MeasuredLaunch],
    margin: float,
    alpha: float = ALPHA,
) -> list[ClaimFinding]:
    """Judges claims at all cells that they are about, also those without rows.

    Args:
        claims: of the study's declaration.
        cells: factors of each cell of the declaration.
        launches: from `read_launches`.
        margin: the relative difference of seconds that matters.
        alpha: probability of an error, in each claim.
    """
    return [_finding(claim, _pairs(claim, cells, launches), margin, alpha) for claim in claims]


def _pairs(
    claim: Claim, cells: Sequence[Factors], launches: Sequence[MeasuredLaunch]
) -> list[Pairs]:
    """Returns the pairs at each setting; without log ratios where one has no numbers yet."""
    found: dict[tuple[Level, Key], Pairs] = {}
    for level in claim.of:
        for pair in pairs_of(launches, claim.against, level, claim.compare):
            found[level, pair.setting] = pair
    places = [
        (level, key_of(cell, without=[claim.compare])) for level, cell in compared(claim, cells)
    ]
    return [
        found.get(place, Pairs(place[1], claim.compare, claim.against, place[0], np.empty(0)))
        for place in places
    ]


def _finding(claim: Claim, pairs: Sequence[Pairs], margin: float, alpha: float) -> ClaimFinding:
    verdicts = [verdict_of(pair, margin, alpha) for pair in pairs]
    ps = np.array([(one.p_not_slower, one.p_not_faster) for one in verdicts])
    settled = settle(claim.expects, ps[:, 0], ps[:, 1], alpha)
    places, refuting = [], []
    for pair, verdict, said, p_claim, p_contrary in zip(
        pairs, verdicts, settled.places, settled.claim, settled.contrary, strict=True
    ):
        open_here = said == "not enough data"
        more = _more(pair, verdict, claim.expects, alpha, len(pairs)) if open_here else 0
        places.append(ClaimAt(verdict, said, float(p_claim), float(p_contrary), more))
        if more and _likely(pair, verdict)[0] not in ("", claim.expects):
            refuting.append(more)
    more = 0
    if settled.said != "does not hold":
        more = min(refuting) if refuting else _most([place.more for place in places])
    return ClaimFinding(claim, settled.said, more, tuple(places))


def _most(advice: Sequence[int | None]) -> int | None:
    """Returns the largest number; None is more than any."""
    known = [more for more in advice if more is not None]
    return max(known) if len(known) == len(advice) else None


def _likely(pair: Pairs, verdict: Verdict) -> tuple[str, tuple[float, float], float]:
    """The likely answer at a setting, its interval, and the bound; "" with too few replicates."""
    bound = float(np.log1p(verdict.margin))
    if verdict.ratio.replicates < 2:
        return "", (np.nan, np.nan), bound
    interval = (float(np.log(verdict.ratio.low)), float(np.log(verdict.ratio.high)))
    effect = likely_effect(pair.logs, interval)
    likely = EXPECTED[0] if abs(effect) < bound else "slower" if effect > 0 else "faster"
    return likely, interval, bound


def _more(pair: Pairs, verdict: Verdict, expects: str, alpha: float, settings: int) -> int | None:
    """Advises at an open setting: at the level that decides the claim there, or its contrary.

    The contrary is corrected for the number of settings. That of no effect has two sides; that of
    slower is all below the margin, and that of faster its mirror image.
    """
    likely, interval, bound = _likely(pair, verdict)
    if not likely:
        return verdict.more
    if likely == expects:
        return more_replicates(pair.logs, interval, bound, alpha)
    if expects == EXPECTED[0]:
        return more_replicates(pair.logs, interval, bound, alpha / (2 * settings))
    if expects == "slower":
        return more_replicates(pair.logs, interval, bound, alpha / settings, power_below)
    mirrored = (-interval[1], -interval[0])
    return more_replicates(-pair.logs, mirrored, bound, alpha / settings, power_below)
