"""The declaration in a study's folder, as far as its answers need it."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from .._emulate.cluster import bits_per_second_of
from .claims import Claim, Factors, claims
from .journal import read_declaration


class Declared(NamedTuple):
    """Parts of a declaration.

    Attributes:
        margin: relative difference that matters.
        cells: factors of each cell, including cells that have no rows yet.
        claims: statements to judge.
        rates: bit/s of the emulated fabrics, by name.
    """

    margin: float
    cells: list[Factors]
    claims: tuple[Claim, ...]
    rates: dict[str, float]


def read_declared(folder: str | Path) -> Declared:
    """Reads the declaration of the study whose rows are in a folder.

    Raises:
        StudyError: the declaration is missing or damaged.
    """
    study = read_declaration(folder)["study"]
    fabrics = study["fabrics"].items()
    rates = {name: bits_per_second_of(one["rate"]) for name, one in fabrics if one["rate"]}
    found = claims(study.get("claims", []), study["cells"])
    return Declared(float(study["margin"]), study["cells"], found, rates)
