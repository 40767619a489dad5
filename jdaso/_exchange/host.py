"""Exchanges between real nodes: the compiled step calls the host, whose channel sends.

Callbacks pass outgoing arrays to a channel's thread on the host, and fetch the results.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from .._compat import host_call
from .._engines.channel import Channel
from .._payload.words import FAILED, HEADER, STATUS
from .._types import Chunks, PyTree, ShapeDtype
from .callbacks import guarded, spread, start_channel, zeros
from .exchange import Exchange
from .received import Received
from .replicated import Common
from .within_node import device_number


class HostExchange(Exchange):
    """Exchanges of one tree between real nodes; see `Exchange`."""

    @cached_property
    def channel(self) -> Channel:
        """The host's end. All nodes open it together, when the step is first traced."""
        return self.session.channel(self.layout, self.wire, self.name)

    @cached_property
    def call(self) -> Callable[..., Any]:
        """The function that calls the host.

        JAX drops calls whose results are unused. An optimizer's results are in the step's state; a
        user may drop the result of a mean, so its calls are kept.
        """
        label = f"{self.name} {self.owner} {self.wire.name} {self.layout.fingerprint}"
        return partial(host_call, kept=self.owner <= 0, label=label, holder=self.session)

    @property
    def node(self) -> int:
        """This node's number."""
        return self.session.node

    def ask_node(self) -> jax.Array:
        """As `Exchange.ask_node`."""
        node = np.int32(self.session.node)
        return self.call(lambda: node, ShapeDtype((), jnp.int32))

    def _hand_over(
        self,
        calls: Sequence[tuple[Callable[..., int], tuple[jax.Array, ...]]],
        head: jax.Array,
        step: jax.Array,
        turn: jax.Array,
    ) -> jax.Array:
        """Makes each call once, the local devices taking turns; returns the ticket."""
        shape, tokens = ShapeDtype((), jnp.int32), []
        for k, (start, arrays) in enumerate(calls):
            call = partial(start_channel, start, owner=self.owner)
            # A refused start still returns its ticket; the wait for that ticket raises the reason.
            call = guarded(call, self.session, lambda ticket, *_: np.array(ticket))
            call = partial(self.call, call, shape, step + 1, head, device_number(), *arrays)
            tokens.append(self.from_one(turn + k, call, shape))
        # The ticket comes from the callbacks, so that no later wait can be scheduled before them.
        return jnp.stack(tokens).max()

    def _fetch(
        self, fetch: Callable[..., Any], shapes: Any, ticket: jax.Array, heads: jax.Array, turn: Any
    ) -> Any:
        """Fetches from the channel on one local device and copies the result to all."""
        nothing = partial(zeros, shapes)
        # The headers are an argument so that XLA cannot schedule the fetch before the wait.
        call = guarded(lambda t, _: fetch(int(t)), self.session, nothing)
        return self.from_one(turn, partial(self.call, call, shapes, ticket, heads[0, 0]), shapes)

    def _wait_for_heads(
        self, ticket: jax.Array, turn: jax.Array, common: Common | None
    ) -> jax.Array:
        channel, nodes = self.channel, self.layout.nodes
        refused = np.zeros((self.layout.nodes, HEADER), np.int32)
        refused[:, STATUS] = FAILED
        ask = lambda t, d: channel.wait(int(t), int(d), owner=self.owner)  # noqa: E731
        wait = guarded(ask, self.session, refused)
        shape = ShapeDtype((nodes, HEADER), jnp.int32)
        call = partial(self.call, wait, shape, ticket, device_number())
        heads = self.from_one(turn, call, shape)
        return self.report(heads, common)

    def total(
        self, chunks: Chunks, head: jax.Array, step: jax.Array, common: Common | None = None
    ) -> Received:
        """As `Exchange.total`: passes chunks to the channel and fetches their sums."""
        calls = [
            (partial(self.channel.start_chunk, k=k), (self.wire.encode(chunk),))
            for k, chunk in enumerate(chunks)
        ]
        ticket = self._hand_over(calls, head, step, step)
        heads = self._wait_for_heads(ticket, step, common)
        rows, lost = [], []
        for k, width in enumerate(self.layout.widths):
            shapes = (
                ShapeDtype((self.layout.nodes, self.wire.encoded_width(width)), self.wire.dtype),
                ShapeDtype((width if self.wire.narrow else 0,), jnp.float32),
            )
            fetch = partial(self.channel.fetch, k=k)
            row, rest = self._fetch(fetch, shapes, ticket, heads, step + k)
            rows.append(row)
            lost.append(rest)
        return self._decoded(tuple(rows), tuple(lost), heads)

    def _raise_if(
        self, wrong: jax.Array, heads: jax.Array, common: Common | None, report: Callable[..., Any]
    ) -> jax.Array:
        def call() -> jax.Array:
            prints = jnp.zeros(0, jnp.int32)
            if common is not None:
                prints = common.prints(self.ask_node(), self.local_axis)
            return self.call(report, ShapeDtype((), jnp.int32), heads, prints)

        return heads + jax.lax.cond(wrong, call, lambda: jnp.int32(0))

    def from_one(self, device: Any, call: Callable[[], PyTree], shapes: PyTree) -> PyTree:
        """Calls from one local device; with a local axis, copies the result to all its devices."""
        if self.local_axis is None:
            return call()
        devices = jax.lax.axis_size(self.local_axis)
        mine = jax.lax.axis_index(self.local_axis) == device % devices
        none = lambda: jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), shapes)  # noqa: E731
        return jax.tree.map(partial(spread, self.local_axis), jax.lax.cond(mine, call, none))
