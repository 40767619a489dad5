"""``python -m jdaso run``: a job that is restarted from its last checkpoint when it fails."""

import argparse
import contextlib
import errno
import math
import re
import shlex
import sys

from .._launch.supervise import Supervisor


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the options of ``run``."""
    parser.description = (
        "Runs a launcher's command. If the job fails it is started again, and the program "
        "continues from its last checkpoint (jdaso.checkpoint). A signal to this process (SIGTERM, "
        "SIGUSR1, SIGUSR2: what Slurm sends before preemption; Ctrl-C) makes the job save and end "
        "with status 75; a second Ctrl-C ends it at once. Words after -- are passed on unchanged."
    )
    parser.usage = "python -m jdaso run [options] -- COMMAND"
    add = parser.add_argument
    add(
        "--max-restarts",
        type=_restarts,
        default=0,
        help="most restarts of a failed job (default 0)",
    )
    add(
        "--hosts",
        type=_hosts,
        default=[],
        help="comma-separated; hosts that answer replace {hosts} in COMMAND, and their number "
        "replaces {count}, if these are an argument, or a word or value in one",
    )
    add(
        "--min-hosts",
        type=_count,
        default=1,
        help="do not start with fewer: wait until as many answer, an hour at most (default 1)",
    )
    add(
        "--probe",
        type=_probe,
        default="ssh -o BatchMode=yes -o ConnectTimeout=5 {host} true",
        help="the command that tests whether {host} answers (default: %(default)s)",
    )
    add(
        "--grace-seconds",
        type=_seconds,
        default=120.0,
        help="the longest that a stopped job may take to save (default %(default)g)",
    )
    add(
        "command",
        nargs=argparse.REMAINDER,
        metavar="-- COMMAND",
        help="the launcher and all it starts",
    )
    parser.set_defaults(complain=parser.error)


def run(arguments: argparse.Namespace) -> int:
    """Runs the job; returns the exit status of its last start."""
    command = arguments.command[arguments.command[:1] == ["--"] :]
    hosts, fewest = len(arguments.hosts), arguments.min_hosts
    if fewest > max(hosts, 1):
        arguments.complain(f"--min-hosts {fewest} are more than the {hosts} of --hosts")
    if not command:
        arguments.complain("there is no command: put the launcher and all it starts after --")
    try:
        supervisor = Supervisor(
            command,
            max_restarts=arguments.max_restarts,
            hosts=arguments.hosts,
            min_hosts=arguments.min_hosts,
            probe=arguments.probe,
            grace_seconds=arguments.grace_seconds,
        )
        return supervisor.run()
    except OSError as error:
        if error.errno not in (errno.EMFILE, errno.ENFILE):
            raise
        sys.stderr.write(f"jdaso run: {error}. Allow more open files (ulimit -n).\n")
        return 1


def _restarts(text: str) -> int:
    if not text.strip().isdecimal():
        raise argparse.ArgumentTypeError(f"a number of restarts must be 0 or more, got {text!r}")
    return int(text)


def _count(text: str) -> int:
    if not text.strip().isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"a number of hosts must be 1 or more, got {text!r}")
    return int(text)


def _seconds(text: str) -> float:
    with contextlib.suppress(ValueError):
        if 0 <= (seconds := float(text)) < math.inf:
            return seconds
    raise argparse.ArgumentTypeError(f"seconds must be 0 or more, got {text!r}")


def _hosts(text: str) -> list[str]:
    hosts = [host.strip() for host in text.split(",") if host.strip()]
    if not hosts:
        raise argparse.ArgumentTypeError(f"no host is named in {text!r}")
    if re.search(r"\[[\d,-]+\]", text):
        raise argparse.ArgumentTypeError(
            f"{text!r} is a pattern; expand it: --hosts $(scontrol show hostnames "
            '"$SLURM_JOB_NODELIST" | paste -sd,)'
        )
    return list(dict.fromkeys(hosts))


def _probe(text: str) -> str:
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r} is not a command ({error})") from None
    if not words:
        raise argparse.ArgumentTypeError("an empty command cannot ask hosts; give one, or no hosts")
    return text
