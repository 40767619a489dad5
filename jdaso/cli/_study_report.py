"""``python -m jdaso study report``: the answers of a study, as a page or for other tools."""

import argparse
import dataclasses
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..fabric._study import tables
from ..fabric._study.alpha_beta import fits_of
from ..fabric._study.measured import Launch, RowsError, declared_margin, named, read_launches
from ..fabric._study.verdicts import Verdict, summaries, verdicts
from ..report._page import needing_bokeh
from . import _measured

FORMATS = ("html", "csv", "json", "osu", "nccl-tests")
FORMAT = 1
"""Of the answers as JSON."""

Studies = dict[str, list[Launch]]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the options of ``study report``."""
    add = parser.add_argument
    add("studies", nargs="+", metavar="DIR", help="folder of a study; several stand side by side")
    add("--format", choices=FORMATS, default="html", help="(default html)")
    add("-o", "--output", help="(default study.html; the other formats are printed)")
    add("--margin", type=float, help="relative difference that matters (default: as declared)")
    add("--reference", metavar="FABRIC", help="compare with this one (default: each with each)")
    add("--title", help="title of the page (default: the names of the studies)")
    add("--plots", metavar="DIR", help="draw the charts for a paper, too: SVG and PNG")
    _measured.add_where(parser)


def run(arguments: argparse.Namespace) -> int:
    """Writes the answers; returns 0, 1 if a library is missing, or 2 if there are none."""
    try:
        studies = _read(arguments)
        if arguments.format == "html":
            _write_page(arguments, studies)
        else:
            _write(_text(arguments, studies), arguments.output)
        if arguments.plots:
            _plot(arguments, studies)
    except (ImportError, OSError, ValueError) as error:
        print(f"jdaso study report: {error}", file=sys.stderr)
        return 1 if isinstance(error, ImportError) else 2
    return 0


def _read(arguments: argparse.Namespace) -> Studies:
    """Returns the launches of each study that ``--where`` leaves; equal names get a number."""
    where, found = _measured.where_of(arguments), {}
    for folder in arguments.studies:
        name = Path(folder).resolve().name
        name = f"{name} ({len(found) + 1})" if name in found else name
        found[name] = [
            launch
            for launch in read_launches(folder)
            if all(str(launch.factors.get(key)) == level for key, level in where.items())
        ]
        if not found[name]:
            given = ", ".join(arguments.where)
            raise RowsError(f"{folder} has no row with {given}. Leave --where out to see all.")
    return found


def _write_page(arguments: argparse.Namespace, studies: Studies) -> None:
    with needing_bokeh():
        from ..report._study_page import make_study_page
    title = arguments.title or f"jdaso study: {', '.join(studies)}"
    judged = _judged(arguments, studies)
    page = make_study_page(studies, judged, title)
    output = arguments.output or "study.html"
    Path(output).write_text(page, encoding="utf-8", errors="replace")
    for name, some in judged.items():
        for one in some:
            pair = f"{one.fabric} against {one.reference}"
            print(f"{name}: {named(one.setting)}: {pair}: {one.words}")
    print(f"{output}: {len(page) / 1e3:.0f} kB. Open it in a browser.")


def _judged(arguments: argparse.Namespace, studies: Studies) -> dict[str, list[Verdict]]:
    """Returns the verdicts of each study, by its declared margin; none where it has one fabric."""
    found = {}
    for (name, launches), folder in zip(studies.items(), arguments.studies, strict=True):
        margin = declared_margin(folder) if arguments.margin is None else arguments.margin
        one = len({launch.fabric for launch in launches}) < 2
        found[name] = [] if one else verdicts(launches, margin, reference=arguments.reference)
    return found


def _text(arguments: argparse.Namespace, studies: Studies) -> str:
    """Returns the answers in a format for other tools."""
    if arguments.format == "json":
        judged = _judged(arguments, studies)
        found = [_answers(name, studies[name], judged[name]) for name in studies]
        return json.dumps({"format": FORMAT, "studies": found}, allow_nan=False)
    launches = [launch for some in studies.values() for launch in some]
    if arguments.format == "csv":
        return tables.table(launches)
    made = tables.osu if arguments.format == "osu" else tables.nccl_tests
    text = [made(tables.columns_of(some)) for some in studies.values()]
    return "\n".join(text)


def _answers(name: str, launches: Sequence[Launch], judged: Sequence[Verdict]) -> dict[str, Any]:
    """Returns the answers of one study for JSON."""
    fits = fits_of(launches)
    return {
        "study": name,
        "cells": [_plain(one) for one in summaries(launches)],
        "verdicts": [_plain(one) | {"words": one.words} for one in judged],
        "fits": [
            _plain(one) | {"algorithm": one.algorithm.name, "words": one.words} for one in fits.fits
        ],
        "without fit": fits.left_out,
        "failed": [
            {"cell": one.cell, "factors": one.factors, "replicate": one.replicate}
            | {"status": one.status, "words": one.words}
            for one in launches
            if one.status != "ok"
        ],
    }


def _plain(found: Any) -> dict[str, Any]:
    """Returns a dataclass as JSON has it: factors as objects, and None for what is not finite."""
    return {field.name: _value(getattr(found, field.name)) for field in dataclasses.fields(found)}


def _value(value: Any) -> Any:
    if dataclasses.is_dataclass(value):
        return _plain(value)
    if isinstance(value, float):
        return value if abs(value) < float("inf") else None
    if isinstance(value, tuple) and value and isinstance(value[0], tuple):
        return dict(value)
    return value


def _plot(arguments: argparse.Namespace, studies: Studies) -> None:
    try:
        from ..plots import plot_study

        written = plot_study(studies, _judged(arguments, studies), arguments.plots)
    except ImportError as error:
        raise ImportError(
            f'--plots needs matplotlib ({error}): pip install "jdaso[plots]".'
        ) from error
    print(f"plotted: {len(written)} files in {arguments.plots}", file=sys.stderr)


def _write(text: str, output: str | None) -> None:
    if output is None:
        print(text)
    else:
        Path(output).write_text(text, encoding="utf-8")
