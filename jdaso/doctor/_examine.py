"""The examination: each rank alone, then all ranks together, then one report."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import socket
import statistics
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from .._launch import environment
from .._launch import gpus as _gpus
from .._launch.paths import FolderError, local_folder
from . import _together
from ._advice import Measured, advice
from ._connections import with_name
from ._findings import Finding, SharedFinding, joined, merged
from ._launcher import LaunchedRank, left_behind
from ._machine import CHECKPOINTS, allowed, cores, machine, missing_folders, physical, write_in
from ._parts import try_own
from ._probe import PartProgress, try_out
from ._software import software


@dataclasses.dataclass(frozen=True)
class Wishes:
    """The user's options.

    Attributes:
        limit_seconds: the longest wait for an answer: of an import, of MPI, of a rank.
        checkpoints: the folder, if any.
        needed: extras.
        parameters: size of the model to advise on.
        step_ms: time of its step.
        ranks_per_node: how many ranks are a node.
        advise: whether the model or its step was given, and so advice is expected.
    """

    limit_seconds: float
    checkpoints: str | None
    needed: Sequence[str]
    parameters: float
    step_ms: float
    ranks_per_node: int = 1
    advise: bool = False


@dataclasses.dataclass(frozen=True)
class Report:
    """The report of this rank.

    Attributes:
        lines: of the report.
        hosts: the host of each rank of the launch, as far as known.
        whole: whether the report covers all ranks of the launch.
        ranks: number of ranks.
        figures: measurements of each pair of ranks.
        advice: for this cluster; empty if nothing could be measured.
    """

    lines: Sequence[SharedFinding]
    hosts: Sequence[str]
    whole: bool
    ranks: int
    figures: Sequence[Mapping[str, Any]] = ()
    advice: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    @property
    def ok(self) -> bool:
        """True if no line reports a problem."""
        return all(line.finding.ok for line in self.lines)

    def as_json(self) -> dict[str, Any]:
        """Returns the report for scripts."""
        return {
            "ok": self.ok,
            "whole": self.whole,
            "ranks": self.ranks,
            "hosts": list(self.hosts),
            "findings": [line.as_json() for line in self.lines],
            "links": list(self.figures),
            "advice": dict(self.advice),
        }


def examine(launch: LaunchedRank, wishes: Wishes) -> Report | None:
    """Examines everything; returns None on ranks that rank 0 reports for."""
    with contextlib.ExitStack() as stack:
        record, own = _look(launch, wishes, stack)
        vendor = own.values.get("mpi4py", {}).get("vendor", "")
        if launch.size == 1 or not vendor:
            return _alone(record, launch, wishes)
        outcome = _talk(record, wishes)
        if outcome.values.get("start", {}).get("size") != launch.size:
            return _alone(record, launch, wishes, _not_together(outcome, launch, vendor))
        return _all(record, outcome, launch, vendor, wishes)


def _look(
    launch: LaunchedRank, wishes: Wishes, stack: contextlib.ExitStack
) -> tuple[dict[str, Any], PartProgress]:
    """Examines this rank alone; returns the record for other ranks, and the outcome."""
    gpus = _gpus.gpu_identities()
    own = try_own(wishes.limit_seconds)
    findings = [*software(own, gpus or (), wishes.needed), *machine(gpus), *left_behind()]
    path = None
    if wishes.checkpoints is not None:
        try:
            folder = local_folder(wishes.checkpoints)
        except FolderError as error:
            findings.append(Finding(CHECKPOINTS, error.wrong, False, f"{error.remedy}."))
        else:
            made = missing_folders(folder)
            finding, path = write_in(folder)
            stack.callback(_take_away, made)
            findings.append(finding)
        if path:
            stack.callback(Path(path).unlink, missing_ok=True)
    record = {
        "rank": launch.rank,
        "host": socket.gethostname(),
        "machine": environment.machine(),
        "cores": physical(cores()),
        "all_cores": len(physical(allowed())),
        "gpus": gpus,
        "devices": len(own.values.get("devices", {}).get("kinds", [0])),
        "file": path,
        "findings": [dataclasses.asdict(finding) for finding in findings],
    }
    return record, own


def _take_away(folders: list[Path]) -> None:
    """Removes folders that were created for the test; the last rank finds them empty."""
    with contextlib.suppress(OSError):
        for folder in folders:
            folder.rmdir()


def _talk(record: Mapping[str, Any], wishes: Wishes) -> PartProgress:
    with tempfile.TemporaryDirectory(prefix="jdaso-doctor-") as folder:
        path = Path(folder, "record")
        path.write_text(json.dumps(record))
        limit = wishes.limit_seconds
        arguments = (str(path), str(limit))
        return try_out("talk", arguments, limit_seconds=limit + 3, as_rank=True)


def _findings_of(record: Mapping[str, Any]) -> list[Finding]:
    return [Finding(**about) for about in record["findings"]]


def _alone(
    record: Mapping[str, Any],
    launch: LaunchedRank,
    wishes: Wishes,
    more: Sequence[SharedFinding] = (),
) -> Report:
    """Makes the report of a rank that reports only about itself."""
    lines = [SharedFinding(finding) for finding in _findings_of(record)]
    lines += more or _together.cores({0: record}, launch.vendor)
    if launch.size == 1:
        lines += _together.nodes({0: record}, 1, wishes.ranks_per_node)
        lines += _no_advice(wishes)
    return Report(lines, [record["host"]], launch.size == 1, launch.size)


def _no_advice(wishes: Wishes) -> Iterator[SharedFinding]:
    """Explains why a model or a step that was given changes nothing on a single rank."""
    if wishes.advise:
        found = (
            "none: it needs the links between ranks. Start the doctor with mpiexec (mpiexec -n 2 "
            "python -m jdaso doctor ...)"
        )
        yield SharedFinding(Finding("advice", found))


def _not_together(outcome: PartProgress, launch: LaunchedRank, vendor: str) -> list[SharedFinding]:
    """Explains why the ranks of the launch are not ranks of MPI."""
    named = launch.vendor in ("MPICH", "Open MPI")
    foreign = named and (launch.vendor == "Open MPI") != (vendor == "Open MPI")
    alone = "start" in outcome.values
    if not alone and not foreign:
        return [SharedFinding(_not_started(outcome, launch, vendor))]
    whose = f"{launch.vendor}'s launcher" if named else "the launcher"
    seen = "each sees only itself" if alone else f"MPI does not start ({outcome.error('start')})"
    found = f"wrong MPI: {whose} started {launch.size} ranks, but the library is {vendor}: {seen}"
    remedy = (
        f"Start with {vendor}'s mpiexec (that of the environment which holds the library, beside "
        "its python), or with an srun --mpi=... that it supports (pmi2 for MPICH, pmix for Open "
        "MPI)."
    )
    return [SharedFinding(Finding("ranks", found, False, remedy))]


def _not_started(outcome: PartProgress, launch: LaunchedRank, vendor: str) -> Finding:
    """Explains why MPI_Init did not return, or ended the process."""
    if outcome.unreached:
        to = ", ".join(map(with_name, outcome.unreached))
        found = f"MPI does not start: no connection from {socket.gethostname()} to {to}"
        return Finding("ranks", found, False, _together.ports(vendor))
    found = f"MPI did not start the {launch.size} ranks: {outcome.error('start')}"
    remedy = (
        "It waits for all ranks to start: see the output of the other ranks, and whether one has "
        f"ended. Launcher and library must be of one MPI ({vendor})."
    )
    return Finding("ranks", found, False, remedy)


def _all(
    record: Mapping[str, Any],
    outcome: PartProgress,
    launch: LaunchedRank,
    vendor: str,
    wishes: Wishes,
) -> Report | None:
    """Makes rank 0's report of all ranks; on others None, or their own if rank 0 is missing."""
    rank, size = outcome.values["start"]["rank"], launch.size
    accounts = {int(r): a for r, a in (outcome.values.get("accounts") or {}).items()}
    records = {int(r): a for r, a in (outcome.values.get("records") or {}).items()} or {
        rank: record
    }
    if rank != 0:
        if 0 in accounts:
            return None
        limit = wishes.limit_seconds
        return _alone(
            record, launch, wishes, [*_together.cut_off(size, records, accounts, limit, vendor)]
            or _died(outcome, vendor),
        )  # fmt: skip
    for account in accounts.values():
        for other, about in account.get("records", {}).items():
            records.setdefault(int(other), about)
    hosts = [records[r]["host"] if r in records else "?" for r in range(size)]
    lines = merged({r: _findings_of(about) for r, about in records.items()})
    lines += _together_lines(records, accounts, outcome, launch, vendor, wishes)
    figures = outcome.values.get("figures") or []
    lines += [*_together.links(figures, hosts), *_together.progress(figures)]
    advised = _advice(records, figures, launch, wishes)
    return Report(joined(lines), hosts, True, size, figures, advised)


