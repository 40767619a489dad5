"""``python -m jdaso report``: one HTML page about recorded runs."""

import argparse
import sys
from pathlib import Path

from .._launch.paths import FolderError, shown
from ..report import ReportError, Run, counted, make_page, read_run


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the options of ``report``."""
    what = "folder that jdaso.metrics.Recorder wrote to; several are compared"
    parser.add_argument("runs", nargs="+", metavar="RUN", help=what)
    parser.add_argument("-o", "--output", default="report.html", help="(default report.html)")
    parser.add_argument("--title", help="title of the page (default: the names of the runs)")


def run(arguments: argparse.Namespace) -> int:
    """Writes the page; returns 0, 1 if Bokeh is missing, or 2 if there is nothing to report on.

    Of several runs, those with nothing to report on are left out.
    """
    runs: list[Run] = []
    why: ReportError | None = None
    try:
        for folder in arguments.runs:
            try:
                runs.append(read_run(folder))
            except ReportError as error:
                why = error
                if len(arguments.runs) > 1:
                    print(f"jdaso report: left out: {error}", file=sys.stderr)
        if not runs and why is not None:
            raise why
        title = arguments.title or f"jdaso: {', '.join(run.name for run in runs)}"
        page = make_page(runs, title)
        Path(arguments.output).write_text(page, encoding="utf-8", errors="replace")
    except (ImportError, ReportError, FolderError, OSError) as error:
        print(f"jdaso report: {error}", file=sys.stderr)
        return 1 if isinstance(error, ImportError) else 2
    for run in runs:
        damaged = f", {counted(len(run.damaged), 'damaged row')} left out" if run.damaged else ""
        nodes = counted(len(run.nodes), "node")
        older = "; an older run in the folder is left out" if run.older else ""
        print(f"{shown(run.name)}: {nodes}, {counted(run.steps, 'step')}{damaged}{older}")
        for text in run.damaged[:3]:
            print(f"  {text}", file=sys.stderr)
    print(f"{shown(arguments.output)}: {len(page) / 1e3:.0f} kB. Open it in a browser.")
    return 0
