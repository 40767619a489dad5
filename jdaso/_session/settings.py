"""Checks of a session's settings, by one node; an error is raised once all nodes have it."""

from __future__ import annotations

from .._engines.make import ENGINES
from .._engines.simulated import Simulated
from .._launch.environment import launched_ranks, survives_deaths

DAY_SECONDS = 24 * 3600.0
_LONGEST_SECONDS = 365 * DAY_SECONDS


def check_settings(
    engine: str,
    virtual: Simulated | None,
    timeout_seconds: float | None,
    on_death: str,
    ranks_per_node: int,
) -> ValueError | None:
    """Returns an error about the settings, if any."""
    if engine not in ENGINES or (engine == "simulated" and virtual is None):
        names = ", ".join(f'"{name}"' for name in ENGINES if name != "simulated")
        return ValueError(
            f"engine must be one of {names}, or jdaso.Simulated(nodes=...), got {engine!r}."
        )
    if timeout_seconds is not None and not 0 < timeout_seconds <= _LONGEST_SECONDS:
        return ValueError(
            f"timeout_seconds must be above 0 and at most {_LONGEST_SECONDS:g} (a year), got "
            f"{timeout_seconds}."
        )
    if on_death not in ("end", "shrink"):
        return ValueError(f'on_death must be "end" or "shrink", got {on_death!r}.')
    if ranks_per_node > 1 and virtual is not None:
        return ValueError(
            f"ranks_per_node={ranks_per_node} joins real ranks, and jdaso.Simulated has virtual "
            "nodes of one device. Leave one of the two out."
        )
    if on_death == "end" or launched_ranks() == 1:
        return None
    if ranks_per_node > 1:
        return ValueError(
            f'on_death="shrink" goes on without a rank that failed, and a node of ranks_per_node='
            f"{ranks_per_node} cannot. Leave it out, and start again from a checkpoint."
        )
    if engine != "mpi4py":
        return ValueError(f'on_death="shrink" needs engine="mpi4py", got {engine!r}.')
    if not survives_deaths():
        return ValueError(
            'on_death="shrink" needs Open MPI, and to be started with mpiexec --with-ft ulfm: '
            "without it MPI ends the whole job when a process fails."
        )
    return None
