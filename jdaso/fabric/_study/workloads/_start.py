"""The transport of a cell, chosen by its library."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ._given import Given

if TYPE_CHECKING:
    from ._gloo import Gloo
    from ._mpi import Mpi


def transport_of(given: Given) -> Mpi | Gloo:
    """Starts the transport; the other one is not even imported."""
    if given.transport == "gloo":
        from ._gloo import Gloo

        return Gloo()
    from ._mpi import Mpi

    return Mpi()
