"""Starts of one program in one process: an empty JAX, and JAX's compilation cache in a folder."""

import contextlib
from collections import Counter

import jax
from jax._src import compilation_cache

from jdaso._jax.ffi import functions

SETTINGS = {
    "jax_persistent_cache_min_compile_time_secs": 0.0,
    "jax_persistent_cache_min_entry_size_bytes": -1,
}


@contextlib.contextmanager
def starts(folder, monkeypatch):
    """Gives a function that begins a start.

    Nothing is traced then, and no function has a name yet. The function returns a list, to which
    "hits" and "misses" of the cache are added.
    """
    settings = SETTINGS | {"jax_compilation_cache_dir": str(folder)}
    before = {name: getattr(jax.config, name) for name in settings}
    events = []

    def listen(event, **_):
        if event.startswith("/jax/compilation_cache/cache_"):
            events.append(event.rsplit("_", 1)[-1])

    def begin():
        jax.clear_caches()
        for name, value in {"_functions": {}, "_used": Counter(), "_held": {}}.items():
            monkeypatch.setattr(functions, name, value)
        events.clear()
        return events

    for name, value in settings.items():
        jax.config.update(name, value)
    compilation_cache.reset_cache()
    jax.monitoring.register_event_listener(listen)
    try:
        yield begin
    finally:
        jax.monitoring.unregister_event_listener(listen)
        for name, value in before.items():
            jax.config.update(name, value)
        compilation_cache.reset_cache()
