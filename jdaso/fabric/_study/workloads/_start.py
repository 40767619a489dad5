"""The transport of a cell, chosen by its library."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ._given import Given


def _mpi() -> Any:
    from ._mpi import Mpi

    return Mpi()


def _mpi4jax() -> Any:
    from ._mpi4jax import Mpi4jax

    return Mpi4jax()


def _mesh(backend: str) -> Any:
    from ._mesh import Mesh

    return Mesh(backend)


def _torch() -> Any:
    from ._torch import Torch

    return Torch()


_STARTS: Mapping[str, Callable[[], Any]] = {
    "mpi": _mpi,
    "mpi4jax": _mpi4jax,
    "gloo": lambda: _mesh("gloo"),
    "nccl": lambda: _mesh("nccl"),
    "torch": _torch,
}


def transport_of(given: Given) -> Any:
    """Starts the transport; the others are not even imported."""
    return _STARTS[given.transport]()
