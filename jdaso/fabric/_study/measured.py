"""Launches of a study as its answers use them: read from its rows, checked, grouped by factors.

A cell is one choice of all factors. Each of its replicates is one launch, which measures many
iterations. Only launches of status "ok" have numbers that count.
"""

from __future__ import annotations

import dataclasses
import functools
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
from jaxtyping import Float64

from .checks import StudyError
from .declared import read_declared
from .journal import read_rows
from .rows import FORMAT, OK

AGAIN = "Delete the row and start the study again: it runs this cell anew."

Seconds = Float64[np.ndarray, " iterations"]
Key = tuple[tuple[str, Any], ...]
"""Factors in the order of their names, without those that are None: a cell's place in a dict."""


class RowsError(StudyError):
    """Rows that allow no answer."""


@dataclasses.dataclass(frozen=True, eq=False)
class MeasuredLaunch:
    """One replicate of a cell.

    Attributes:
        study: name of the study.
        cell: name of the cell.
        replicate: from 0; replicate k of all cells ran within the same stretch of time.
        factors: name -> value; "fabric" is always there.
        status: "ok", or the reason why there are no numbers.
        words: the last output of a launch that failed.
        seconds: of each measured iteration; empty unless the status is "ok".
        compute_seconds: the part of each iteration without communication; empty if not measured.
        communication_seconds: of the communication in each iteration, behind compute or not; empty
            if not measured.
        bits_per_second: rate of an emulated fabric, as declared; None for a real one.
        row: the row itself.
    """

    study: str
    cell: str
    replicate: int
    factors: Mapping[str, Any]
    status: str
    words: str
    seconds: Seconds
    compute_seconds: Float64[np.ndarray, " split"]
    communication_seconds: Float64[np.ndarray, " communication"]
    bits_per_second: float | None
    row: Mapping[str, Any]

    @functools.cached_property
    def median(self) -> float:
        """Median seconds of the measured iterations."""
        return float(np.median(self.seconds))


def read_launches(folder: str | Path) -> list[MeasuredLaunch]:
    """Reads the launches of a study from its folder; see `journal.read_rows`.

    Raises:
        StudyError: the folder holds no study, or a row is damaged.
        RowsError: there are no rows, or they do not belong together.
    """
    return launches_of(read_rows(folder), read_declared(folder).rates)


def launches_of(
    rows: Iterable[Mapping[str, Any]], rates: Mapping[str, float] = MappingProxyType({})
) -> list[MeasuredLaunch]:
    """Checks rows and returns their launches, in the order of cells and replicates.

    Args:
        rows: of one declaration.
        rates: bit/s of the emulated fabrics, by name.

    Raises:
        RowsError: there are none, a number is missing or not finite, a replicate occurs twice,
            or the rows are of two declarations.
    """
    launches = [_launch(row, rates) for row in rows]
    if not launches:
        raise RowsError("The study has no rows yet. Run it first: python -m jdaso study FILE.toml.")
    declarations = {launch.row.get("declaration") for launch in launches}
    if len(declarations) > 1:
        raise RowsError(
            f"The rows are of {len(declarations)} declarations, which never mix. Run each "
            "declaration into a folder of its own."
        )
    seen = set()
    for launch in launches:
        place = (key_of(launch.factors), launch.replicate)
        if place in seen and launch.status == OK:
            raise RowsError(
                f"{_name(launch.row)} is there twice, and would count twice. Delete one of the "
                "two rows."
            )
        seen |= {place} if launch.status == OK else set()
    return sorted(launches, key=lambda launch: (rank(key_of(launch.factors)), launch.replicate))


def _launch(row: Mapping[str, Any], rates: Mapping[str, float]) -> MeasuredLaunch:
    """Makes a launch from a row, and checks the row's numbers."""
    if row.get("format") != FORMAT:
        raise RowsError(
            f"{_name(row)} has format {row.get('format')!r}, known is {FORMAT}. Read it with the "
            "version of jdaso that wrote it."
        )
    factors = row.get("factors")
    if not isinstance(factors, Mapping) or not factors.get("fabric"):
        raise RowsError(f"{_name(row)} does not name a fabric among its factors. {AGAIN}")
    lists = ("seconds", "compute_seconds", "communication_seconds")
    good = row["status"] == OK
    return MeasuredLaunch(
        study=str(row["study"]),
        cell=str(row["cell"]),
        replicate=int(row["replicate"]),
        factors=factors,
        status=row["status"],
        words=str(row.get("words") or ""),
        bits_per_second=rates.get(factors["fabric"]),
        row=row,
        **{name: _numbers(row, name) if good else np.empty(0) for name in lists},
    )


def _numbers(row: Mapping[str, Any], name: str) -> Seconds:
    """Returns a column of an "ok" row; only the split of the seconds may be missing."""
    given, optional = row.get(name), name != "seconds"
    if not given:
        if optional:
            return np.empty(0)
        raise RowsError(f"{_name(row)} has the status ok but no {name}. {AGAIN}")
    try:
        found = np.asarray(given, float)
    except (TypeError, ValueError) as error:
        raise RowsError(f"{_name(row)}: {name} are not all numbers ({error}). {AGAIN}") from error
    least = 0.0 if optional else np.nextafter(0.0, 1.0)
    if found.ndim != 1 or not np.isfinite(found).all() or found.min() < least:
        raise RowsError(f"{_name(row)}: {name} must be finite and above 0, got {given}. {AGAIN}")
    return found


def _name(row: Mapping[str, Any]) -> str:
    return f"The row of cell {row.get('cell')!r}, replicate {row.get('replicate')}"


def good_cells(launches: Iterable[MeasuredLaunch]) -> dict[Key, list[MeasuredLaunch]]:
    """Returns the "ok" launches of each cell that has some, in the order of factors."""
    cells: dict[Key, list[MeasuredLaunch]] = {}
    for launch in launches:
        if launch.status == OK:
            cells.setdefault(key_of(launch.factors), []).append(launch)
    ordered = sorted(cells, key=rank)
    return {key: sorted(cells[key], key=lambda launch: launch.replicate) for key in ordered}


def key_of(factors: Mapping[str, Any], without: Iterable[str] = ()) -> Key:
    """Returns the factors but `without`, as a key."""
    left = {name: value for name, value in factors.items() if name not in set(without)}
    return tuple(
        (name, value if isinstance(value, str | int | float) else json.dumps(value, sort_keys=True))
        for name, value in sorted(left.items())
        if value is not None
    )


def rank(key: Key) -> tuple:
    """Returns a key for sorting: numbers by their size, before texts."""
    return tuple(
        (name, isinstance(v, str), *((0, v) if isinstance(v, str) else (v, ""))) for name, v in key
    )


def named(key: Key) -> str:
    """Formats factors: allreduce, 2 nodes, 1048576 bytes, mpich.

    >>> named((("bytes", 8), ("library", "mpich"), ("nodes", 2), ("workload", "allreduce")))
    'allreduce, 2 nodes, 8 bytes, mpich'
    """
    factors, words = dict(key), []
    for name in ("workload", "model", "nodes", "bytes", *factors):
        if name in factors:
            level = factors.pop(name)
            words.append(f"{level} {name}" if isinstance(level, int) else str(level))
    return ", ".join(words)
