"""Shared by the scripts of the parts of `gpu.py`: options, turns of ranks, sharing a GPU."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import jdaso
from benchmarks.lib import harness

T = TypeVar("T")


class Options(NamedTuple):
    """Options of a part.

    Attributes:
        gpu: whether to use a GPU; if not, it is a dry run on the host's CPU devices.
        quick: small sizes and few repeats.
        brief: full sizes and few repeats.
    """

    gpu: bool
    quick: bool
    brief: bool

    def pick(self, full: T, brief: T, quick: T) -> T:
        """The value for the chosen length of a run."""
        return quick if self.quick else brief if self.brief else full


def options() -> Options:
    """Reads this script's command line. Raises SystemExit where a GPU is meant and JAX has none."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", choices=("gpu", "cpu"), default="gpu")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--brief", action="store_true")
    given = parser.parse_args()
    return Options(given.device == "gpu", given.quick, given.brief)


def require(options: Options) -> Any:
    """The first device that this process drives, once a session has dealt them out.

    Raises:
        SystemExit: it is of another kind than was asked for.
    """
    import jax

    device = jax.local_devices()[0]
    if (device.platform == "gpu") != options.gpu:
        wanted = "gpu" if options.gpu else "cpu"
        raise SystemExit(f"JAX computes on {device.platform}, not on {wanted}: {device}")
    return device


def share_gpus() -> None:
    """Lets all sessions of this process use a GPU that another rank uses too."""
    jdaso.Session.__init__.__kwdefaults__["share_gpus"] = True  # pyright: ignore


class Rows:
    """Rows of a result, handed over one by one, so that a part that fails keeps its rows."""

    def __init__(self, node: int = 0):
        self._rows: list[dict[str, Any]] = []
        self._gives = node == 0

    def add(self, **row: Any) -> None:
        """Adds a row."""
        self._rows.append(row)
        if self._gives:
            print(row, flush=True)
            harness.give(self._rows)


def on_first(comm: Any, work: Callable[[], None]) -> None:
    """Calls `work` on rank 0 while the others sleep, and use no core and no link."""
    if comm.Get_rank() == 0:
        work()
    request = comm.Ibarrier()
    while not request.Test():
        time.sleep(0.02)
