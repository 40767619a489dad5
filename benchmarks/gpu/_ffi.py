"""Compiles and registers `_ffi.cc`, and calls its handlers from a compiled step."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from pathlib import Path
from typing import Any

import jax
import numpy as np

SOURCE = Path(__file__).with_suffix(".cc")
COMPILE_SECONDS = 300.0
TARGETS = {
    "jdaso_gpu_to_host": {"cpu": "ToHostCpu", "CUDA": "ToHostCuda"},
    "jdaso_gpu_from_host": {"cpu": "FromHostCpu", "CUDA": "FromHostCuda"},
}


def build(folder: Path) -> None:
    """Makes the handlers known to JAX, for this process.

    Raises:
        RuntimeError: there is no C++ compiler, or it failed.
    """
    compiler = next(filter(None, map(shutil.which, ("g++", "c++", "clang++"))), None)
    if compiler is None:
        raise RuntimeError("there is no C++ compiler (g++, c++ or clang++) on PATH")
    library = folder / "gpu_ffi.so"
    command = [compiler, "-std=c++17", "-O2", "-fPIC", "-shared", "-I", jax.ffi.include_dir()]
    command += [str(SOURCE), "-o", str(library), "-ldl"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=COMPILE_SECONDS)
    if done.returncode:
        raise RuntimeError(f"{compiler} failed: {done.stderr[-500:]}")
    handlers = ctypes.CDLL(str(library))
    for target, symbols in TARGETS.items():
        for platform, symbol in symbols.items():
            handler = jax.ffi.pycapsule(getattr(handlers, symbol))
            jax.ffi.register_ffi_target(target, handler, platform=platform)


def to_host(x: Any, memory: np.ndarray) -> Any:
    """Copies `x` in a step to `memory`, which must live as long as the step; gives an int32."""
    call = jax.ffi.ffi_call(
        "jdaso_gpu_to_host", jax.ShapeDtypeStruct((), np.int32), has_side_effect=True
    )
    return call(x, address=np.int64(memory.ctypes.data), nbytes=np.int64(memory.nbytes))


def from_host(after: Any, memory: np.ndarray) -> Any:
    """Gives, in a step, an array of the numbers of `memory`, once the int32 `after` is there."""
    about = jax.ShapeDtypeStruct(memory.shape, memory.dtype)
    call = jax.ffi.ffi_call("jdaso_gpu_from_host", about, has_side_effect=True)
    return call(after, address=np.int64(memory.ctypes.data), nbytes=np.int64(memory.nbytes))
