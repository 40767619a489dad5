"""Command line: ``python -m jdaso VERB [options]``.

A verb is a module of this folder, named in `VERBS`, with two functions: ``add_arguments(parser)``
and ``run(arguments) -> int``, which returns the exit status. A verb's module is imported only when
it is the one asked for.
"""

import argparse
import importlib
import sys
from collections.abc import Sequence

VERBS = {
    "cluster": "run a command on emulated hosts of this machine, with links of known speed",
    "demo": "train a network on Fashion-MNIST with DASO and synchronously, and compare the two",
    "doctor": "find out whether jdaso works here, and what to mend",
    "report": "make one HTML page about runs that were recorded",
    "run": "start a job, and start it again from its last checkpoint where it fails",
    "simulate": "predict steps, and advise on B, S and wire, for a cluster that is not there",
    "trace": "join what all nodes recorded with Session(trace=FOLDER) into one file for Perfetto",
}


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the verb that the arguments ask for and returns the exit status."""
    argv = sys.argv[1:] if argv is None else list(argv)
    parser = argparse.ArgumentParser(
        prog="python -m jdaso",
        description="Trains JAX models on many nodes without waiting for the network.",
    )
    verbs = parser.add_subparsers(metavar="VERB", required=True)
    for verb, summary in VERBS.items():
        subparser = verbs.add_parser(
            verb, help=summary, description=f"{summary[0].upper()}{summary[1:]}."
        )
        if argv[:1] == [verb]:
            module = importlib.import_module(f"jdaso.cli.{verb}")
            module.add_arguments(subparser)
            subparser.set_defaults(run=module.run)
    arguments = parser.parse_args(argv)
    return arguments.run(arguments)
