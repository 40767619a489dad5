"""Ranks that compile each program once: one rank compiles, the others load what XLA has made.

All ranks of a launch compile the same programs, several launches too. They share JAX's compilation
cache, in a folder that lives as long as the run of the tests. The files are ours: with JAX's own,
ranks that want a program at the same time all compile it, and may read half a file.
"""

import contextlib
import fcntl
import functools
import os
import tempfile
import threading
import time
from pathlib import Path

import jax
from jax._src import compilation_cache, compiler
from jax._src.compilation_cache_interface import CacheInterface

FOLDER = "JDASO_TEST_COMPILED"
"""The variable that names the folder; without it every process compiles for itself."""
LIMIT_SECONDS = 60.0
"""A rank that has waited so long, for one that was stopped, compiles for itself."""
SETTINGS = {
    "jax_persistent_cache_min_compile_time_secs": 0.0,
    "jax_persistent_cache_min_entry_size_bytes": -1,
}


class Shared(CacheInterface):
    """Programs as files of a folder, with a lock for each program.

    A rank that finds no file holds the program's lock until it has compiled, well or not.
    """

    def __init__(self, folder: str):
        self._path = Path(folder)
        self._held = threading.local()

    def get(self, key):
        file = self._path / key
        if not file.exists():
            self._lock(key)
        return file.read_bytes() if file.exists() else None

    def put(self, key, value):
        with tempfile.NamedTemporaryFile(dir=self._path, delete=False) as new:
            new.write(value)
        os.replace(new.name, self._path / key)

    def keep(self, backend, program):
        """Saves what was compiled under the lock; JAX itself saves only in a world's process 0."""
        key = getattr(self._held, "key", None)
        if key is not None and not (self._path / key).exists():
            compilation_cache.put_executable_and_time(key, "", program, backend, 0)

    def _lock(self, key):
        """Returns with the lock, or when the program is there."""
        lock, end = open(self._path / f"{key}.lock", "w"), time.monotonic() + LIMIT_SECONDS
        while time.monotonic() < end:
            with contextlib.suppress(BlockingIOError):
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            time.sleep(0.005)
        self._held.key, self._held.lock = key, lock
        if (self._path / key).exists():
            self.release()

    def release(self):
        lock = getattr(self._held, "lock", None)
        if lock is not None:
            fcntl.flock(lock, fcntl.LOCK_UN)  # closing does not unlock what a fork has inherited
            lock.close()
            self._held.key = self._held.lock = None


def share(folder: str | None = None) -> None:
    """Compiles this process's programs once with all processes that name the same folder."""
    folder = folder or os.environ.get(FOLDER)
    if not folder:
        return
    cache = Shared(folder)
    compile_or_load = compiler.compile_or_get_cached

    @functools.wraps(compile_or_load)
    def compile_once(backend, module, devices, options, callbacks, *others):
        try:
            program = compile_or_load(backend, module, devices, options, callbacks, *others)
            if not callbacks:  # their addresses are those of this process
                cache.keep(backend, program)
            return program
        finally:
            cache.release()

    compiler.compile_or_get_cached = compile_once
    compilation_cache.get_file_cache = lambda path: (cache, path)
    for name, value in (SETTINGS | {"jax_compilation_cache_dir": folder}).items():
        jax.config.update(name, value)
