"""Libraries as they are found here: their versions, or the reason why they are missing."""

from __future__ import annotations

import json
import os
import subprocess
from dataclasses import dataclass, field
from pathlib import Path

from ..._launch.environment import alone
from .chosen import ChosenLibrary
from .launch import mpiexec_of, python_of

_PROBE_SECONDS = 60.0
_PROBE = """
import importlib.metadata as m, json, platform, sys
found = {"python": platform.python_version()}
for name in ("jdaso", "jax", "jaxlib", "numpy", "optax", "flax", "mpi4py", "mpi4jax", "torch"):
    try:
        found[name] = m.version(name)
    except m.PackageNotFoundError:
        pass
def mpi():
    import mpi4py
    mpi4py.rc.initialize = False
    from mpi4py import MPI
    found["mpi"] = " ".join(MPI.Get_library_version().split("\\n")[0].split(",")[0].split())
def mpi4jax():
    mpi()
    import mpi4jax
def gloo():
    import jax
def nccl():
    import jax
    if jax.default_backend() != "gpu":
        raise SystemExit("JAX finds no GPU here, and NCCL needs one in every node.")
def torch():
    import jdaso, torch
    if not torch.distributed.is_gloo_available():
        raise SystemExit("PyTorch was built without gloo. Install another build.")
globals()[sys.argv[1]]()
print(json.dumps(found))
"""


@dataclass(frozen=True)
class FoundLibrary:
    """A library of a study on this machine.

    Attributes:
        versions: package -> version, in its environment.
        missing: the reason why it cannot be used; empty if it can.
    """

    versions: dict[str, str] = field(default_factory=dict)
    missing: str = ""


def find(library: ChosenLibrary) -> FoundLibrary:
    """Looks for a library in its environment, in a process of its own."""
    python = python_of(library)
    if not Path(python).exists():
        return FoundLibrary(
            missing=f"{library.name}: there is no {python}. Install the environment."
        )
    if mpiexec_of(python) is None:
        return FoundLibrary(missing=f"{library.name}: no mpiexec beside {python} or on PATH.")
    errors = ""
    try:
        done = subprocess.run(
            [python, "-c", _PROBE, library.transport],
            env={**alone(os.environ), **library.environment},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_PROBE_SECONDS,
            check=False,
        )
        errors = done.stderr
        return _checked(library, python, json.loads(done.stdout))
    except subprocess.TimeoutExpired:
        return FoundLibrary(
            missing=f"{library.name}: {python} did not answer in {_PROBE_SECONDS:g} s."
        )
    except (OSError, ValueError) as error:
        last = (errors.strip().splitlines() or [str(error)])[-1]
        return FoundLibrary(missing=f"{library.name}: {python} cannot load it: {last}")


_NAMED = {"mpich": "MPICH", "openmpi": "Open MPI"}


def _checked(library: ChosenLibrary, python: str, versions: dict[str, str]) -> FoundLibrary:
    """Checks that the MPI is that of the library's name."""
    wanted, mpi = _NAMED.get(library.name), versions.get("mpi", "")
    if library.transport == "mpi" and wanted and wanted.lower() not in mpi.lower():
        return FoundLibrary(
            missing=f"{library.name}: {python} has {mpi}. Name the interpreter of an environment "
            f'with {wanted}: [libraries.{library.name}] python = "...".'
        )
    return FoundLibrary(versions)
