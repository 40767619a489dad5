"""``python -m jdaso study report``: the answers of a study, as a page or for other tools."""

import argparse
import dataclasses
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from ..fabric._study import tables
from ..fabric._study.answers import answers, answers_of
from ..fabric._study.declaration import margin_of
from ..fabric._study.declared import Declared, read_declared
from ..fabric._study.factors import FACTORS
from ..fabric._study.findings import ClaimFinding, findings
from ..fabric._study.measured import MeasuredLaunch, RowsError, named, read_launches
from ..fabric._study.mixed import mixtures
from ..fabric._study.verdicts import Verdict, levels_of, verdicts
from ..report._page import needing_bokeh
from . import _measured
from ._writing import writing

FORMATS = ("html", "csv", "json", "osu", "nccl-tests")
_OF_VERDICTS = {"compare": "fabric", "reference": None, "margin": None}
"""Options of verdicts, with their defaults."""
STUDY = "study"
"""Compared in place of a factor: one study against another."""


class Read(NamedTuple):
    """A study, read from its folder.

    Attributes:
        declared: its declaration.
        every: all of its launches.
        launches: those that ``--where`` leaves.
    """

    declared: Declared
    every: list[MeasuredLaunch]
    launches: list[MeasuredLaunch]


Studies = Mapping[str, Read]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the options of ``study report``."""
    add = parser.add_argument
    add("studies", nargs="+", metavar="DIR", help="folder of a study; several stand side by side")
    add("--format", choices=FORMATS, default="html", help="(default html)")
    add("-o", "--output", help="(default study.html; the other formats are printed)")
    add("--margin", type=float, help="relative difference that matters (default: as declared)")
    compare = "factor whose levels are compared, or study: one study with another (default fabric)"
    add("--compare", choices=[*FACTORS, STUDY], default=_OF_VERDICTS["compare"], help=compare)
    add("--reference", metavar="LEVEL", help="compare with this level (default: each with each)")
    add("--title", help="title of the page (default: the names of the studies)")
    add("--plots", metavar="DIR", help="draw the charts for a paper, too: SVG and PNG")
    _measured.add_where(parser)


def run(arguments: argparse.Namespace) -> int:
    """Writes the answers; returns 0, 1 if a library is missing, or 2 if there are none."""
    try:
        _refuse_unused(arguments)
        studies = _read(arguments)
        for name, of in studies.items():
            for text in mixtures(of.launches):
                print(f"{name}: {text}", file=sys.stderr)
        if arguments.format == "html":
            _write_page(arguments, studies)
        else:
            _write(_text(arguments, studies), arguments.output)
        if arguments.plots:
            _plot(arguments, studies)
    except BrokenPipeError:
        raise
    except (ImportError, OSError, ValueError) as error:
        print(f"jdaso study report: {error}", file=sys.stderr)
        return 1 if isinstance(error, ImportError) else 2
    return 0


def _refuse_unused(arguments: argparse.Namespace) -> None:
    """Raises if an option changes nothing in this format."""
    made = f"--format {arguments.format}"
    if arguments.title is not None and arguments.format != "html":
        raise ValueError(f"--title is for the page, got {made}. Leave --title out.")
    if arguments.format in ("html", "json") or arguments.plots:
        return
    for name, default in _OF_VERDICTS.items():
        if getattr(arguments, name) != default:
            raise ValueError(
                f"--{name} is for verdicts, and {made} has none. Leave --{name} out, or take "
                "--format html, --format json, or --plots DIR."
            )


def _read(arguments: argparse.Namespace) -> Studies:
    """Reads the studies; equal names get a number."""
    where, found = _measured.where_of(arguments), {}
    for folder in arguments.studies:
        name = Path(folder).resolve().name
        name = f"{name} ({len(found) + 1})" if name in found else name
        every = read_launches(folder)
        launches = [
            launch
            for launch in every
            if all(str(launch.factors.get(key)) == level for key, level in where.items())
        ]
        if not launches:
            given = ", ".join(arguments.where)
            raise RowsError(f"{folder} has no row with {given}. Leave --where out to see all.")
        found[name] = Read(read_declared(folder), every, launches)
    return found


def _launches(studies: Studies) -> dict[str, Sequence[MeasuredLaunch]]:
    return {name: study.launches for name, study in studies.items()}


def _write_page(arguments: argparse.Namespace, studies: Studies) -> None:
    with needing_bokeh():
        from ..report._study_page import make_study_page
    title = arguments.title or f"jdaso study: {', '.join(studies)}"
    claimed, judged = _claimed(arguments, studies), _judged(arguments, studies)
    page = make_study_page(_launches(studies), claimed, judged, title)
    output = arguments.output or "study.html"
    with writing("--output", output):
        Path(output).write_text(page, encoding="utf-8", errors="replace")
    for name, answered in claimed.items():
        for one in answered:
            print(f"{name}: {one.claim.text}: {one.words}")
    for name, some in judged.items():
        for one in some:
            print(f"{name}: {named(one.setting)}: {one.pair}: {one.words}")
        if not some:
            print(f"{name}: no verdict: no setting has two levels of {arguments.compare}.")
    print(f"{output}: {len(page) / 1e3:.0f} kB. Open it in a browser.")


def _claimed(arguments: argparse.Namespace, studies: Studies) -> dict[str, list[ClaimFinding]]:
    """Returns the answers on each study's claims, from all of its rows."""
    return {
        name: findings(
            of.declared.claims, of.declared.cells, of.every, _margin(arguments, of.declared)
        )
        for name, of in studies.items()
    }


