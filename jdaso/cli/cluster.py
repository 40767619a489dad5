"""``python -m jdaso cluster run``: a command on several emulated hosts of this machine."""

import argparse
import sys

from .._launch.mpiexec import LaunchError, run_through, termination_raises
from ..fabric import ClusterError, emulated_cluster


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the options of ``cluster``."""
    actions = parser.add_subparsers(metavar="ACTION", required=True)
    run = actions.add_parser(
        "run",
        help="make the cluster, run the command on each host through mpiexec, take it down",
        description="Makes hosts and links, starts the command on each host through mpiexec, and "
        "takes all of it down when the command has ended, however it ends. Needs root, iproute2 "
        "and MPICH.",
    )
    number = run.add_argument
    number("--hosts", type=int, default=2, help="number of hosts (default 2)")
    number("--rate", default="1gbit", help="rate of each link, each way (default 1gbit)")
    number("--ranks-per-host", type=int, default=1, help="ranks on each host (default 1)")
    number("--no-check", action="store_true", help="do not measure the links first")
    number("command", nargs="+", metavar="COMMAND", help="the command, after --")


def run(arguments: argparse.Namespace) -> int:
    """Runs the command; returns its exit status, or 2 if no cluster could be made."""
    hosts, ranks = arguments.hosts, arguments.ranks_per_host
    check = not arguments.no_check
    try:
        with termination_raises(), emulated_cluster(hosts, arguments.rate, check=check) as cluster:
            found = [bits / 1e9 for bits in cluster.measured]
            measured = f"measured {min(found):.3g} to {max(found):.3g}" if found else "not measured"
            print(
                f"{len(cluster.hosts)} hosts, {cluster.bits_per_second / 1e9:g} Gbit/s links "
                f"({measured})",
                file=sys.stderr,
            )
            command = cluster.mpiexec(arguments.command, ranks_per_host=ranks)
            before = cluster.bytes_sent()
            status = run_through(command, cluster.environment)
            sent = [b - a for a, b in zip(before, cluster.bytes_sent(), strict=True)]
            print(f"sent: {', '.join(f'{count / 1e6:.1f}' for count in sent)} MB", file=sys.stderr)
            return status
    except (ClusterError, LaunchError, ValueError) as error:
        print(f"jdaso cluster: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
