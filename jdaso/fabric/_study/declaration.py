"""A study as it is declared: a TOML file, read into frozen dataclasses."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import tomllib
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from .._emulate.cluster import MOST_HOSTS
from . import checks, chosen, levels
from . import claims as claimed
from .checks import StudyError
from .chosen import ChosenFabric, ChosenLibrary, ChosenWorkload
from .claims import Claim
from .crossing import Cell, crossed
from .factors import Level

KEYS = ("name", "replicates", "seed", "margin", "limit_seconds", "limit_bytes", "factors", "cells")
KEYS += ("exclude", "fabrics", "libraries", "workloads", "claims", "short")
_MOST_SECONDS = 1e8
"""The longest limit of a launch, three years: waits of threads take no more than 9e9 seconds."""
_UNMEASURED = ("replicates", "margin", "claims", "limit_seconds", "limit_bytes")
"""Parts that change no measurement: a study goes on with other ones, and does not begin anew."""


@dataclasses.dataclass(frozen=True)
class Study:
    """A study, checked.

    Attributes:
        name: of the study.
        cells: its cells, by id.
        replicates: the number of launches of each cell.
        seed: of the order of launches.
        margin: relative difference that counts as no difference, such as 0.05.
        limit_seconds: the longest that a launch may take.
        limit_bytes: the most memory of all processes of a launch; None: that of the machine.
        fabrics: the fabrics of the cells, by name.
        libraries: the libraries of the cells, by name.
        workloads: the workloads of the cells, by name.
        claims: statements that its answers judge.
    """

    name: str
    cells: tuple[Cell, ...]
    replicates: int
    seed: int
    margin: float
    limit_seconds: float
    limit_bytes: int | None
    fabrics: Mapping[str, ChosenFabric]
    libraries: Mapping[str, ChosenLibrary]
    workloads: Mapping[str, ChosenWorkload]
    claims: tuple[Claim, ...] = ()

    def normal_form(self) -> dict[str, Any]:
        """The study without comments, order, and ways to list cells."""
        form = dataclasses.asdict(self)
        form["cells"] = [dict(cell.factors) for cell in self.cells]
        return form

    @cached_property
    def declaration(self) -> str:
        """The SHA-256 of the measured parts of the normal form, in hexadecimal digits."""
        form = {key: part for key, part in self.normal_form().items() if key not in _UNMEASURED}
        text = json.dumps(form, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()


def read_study(path: str | Path, *, short: bool = False) -> Study:
    """Reads a study from a TOML file; with `short`, its short form.

    Raises:
        StudyError: the file cannot be read, or declares no study; the text names the file.
    """
    try:
        declared = tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise StudyError(f"{path} cannot be read: {error}. Give a TOML file.") from error
    try:
        return study_of(declared, short=short)
    except StudyError as error:
        raise StudyError(f"{path}: {error}") from None


def study_of(declared: Mapping[str, Any], *, short: bool = False) -> Study:
    """Returns the study that a table declares.

    Raises:
        StudyError: the table declares none.
    """
    checks.refuse_unknown("the study", declared, KEYS)
    forms = [declared]
    if short:
        declared = _shortened(declared)
        forms.append(declared)
    workloads = chosen.workloads(declared.get("workloads", {}))
    cells = _cells(declared, workloads, forms)
    fabrics, libraries = _used(declared, cells)
    return Study(
        name=checks.typed("name", _needed(declared, "name"), str),
        cells=cells,
        replicates=checks.at_least("replicates", _number(declared, "replicates", int, 3), 1),
        seed=_number(declared, "seed", int, 0),
        margin=margin_of(_number(declared, "margin", float, 0.05)),
        limit_seconds=_limit(_number(declared, "limit_seconds", float, 120.0)),
        limit_bytes=_optional_bytes("limit_bytes", declared),
        fabrics=fabrics,
        libraries=libraries,
        workloads={name: workloads[name] for name in _named("workload", cells)},
        claims=claimed.claims(declared.get("claims", []), [cell.factors for cell in cells]),
    )


def _used(
    declared: Mapping[str, Any], cells: tuple[Cell, ...]
) -> tuple[dict[str, ChosenFabric], dict[str, ChosenLibrary]]:
    fabrics = chosen.fabrics(declared.get("fabrics", {}))
    libraries = chosen.libraries(declared.get("libraries", {}))
    fabrics = chosen.used("fabric", fabrics, _named("fabric", cells), chosen.fabric)
    libraries = chosen.used("library", libraries, _named("library", cells), chosen.library)
    for cell in cells:
        fabric, nodes = fabrics[str(cell.factors["fabric"])], int(cell.factors["nodes"])
        if fabric.hosts and len(fabric.hosts) < nodes:
            raise StudyError(
                f"fabrics.{fabric.name}.hosts must be {nodes} or more, as the cell {cell} needs, "
                f"got {len(fabric.hosts)}. Add hosts, or exclude the cell."
            )
        if fabric.rate and nodes > MOST_HOSTS:
            raise StudyError(
                f"fabrics.{fabric.name} emulates one host for each node, at most {MOST_HOSTS}, and "
                f"the cell {cell} needs {nodes}. Exclude the cell."
            )
    return fabrics, libraries


def _named(factor: str, cells: tuple[Cell, ...]) -> list[str]:
    return sorted({str(cell.factors[factor]) for cell in cells})


def _shortened(declared: Mapping[str, Any]) -> dict[str, Any]:
    """The table with the keys of ``[short]`` in place of its own, one level deep."""
    if "short" not in declared:
        raise StudyError("there is no short form. Add a table [short], or leave out --short.")
    short = checks.typed("short", declared["short"], dict)
    checks.refuse_unknown("short", short, [key for key in KEYS if key not in ("name", "short")])
    merged = dict(declared)
    for key, value in short.items():
        both = isinstance(value, dict) and isinstance(declared.get(key), dict)
        merged[key] = {**declared[key], **value} if both else value
    return merged


def _cells(
    declared: Mapping[str, Any],
    workloads: Mapping[str, ChosenWorkload],
    forms: Sequence[Mapping[str, Any]],
) -> tuple[Cell, ...]:
    factors, listed = _levels(declared)
    if factors:
        levels.check_combination("factors", factors, workloads)
        crossings = (_levels(form)[0] for form in forms)  # a short form keeps unread factors
        named = [name for of in crossings for name in of.get("workload", ())]
        levels.check_read(factors, [*named, *factors["workload"]], workloads)
    for k, one in enumerate(listed):
        single = {name: (level,) for name, level in one.items()}
        levels.check_combination(f"cells[{k}]", single, workloads)
    reads = {name: workload.reads for name, workload in workloads.items()}
    every = [cell.factors for cell in crossed(factors, reads, listed)]
    cells = crossed(factors, reads, listed, _excluded(declared, forms, every))
    if not cells:
        raise StudyError(
            f"no cell is left of {_size(factors)} combinations and {len(listed)} listed cells. "
            "Give levels under [factors] or cells under [[cells]], or exclude less."
        )
    levels.check_bytes(cells, workloads)
    return cells


def _levels(
    declared: Mapping[str, Any],
) -> tuple[dict[str, tuple[Level, ...]], list[dict[str, Level]]]:
    """Returns the levels that are crossed, and those of each listed cell."""
    listed = [levels.listed(where, table) for where, table in _numbered(declared, "cells")]
    return levels.crossing("factors", declared.get("factors", {})), listed


def _excluded(
    declared: Mapping[str, Any],
    forms: Sequence[Mapping[str, Any]],
    cells: Sequence[Mapping[str, Level]],
) -> list[dict[str, tuple[Level, ...]]]:
    """Returns the exclusions; raises unless a form of the study has each level that they name."""
    crossings, listings = zip(*map(_levels, forms), strict=True)
    tables = [*cells, *(one for listed in listings for one in listed)]
    rules = []
    for where, table in _numbered(declared, "exclude"):
        rules.append(levels.crossing(where, table))
        if not rules[-1]:
            raise StudyError(f"{where} excludes everything, got {{}}. Name factors and levels.")
        for factor, named in rules[-1].items():
            known = {str(level) for crossing in crossings for level in crossing.get(factor, ())}
            known |= {str(one[factor]) for one in tables if factor in one}
            for level in named:
                checks.one_of(f"{where}.{factor}", str(level), known)
    return rules


def _numbered(declared: Mapping[str, Any], key: str) -> list[tuple[str, Any]]:
    tables = checks.typed(key, declared.get(key, []), list)
    return [(f"{key}[{k}]", table) for k, table in enumerate(tables)]


def _size(factors: Mapping[str, tuple[Level, ...]]) -> int:
    return math.prod(map(len, factors.values())) if factors else 0


def _needed(declared: Mapping[str, Any], key: str) -> Any:
    if key not in declared:
        raise StudyError(f"the study has no {key}. Add it: {key} = ...")
    return declared[key]


def _number(declared: Mapping[str, Any], key: str, kind: type, default: float) -> Any:
    return checks.typed(key, declared.get(key, default), kind)


def _limit(seconds: float) -> float:
    checks.at_least("limit_seconds", seconds, 1)
    return checks.at_most("limit_seconds", seconds, _MOST_SECONDS)


def _optional_bytes(key: str, declared: Mapping[str, Any]) -> int | None:
    return checks.count_of_bytes(key, declared[key]) if key in declared else None


def margin_of(margin: float) -> float:
    if not 0 < margin < 1:
        raise StudyError(f"margin must be between 0 and 1, got {margin:g}. Take 0.05 for 5 %.")
    return margin
