"""Runs a study: every launch that its journal lacks, one after the other, to the end."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from ..._launch.guarded import Guarded
from ..._launch.mpiexec import termination_raises
from .._emulate import kernel
from .._emulate.cluster import Cluster, ClusterError
from . import libraries, outcomes
from .chosen import ChosenFabric
from .clusters import Clusters
from .crossing import Cell, in_order
from .declaration import Study
from .journal import Journal, open_journal
from .lacks import lack_of
from .launch import Launch, launch_of
from .libraries import Found
from .machine import commit, load, machine
from .processes import run_to_end
from .rows import Outcome, Row

_GRACE_SECONDS = 0.0
"""Ranks of a cell save nothing."""


@dataclass(frozen=True)
class Machinery:
    """All that the launches of a study share.

    Attributes:
        study: the study.
        found: its libraries, as they are on this machine.
        clusters: emulated clusters.
        guard: the process that ends a launch if this process is killed.
        about: columns that all rows have in common.
    """

    study: Study
    found: dict[str, Found]
    clusters: Clusters
    guard: Guarded
    about: dict[str, Any]


def run_study(
    study: Study, folder: str | Path, on_row: Callable[[Row, int], object] = lambda *_: None
) -> int:
    """Runs what is left of a study; returns the number of launches that it took.

    Args:
        study: the study.
        folder: of its rows; made if it is missing.
        on_row: called with each new row and the number of launches that are left.

    Raises:
        StudyError: the folder belongs to another declaration or process, or is damaged.
        ClusterError: the study emulates fabrics, and this machine cannot.
        OSError: the folder cannot be written.

    A cell that fails, hangs or is killed is a row, and the study goes on. *On failure* of this
    process, however it ends, the processes of the launch end, and the next call goes on there.
    """
    if any(fabric.rate for fabric in study.fabrics.values()):
        kernel.require_tools()
    order = in_order(study.cells, study.replicates, study.seed)
    with (
        termination_raises(),
        open_journal(folder, study) as journal,
        Guarded(_GRACE_SECONDS, ()) as guard,
        Clusters() as clusters,
    ):
        left = [one for one in enumerate(order) if (one[1][1].id, one[1][0]) not in journal]
        about = {"machine": machine(), "commit": commit()}
        shared = Machinery(study, _found(study, left), clusters, guard, about)
        _run(shared, journal, left, on_row)
    return len(left)


def _found(study: Study, left: list[tuple[int, tuple[int, Cell]]]) -> dict[str, Found]:
    names = sorted({str(cell.factors["library"]) for _, (_, cell) in left})
    return {name: libraries.find(study.libraries[name]) for name in names}


def _run(
    shared: Machinery,
    journal: Journal,
    left: list[tuple[int, tuple[int, Cell]]],
    on_row: Callable[[Row, int], object],
) -> None:
    for done, (order, (replicate, cell)) in enumerate(left, 1):
        row = run_cell(shared, cell, replicate, order)
        journal.append(row)
        on_row(row, len(left) - done)


def run_cell(shared: Machinery, cell: Cell, replicate: int, order: int) -> Row:
    """Launches a cell and returns its row."""
    study = shared.study
    started, busy = datetime.now(UTC).isoformat(timespec="seconds"), load()
    outcome, chosen, cluster = _outcome(shared, cell)
    links = {"link_bits_per_second": list(cluster.measured)} if cluster else {}
    return Row(
        study=study.name,
        declaration=study.declaration,
        cell=cell.id,
        replicate=replicate,
        order=order,
        factors=cell.factors,
        outcome=outcome,
        machine={**shared.about["machine"], "load": busy, **links},
        versions=shared.found[str(cell.factors["library"])].versions,
        commit=shared.about["commit"],
        environment=chosen,
        started=started,
        limit_seconds=study.limit_seconds,
    )


def _outcome(shared: Machinery, cell: Cell) -> tuple[Outcome, dict[str, str], Cluster | None]:
    """The outcome of a launch, the variables that it had, and its emulated hosts."""
    study, factors = shared.study, cell.factors
    fabric = study.fabrics[str(factors["fabric"])]
    library = study.libraries[str(factors["library"])]
    workload = study.workloads[str(factors["workload"])]
    found = shared.found[library.name]
    if reason := found.missing or lack_of(library, found.versions, fabric, cell):
        return outcomes.missing(reason), {}, None
    try:
        cluster = shared.clusters.of(fabric, int(factors["nodes"]))
    except ClusterError as error:
        return outcomes.failed(error), {}, None
    try:
        launch = launch_of(cell, fabric, library, workload, cluster)
        return _ended(shared, launch, fabric), launch.chosen, cluster
    except LookupError as error:
        return outcomes.missing(str(error)), {}, cluster
    except (OSError, subprocess.SubprocessError) as error:
        return outcomes.failed(error), {}, cluster


def _ended(shared: Machinery, launch: Launch, fabric: ChosenFabric) -> Outcome:
    limit, kills = shared.study.limit_seconds, outcomes.memory_kills()
    ended = run_to_end(launch.command, launch.environment, limit, shared.guard)
    killed = outcomes.memory_kills() > kills
    return outcomes.outcome_of(ended, fabric, limit, memory_killed=killed)