def _together_lines(
    records: _together.Records,
    accounts: Mapping[int, Any],
    outcome: PartProgress,
    launch: LaunchedRank,
    vendor: str,
    wishes: Wishes,
) -> Iterator[SharedFinding]:
    size = launch.size
    machines = len(_together.by_machine(records))
    present = f"{len(records)} of {size} on {machines} host{'s' * (machines > 1)}"
    yield SharedFinding(
        Finding("ranks", present, len(records) == size, "" if len(records) == size else _GONE)
    )
    yield from _together.cores(records, launch.vendor)
    yield from _together.gpus(records)
    yield from _together.nodes(records, size, wishes.ranks_per_node)
    yield from _together.checkpoints(records, accounts)
    cut_off = [*_together.cut_off(size, records, accounts, wishes.limit_seconds, vendor)]
    yield from cut_off or _died(outcome, vendor)


_GONE = "See below for the missing ranks, and look at their own output."


def _died(outcome: PartProgress, vendor: str) -> list[SharedFinding]:
    """Reports the step of the exchange in which this rank's process ended or failed."""
    broken = {**outcome.errors, **outcome.died}
    return [
        SharedFinding(
            Finding("messages", f"failed at {step}: {why}", False, _together.ports(vendor))
        )
        for step, why in broken.items()
    ]


def _advice(
    records: _together.Records,
    figures: Sequence[Mapping[str, Any]],
    launch: LaunchedRank,
    wishes: Wishes,
) -> Mapping[str, Any]:
    good = [f for f in figures if "error" not in f]
    if not good:
        return {}
    found = Measured(
        nodes=max(launch.size // wishes.ranks_per_node, 1),
        bytes_per_second=min(f["bytes_per_second"] for f in good),
        latency_seconds=statistics.median(f["latency_seconds"] for f in good),
        ranks_per_host=max(len(ranks) for ranks in _together.by_machine(records)),
        ranks_per_node=wishes.ranks_per_node,
        cores_per_host=min(about["all_cores"] for about in records.values()),
        devices=min(about["devices"] for about in records.values()),
        vendor=launch.vendor,
        gpus=any(about["gpus"] for about in records.values()),
    )
    return advice(
        found,
        parameters=wishes.parameters,
        step_ms=wishes.step_ms,
        limit_seconds=wishes.limit_seconds,
    )
