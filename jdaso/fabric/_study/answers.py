"""The answers of studies as JSON; `answers.schema.json` describes each key."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from functools import cache
from importlib import resources
from typing import Any

from .alpha_beta import Fit, fits_of
from .findings import ClaimFinding
from .measured import MeasuredLaunch
from .mixed import mixtures
from .rows import OK
from .summaries import summaries
from .verdicts import Verdict

FORMAT = 1


def answers(studies: Sequence[dict[str, Any]], between: Sequence[Verdict] = ()) -> dict[str, Any]:
    """Joins the answers of several studies.

    Args:
        studies: from `answers_of`.
        between: verdicts on one study against another.
    """
    return {
        "format": FORMAT,
        "studies": list(studies),
        "between": [_verdict(one) for one in between],
    }


def answers_of(
    name: str,
    launches: Sequence[MeasuredLaunch],
    findings: Sequence[ClaimFinding],
    verdicts: Sequence[Verdict],
) -> dict[str, Any]:
    """Returns the answers of one study."""
    fits = fits_of(launches)
    return {
        "study": name,
        "claims": [_finding(one) for one in findings],
        "verdicts": [_verdict(one) for one in verdicts],
        "cells": [_plain(one) for one in summaries(launches)],
        "fits": [_fit(one) for one in fits.fits],
        "without_fit": fits.left_out,
        "failed": [_failed(one) for one in launches if one.status != OK],
        "mixed": mixtures(launches),
    }


@cache
def schema() -> dict[str, Any]:
    """The JSON schema of the answers, which is a part of the package."""
    text = resources.files(__package__ or "").joinpath("answers.schema.json").read_text("utf-8")
    return json.loads(text)


def _verdict(found: Verdict) -> dict[str, Any]:
    return _plain(found) | {"words": found.words}


def _finding(found: ClaimFinding) -> dict[str, Any]:
    places = [_plain(one) | {"verdict": _verdict(one.verdict)} for one in found.places]
    answer = {"said": found.said, "more": found.more, "words": found.words, "places": places}
    return _plain(found.claim) | answer


def _fit(found: Fit) -> dict[str, Any]:
    return _plain(found) | {"algorithm": found.algorithm.name, "words": found.words}


def _failed(launch: MeasuredLaunch) -> dict[str, Any]:
    where = {"cell": launch.cell, "factors": launch.factors, "replicate": launch.replicate}
    return where | {"status": launch.status, "words": launch.words}


def _plain(found: Any) -> dict[str, Any]:
    """Returns a dataclass for JSON: factors as objects, and None for numbers not finite."""
    return {field.name: _value(getattr(found, field.name)) for field in dataclasses.fields(found)}


def _value(value: Any) -> Any:
    if dataclasses.is_dataclass(value):
        return _plain(value)
    if isinstance(value, float):
        return value if abs(value) < float("inf") else None
    if isinstance(value, tuple) and value and isinstance(value[0], tuple):
        return dict(value)
    return value
