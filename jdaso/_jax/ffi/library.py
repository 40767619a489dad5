"""Compiles `call.cc` at the first use on a machine, loads it and registers its handlers."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import hashlib
import logging
import os
import platform
import shutil
import signal
import subprocess
import tempfile
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jaxlib.version import __version__ as jaxlib_version

from . import aligned, functions, fused, mixing, on_device, pinned

TARGET = "jdaso_call"
"""The handlers' name in compiled programs."""

CHAIN = "jdaso_chain"
"""The same for the handler in `chain.h`, for programs of one CPU device."""

COMPILE_SECONDS = 120.0
"""Time limit of the compiler, which takes some 7 s."""

SWITCH = "JDASO_FFI"
_FILES = ("call.cc", "chain.h", "fused.h", "mixing.h")
_SOURCES = [Path(__file__).with_name(name) for name in _FILES]
_COMPILERS = ("c++", "g++", "clang++")
_FLAGS = ("-std=c++17", "-O3", "-ffp-contract=off", "-fPIC", "-shared", "-w")
_HANDLERS = {"cpu": "JdasoCallCpu", "CUDA": "JdasoCallCuda"}
# By platform, as JAX names it when it lowers. A call on whole arrays of several devices is made by
# one of them. XLA's partitioner allows this only for JAX's callbacks, which it recognizes by these
# names: those of a former interface, for which jaxlib no longer has handlers.
_CALLED_ONCE = {"cpu": "xla_python_cpu_callback", "cuda": "xla_python_gpu_callback"}

log = logging.getLogger("jdaso")
_lock = threading.Lock()


class _UnavailableError(Exception):
    """The library is unavailable; the text is the reason."""


def target(platforms: Sequence[str], devices: int) -> str | None:
    """Returns the handler's name in programs, None if there is none; builds it at the first use.

    Args:
        platforms: those that a program is lowered for.
        devices: their number, if the program has the semantics of whole arrays; otherwise 1.

    Raises:
        ValueError: the variable ``JDASO_FFI`` is neither "auto" nor "off".
    """
    if not _is_wanted() or len(platforms) != 1 or platforms[0] not in _CALLED_ONCE:
        return None
    if not _registered():
        return None
    return TARGET if devices == 1 else _CALLED_ONCE[platforms[0]]


def chain_target(platforms: Sequence[str], devices: int) -> str | None:
    """Like `target`, of the handler of chains, which programs of one CPU device can call."""
    fits = tuple(platforms) == ("cpu",) and devices == 1
    return CHAIN if _is_wanted() and fits and _registered() else None


def _is_wanted() -> bool:
    wanted = os.environ.get(SWITCH, "auto")
    if wanted not in ("auto", "off"):
        raise ValueError(f'{SWITCH} must be "auto" (the default) or "off", got {wanted!r}.')
    return wanted == "auto"


def _registered() -> bool:
    with _lock:  # threads may compile steps at the same time
        return _register()


def has_fused(wire: str) -> bool:
    """Returns whether the library has the loops of `fused.py` for a wire of this name."""
    return wire in fused.WIRES and _is_wanted() and _registered()


def host_memory(size: int, dtype: np.dtype) -> np.ndarray:
    """Zeros on the host; in pinned memory, if available, where JAX computes on an NVIDIA GPU."""
    (device, *_) = jax.local_devices()
    if device.platform != "gpu" or target(["cuda"], 1) is None:
        return aligned.zeros(size, dtype)
    take, give = _allocator()
    number = int(getattr(device, "local_hardware_id", 0) or 0)
    return pinned.zeros(size, dtype, lambda nbytes: take(nbytes, number), give)


