"""Rows of one study that do not stand on the same code, machine or libraries."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from .measured import MeasuredLaunch
from .rows import OK

_MACHINE = ("cpu", "cores", "memory_bytes", "kernel")
"""The lasting fields of a row's machine, unlike its load."""
_MOST = 4


def mixtures(launches: Iterable[MeasuredLaunch]) -> list[str]:
    """Returns a sentence for each field in which rows differ though no factor says so.

    Rows have a commit, a machine, and the versions of the packages of their library. A comparison
    of rows that differ there compares commits, machines or packages, too.
    """
    good = [launch.row for launch in launches if launch.status == OK]
    found = list(_differing("commits of jdaso", (row.get("commit") for row in good)))
    machines = (row.get("machine") or {} for row in good)
    found += _differing("machines", ({key: one.get(key) for key in _MACHINE} for one in machines))
    libraries: dict[str, list[Any]] = {}
    for row in good:
        name = str(row["factors"].get("library"))
        libraries.setdefault(name, []).append(row.get("versions"))
    for name, versions in libraries.items():
        found += _differing(f"sets of versions for library {name}", versions)
    return found


def _differing(what: str, values: Iterable[Any]) -> Iterator[str]:
    """Yields a sentence if values differ, with what differs in those that are mappings."""
    different = {json.dumps(value, sort_keys=True): value for value in values}
    if len(different) < 2:
        return
    every = list(different.values())
    if all(isinstance(value, Mapping) for value in every):
        names = dict.fromkeys(name for value in every for name in value)
        parts = {name: list(dict.fromkeys(str(one.get(name)) for one in every)) for name in names}
        told = "; ".join(f"{name} {_listed(some)}" for name, some in parts.items() if some[1:])
    else:
        told = _listed([str(value) for value in every])
    yield f"The rows are of {len(every)} {what}, which comparisons between them include: {told}."


def _listed(values: list[str]) -> str:
    more = len(values) - _MOST
    return ", ".join(values[:_MOST]) + (f" and {more} others" if more > 0 else "")
