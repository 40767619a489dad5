"""``python -m jdaso doctor``: checks that jdaso works here, with remedies; for mpiexec too."""

import argparse
import json
import math
import sys
import time

from ..doctor._advice import in_sentences
from ..doctor._examine import Report, Wishes, examine
from ..doctor._findings import written
from ..doctor._launcher import LaunchedRank, find_launch
from ..doctor._parts import run_part

_OTHERS_SECONDS = 3.0
"""If each rank reports for itself, only rank 0's exit status reports failure, and rank 0 ends last:
some launchers end all ranks when the first fails, before the others have reported."""
_PARAMETERS, _STEP_MS = 25.6e6, 200.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the options of ``doctor``."""
    parser.description = (
        "Finds out whether jdaso works here, and what to fix. Alone it looks at this machine and "
        "what is installed; under mpiexec, on every rank, also at the network between them. Ends "
        "with status 1 if there is trouble."
    )
    add = parser.add_argument
    add("--checkpoints", metavar="FOLDER", help="check that all ranks can write there")
    add("--need", nargs="+", default=[], metavar="EXTRA", help="extras of jdaso that are needed")
    add(
        "--parameters",
        type=float,
        help=f"size of the model to advise on (default {_PARAMETERS:g})",
    )
    add(
        "--step-ms",
        type=float,
        help=f"time of its step without network (default {_STEP_MS:g})",
    )
    add(
        "--ranks-per-node",
        type=int,
        default=1,
        metavar="R",
        help="check that each node's R ranks are on one host, as Session(ranks_per_node=R) needs",
    )
    limit = "the longest that an import, MPI or a rank may take to answer (default %(default)g)"
    add("--limit-seconds", type=float, default=30.0, help=limit)
    add("--json", action="store_true", help="for scripts")
    add("--part", nargs="+", help=argparse.SUPPRESS)  # runs one part in a process of its own


def run(arguments: argparse.Namespace) -> int:
    """Prints the report; returns 0, 1 if there is trouble, or 2 for an invalid number."""
    if arguments.part:
        name, path, *rest = arguments.part
        run_part(name, path, rest)
        return 0
    advise = _put_in_defaults(arguments)
    for name in ("limit-seconds", "parameters", "step-ms"):
        given = getattr(arguments, name.replace("-", "_"))
        if not 0 < given < math.inf:
            print(f"jdaso doctor: --{name} must be above 0, got {given:g}.", file=sys.stderr)
            return 2
    if arguments.ranks_per_node < 1:
        given = arguments.ranks_per_node
        print(f"jdaso doctor: --ranks-per-node must be at least 1, got {given}.", file=sys.stderr)
        return 2
    launch = find_launch()
    wishes = Wishes(
        limit_seconds=arguments.limit_seconds,
        checkpoints=arguments.checkpoints,
        needed=arguments.need,
        parameters=arguments.parameters,
        step_ms=arguments.step_ms,
        ranks_per_node=arguments.ranks_per_node,
        advise=advise,
    )
    report = examine(launch, wishes)
    if report is None:  # rank 0 reports
        return 0
    text = json.dumps(report.as_json()) if arguments.json else _as_text(report, launch)
    if text:
        sys.stdout.write(f"{text}\n")  # in one write: ranks share the output
        sys.stdout.flush()
    if report.whole:
        return 0 if report.ok else 1
    if launch.rank != 0:
        return 0
    time.sleep(_OTHERS_SECONDS)
    return 1


def _put_in_defaults(arguments: argparse.Namespace) -> bool:
    """Puts in the usual model and step; returns true if the user gave either."""
    given = arguments.parameters is not None or arguments.step_ms is not None
    if arguments.parameters is None:
        arguments.parameters = _PARAMETERS
    if arguments.step_ms is None:
        arguments.step_ms = _STEP_MS
    return given


def _as_text(report: Report, launch: LaunchedRank) -> str:
    """Formats the report; ranks other than the first that report alone list only problems."""
    lines = report.lines
    if launch.rank != 0 and not report.whole:
        lines = [line for line in lines if not line.finding.ok]
    text = [written(lines, report.hosts)] if lines else []
    if report.advice:
        text += ["", in_sentences(report.advice)]
    troubles = sum(not line.finding.ok for line in report.lines)
    if launch.rank == 0:
        many = "s" * (troubles > 1)
        text += ["", f"{troubles} trouble{many}: see ->." if troubles else "No trouble found."]
    prefix = "" if report.whole else launch.prefix
    return "\n".join(f"{prefix}{line}".rstrip() for line in "\n".join(text).splitlines())