@functools.cache
def _register() -> bool:
    try:
        library = _load()
        library.jdaso_set_python(functions.entry)
        pointer, count = ctypes.c_void_p, ctypes.c_int64
        on_device.copy_by(_function(library, "jdaso_copy_out", ctypes.c_int, count, pointer))
        word = ctypes.c_uint32
        mixing.mix_by(_function(library, "jdaso_sum_of_mixed", word, pointer, count, word))
        fused.compute_by(lambda name: _function(library, name, None, pointer))
        chain = jax.ffi.pycapsule(library.JdasoChainCpu)
        jax.ffi.register_ffi_target(CHAIN, chain, platform="cpu")
        for where, symbol in _HANDLERS.items():
            handler = jax.ffi.pycapsule(getattr(library, symbol))
            for name in (TARGET, _CALLED_ONCE[where.lower()]):
                jax.ffi.register_ffi_target(name, handler, platform=where)
    except Exception as error:  # of the compiler, the loader or another JAX: there is a second way
        log.warning(
            "Compiled steps call the host by JAX's own callbacks, so that JAX's compilation cache "
            "does not keep them, and exchanges take more of the host's processors: %s. %s=off "
            "disables this message.",
            error,
            SWITCH,
        )
        return False
    return True


@functools.cache
def _allocator() -> tuple[Any, Any]:
    """The library's functions that allocate and free pinned memory."""
    library = _load()
    pointer, count, number = ctypes.c_void_p, ctypes.c_int64, ctypes.c_int
    take = _function(library, "jdaso_take_pinned", pointer, count, number)
    return take, _function(library, "jdaso_give_pinned", None, pointer)


def _function(library: ctypes.CDLL, name: str, result: Any, *arguments: Any) -> Any:
    """A function of the library, with the types of its result and its arguments."""
    found = getattr(library, name)
    found.argtypes, found.restype = arguments, result
    return found


def _load() -> ctypes.CDLL:
    """Loads the library from the user's cache folder; compiles it if it is not there."""
    compiler = next(filter(None, map(shutil.which, _COMPILERS)), None)
    if compiler is None:
        raise _UnavailableError(f"no C++ compiler ({', '.join(_COMPILERS)}) is on PATH")
    name = f"call-{_key(compiler)}.so"
    with contextlib.suppress(OSError, RuntimeError):  # read-only, full, no home; a broken file
        folder = cache_folder()
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        library = folder / name
        if not library.exists():
            _compile(compiler, library)
        if library.stat().st_uid == os.getuid():
            return ctypes.CDLL(str(library))
    with tempfile.TemporaryDirectory(prefix="jdaso-") as private:
        library = Path(private) / name
        _compile(compiler, library)
        return ctypes.CDLL(str(library))  # the library stays mapped without its file


def cache_folder() -> Path:
    """The user's folder for compiled handlers."""
    chosen = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(chosen) if os.path.isabs(chosen) else Path.home() / ".cache") / "jdaso"


def _key(compiler: str) -> str:
    """A hash of all that the library depends on."""
    binary = os.stat(compiler)
    about = (jaxlib_version, platform.machine(), os.path.realpath(compiler), _FLAGS)
    found = hashlib.sha256(b"".join(map(Path.read_bytes, _SOURCES)))
    found.update(repr((*about, binary.st_size, binary.st_mtime_ns)).encode())
    return found.hexdigest()[:20]


def _compile(compiler: str, library: Path) -> None:
    """Compiles to a file of its own, then renames it: ranks that start together do not collide."""
    number, made = tempfile.mkstemp(prefix=f"{library.stem}-", suffix=".so", dir=library.parent)
    os.close(number)
    try:
        about = [*_FLAGS, "-I", jax.ffi.include_dir(), str(_SOURCES[0])]
        command = [compiler, *about, "-o", made, "-ldl"]
        with _group(command) as process:
            _, said = process.communicate(timeout=COMPILE_SECONDS)
        if process.returncode:
            raise _UnavailableError(f"{compiler} failed: {said.strip()[-500:]}")
        os.replace(made, library)
    except subprocess.TimeoutExpired:
        raise _UnavailableError(f"{compiler} took more than {COMPILE_SECONDS:g} s") from None
    finally:
        Path(made).unlink(missing_ok=True)


@contextlib.contextmanager
def _group(command: list[str]) -> Iterator[subprocess.Popen[str]]:
    """A process with a group of its own: the compiler starts others, which end with it."""
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        start_new_session=True,
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
