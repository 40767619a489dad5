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
from collections.abc import Iterator
from pathlib import Path

import jax
from jaxlib.version import __version__ as jaxlib_version

from . import functions

TARGET = "jdaso_call"
"""The handlers' name in compiled programs."""

COMPILE_SECONDS = 120.0
"""Limit of the compiler; it takes some 4 s."""

SWITCH = "JDASO_FFI"
_SOURCE = Path(__file__).with_name("call.cc")
_COMPILERS = ("c++", "g++", "clang++")
_FLAGS = ("-std=c++17", "-O1", "-fPIC", "-shared", "-w")
_HANDLERS = {"cpu": "JdasoCallCpu", "CUDA": "JdasoCallCuda"}
_PLATFORMS = {"cpu", "cuda"}  # as JAX names them when it lowers

log = logging.getLogger("jdaso")
_lock = threading.Lock()


class _UnavailableError(Exception):
    """The library cannot be had; the text is the reason."""


def serves(platforms: tuple[str, ...]) -> bool:
    """Returns whether steps for these platforms can call the handlers; builds them if need be.

    Raises:
        ValueError: the variable ``JDASO_FFI`` is neither "auto" nor "off".
    """
    wanted = os.environ.get(SWITCH, "auto")
    if wanted not in ("auto", "off"):
        raise ValueError(f'{SWITCH} must be "auto" (the default) or "off", got {wanted!r}.')
    return wanted == "auto" and _PLATFORMS.issuperset(platforms) and _registered()


def _registered() -> bool:
    with _lock:  # threads may compile steps at the same time
        return _register()


@functools.cache
def _register() -> bool:
    try:
        library = _load()
    except (_UnavailableError, OSError) as error:
        log.warning(
            "Compiled steps call the host by JAX's own callbacks, so that JAX's compilation cache "
            "does not keep them: %s. %s=off disables this message.",
            error,
            SWITCH,
        )
        return False
    library.jdaso_set_python(functions.entry)
    for where, symbol in _HANDLERS.items():
        handler = jax.ffi.pycapsule(getattr(library, symbol))
        jax.ffi.register_ffi_target(TARGET, handler, platform=where)
    return True


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
        return ctypes.CDLL(str(library))  # it stays mapped when the file is gone


def cache_folder() -> Path:
    """The user's folder for compiled handlers."""
    chosen = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(chosen) if os.path.isabs(chosen) else Path.home() / ".cache") / "jdaso"


def _key(compiler: str) -> str:
    """A hash of all that the library depends on."""
    binary = os.stat(compiler)
    about = (jaxlib_version, platform.machine(), os.path.realpath(compiler), _FLAGS)
    found = hashlib.sha256(_SOURCE.read_bytes())
    found.update(repr((*about, binary.st_size, binary.st_mtime_ns)).encode())
    return found.hexdigest()[:20]


def _compile(compiler: str, library: Path) -> None:
    """Compiles to a file of its own, then renames it: ranks that start together do not meet."""
    number, made = tempfile.mkstemp(prefix=f"{library.stem}-", suffix=".so", dir=library.parent)
    os.close(number)
    try:
        command = [compiler, *_FLAGS, "-I", jax.ffi.include_dir(), str(_SOURCE), "-o", made, "-ldl"]
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
