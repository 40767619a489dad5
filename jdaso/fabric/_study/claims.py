"""The claims of a study: statements about many of its cells at once, which its answers judge.

A claim measures nothing: it may be added, changed or withdrawn after a study has run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from . import checks, levels
from .checks import StudyError
from .crossing import matches
from .factors import FACTORS, Level

EXPECTED = ("no significant effect", "slower", "faster")
"""Effects that a claim may state, beyond the margin of the study or within it."""

_KEYS = ("name", "text", "compare", "of", "against", "where", "expects")

Factors = Mapping[str, Level]


@dataclass(frozen=True)
class Claim:
    """A statement about one factor, at all settings that it names.

    Attributes:
        name: of the claim.
        text: the statement, for people.
        compare: the factor that is compared.
        of: its levels that are judged.
        against: its level that they are compared with.
        where: factor -> levels: the settings; all, if empty.
        expects: one of `EXPECTED`.
    """

    name: str
    text: str
    compare: str
    of: tuple[Level, ...]
    against: Level
    where: Mapping[str, tuple[Level, ...]]
    expects: str


def claims(declared: Any, cells: Sequence[Factors]) -> tuple[Claim, ...]:
    """Reads the claims that a study declares, or its folder holds.

    Args:
        declared: a list of tables.
        cells: the factors of each cell of the study.

    Raises:
        StudyError: a claim is wrong, or about no cells.
    """
    tables = checks.typed("claims", declared, list)
    found = tuple(_claim(f"claims[{k}]", table, cells) for k, table in enumerate(tables))
    names = [claim.name for claim in found]
    for name in names:
        if names.count(name) > 1:
            raise StudyError(f"claims: two have the name {name!r}. Rename one of them.")
    return found


def compared(claim: Claim, cells: Sequence[Factors]) -> list[tuple[Level, Factors]]:
    """Returns (level, cell) for each cell that a claim judges and that has a cell to compare with.

    The two differ in the claim's factor alone.
    """
    every = {frozenset(cell.items()) for cell in cells}
    rule = {**claim.where, claim.compare: claim.of}
    return [
        (cell[claim.compare], cell)
        for cell in cells
        if matches(cell, rule)
        and frozenset({**cell, claim.compare: claim.against}.items()) in every
    ]


def _claim(where: str, declared: Any, cells: Sequence[Factors]) -> Claim:
    table = checks.typed(where, declared, dict)
    checks.refuse_unknown(where, table, _KEYS)
    for key in ("name", "text", "of", "against"):
        if key not in table:
            raise StudyError(f"{where} has no {key}. Add it: {key} = ...")
    factor = checks.one_of(f"{where}.compare", table.get("compare", "fabric"), FACTORS)
    claim = Claim(
        name=checks.typed(f"{where}.name", table["name"], str),
        text=checks.typed(f"{where}.text", table["text"], str),
        compare=factor,
        of=levels.crossing(f"{where}.of", {factor: table["of"]})[factor],
        against=levels.listed(f"{where}.against", {factor: table["against"]})[factor],
        where=levels.crossing(f"{where}.where", table.get("where", {})),
        expects=checks.one_of(f"{where}.expects", table.get("expects", EXPECTED[0]), EXPECTED),
    )
    _check(where, claim, cells)
    return claim


def _check(where: str, claim: Claim, cells: Sequence[Factors]) -> None:
    """Raises unless the study has each level that a claim names, and cells that it compares."""
    named = {**claim.where, claim.compare: (*claim.of, claim.against)}
    for factor, some in named.items():
        known = {str(cell[factor]) for cell in cells if factor in cell}
        for level in some:
            checks.one_of(f"{where} ({claim.name}): {factor}", str(level), known)
    if claim.against in claim.of or claim.compare in claim.where:
        raise StudyError(
            f"{where} ({claim.name}) compares {list(claim.of)} with {claim.against!r} where "
            f"{dict(claim.where)}. Leave {claim.against!r} out of 'of', and {claim.compare} out of "
            "'where'."
        )
    if not compared(claim, cells):
        raise StudyError(
            f"{where} ({claim.name}) is about no cells, got {dict(claim.where)}: no two of these "
            f"differ in {claim.compare} alone. Name other levels, or declare the cells."
        )
