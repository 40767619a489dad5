"""Fabrics: clusters emulated on one machine, a model of clusters you do not have, and studies.

The public names are listed in ``__init__.pyi``; each is loaded at its first use. So a study, the
programs of its ranks, and an emulated cluster start without JAX, which only the model needs.

May live here: `_emulate` (hosts and links), `_model` (predictions) and `_study` (measurements). May
not: training, and pictures (`jdaso.plots`, `jdaso.report`).
"""

import importlib
from typing import Any

from .._base.public_names import homes_of as _homes_of

_HOMES = _homes_of(__file__)
__all__ = list(_HOMES)  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = getattr(importlib.import_module(_HOMES[name], __name__), name)
    return globals().setdefault(name, found)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
