"""The levels of factors in a declaration: of the crossing, of a listed cell, of an exclusion."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

from . import checks, factors, models
from .checks import StudyError
from .chosen import ChosenWorkload
from .crossing import Cell
from .factors import COMMON, FACTORS, OPTIONAL, PAIRS, Level

_NUMBER_BYTES = 4

_NAMES: Mapping[str, Collection[str]] = {
    "wire": factors.WIRES,
    "method": factors.METHODS,
    "model": models.MODELS,
    "compute": factors.COMPUTES,
    "scaling": factors.SCALINGS,
}
"""Factors whose levels are known by name, if the workload is jdaso's own."""


def crossing(where: str, declared: Any) -> dict[str, tuple[Level, ...]]:
    """Returns factor -> levels; one level may stand without a list.

    Raises:
        StudyError: a factor or the type of a level is wrong, or a level is given twice.
    """
    table = checks.typed(where, declared, dict)
    checks.refuse_unknown(where, table, FACTORS)
    return {name: _levels(f"{where}.{name}", name, given) for name, given in table.items()}


def _levels(where: str, name: str, given: Any) -> tuple[Level, ...]:
    levels = tuple(_level(where, name, x) for x in (given if isinstance(given, list) else [given]))
    if not levels:
        raise StudyError(f"{where} has no level, got []. Give one, or leave the factor out.")
    twice = sorted({str(x) for x in levels if levels.count(x) > 1})
    if twice:
        raise StudyError(f"{where} has {', '.join(twice)} more than once. Leave one out.")
    return levels


def _level(where: str, name: str, given: Any) -> Level:
    if name == "bytes":
        return checks.count_of_bytes(where, given)
    level = checks.typed(where, given, FACTORS[name])
    return checks.at_least(where, level, 1) if FACTORS[name] is int else level


def listed(where: str, declared: Any) -> dict[str, Level]:
    """Returns the levels of one listed cell.

    Raises:
        StudyError: a factor or level is wrong.
    """
    table = checks.typed(where, declared, dict)
    checks.refuse_unknown(where, table, FACTORS)
    return {name: _level(f"{where}.{name}", name, given) for name, given in table.items()}


def check_combination(
    where: str, names: Mapping[str, Collection[Level]], workloads: Mapping[str, ChosenWorkload]
) -> None:
    """Raises unless every workload has the factors that it reads, with levels that are known.

    Raises:
        StudyError: a factor is missing, or a name is unknown.
    """
    for factor in COMMON:
        if factor not in names:
            raise StudyError(f"{where}: the factor {factor} is missing. Add it: {factor} = [...]")
    for name in names["workload"]:
        workload = workloads[checks.one_of(f"{where}.workload", name, workloads)]
        for factor in workload.reads:
            if factor not in names and factor not in OPTIONAL:
                raise StudyError(
                    f"{where}: the workload {name} needs the factor {factor}. Add it: "
                    f"{factor} = [...]"
                )
            if factor in _NAMES and not workload.program:
                for level in names.get(factor, ()):
                    checks.one_of(f"{where}.{factor}", level, _NAMES[factor])


def check_read(
    factors: Collection[str], names: Collection[Level], workloads: Mapping[str, ChosenWorkload]
) -> None:
    """Raises unless one of the named workloads, or more, reads each factor.

    Raises:
        StudyError: none reads a factor, which would have no effect.
    """
    named = sorted({str(name) for name in names if str(name) in workloads})
    read = {factor for name in named for factor in workloads[name].reads}
    for factor in factors:
        if factor not in COMMON and factor not in read:
            raise StudyError(
                f"factors: none of the workloads {', '.join(named)} reads the factor {factor}. "
                "Leave it out."
            )


def check_bytes(cells: Iterable[Cell], workloads: Mapping[str, ChosenWorkload]) -> None:
    """Raises unless jdaso's own workloads have a float32 number for each node in every cell.

    They would round fewer bytes up, and the row would name bytes that were not measured.

    Raises:
        StudyError: a cell has fewer bytes, or a part of a number.
    """
    own = [cell for cell in cells if not workloads[str(cell.factors["workload"])].program]
    for cell in own:
        name, nodes = str(cell.factors["workload"]), int(cell.factors["nodes"])
        least = _NUMBER_BYTES * (1 if name in PAIRS else nodes)
        if int(cell.factors.get("bytes", least)) < least:
            raise StudyError(
                f"the cell {cell} has fewer bytes than one float32 number for each node of the "
                f"operation. Give {least} bytes or more, or exclude the cell."
            )
    for cell in own:
        if int(cell.factors.get("bytes", 0)) % _NUMBER_BYTES:
            raise StudyError(
                f"the cell {cell} has bytes that are no float32 numbers. Give multiples of "
                f"{_NUMBER_BYTES}."
            )
