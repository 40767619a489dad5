"""``python -m jdaso study``: runs a declared study of fabrics, or goes on where it stopped."""

import argparse
import contextlib
import shlex
import sys
from collections import Counter

from .._launch.mpiexec import LaunchError
from ..fabric import ClusterError
from ..fabric._study.checks import StudyError
from ..fabric._study.declaration import Study, read_study
from ..fabric._study.estimate import duration, seconds_of
from ..fabric._study.journal import read_rows
from ..fabric._study.rows import OK, Row
from ..fabric._study.runner import run_study


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the options of ``study``."""
    parser.description = (
        "Runs every cell of a study that is declared in a TOML file, each in processes of its own, "
        "and keeps one row a launch in DIR/rows.jsonl. Stopped or killed at any moment it goes on "
        "at the next cell when it is started again. Exit status: 0 all rows are ok, 1 some are "
        "not, 2 the study cannot run."
    )
    parser.add_argument("file", metavar="FILE.toml", help="the declaration of the study")
    parser.add_argument("--out", metavar="DIR", help="folder of its rows")
    parser.add_argument("--short", action="store_true", help="its short form, under [short]")
    listing = "list all cells and the time that they will take, and run none"
    anew = "also run those launches anew whose row is not ok; the row stays, the new one counts"
    parser.add_argument("--again", action="store_true", help=anew)
    parser.add_argument("--dry-run", action="store_true", help=listing)


def run(arguments: argparse.Namespace) -> int:
    """Runs the study; returns 0, 1 if rows are not ok, or 2 if it cannot run."""
    try:
        study = read_study(arguments.file, short=arguments.short)
        if arguments.dry_run:
            _list(study)
            return 0
        if arguments.out is None:
            raise StudyError("there is no folder for the rows. Give one: --out DIR.")
        launches = len(study.cells) * study.replicates
        taken = run_study(study, arguments.out, _print, again=arguments.again)
        print(f"{arguments.out}: {taken} of {launches} launches ran now.")
        return _summary(arguments, study.replicates)
    except BrokenPipeError:
        raise
    except (ClusterError, LaunchError, OSError, StudyError) as error:
        print(f"jdaso study: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("jdaso study: stopped; the same command goes on there.", file=sys.stderr)
        return 130


def _list(study: Study) -> None:
    total = 0.0
    for cell in study.cells:
        seconds = seconds_of(study, cell)
        total += seconds * study.replicates
        print(f"{cell}  about {seconds:.1f} s")
    launches = len(study.cells) * study.replicates
    print(
        f"{study.name}: {len(study.cells)} cells, {study.replicates} replicates, {launches} "
        f"launches, about {duration(total)}, at most {duration(launches * study.limit_seconds)}"
    )


def _print(row: Row, left: int) -> None:
    """Prints a launch; the study goes on where nobody reads that any more (``| head``)."""
    with contextlib.suppress(BrokenPipeError):
        _tell(row, left)


def _tell(row: Row, left: int) -> None:
    factors = " ".join(str(level) for level in row.factors.values())
    outcome = row.outcome
    middle = sorted(outcome.seconds)[len(outcome.seconds) // 2] if outcome.seconds else None
    found = f"{middle * 1e3:.4g} ms" if middle is not None else ""
    print(f"[{left} left] {factors}: {outcome.status} {found}".rstrip(), flush=True)
    if outcome.status != OK:
        for line in outcome.words.splitlines()[:4]:
            print(f"    {line}", file=sys.stderr)


def _summary(arguments: argparse.Namespace, replicates: int) -> int:
    rows = read_rows(arguments.out)
    counted = Counter(row["status"] for row in rows if row["replicate"] < replicates)
    print(", ".join(f"{count} {status}" for status, count in sorted(counted.items())))
    if more := sum(row["replicate"] >= replicates for row in rows):
        print(
            f"{more} rows are of replicates beyond the {replicates} declared. They count in the "
            "answers."
        )
    if set(counted) <= {OK}:
        return 0
    short = ["--short"] * arguments.short
    words = ["study", arguments.file, "--out", arguments.out, *short, "--again"]
    print(f"To run those that are not ok anew: python -m jdaso {shlex.join(words)}")
    return 1
