"""The channels of a session: one for each layout, wire and name, opened at its first use."""

from __future__ import annotations

import logging

import numpy as np

from .._engines import recycled
from .._engines.channel import Channel
from .._engines.fastest_wire import fastest, host_seconds_of
from .._engines.make import make_reducer
from .._engines.pace import Pace
from .._engines.shared_header import SharedHeader
from .._nodes.control import Control
from .._nodes.links import Links
from .._payload.layout import Layout
from .._payload.wire import WIRES, Wire
from ..traces._timeline import Timeline
from .settings import DAY_SECONDS

log = logging.getLogger("jdaso")


class Channels:
    """Opens channels, numbers them from 1, and closes them.

    Args:
        engine: the name of the engine that moves their chunks.
        control: the nodes.
        everyone: all ranks.
        inside: the ranks of this node; None if this is its only one.
        timeline: records their exchanges.
    """

    def __init__(
        self,
        engine: str,
        control: Control,
        everyone: Control,
        inside: Control | None,
        timeline: Timeline,
    ):
        self._engine, self._control, self._timeline = engine, control, timeline
        self._everyone, self._inside = everyone, inside
        self._links, self._pace = Links(control, everyone), Pace()
        self._open: dict[tuple[Layout, Wire, str], Channel] = {}
        self._fastest: Wire | None = None

    def of(self, layout: Layout, wire: Wire, name: str) -> Channel:
        """The channel of a layout on a wire; all nodes open it together at its first use."""
        key = layout, wire, name
        if key not in self._open:
            facts = [("optimizer", f"{name} on {wire.name}"), ("chunks", str(layout.widths))]
            facts += [(f"leaf {leaf.path}", str(leaf)) for leaf in layout.exchanged]
            self._control.agree("open a channel", facts)
            self._open[key] = self._make(layout, wire)
        return self._open[key]

    def fastest_wire(self) -> Wire:
        """The wire with the shortest exchanges, measured at the first call; the same on all nodes.

        A collective call.
        """
        if self._fastest is None:
            control, nodes = self._control, self._control.topology.num_nodes
            what = "measure the wires"
            self._everyone.agree(what, [])
            rate = self._links.bytes_per_second()
            own = [host_seconds_of(wire, nodes) for wire in WIRES.values()]
            slowest = self._everyone.allgather(what, np.array(own)).max(axis=0)
            self._fastest = fastest(nodes, rate, dict(zip(WIRES, slowest.tolist(), strict=True)))
            log.info(
                '%s wire="auto" is "%s": the slowest link carries %.3g MB/s.',
                control.topology.prefix(),
                self._fastest.name,
                rate / 1e6,
            )
        return self._fastest

    def go_on_with(self, wire: Wire) -> None:
        """Takes an earlier run's wire as the fastest, unless late exchanges use the present one."""
        pairs = self._open.items()
        if not any(own is self._fastest and channel.versions for (_, own, _), channel in pairs):
            self._fastest = wire

    def _make(self, layout: Layout, wire: Wire) -> Channel:
        control = self._control
        reducer = make_reducer(
            self._engine,
            wire,
            layout.nodes,
            control.duplicate,
            check=control.check,
            limit_seconds=DAY_SECONDS,  # waits of steps have shorter limits of their own
            bytes_per_second=self._links.bytes_per_second,
            survives=control.survives,
        )
        sends, number, shared = self._engine != "instant", 1 + len(self._open), None
        if self._inside is not None:
            shared = SharedHeader(self._inside.duplicate().comm, control)
        return Channel(
            layout,
            wire,
            reducer,
            control,
            self._timeline,
            self._pace,
            shared=shared,
            sends=sends,
            number=number,
        )

    def close(self, *, failed: bool, after_error: bool) -> bool:
        """Completes exchanges in flight; returns whether no channel's thread is still inside MPI.

        Args:
            failed: whether nodes have failed, so that waits are short.
            after_error: whether the program has ended with an error.
        """
        ended = True
        for channel in self._open.values():
            limit = 1.0 if failed or self._control.broken is not None else None
            ended &= channel.close(limit, after_error=after_error)
        recycled.release()
        return ended
