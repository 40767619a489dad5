"""Command line: ``python -m jdaso VERB [options]``.

A verb is a module of this folder, listed in `VERBS`, with two functions: ``add_arguments(parser)``
and ``run(arguments) -> int``, which returns the exit status. A verb's module is imported only when
it is used.

May live here: arguments, printed answers, and the demo. May not: anything of use to a program
without the command line; that belongs to a public package.
"""

import argparse
import contextlib
import importlib
import os
import sys
from collections.abc import Sequence

from .._base.version import __version__

VERBS = {
    "doctor": "find out whether jdaso works here, and what to fix",
    "demo": "train on Fashion-MNIST with DASO and synchronously, and compare",
    "simulate": "predict steps, advise on B, S and wire for any cluster",
    "cluster": "run a command on emulated hosts of this machine, with slow links",
    "run": "run a job; if it fails, restart it from its last checkpoint",
    "trace": "join the traces of all nodes into one file for Perfetto",
    "report": "make one HTML page about recorded runs",
    "study": "run a declared study of fabrics, or go on where it stopped; `study report` answers",
}
_UNREAD = 141
"""The status of a program that SIGPIPE ends."""
SECOND: dict[tuple[str, ...], str] = {("study", "report"): "_study_report"}
"""Modules of verbs of two words."""

STORY = """\
Trains JAX models on many nodes without waiting for the network: DASO as an
optax transformation. In a script that mpiexec or srun starts:
  with jdaso.Session() as session:
      tx = jdaso.daso(optax.adam(1e-3), phases=phases, session=session)
"""

WAY = """\
from an account on a cluster to a long run:
  mpiexec -n 4 python -m jdaso doctor           does it work on these nodes?
  python -m jdaso demo --record runs            DASO beside synchronous training
  python -m jdaso report runs/*                 both on one page, for a browser
  python -m jdaso simulate --advise --nodes 16  which B, S and wire?
  python -m jdaso trace runs/daso               is communication hidden?
  python -m jdaso run --max-restarts 9 -- mpiexec -n 4 python train.py

VERB --help tells the rest. Exit status: 0 all is well, 1 something is wrong,
2 a mistake in the arguments, 75 a run that was told to save and stop.
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the verb that the arguments name; returns the exit status."""
    argv = sys.argv[1:] if argv is None else list(argv)
    parser = argparse.ArgumentParser(
        prog="python -m jdaso",
        description=STORY,
        epilog=WAY,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"jdaso {__version__}")
    verbs = parser.add_subparsers(title="verbs", metavar="VERB", required=True)
    for verb, summary in VERBS.items():
        subparser = verbs.add_parser(
            verb, help=summary, description=f"{summary[0].upper()}{summary[1:]}."
        )
        if argv[:1] == [verb]:
            second = SECOND.get(tuple(argv[:2]))
            argv = [verb, *argv[2:]] if second else argv
            module = importlib.import_module(f"jdaso.cli.{second or verb}")
            module.add_arguments(subparser)
            subparser.set_defaults(run=module.run)
    arguments = parser.parse_args(argv)
    status = _UNREAD
    with contextlib.suppress(BrokenPipeError):  # nobody reads the rest: | head
        status = arguments.run(arguments)
    return status if _flushed() else status or 1


def _flushed() -> bool:
    """Returns whether the output is written, or has no reader; Python would print that at its end.

    Prints the reason on the standard error if it is not.
    """
    try:
        sys.stdout.flush()
    except (AttributeError, ValueError):  # closed from the beginning, or by the verb
        return True
    except OSError as error:
        unread = isinstance(error, BrokenPipeError)
        if not unread:
            print(f"jdaso: the output could not be written ({error}).", file=sys.stderr)
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return unread
    return True
