"""Exchanges between real nodes: the compiled step calls the host, whose channel sends.

Callbacks pass outgoing arrays to a channel's thread on the host, and fetch the results.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from .._compat import host_call
from .._engines.channel import Channel
from .._engines.sums import Sums
from .._payload.checksums import checksum_of_all, checksum_on_host
from .._payload.explicit import replicated
from .._payload.landing import arrival
from .._payload.trees import to_arrays
from .._payload.words import FAILED, HEADER, LEFT_OUT, STATUS
from .._types import Leaves, PyTree, ShapeDtype
from .callbacks import guarded, spread, zeros
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
    def sums(self) -> Sums:
        """The sums that steps wait for."""
        channel = self.channel
        if channel.sums is None:
            channel.sums = Sums(channel, self.node)
        return channel.sums

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

    def checksum(self, tree: PyTree) -> jax.Array:
        """As `Exchange.checksum`, on the host: a step's compiler takes long for each leaf of it."""
        arrays = to_arrays(tree)
        if not arrays:
            return jnp.int32(0)
        call = on_host(lambda *x: checksum_of_all(x))
        return self.call(call, ShapeDtype((), jnp.int32), *map(replicated, arrays))

    def _prints(self, common: Common) -> jax.Array:
        """A checksum for each leaf of replicated state; see `Common.prints`."""
        arrays = to_arrays(common.tree)
        call = on_host(lambda *x: np.array([checksum_on_host(y) for y in x], np.int32))
        shape = ShapeDtype((len(arrays),), jnp.int32)
        mine = self.call(call, shape, *map(replicated, arrays))
        if self.local_axis is None:
            return mine
        least, most = (f(mine, self.local_axis) for f in (jax.lax.pmin, jax.lax.pmax))
        return jnp.where(least == most, most, most + 1 + self.ask_node())

    def total(
        self, leaves: Leaves, head: jax.Array, step: jax.Array, common: Common | None = None
    ) -> Received:
        """As `Exchange.total`, by one call of the host."""
        return self._result(self.sums.total, leaves, head, step, common)

    def mean(
        self, leaves: Leaves, head: jax.Array, step: jax.Array, common: Common | None = None
    ) -> Received:
        """As `Exchange.mean`, by one call of the host."""
        return self._result(self.sums.mean, leaves, head, step, common)

    def mean_of_finite(
        self, leaves: Leaves, count: int, head: jax.Array, step: jax.Array, common: Common | None
    ) -> Received:
        """As `Exchange.mean_of_finite`, by one call of the host."""
        function = partial(self.sums.mean_of_finite, count=count)
        return self._result(function, leaves, head, step, common)

    def land(
        self, target: Leaves, params: Leaves, dtypes: Sequence[Any], head: jax.Array, step: Any
    ) -> Leaves:
        """Targets on which all nodes land alike, by one call of the host.

        Args:
            target: the leaves that all nodes go to, float32.
            params: the leaves that they come from.
            dtypes: of the updates.
            head: this node's header.
            step: completed updates.
        """
        sums, count = self.sums, len(target)

        def land(ticket: int, arrays: Sequence[np.ndarray], *args: Any, **by: Any) -> Any:
            pairs = zip(arrays[:count], arrays[count:], dtypes, strict=True)
            landed = (arrival(*each) for each in pairs)
            return sums.land(ticket, arrays[:count], landed, *args, **by)

        return self._result(land, (*target, *params), head, step, None).total

    def _result(
        self,
        function: Callable[..., Any],
        leaves: Leaves,
        head: jax.Array,
        step: jax.Array,
        common: Common | None,
    ) -> Received:
        """The result of a function of `Sums`."""
        owner, layout = self.owner, self.layout
        shapes = tuple(ShapeDtype(leaf.reals, jnp.float32) for leaf in layout.exchanged)
        heads = ShapeDtype((layout.nodes, HEADER), jnp.int32)
        every = heads, shapes, shapes if self.wire.narrow else ()

        def call(ticket: Any, head: Any, device: Any, *arrays: Any) -> Any:
            about = {"owner": owner, "device": int(device)}
            leaves = tuple(map(np.asarray, arrays))
            found, *both = function(int(ticket), leaves, np.asarray(head), **about)
            return found, *map(tuple, both)

        about = step + 1, head, device_number()
        places = {len(about) + k: 1 + k for k in range(len(shapes))}
        given = *about, *map(replicated, leaves)
        words, total, lost = self.answer(call, every, step, *given, places=places)
        words = self.report(words, common)
        total, lost = self.behind(words, (total, lost))
        return Received(total, lost, words)

    def behind(self, words: jax.Array, tree: PyTree) -> PyTree:
        """Float32 numbers that the host gave, once their headers were checked.

        JAX drops the check if nothing uses the headers, and zeros would pass for numbers.
        """
        if len(self.session.devices) == 1:
            return jax.lax.optimization_barrier((words, tree))[1]
        # What a call returns lies on one device; what is computed from it, where it is needed.
        one = jnp.where(words[0, STATUS] < LEFT_OUT, jnp.float32(1), jnp.float32(0))
        return jax.tree.map(lambda x: x * one, tree)

    def answer(
        self,
        function: Callable[..., Any],
        shapes: Any,
        turn: Any,
        *args: Any,
        places: Mapping[int, int] | None = None,
    ) -> Any:
        """Calls a function that returns headers first, from one local device.

        On failure: the status in the headers tells it.
        """

        def refused(*_: Any) -> Any:
            words, *rest = zeros(shapes)
            words[:, STATUS] = FAILED
            return words, *rest

        call = guarded(function, self.session, refused)
        call = partial(self.call, call, shapes, *args, places=places)
        return self.from_one(turn, call, shapes)

    def _raise_if(
        self, wrong: jax.Array, heads: jax.Array, common: Common | None, report: Callable[..., Any]
    ) -> jax.Array:
        def call() -> jax.Array:
            prints = jnp.zeros(0, jnp.int32)
            if common is not None and common.paths:
                prints = self._prints(common)
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


def on_host(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, called with NumPy arrays."""
    return lambda *args: function(*map(np.asarray, args))
