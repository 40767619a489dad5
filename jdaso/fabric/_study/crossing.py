"""The cells of a study, their names and their order: pure functions of what was declared."""

from __future__ import annotations

import hashlib
import itertools
import json
import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from .factors import COMMON, FACTORS, PAIRS, Level


@dataclass(frozen=True)
class Cell:
    """One combination of levels; a row of results is one launch of it.

    Attributes:
        id: "c" and eight digits of the hash of the factors: the same in every study.
        factors: factor -> level, in the order of `FACTORS`, without those that are not read.
    """

    id: str
    factors: Mapping[str, Level]

    def __str__(self) -> str:
        return f"{self.id}  " + " ".join(f"{key}={value}" for key, value in self.factors.items())


Reads = Mapping[str, Sequence[str]]
"""Workload -> the factors that it reads besides the common ones."""


def cell_of(levels: Mapping[str, Level], reads: Reads) -> Cell:
    """Returns the cell of these levels; a factor that its workload does not read is left out."""
    workload = str(levels["workload"])
    kept = {*COMMON, *reads[workload]}
    factors = {name: levels[name] for name in FACTORS if name in kept and name in levels}
    if workload in PAIRS:
        factors["nodes"] = 2
    text = json.dumps(factors, sort_keys=True)
    return Cell(f"c{hashlib.sha256(text.encode()).hexdigest()[:8]}", factors)


def crossed(
    factors: Mapping[str, Sequence[Level]],
    reads: Reads,
    listed: Iterable[Mapping[str, Level]] = (),
    excluded: Sequence[Mapping[str, Sequence[Level]]] = (),
) -> tuple[Cell, ...]:
    """Returns all combinations of levels and the listed cells, without those excluded, by id.

    Combinations that differ only in factors that their workload does not read are one cell.
    """
    levels = itertools.product(*factors.values()) if factors else ()
    every = [dict(zip(factors, one, strict=True)) for one in levels]
    cells = {cell.id: cell for cell in (cell_of(one, reads) for one in [*every, *listed])}
    kept = [c for c in cells.values() if not any(matches(c.factors, rule) for rule in excluded)]
    return tuple(sorted(kept, key=lambda cell: cell.id))


def matches(factors: Mapping[str, Level], rule: Mapping[str, Sequence[Level]]) -> bool:
    """Returns whether a cell has, for every factor of a rule, one of the rule's levels."""
    return all(factors.get(name) in levels for name, levels in rule.items())


def in_order(cells: Sequence[Cell], replicates: int, seed: int) -> list[tuple[int, Cell]]:
    """Returns all launches of a study as (replicate, cell), shuffled within each replicate.

    So a drift of the machine does not become an effect of a factor. The order of a replicate
    depends on the seed and its number alone: more replicates do not change the others' order.
    """
    order = []
    for replicate in range(replicates):
        shuffled = list(cells)
        random.Random(f"{seed} {replicate}").shuffle(shuffled)
        order += [(replicate, cell) for cell in shuffled]
    return order
