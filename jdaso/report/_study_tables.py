"""Tables of a study: verdicts, fits, cells, launches that failed, machines."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from ..fabric._study.shown import (
    COORDINATOR,
    ClaimFinding,
    Fit,
    Key,
    MeasuredLaunch,
    Split,
    Verdict,
    key_of,
    named,
    summaries,
)
from ._html import Element, element, short, table

NOTHING = "–"
SPLIT = ("mean compute s", "hidden communication s", "exposed communication s")
_MOST_ROWS = 400
_MOST_LETTERS = 400
_MOST_VALUES = 20
_PASSING = ("load", "link_bits_per_second", COORDINATOR)
"""Parts of a row's machine and environment that each launch has anew."""

Question = tuple[Key, str]
"""A setting and two levels: several studies may have asked the same question."""


def questions(verdicts: Mapping[str, Sequence[Verdict]]) -> dict[Question, dict[str, Verdict]]:
    """Returns the verdicts of all studies by question: those of one question stand in one row."""
    found: dict[Question, dict[str, Verdict]] = {}
    for study, some in verdicts.items():
        for one in some:
            found.setdefault((one.setting, one.pair), {})[study] = one
    return found


def verdict_table(verdicts: Mapping[str, Sequence[Verdict]]) -> Element:
    """Makes the table of verdicts: a row for each question, a column for each study."""
    head = ["number", "setting", "compared", *(verdicts if len(verdicts) > 1 else ["verdict"])]
    rows = []
    for k, ((setting, pair), of) in enumerate(questions(verdicts).items(), 1):
        said = [of[study].words if study in of else NOTHING for study in verdicts]
        rows.append([str(k), named(setting), pair, *said])
    return table("Verdicts", head, rows)


def claim_table(findings: Mapping[str, Sequence[ClaimFinding]]) -> Element:
    """Makes the table of claims and their answers."""
    rows = [[study, one.claim.text, one.words] for study, some in findings.items() for one in some]
    return table("Claims", ["study", "claim", "answer"], rows)


def place_table(study: str, finding: ClaimFinding) -> Element:
    """Makes a folded table of the settings that a claim is about."""
    caption = f"Settings of the claim {finding.claim.name} in {study}"
    rows = [
        [place.name, place.said, place.verdict.words, *map(_p, (place.p_claim, place.p_contrary))]
        for place in finding.places
    ]
    head = ["setting", "claim", "verdict here", "p", "p of the contrary, by Holm"]
    made = table(_capped(caption, rows), head, rows[:_MOST_ROWS])
    return element("details", element("summary", caption), made, class_="wide")


def _p(p: float) -> str:
    return f"{p:.3f}" if p >= 0.001 else "< 0.001"


def fit_table(study: str, fits: Sequence[Fit]) -> Element:
    """Makes the table of latencies and bandwidths, with their error on cells not fitted."""
    head = ["fit", "us a round", "Gbit/s", "algorithm", "cells", "held out", "median error"]
    head += ["worst error", "nodes"]
    rows = [
        [
            named(one.factors),
            short(1e6 * one.alpha_seconds),
            short(8 * one.bytes_per_second / 1e9),
            one.algorithm.name if len(one.nodes) > 1 else f"{one.algorithm.name} (assumed)",
            str(one.fitted),
            str(one.held_out),
            f"{one.median_error:.1%}",
            f"{one.worst_error:.1%}",
            ", ".join(map(str, one.nodes)),
        ]
        for one in fits
    ]
    return table(f"Latency and bandwidth in {study}", head, rows)


def cell_table(study: str, launches: Sequence[MeasuredLaunch]) -> Element:
    """Makes the table of all cells that have numbers."""
    head = ["cell", "median s", "5 %", "95 %", *SPLIT, "iterations", "replicates"]
    rows = [
        [
            named(one.factors),
            *map(short, (one.median, one.low, one.high)),
            *_parts(one.split),
            str(one.iterations),
            str(one.replicates),
        ]
        for one in summaries(launches)
    ]
    return table(_capped(f"Cells of {study}", rows), head, rows[:_MOST_ROWS])


def _parts(split: Split | None) -> list[str]:
    """Returns the mean seconds of an iteration's parts, and the share that is exposed."""
    if split is None:
        return [NOTHING] * len(SPLIT)
    hidden = NOTHING if split.hidden is None else short(split.hidden)
    share = split.exposed / (split.compute + split.exposed)
    return [short(split.compute), hidden, f"{short(split.exposed)} ({share:.1%})"]


def failure_table(study: str, launches: Sequence[MeasuredLaunch]) -> Element | None:
    """Makes the table of launches without numbers, with their last output; None without any."""
    bad = [one for one in launches if one.status != "ok"]
    if not bad:
        return None
    head = ["cell", "factors", "replicate", "status", "last words"]
    rows = [
        [
            one.cell,
            named(key_of(one.factors)),
            str(one.replicate),
            one.status,
            one.words[-_MOST_LETTERS:],
        ]
        for one in bad
    ]
    return table(_capped(f"Launches of {study} without numbers", rows), head, rows[:_MOST_ROWS])


def about(study: str, launches: Sequence[MeasuredLaunch]) -> Element:
    """Makes a folded table of the machines, versions and commits of a study's rows."""
    rows = []
    for name in ("declaration", "commit", "machine", "versions", "environment"):
        values = list(dict.fromkeys(_lasting(one.row.get(name)) for one in launches))
        rows += [[name, value] for value in values[:_MOST_VALUES]]
        if (more := len(values) - _MOST_VALUES) > 0:
            rows.append([name, f"and {more} others"])
    return element(
        "details",
        element("summary", f"{study}: machine, versions, commit"),
        table(f"Rows of {study}", ["field", "value"], rows),
        class_="wide",
    )


def _lasting(found: object) -> str:
    """Formats a field without what differs from launch to launch."""
    if isinstance(found, Mapping):
        found = {name: value for name, value in found.items() if name not in _PASSING}
    return json.dumps(found, sort_keys=True)


def _capped(caption: str, rows: Sequence[object]) -> str:
    return caption + (f", the first {_MOST_ROWS} of {len(rows)}" * (len(rows) > _MOST_ROWS))
