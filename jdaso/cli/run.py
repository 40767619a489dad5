"""``python -m jdaso run``: a job that is started again from its last checkpoint when it fails."""

import argparse

from .._supervise import Supervisor


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the options of ``run``."""
    parser.description = (
        "Runs a launcher's command. Where the job fails it is started again, and the program goes "
        "on from its last checkpoint (jdaso.checkpoint). A signal to this process (SIGTERM, "
        "SIGUSR1: what Slurm sends before preemption) makes the job save and end with status 75; "
        "Ctrl-C ends all ranks, a second one at once."
    )
    add = parser.add_argument
    add(
        "--max-restarts",
        type=int,
        default=0,
        help="how often a failed job is started again (default 0)",
    )
    add(
        "--hosts",
        default="",
        help="comma-separated; those that answer take the place of {hosts} in COMMAND, and their "
        "number that of {count}",
    )
    add(
        "--probe",
        default="ssh -o BatchMode=yes -o ConnectTimeout=5 {host} true",
        help="the command that asks whether {host} answers (default: %(default)s)",
    )
    add(
        "--grace-seconds",
        type=float,
        default=120.0,
        help="how long a job that is told to stop may take to save (default %(default)g)",
    )
    add("command", nargs="+", metavar="COMMAND", help="the launcher and all it starts, behind --")


def run(arguments: argparse.Namespace) -> int:
    """Runs the job; returns the exit status of its last start."""
    supervisor = Supervisor(
        arguments.command,
        max_restarts=arguments.max_restarts,
        hosts=[host for host in arguments.hosts.split(",") if host],
        probe=arguments.probe,
        grace_seconds=arguments.grace_seconds,
    )
    return supervisor.run()
