"""Cells that a library cannot do, refused before they are launched."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from .chosen import ChosenFabric, ChosenLibrary, ChosenWorkload
from .crossing import Cell, matches
from .factors import WIRES, Level
from .models import MODELS


class Lack(NamedTuple):
    """Cells that some transports cannot do.

    Attributes:
        transports: those that cannot.
        levels: factor -> levels; concerns cells that have one of each.
        reason: the end of a sentence that names library and levels.
    """

    transports: tuple[str, ...]
    levels: Mapping[str, tuple[Level, ...]]
    reason: str


_OTHERS = ("gloo", "nccl", "torch")
_NARROW = {"method": ("synchronous",), "wire": tuple(w for w in WIRES if w != "float32")}

LACKS = (
    Lack(_OTHERS, {"workload": ("exchange", "halo")}, "needs MPI."),
    Lack(_OTHERS, {"method": ("daso", "instant")}, "needs MPI."),
    Lack(
        (*_OTHERS, "mpi4jax"),
        _NARROW,
        "is not there: it averages gradients in float32. Take wire float32.",
    ),
    Lack(("mpi4jax",), {"workload": ("halo",)}, "is written for mpi4py. Take transport mpi."),
    Lack(("mpi4jax",), {"workload": ("reduce_scatter",)}, "is not one of its operations."),
    Lack(("torch",), {"compute": ("real",)}, "is not there: the networks are JAX's. Take paced."),
    Lack(
        ("mpi", "mpi4jax", "gloo", "nccl"),
        {"model": ("paced",), "compute": ("real",)},
        "is no network. Exclude this combination: [[exclude]].",
    ),
)

_NETWORKS = tuple(name for name, model in MODELS.items() if model.parameters)
_NO_FLAX = "needs Flax, which its environment lacks. Install it: pip install 'jdaso[flax]'."


def lack_of(
    library: ChosenLibrary,
    versions: Mapping[str, str],
    fabric: ChosenFabric,
    workload: ChosenWorkload,
    cell: Cell,
) -> str:
    """Returns the reason why a library cannot do a cell's work; empty if it can.

    A program of the user's own may do anything, whatever its levels are named.

    Args:
        library: the library.
        versions: package -> version, in its environment.
        fabric: of the cell.
        workload: of the cell.
        cell: the cell.
    """
    if library.transport == "nccl" and fabric.rate:
        return f"{library.name}: emulated hosts have no GPUs of their own. Take a real fabric."
    if workload.program:
        return ""
    lacks = LACKS
    if "flax" not in versions:
        lacks += (Lack((library.transport,), {"model": _NETWORKS}, _NO_FLAX),)
    for lack in lacks:
        if library.transport in lack.transports and matches(cell.factors, lack.levels):
            named = " with ".join(f"the {name} {cell.factors[name]}" for name in lack.levels)
            return f"{library.name}: {named} {lack.reason}"
    return ""
