"""A rank that fails between its sessions notifies the ranks that start the next one.

The failed rank sends one short message to each other rank, which only the start of a session
receives. Ranks that start no session finish their work: the failed rank waits for them in
MPI_Finalize.
"""

from __future__ import annotations

import contextlib
import socket
import sys
from typing import Any

from .messages import Messages, received

_TAG = 32_108  # on COMM_WORLD; tags go to 32767
_LONGEST = 1000
"""Bytes of a message: few enough for MPI to send it although it may never be received."""

_senders: list[Messages] = []  # kept: MPI may still read from them
_failures: dict[int, str] = {}  # received so far, by rank of COMM_WORLD


def send_failure(text: str) -> None:
    """Notifies all other ranks that this one has failed; does not wait for them."""
    library = sys.modules.get("mpi4py.MPI")
    if library is None or not library.Is_initialized() or library.Is_finalized():
        return
    world = library.COMM_WORLD
    sender = Messages(world.Get_rank(), world.Get_size())
    sender.begin(world)
    name = f"rank {world.Get_rank()} on host {socket.gethostname()}"
    text = f"{name} failed after it had closed its last Session: {text}"
    sender.send_all(_TAG, text.encode(errors="backslashreplace")[:_LONGEST])
    _senders.append(sender)


def failure_of(comm: Any) -> str | None:
    """The text of a member of `comm` that has failed between its sessions; None if none has."""
    from mpi4py import MPI

    world = MPI.COMM_WORLD
    with contextlib.suppress(MPI.Exception):  # a rank was killed
        for source, _, payload in received(world, _TAG):
            _failures[source] = payload.decode(errors="replace")
    if not _failures:
        return None
    members = MPI.Group.Translate_ranks(comm.Get_group(), None, world.Get_group())
    return next((_failures[rank] for rank in members if rank in _failures), None)
