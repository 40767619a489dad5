"""``python -m jdaso report``: one HTML page about recorded runs."""

import argparse
import sys
from pathlib import Path

from .._launch.paths import FolderError
from ..report import ReportError, counted, make_page, read_run


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the options of ``report``."""
    what = "folder that jdaso.metrics.Recorder wrote to; several are compared"
    parser.add_argument("runs", nargs="+", metavar="RUN", help=what)
    parser.add_argument("-o", "--output", default="report.html", help="(default report.html)")
    parser.add_argument("--title", help="title of the page (default: the names of the runs)")


def run(arguments: argparse.Namespace) -> int:
    """Writes the page; returns 0, 1 if Bokeh is missing, or 2 if there is nothing to report on."""
    try:
        runs = [read_run(folder) for folder in arguments.runs]
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
        print(f"{run.name}: {nodes}, {counted(run.steps, 'step')}{damaged}{older}")
        for text in run.damaged[:3]:
            print(f"  {text}", file=sys.stderr)
    print(f"{arguments.output}: {len(page) / 1e3:.0f} kB. Open it in a browser.")
    return 0
