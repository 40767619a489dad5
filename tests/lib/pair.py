"""Node 0 of two in one process, without MPI: the other node's rows are made from its own."""

import threading
from collections.abc import Callable
from typing import Any

import numpy as np

from jdaso._engines.base import InTurn
from jdaso._engines.channel import Channel
from jdaso._engines.pace import Pace
from jdaso._engines.passes import passes_of
from jdaso._mpi.topology import Topology
from jdaso._nodes.control import Control
from jdaso._payload.layout import Layout
from jdaso._payload.wire import Wire
from jdaso._payload.words import BAD_LEAF, STATUS, WEIGHT
from jdaso._session import Session
from jdaso._session.reports import Reports
from jdaso.traces._timeline import Timeline


class Other:
    """Sums node 0's rows with those that the other node makes of them, by default the same."""

    def __init__(self, wire: Wire):
        self.wire, self.sum = wire, passes_of(wire).total
        self.weights, self.bad = (1.0, 1.0), 0
        self.makes: list[Callable[[np.ndarray], np.ndarray]] = []

    def __call__(self, rows, out, headed):
        width, residual = out.shape[1], None
        make = self.makes[0] if self.makes else lambda x: x
        for p in range(2):
            mine = rows[p, :width]
            theirs = self.wire.encode(make(self.wire.decode(mine[None])))[0]
            lost = self.sum(np.stack([mine, theirs]), out[p])
            residual = lost if p == 0 else residual
        heads = None
        if headed:
            heads = np.repeat(np.ascontiguousarray(rows[:1, width:]).view(np.int32), 2, axis=0)
            heads[:, STATUS], heads[1, BAD_LEAF] = 0, self.bad
            heads[:, WEIGHT] = np.array(self.weights, np.float32).view(np.int32)
            self.makes = self.makes[1:]
        return residual, heads


class Pair(Session):
    """Node 0's session, as far as exchanges need one; its channels are opened by its own thread."""

    node, closed, devices, simulated = 0, False, (None,), False  # pyright: ignore

    def __init__(self):  # no MPI, no threads of a session
        self.topology = Topology(0, 1, "here")
        self.control = Control(self.topology, timeout_seconds=120.0)
        self.report = Reports(self.control, 0, virtual=False).check
        self.others: dict[Any, Other] = {}
        self._channels: dict[Any, Channel] = {}
        self._thread = threading.current_thread()

    def channel(self, layout: Layout, wire: Wire, name: str) -> Channel:
        """Opens a channel; see `Session.channel`."""
        assert threading.current_thread() is self._thread, "nodes would open channels crosswise"
        key = layout, wire.name, name
        if key not in self._channels:
            other = self.others[key] = Other(wire)
            channel = Channel(layout, wire, InTurn(other, 120.0), self.control, Timeline(), Pace())
            channel._nodes = channel.worker._nodes = 2
            self._channels[key] = channel
        return self._channels[key]

    def other_of(self, layout: Layout, wire: Wire, name: str) -> Other:
        """The other node, in the exchanges of a channel."""
        self.channel(layout, wire, name)
        return self.others[layout, wire.name, name]

    def close(self) -> None:
        """Ends the channels."""
        for channel in self._channels.values():
            channel.close(5.0)
