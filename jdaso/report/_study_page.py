"""The page of a study: claims and verdicts, then ratios, charts, fits, cells, failed launches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ..fabric._study.shown import (
    ClaimFinding,
    MeasuredLaunch,
    Verdict,
    bandwidth_charts,
    exposed_charts,
    fits_of,
    latency_charts,
    mixtures,
    rate_charts,
    throughput_charts,
)
from . import _study_charts, _study_tables
from ._html import Element, element
from ._page import page_of
from ._runs import ReportError, counted
from ._sections import grid, wide

Studies = Mapping[str, Sequence[MeasuredLaunch]]
Verdicts = Mapping[str, Sequence[Verdict]]
Findings = Mapping[str, Sequence[ClaimFinding]]
CLAIMED = (
    "A claim is about many settings. It holds if it is sure at each, does not hold if its contrary "
    "is sure at one or more (corrected for the number of settings), and is open otherwise."
)
MEANING = (
    "An equivalence test at {alpha:.0%} in each row: no significant effect if the two are surely "
    "within the margin, slower or faster if they surely differ by more. n counts replicates, "
    "launches that ran side by side; iterations of one launch are not independent. Of {row} "
    "rows one may be wrong. Seconds over seconds: above 1 the first of the two is slower."
)


def make_study_page(
    studies: Studies, findings: Findings, verdicts: Verdicts, title: str = "jdaso study"
) -> str:
    """Makes one HTML page about a study, or several side by side; the page loads nothing.

    Args:
        studies: name -> launches, from `read_launches`.
        findings: name -> answers on the study's claims.
        verdicts: name -> verdicts; none where no setting has two levels of the compared factor.
        title: of the page.

    Raises:
        ReportError: there are no studies.
    """
    if not studies:
        raise ReportError("There are no studies to report on.")
    sections = [
        ("claims", "Claims", _claims(findings)),
        ("verdicts", "Verdicts", [*_mixed(studies), *_verdicts(verdicts)]),
        ("ratios", "Ratios", grid(_ratios(verdicts))),
        *_charts(studies),
        ("fits", "Latency and bandwidth", _fits(studies)),
        ("cells", "Cells", [wide(_study_tables.cell_table(*one)) for one in studies.items()]),
        ("failed", "Launches without numbers", _failed(studies)),
        ("about", "Machine and versions", [_study_tables.about(*one) for one in studies.items()]),
    ]
    sections = [section for section in sections if section[2]]
    return page_of(title, _told(studies), sections, "python -m jdaso study report")


def _told(studies: Studies) -> str:
    said = []
    for name, launches in studies.items():
        bad = sum(one.status != "ok" for one in launches)
        cells = counted(len({one.cell for one in launches}), "cell")
        counts = counted(len(launches), "launch").replace("launchs", "launches")
        said.append(f"{name}: {counts} of {cells}, {bad} without numbers.")
    return " ".join(said)


def _claims(findings: Findings) -> list[Element]:
    if not any(findings.values()):
        return []
    folded = [
        _study_tables.place_table(study, one) for study, some in findings.items() for one in some
    ]
    return [element("p", CLAIMED), wide(_study_tables.claim_table(findings)), *folded]


def _verdicts(verdicts: Verdicts) -> list[Element]:
    made = [
        element("p", f"{name} has no verdict: no setting has two levels of the compared factor.")
        for name, some in verdicts.items()
        if not some
    ]
    alphas = {one.alpha for some in verdicts.values() for one in some}
    for alpha in alphas:
        made.append(element("p", MEANING.format(alpha=alpha, row=round(1 / alpha))))
    return [*made, wide(_study_tables.verdict_table(verdicts))] if alphas else made


def _mixed(studies: Studies) -> list[Element]:
    told = [(name, text) for name, launches in studies.items() for text in mixtures(launches)]
    return [element("p", f"{name}: {text}") for name, text in told]


def _ratios(verdicts: Verdicts) -> list[Element]:
    """Draws a chart for each pair of levels of each study."""
    pairs: dict[str, list[tuple[str, Verdict]]] = {}
    for k, of in enumerate(_study_tables.questions(verdicts).values(), 1):
        for study, one in of.items():
            name = f"{one.pair} in {study}"
            pairs.setdefault(name, []).append((str(k), one))
    made = [_study_charts.ratio_chart(some, name) for name, some in pairs.items()]
    return [chart for chart in made if chart is not None]


def _charts(studies: Studies) -> list[tuple[str, str, list[Element]]]:
    kinds = [
        ("bandwidth", "Bandwidth against bytes", bandwidth_charts),
        ("time", "Latency against bytes", latency_charts),
        ("throughput", "Throughput against nodes", throughput_charts),
        ("exposed", "Exposed communication against nodes", exposed_charts),
        ("rate", "Exposed communication against the fabric's rate", rate_charts),
    ]
    return [
        (key, name, grid([_study_charts.chart_of(chart) for chart in make(studies)]))
        for key, name, make in kinds
    ]


def _fits(studies: Studies) -> list[Element]:
    made = []
    for name, launches in studies.items():
        fits, left_out = fits_of(launches)
        made += [wide(_study_tables.fit_table(name, fits))] if fits else []
        made += [element("p", f"No fit of {text}") for text in left_out]
    return made


def _failed(studies: Studies) -> list[Element]:
    tables = [_study_tables.failure_table(*one) for one in studies.items()]
    return [wide(one) for one in tables if one is not None]
