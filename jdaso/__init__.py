"""DASO for JAX: training on many nodes without waiting for the network.

The public names are listed in ``__init__.pyi``. ``import jdaso`` loads none of them: each is loaded
at its first use (PEP 562). So the doctor runs where JAX cannot be imported, and a supervisor
depends on nothing that may fail.

May live here: the lookup of public names. May not: their code, and imports that load JAX, NumPy or
MPI.
"""

import importlib
import sys
from typing import Any

from ._base.public_names import homes_of as _homes_of
from ._base.version import __version__ as __version__
from ._launch.early_failure import watch_rank as _watch_rank
from ._mpi.abort import abort_if_started as _abort_if_started

_HOMES = _homes_of(__file__)
__all__ = list(_HOMES)  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = importlib.import_module(_HOMES[name], __name__)
    if "jax" in sys.modules:
        # Before the first use of a device: the thread pools of CPU devices are sized then.
        importlib.import_module("._jax.cpus", __name__).reserve_cpu_threads()
    found = module if _HOMES[name] == f".{name}" else getattr(module, name)
    return globals().setdefault(name, found)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


_watch_rank(_abort_if_started)
