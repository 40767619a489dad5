"""Parts that are tried in processes of their own: imports, devices, MPI, messages."""

from __future__ import annotations

import importlib
import json
import re
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from ._probe import PartProgress, ProbeSteps, try_out
from ._talk import talk


def run_part(name: str, path: str, arguments: Sequence[str]) -> None:
    """Runs a part, ``own`` or ``talk``, and writes each step to the file `path`."""
    if name == "talk":
        return talk(ProbeSteps(path), *arguments)
    done, failed = arguments
    _own(ProbeSteps(path, json.loads(done), json.loads(failed)))


def _own(steps: ProbeSteps) -> None:
    """Tries what one process can alone; the last step ends it if MPI cannot take GPU memory."""
    packages = {
        "numpy": (),
        "scipy": ["numpy"],
        "jax": ["numpy"],
        "optax": ["jax"],
        "jaxtyping": (),
    }
    for name, needs in packages.items():
        steps.take(name, lambda name=name: importlib.import_module(name).__version__, needs)
    steps.take("devices", _devices, ["jax"])
    steps.take("jdaso", _modules, ["numpy", "jax", "optax"])
    steps.take("mpi4py", _mpi4py)
    steps.take("mpi4jax built", built_for)
    if find_spec("mpi4jax"):
        steps.take("mpi4jax", _mpi4jax, ["devices", "mpi4py"])
    steps.take("CUDA-aware", _cuda_aware, ["devices", "mpi4py"])


def try_own(limit_seconds: float) -> PartProgress:
    """Runs these steps; if the process ends in one, another continues after that step."""
    values, errors, died = {}, {}, {}
    while True:
        given = [json.dumps([*values]), json.dumps([*errors, *died])]
        outcome = try_out("own", given, limit_seconds=limit_seconds)
        new = {step: how for step, how in outcome.died.items() if step not in died}
        values, errors = {**values, **outcome.values}, {**errors, **outcome.errors}
        died.update(new)
        if not new or "end" in new:  # complete, or would end there again
            return PartProgress(values, errors, died)


def _modules() -> str:
    jdaso = importlib.import_module("jdaso")
    for name in ("Session", "daso", "synchronous", "finalize", "checkpoint", "traces", "pipeline"):
        getattr(jdaso, name)
    return "imported"


def _devices() -> dict[str, Any]:
    import jax

    found = jax.devices()
    return {
        "platform": found[0].platform,
        "kinds": [device.device_kind for device in found],
        "sum": float(jax.numpy.ones(8).sum()),
    }


def _mpi4py() -> dict[str, Any]:
    from mpi4py import MPI

    levels = ("SINGLE", "FUNNELED", "SERIALIZED", "MULTIPLE")
    values = [getattr(MPI, f"THREAD_{level}") for level in levels]
    return {
        "vendor": MPI.get_vendor()[0],
        "version": ".".join(map(str, MPI.get_vendor()[1])),
        "thread": levels[values.index(MPI.Query_thread())],
    }


def built_for() -> dict[str, list[str]] | None:
    """Returns the MPI and CUDA libraries that mpi4jax's compiled parts need; None without mpi4jax.

    They are read from the files, since mpi4jax cannot be imported if the libraries do not fit.
    """
    spec = find_spec("mpi4jax")
    if spec is None or spec.origin is None:
        return None
    pattern = rb"\b(?:libmpi\w*|libcudart|libamdhip64)\.so[.0-9]*"
    compiled = b"".join(path.read_bytes() for path in Path(spec.origin).parent.rglob("*.so"))
    wanted = [name.decode() for name in re.findall(pattern, compiled)]
    return {
        "mpi": sorted({name for name in wanted if name.startswith("libmpi")}),
        "gpu": sorted({name for name in wanted if not name.startswith("libmpi")}),
    }


def _mpi4jax() -> dict[str, Any]:
    import jax
    import mpi4jax
    from mpi4py import MPI

    total = jax.jit(lambda x: mpi4jax.allreduce(x, op=MPI.SUM, comm=MPI.COMM_SELF))
    cpu = jax.devices("cpu")[0]
    found = float(total(jax.device_put(jax.numpy.float32(3.0), cpu)))
    return {"cuda": bool(mpi4jax.has_cuda_support()), "sum": found}


def _cuda_aware() -> str:
    """Sends a small array on a GPU to this process itself."""
    import jax
    import numpy as np
    from mpi4py import MPI

    if jax.default_backend() != "gpu":
        return "not applicable"
    sent = jax.block_until_ready(jax.numpy.arange(1024, dtype="float32"))
    got = np.zeros(1024, np.float32)
    MPI.COMM_SELF.Sendrecv(sent, 0, recvbuf=got, source=0)
    return "works" if np.array_equal(got, np.arange(1024)) else "wrong numbers"