def _judged(arguments: argparse.Namespace, studies: Studies) -> dict[str, list[Verdict]]:
    """Returns the verdicts of each study, or those on one study against another.

    A study has none if no setting has two levels of the compared factor, or none the reference.
    """
    if arguments.compare == STUDY:
        return {" and ".join(studies): _between(arguments, studies)}
    _require_reference(arguments, studies)
    found = {}
    for name, of in studies.items():
        margin, factor = _margin(arguments, of.declared), arguments.compare
        levels = {str(level) for level in levels_of(of.launches, factor)}
        judged = len(levels) > 1 and arguments.reference in (None, *levels)
        about = {"factor": factor, "reference": arguments.reference}
        found[name] = verdicts(of.launches, margin, **about) if judged else []
    return found


def _require_reference(arguments: argparse.Namespace, studies: Studies) -> None:
    """Raises if no study has the level that the others are compared with."""
    factor, given = arguments.compare, arguments.reference
    levels = [str(x) for of in studies.values() for x in levels_of(of.launches, factor)]
    if given is not None and given not in levels:
        known = ", ".join(dict.fromkeys(levels))
        remedy = f"Choose one of {known}." if levels else "The rows have none: leave it out."
        raise RowsError(f"No {factor} is named {given!r}. {remedy}")


def _between(arguments: argparse.Namespace, studies: Studies) -> list[Verdict]:
    """Compares the same cells of several studies, as if the study were one of their factors."""
    margins = {_margin(arguments, of.declared) for of in studies.values()}
    if len(margins) > 1:
        raise RowsError(
            f"The studies declare different margins, {', '.join(map(str, sorted(margins)))}. "
            "Choose one: --margin 0.05."
        )
    launches = [
        dataclasses.replace(launch, factors={**launch.factors, STUDY: name})
        for name, of in studies.items()
        for launch in of.launches
    ]
    return verdicts(launches, margins.pop(), factor=STUDY, reference=arguments.reference)


def _margin(arguments: argparse.Namespace, declared: Declared) -> float:
    return declared.margin if arguments.margin is None else margin_of(arguments.margin)


def _text(arguments: argparse.Namespace, studies: Studies) -> str:
    """Returns the answers in a format for other tools."""
    if arguments.format == "json":
        return json.dumps(_answers(arguments, studies), allow_nan=False)
    if arguments.format == "csv":
        return tables.table({name: of.launches for name, of in studies.items()})
    made = tables.osu if arguments.format == "osu" else tables.nccl_tests
    several = len(studies) > 1
    text = [
        made(tables.columns_of(of.launches), name if several else "")
        for name, of in studies.items()
    ]
    return "\n".join(text)


def _answers(arguments: argparse.Namespace, studies: Studies) -> dict[str, object]:
    claimed, judged = _claimed(arguments, studies), _judged(arguments, studies)
    found = [
        answers_of(name, of.launches, claimed[name], judged.get(name, []))
        for name, of in studies.items()
    ]
    between = [one for some in judged.values() for one in some if one.factor == STUDY]
    return answers(found, between)


def _plot(arguments: argparse.Namespace, studies: Studies) -> None:
    try:
        from ..plots import plot_study

        judged = _judged(arguments, studies)
        with writing("--plots", arguments.plots):
            written = plot_study(_launches(studies), judged, arguments.plots)
    except ImportError as error:
        raise ImportError(
            f'--plots needs matplotlib ({error}): pip install "jdaso[plots]".'
        ) from error
    print(f"plotted: {len(written)} files in {arguments.plots}", file=sys.stderr)


def _write(text: str, output: str | None) -> None:
    if output is None:
        sys.stdout.write(text if text.endswith("\n") else f"{text}\n")
    else:
        with writing("--output", output):
            Path(output).write_text(text, encoding="utf-8")
