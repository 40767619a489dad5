"""A link for ``simulate`` from a study that measured it: ``--from DIR``."""

import argparse
import sys

from ..fabric import Fabric

COLLECTIVES = ("exchange", "allreduce", "alltoall", "allgather", "reduce_scatter", "bandwidth")
"""Workloads to take the link from: of several, the one that is most like jdaso's exchange."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the options that choose a fit of a study."""
    folder = "folder of a study: rate and latency of a link that it measured (see --where)"
    parser.add_argument("--from", dest="study", metavar="DIR", help=folder)
    add_where(parser)


def add_where(parser: argparse.ArgumentParser) -> None:
    """Declares ``--where``, which may be given several times."""
    only = "only rows of the study with this level of a factor, as fabric=ethernet-1g; repeatable"
    parser.add_argument("--where", action="append", default=[], metavar="FACTOR=LEVEL", help=only)


def where_of(arguments: argparse.Namespace) -> dict[str, str]:
    """Returns factor -> level as text; bytes may have a unit, as in a study.

    Raises:
        ValueError: an argument has no ``=``, or no factor before it, or names one again.
    """
    from ..fabric._study.checks import count_of_bytes, one_of
    from ..fabric._study.factors import FACTORS

    found: dict[str, str] = {}
    for one in arguments.where:
        factor, is_level, level = one.partition("=")
        if not is_level:
            raise ValueError(f"--where must be FACTOR=LEVEL, as fabric=ethernet-1g, got {one!r}.")
        if one_of("--where", factor, FACTORS) in found:
            raise ValueError(f"--where names {factor} twice, and chooses one level. Leave one out.")
        if factor == "bytes" and not level.isdigit():
            level = str(count_of_bytes("--where bytes", level))
        found[factor] = level
    return found


def link(arguments: argparse.Namespace) -> dict[str, float]:
    """Returns rate and latency of the link that ``--from`` names; nothing without it.

    The fit gives the rate of numbers; the link carries the headers' bits too: ``8 / beta /
    efficiency``.

    Raises:
        ValueError: the study has no such fit, or several.
    """
    if arguments.study is None:
        if arguments.where:
            raise ValueError("--where chooses among the links of a study: give --from DIR, too.")
        return {}
    from ..fabric._study.alpha_beta import chosen, fits_of
    from ..fabric._study.measured import read_launches

    fits = fits_of(read_launches(arguments.study)).fits
    found = chosen(fits, where_of(arguments), COLLECTIVES)
    if not found.beta_seconds:
        raise ValueError(f"{arguments.study}: bytes take no time in this fit; give --rate.")
    name = ", ".join(str(level) for _, level in found.factors)
    print(f"{arguments.study}: {name}: {found.words}", file=sys.stderr)
    rate = 8 * found.bytes_per_second / Fabric.efficiency
    return {"rate": rate, "latency_us": 1e6 * found.alpha_seconds}
