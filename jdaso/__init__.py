"""DASO for JAX: training on many nodes without waiting for the network.

The public names stand in ``__init__.pyi``. ``import jdaso`` loads none: each is loaded when it is
first asked for (PEP 562). So the doctor runs where JAX cannot be imported, and a supervisor needs
nothing that may fail.
"""

import ast
import importlib
import sys
from pathlib import Path
from typing import Any

from ._launch.early_failure import watch_rank as _watch_rank
from ._version import __version__ as __version__

_STUB = ast.parse(Path(__file__).with_suffix(".pyi").read_text(encoding="utf-8"))
_HOMES = {
    alias.name: f".{node.module or alias.name}"
    for node in _STUB.body
    if isinstance(node, ast.ImportFrom)
    for alias in node.names
}

__all__ = list(_HOMES)  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = importlib.import_module(_HOMES[name], __name__)
    if "jax" in sys.modules:
        # Before the first use of a device: the thread pools of CPU devices are sized there.
        importlib.import_module("._compat", __name__).reserve_cpu_threads()
    found = module if _HOMES[name] == f".{name}" else getattr(module, name)
    return globals().setdefault(name, found)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


_watch_rank()
