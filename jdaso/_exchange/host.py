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

from .._engines.channel import Channel
from .._engines.sums import Sums
from .._jax.ffi.on_device import OnDevice
from .._jax.host_call import host_call
from .._jax.types import Leaves, PyTree, ShapeDtype
from .._payload.checksums import checksum_of_all, checksum_on_host
from .._payload.explicit import replicated
from .._payload.landing import arrival
from .._payload.layout import Division
from .._payload.shards import in_order
from .._payload.trees import to_arrays
from .._payload.whole import Whole
from .._payload.words import FAILED, HEADER, LEFT_OUT, STATUS
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
        about = {"label": label, "holder": self.session, "joined": self.session.joined}
        return partial(host_call, kept=self.owner <= 0, **about)

    @property
    def whole(self) -> Whole | None:
        """The leaves whose shards are exchanged; None if none is divided, or no host has all."""
        of_parts = self.placement is None or self.session.joined
        return None if of_parts else Whole(self.layout, self.leaves)

    @property
    def node(self) -> int:
        """This node's number."""
        return self.session.node

    def ask_node(self) -> jax.Array:
        """See `Exchange.ask_node`."""
        node = np.int32(self.session.node)
        return self.call(lambda: node, ShapeDtype((), jnp.int32))

    def checksum(self, tree: PyTree, divisions: Sequence[Division] = ()) -> jax.Array:
        """Like `Exchange.checksum`, on the host, since each leaf would take long to compile."""
        arrays = to_arrays(tree)
        if not arrays:
            return jnp.int32(0)
        call = on_host(lambda *x: checksum_of_all(x))
        return self.gather(call, ShapeDtype((), jnp.int32), arrays, in_order(tree, divisions))

    def _prints(self, common: Common) -> jax.Array:
        """A checksum for each leaf of replicated state; see `Common.prints`."""
        arrays, divisions = to_arrays(common.tree), in_order(common.tree, common.divisions)
        counts = self.counts(divisions, len(arrays))

        def prints(*shards: np.ndarray) -> np.ndarray:
            rest = iter(shards)
            leaves = [[next(rest) for _ in range(count)] for count in counts]
            one = lambda x: checksum_on_host(*x) if len(x) == 1 else checksum_of_all(x)  # noqa: E731
            return np.array([one(x) for x in leaves], np.int32)

        shape = ShapeDtype((len(arrays),), jnp.int32)
        mine = self.gather(on_host(prints), shape, arrays, divisions)
        if self.local_axis is None:
            return mine
        least, most = (f(mine, self.local_axis) for f in (jax.lax.pmin, jax.lax.pmax))
        return jnp.where(least == most, most, most + 1 + self.ask_node())

    def counts(self, divisions: Sequence[Division], arrays: int) -> list[int]:
        """The number of different shards of each array that `gather` gives a function.

        Args:
            divisions: of the arrays; empty if none is divided.
            arrays: how many.
        """
        del divisions
        return [1] * arrays

    def gather(
        self,
        function: Callable[..., Any],
        shape: ShapeDtype,
        arrays: Sequence[Any],
        divisions: Sequence[Division],
    ) -> jax.Array:
        """Calls the host with each device's own arrays; returns one array.

        Args:
            function: takes the arrays; all shards of a divided one.
            shape: of the result.
            arrays: any arrays.
            divisions: of these; empty if none is divided.
        """
        del divisions  # here no array is divided
        return self.call(function, shape, *map(replicated, arrays))

    def send(
        self, function: Callable[..., Any], turn: Any, about: Sequence[Any], leaves: Leaves
    ) -> jax.Array:
        """Calls the host with the exchanged leaves; returns an int32.

        Args:
            function: takes `about` and the leaves, shard by shard; on a GPU these may be
                `OnDevice`.
            turn: the number of the local device that calls, if any of them can.
            about: small arrays.
            leaves: the leaves.
        """
        shape = ShapeDtype((), jnp.int32)
        as_sent = all(x.dtype in (jnp.float32, jnp.complex64) for x in leaves)
        to_host = len(about) if as_sent else None  # the host converts others
        call = partial(self.call, function, shape, *about, *map(replicated, leaves))
        return self.from_one(turn, partial(call, to_host=to_host), shape)

    def total(
        self, leaves: Leaves, head: jax.Array, step: jax.Array, common: Common | None = None
    ) -> Received:
        """Like `Exchange.total`, by one call to the host."""
        return self._result(self.sums.total, leaves, head, step, common)

    def mean(
        self, leaves: Leaves, head: jax.Array, step: jax.Array, common: Common | None = None
    ) -> Received:
        """Like `Exchange.mean`, by one call to the host."""
        return self._result(self.sums.mean, leaves, head, step, common)

    def mean_of_finite(
        self, leaves: Leaves, count: int, head: jax.Array, step: jax.Array, common: Common | None
    ) -> Received:
        """Like `Exchange.mean_of_finite`, by one call to the host."""
        count = len(self.whole_shards(range(count)))
        function = partial(self.sums.mean_of_finite, count=count)
        return self._result(function, leaves, head, step, common)

    def land(
        self, target: Leaves, params: Leaves, dtypes: Sequence[Any], head: jax.Array, step: Any
    ) -> Received:
        """Targets on which all nodes land alike, by one call to the host.

        Args:
            target: the leaves that all nodes move to, float32.
            params: the leaves that they move from.
            dtypes: of the updates.
            head: this node's header.
            step: completed updates.
        """
        sums, count = self.sums, len(self.layout.exchanged)
        dtypes = [dtypes[k] for k in self.whole_shards(range(len(target)))]

        def land(ticket: int, arrays: Sequence[np.ndarray], *args: Any, **by: Any) -> Any:
            pairs = zip(arrays[:count], arrays[count:], dtypes, strict=True)
            landed = (arrival(*each) for each in pairs)
            return sums.land(ticket, arrays[:count], landed, *args, **by)

        return self._result(land, (*target, *params), head, step, None)

    def whole_shards(self, leaves: Sequence[int]) -> list[int]:
        """The numbers of leaves, each once for each of its shards."""
        return list(leaves)

    def _result(
        self,
        function: Callable[..., Any],
        leaves: Leaves,
        head: jax.Array,
        step: jax.Array,
        common: Common | None,
    ) -> Received:
        """The result of a function of `Sums`."""
        owner = self.owner

        def call(ticket: Any, head: Any, device: Any, *arrays: Any) -> Any:
            about = {"owner": owner, "device": int(device)}
            found, *both = function(int(ticket), arrays, np.asarray(head), **about)
            return found, *map(tuple, both)

        about = step + 1, head, device_number()
        words, total, *lost = self.fetch(call, 2 if self.wire.narrow else 1, step, about, leaves)
        words = self.report(words, common)
        total, lost = self.behind(words, (total, lost[0] if lost else ()))
        return Received(total, lost, words)

    def behind(self, words: jax.Array, tree: PyTree) -> PyTree:
        """Float32 numbers that the host gave, once their headers were checked.

        JAX would drop the check if nothing used the headers, and zeros would pass for numbers.
        """
        if len(self.session.devices) == 1:
            return jax.lax.optimization_barrier((words, tree))[1]
        # Results of a call lie on one device; arrays computed from them, where they are needed.
        one = jnp.where(words[0, STATUS] < LEFT_OUT, jnp.float32(1), jnp.float32(0))
        return jax.tree.map(lambda x: x * one, tree)

    def fetch(
        self,
        function: Callable[..., Any],
        sets: int,
        turn: Any,
        about: Sequence[Any],
        leaves: Leaves = (),
    ) -> Any:
        """Calls the host for headers and numbers.

        Args:
            function: takes `about` and the leaves, shard by shard; returns the headers, and for
                each set a tuple of float32 shards like those exchanged. The first set may take the
                memory of the first leaves, which the function has read by then.
            sets: how many sets.
            turn: the number of the local device that calls, if any of them can.
            about: small arrays.
            leaves: one set of leaves, or several.

        On failure: the headers' status reports the error.
        """
        shapes = self._shapes(sets, [leaf.reals for leaf in self.layout.exchanged])
        count = len(shapes[1]) if leaves else 0
        places = {len(about) + k: 1 + k for k in range(count)}
        given = *about, *map(replicated, leaves)
        function = self._refusing(on_host(function), sets)
        call = partial(self.call, function, shapes, *given, places=places)
        return self.from_one(turn, call, shapes)

    def _refusing(self, function: Callable[..., Any], sets: int) -> Callable[..., Any]:
        """Wraps a function for `fetch`: if it raises, the headers' status is `FAILED`."""
        shapes = self._shapes(sets, [leaf.reals for leaf in self.layout.exchanged])

        def refused(*_: Any) -> Any:
            words, *rest = zeros(shapes)
            words[:, STATUS] = FAILED
            return words, *rest

        def call(*args: Any) -> Any:
            words, *found = function(*args)
            return words, *found[:sets]

        return guarded(call, self.session, refused)

    def _shapes(self, sets: int, numbers: Sequence[tuple[int, ...]]) -> Any:
        """Shapes of headers, and of this many sets of numbers."""
        heads = ShapeDtype((self.layout.nodes, HEADER), jnp.int32)
        each = tuple(ShapeDtype(shape, jnp.float32) for shape in numbers)
        return heads, *(each for _ in range(sets))

    def _raise_if(
        self, wrong: jax.Array, heads: jax.Array, common: Common | None, report: Callable[..., Any]
    ) -> jax.Array:
        def call() -> jax.Array:
            prints = jnp.zeros(0, jnp.int32)
            if common is not None and common.paths:
                prints = self._prints(common)
            # If one of several devices raised, the others would wait for it for ever.
            shape = ShapeDtype((), jnp.int32)
            return self.call(report, shape, heads, prints, everywhere=True)

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
    """The function, called with NumPy arrays, and with arrays left on a GPU."""
    return lambda *args: function(*(x if isinstance(x, OnDevice) else np.asarray(x) for x in args))
