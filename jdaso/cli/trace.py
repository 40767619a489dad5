"""``python -m jdaso trace FOLDER``: joins the traces of all nodes to one file for Perfetto."""

import argparse
import sys
from pathlib import Path

from .._launch.paths import FolderError, local_folder, shown
from ..report import counted
from ..traces import Trace, TraceError, merge, profiles_in, read, write

_MOST_BYTES = 512 * 2**20
"""Most bytes of a trace that is read as a whole; its events take some ten times as many."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the options of ``trace``."""
    option = parser.add_argument
    option("folder", metavar="FOLDER", help="folder of Session(trace=FOLDER), of all nodes")
    option(
        "--steps",
        type=_steps,
        metavar="A:B",
        help="only events of steps A to B - 1: a long run needs too much memory as a whole",
    )
    option("-o", "--output", metavar="FILE", help="default FOLDER/trace.json.gz; or a .json")
    option(
        "--profiler",
        metavar="LOGDIR",
        action="append",
        default=[],
        help="join the records of jax.profiler.trace(LOGDIR) of the same run; repeatable",
    )


def run(arguments: argparse.Namespace) -> int:
    """Writes the file and prints a summary; returns 2 if there is no trace."""
    try:
        path = Path(arguments.output or local_folder(arguments.folder) / "trace.json.gz")
        if arguments.steps is None:
            _require_small(arguments.folder)
        trace = read(arguments.folder, arguments.steps)
        profiles = [profile for folder in arguments.profiler for profile in profiles_in(folder)]
        write(merge(trace, profiles), path)
    except (TraceError, FolderError, OSError) as error:
        print(f"jdaso trace: {error}", file=sys.stderr)
        return 2
    print(_table(trace))
    for text in trace.damaged[:3]:
        print(f"  {text}", file=sys.stderr)
    if profiles:
        print("JAX's profile joined: " + ", ".join(f"node {profile.node}" for profile in profiles))
    print(f"{shown(path)}: open it in https://ui.perfetto.dev")
    return 0


def _steps(text: str) -> range:
    first, colon, end = text.partition(":")
    if not (colon and first.isdecimal() and end.isdecimal() and int(first) < int(end)):
        raise argparse.ArgumentTypeError(f"steps are A:B with A below B, got {text!r}")
    return range(int(first), int(end))


def _require_small(folder: str) -> None:
    """Raises if all events of a trace would need some gigabytes of memory."""
    size = sum(path.stat().st_size for path in local_folder(folder).glob("node-*.jsonl"))
    if size > _MOST_BYTES:
        raise TraceError(
            f"The files in {folder} have {size / 1e9:.1f} GB, too much for one view. Choose some "
            "steps: --steps 9000:9100."
        )


def _table(trace: Trace) -> str:
    lines = ["node  host          events   seconds  exchanges  hidden  clock within"]
    for node in trace.nodes:
        seconds = max((event.end_seconds for event in node.events), default=0.0)
        exchanges = sum(event.name == "exchange" for event in node.events)
        bound = f"{1e6 * node.bound_seconds:.0f} us"
        ended = "" if node.closed else "  (not closed)"
        lines.append(
            f"{node.node:4}  {node.host:12} {len(node.events):7} {seconds:9.1f} {exchanges:10}"
            f"  {node.hidden_share:6.3f}  {bound:>12}{ended}"
        )
    if trace.missing:
        lines.append(f"No file of nodes {', '.join(map(str, trace.missing))}.")
    if trace.damaged:
        lines.append(f"{counted(len(trace.damaged), 'damaged row')} left out.")
    return "\n".join(lines)
