"""Runs a study: every launch that its journal lacks, one after another, to the end."""

from __future__ import annotations

import shutil
import socket
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from ..._launch.guarded import Guarded
from ..._launch.mpiexec import termination_raises
from .._emulate import cleanup
from .._emulate.cluster import Cluster, ClusterError
from . import libraries, memory, outcomes
from .allocation import allocated_hosts, hosts_of, require_hosts
from .chosen import ChosenFabric
from .clusters import Clusters
from .crossing import Cell, in_order
from .declaration import Study
from .journal import Journal, open_journal
from .lacks import lack_of
from .launch import Launch, launch_of
from .libraries import FoundLibrary
from .machine import commit, load, machine
from .outcomes import Limits
from .processes import run_to_end
from .rows import Outcome, Row

COMPILED = "compiled"
"""Folder of a study for programs that its ranks have compiled; removed once all launches ran."""

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
        allocated: hosts of the scheduler's allocation; none outside of one.
        compiled: folder for programs that ranks on this machine compile.
        about: columns that all rows have in common.
    """

    study: Study
    found: dict[str, FoundLibrary]
    clusters: Clusters
    guard: Guarded
    allocated: tuple[str, ...]
    compiled: Path
    about: dict[str, Any]


def run_study(
    study: Study,
    folder: str | Path,
    on_row: Callable[[Row, int], object] = lambda *_: None,
    *,
    again: bool = False,
) -> int:
    """Runs what is left of a study; returns the number of launches run.

    Args:
        study: the study.
        folder: of its rows; created if missing.
        on_row: called with each new row and the number of launches that are left.
        again: whether launches whose last row is not ok run anew; their old rows stay.

    Raises:
        StudyError: the folder belongs to another declaration or process, is damaged, or cannot be
            written; the allocation has too few hosts; the memory of launches cannot be limited.
        ClusterError: the study emulates fabrics, and this machine cannot.

    A cell that fails, hangs or is killed gives a row, and the study goes on. *On failure* of this
    process, however it ends, the processes of the launch end, and the next call goes on there.
    """
    allocated = allocated_hosts()
    _require(study, allocated)
    with (
        termination_raises(),
        open_journal(folder, study) as journal,
        Guarded(_GRACE_SECONDS, ()) as guard,
        Clusters() as clusters,
    ):
        left = _left(study, journal, again=again)
        about = {"machine": machine(), "commit": commit()}
        found = _found(study, left)
        compiled = Path(folder).absolute() / COMPILED
        shared = Machinery(study, found, clusters, guard, allocated, compiled, about)
        for done, turn in enumerate(left, 1):
            row = run_cell(shared, turn)
            journal.append(row)
            on_row(row, len(left) - done)
        shutil.rmtree(compiled, ignore_errors=True)
    return len(left)


def _require(study: Study, allocated: tuple[str, ...]) -> None:
    """Raises before any launch if some launches cannot be what the study declares."""
    if any(fabric.rate for fabric in study.fabrics.values()):
        cleanup.require_tools()
    require_hosts(study, allocated)
    memory.require(study.limit_bytes)


@dataclass(frozen=True)
class PendingLaunch:
    """A launch still to run: its cell, replicate, attempt, and place among all launches."""

    cell: Cell
    replicate: int
    attempt: int
    order: int


def _left(study: Study, journal: Journal, *, again: bool) -> list[PendingLaunch]:
    order = enumerate(in_order(study.cells, study.replicates, study.seed))
    launches = [(place, replicate, cell) for place, (replicate, cell) in order]
    left = [
        PendingLaunch(cell, replicate, journal.next_attempt((cell.id, replicate)), place)
        for place, replicate, cell in launches
        if (cell.id, replicate) not in journal
        or (again and not journal.is_ok((cell.id, replicate)))
    ]
    return sorted(left, key=lambda turn: turn.attempt)  # failures could take a job's whole time


def _found(study: Study, left: list[PendingLaunch]) -> dict[str, FoundLibrary]:
    names = sorted({str(turn.cell.factors["library"]) for turn in left})
    return {name: libraries.find(study.libraries[name]) for name in names}


def run_cell(shared: Machinery, turn: PendingLaunch) -> Row:
    """Launches a cell and returns its row."""
    study, cell = shared.study, turn.cell
    started, busy = datetime.now(UTC).isoformat(timespec="seconds"), load()
    outcome, launch, cluster = _outcome(shared, cell)
    links = {"link_bits_per_second": list(cluster.measured)} if cluster else {}
    return Row(
        study=study.name,
        declaration=study.declaration,
        cell=cell.id,
        replicate=turn.replicate,
        attempt=turn.attempt,
        order=turn.order,
        factors=cell.factors,
        outcome=outcome,
        machine={**shared.about["machine"], "load": busy, **links},
        versions=shared.found[str(cell.factors["library"])].versions,
        commit=shared.about["commit"],
        environment=launch.chosen if launch else {},
        hosts=(launch.hosts or (socket.gethostname(),)) if launch else (),
        started=started,
        limit_seconds=study.limit_seconds,
        limit_bytes=study.limit_bytes,
    )


def _outcome(shared: Machinery, cell: Cell) -> tuple[Outcome, Launch | None, Cluster | None]:
    """The outcome of a launch, the launch, and its emulated hosts; both None without any."""
    study, factors = shared.study, cell.factors
    fabric = study.fabrics[str(factors["fabric"])]
    library = study.libraries[str(factors["library"])]
    workload = study.workloads[str(factors["workload"])]
    found = shared.found[library.name]
    if reason := found.missing or lack_of(library, found.versions, fabric, workload, cell):
        return outcomes.missing(reason), None, None
    try:
        cluster = shared.clusters.of(fabric, int(factors["nodes"]))
    except ClusterError as error:
        return outcomes.failed(error), None, None
    hosts, launch = hosts_of(cell, fabric, cluster, shared.allocated), None
    try:
        about = cell, fabric, library, workload, cluster, hosts
        launch = launch_of(*about, shared.compiled)
        return _ended(shared, launch, fabric), launch, cluster
    except LookupError as error:
        return outcomes.missing(str(error)), launch, cluster
    except (OSError, subprocess.SubprocessError) as error:
        return outcomes.failed(error), launch, cluster


def _ended(shared: Machinery, launch: Launch, fabric: ChosenFabric) -> Outcome:
    limits = Limits(shared.study.limit_seconds, shared.study.limit_bytes)
    with memory.held(limits.bytes) as held:
        kills, command = held.kills(), [*held.before, *launch.command]
        ended = run_to_end(command, launch.environment, limits.seconds, shared.guard)
        killed = held.kills() > kills
    return outcomes.outcome_of(ended, fabric, limits, memory_killed=killed)
