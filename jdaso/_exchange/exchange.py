"""The JAX faces of an exchange: start, wait, and the blocking mean; all of them traceable.

Callbacks hand what is sent to a channel's thread on the host. Where the compiled step can reduce by
itself (`_inline`) it does: means by mpi4jax's operations in a one-device program, and all between
virtual nodes, whose exchanges in flight are carried in the state.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Sequence
from functools import cached_property, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import io_callback

from .._compat import host_call
from .._engines.channel import Channel
from .._payload.chunks import joined, pack, unpack
from .._payload.explicit import replicated
from .._payload.header import differ, weights_are_wrong
from .._payload.layout import Layout, chunk_bytes_of, describe, layout_of
from .._payload.trees import from_leaves, to_leaves
from .._payload.wire import Wire, wire_of
from .._payload.words import BAD_LEAF, FAILED, HEADER, STATUS, STEP, signed
from .._session import Session
from .._types import Chunks, Leaves, LocalAxis, PyTree, ShapeDtype
from .callbacks import _spread, _start, _start_parted, _to_flight, _zeros, guarded
from .in_step import reduce_by_mpi4jax
from .order import after
from .received import Received
from .replicated import Common
from .virtual import reduce_virtual
from .within_node import device_number

CHUNK_BYTES = 16 * 2**20
"""Most float32 bytes in a chunk: small enough to overlap packing, sending and summing.

And below 32 MiB: where `keep_freed_memory` is not in force, glibc gives larger blocks back to the
kernel each time.
"""


@dataclasses.dataclass(frozen=True)
class Exchange:
    """Exchanges of one tree.

    Attributes:
        session: the nodes.
        layout: how the tree is packed.
        wire: the format.
        local_axis: axis of the local devices that the caller is inside of, or None.
        name: tells optimizers of equal shapes apart.
        owner: the optimizer, whose exchange may be started again while it is in flight; -1 for the
            host itself, which may too; 0 for a mean in a user's step, which may not.
        raise_nonfinite: whether numbers that are not finite are an error.
    """

    session: Session
    layout: Layout
    wire: Wire
    local_axis: LocalAxis = None
    name: str = ""
    owner: int = 0
    raise_nonfinite: bool = True

    @classmethod
    def of(
        cls,
        tree: PyTree,
        session: Session,
        *,
        wire: str | Wire = "float32",
        local_axis: LocalAxis = None,
        name: str = "",
        owner: int = 0,
        chunk_bytes: int = CHUNK_BYTES,
        raise_nonfinite: bool = True,
    ) -> Exchange:
        """The exchange for trees like `tree`."""
        wire = wire_of(wire)
        nodes, sizes = session.num_nodes, (x.size for x in describe(tree) if x.exchanged)
        each = chunk_bytes_of(4 * sum(sizes), nodes, chunk_bytes)
        layout = layout_of(tree, nodes, each, wire.block)
        return cls(session, layout, wire, local_axis, name, owner, raise_nonfinite)

    def pack(self, tree: PyTree) -> Chunks:
        """The tree's numbers as float32 chunks."""
        return pack(self.layout, to_leaves(tree))

    def unpack(self, tree: PyTree, chunks: Chunks) -> PyTree:
        """`tree` with the numbers of the chunks, each leaf in its own dtype."""
        return from_leaves(tree, unpack(self.layout, chunks))

    @cached_property
    def channel(self) -> Channel:
        """The host's end; opened by all nodes together, when the step is first traced."""
        return self.session.channel(self.layout, self.wire, self.name)

    @property
    def _call(self) -> Callable[..., Any]:
        """How the host is called.

        `host_call` where an optimizer's step profits: what it returns is in that step's state. A
        user may drop what a mean returns, and mpi4jax operations are not dropped with what guards
        them; there it is JAX's own, which is never dropped.
        """
        return io_callback if self.owner <= 0 or self._in_step else host_call

    @property
    def _in_step(self) -> bool:
        """Whether means are mpi4jax operations of the step itself."""
        return self.session.in_step and self.local_axis is None

    @property
    def _device(self) -> jax.Array:
        """The number of this local device, for the timeline and for `Channel`."""
        return device_number()

    @property
    def _joins(self) -> bool:
        """Whether a segment leaves the device as one vector, and not leaf by leaf.

        Each array that a callback takes is a copy of its own from an accelerator: some ten
        microseconds, however small. On a CPU nothing is copied, and joining would be a copy.
        """
        return self.session.devices[0].platform != "cpu"

    def empty_flight(self) -> PyTree:
        """What the state carries for an exchange in flight: nothing, but for virtual nodes."""
        if not self.session.simulated:
            return ()
        rows = [
            jnp.zeros((self.layout.nodes, self.wire.encoded_width(w)), self.wire.dtype)
            for w in self.layout.widths
        ]
        lost = [jnp.zeros(w if self.wire.narrow else 0, jnp.float32) for w in self.layout.widths]
        return _to_flight(rows, lost, jnp.zeros((self.layout.nodes, HEADER), jnp.int32))

    def _from_flight(self, flight: PyTree) -> PyTree:
        """What `_to_flight` joined."""
        rows, lost, heads = flight
        widths = [self.wire.encoded_width(width) for width in self.layout.widths]
        ends = list(itertools.accumulate(self.layout.nodes * width for width in widths))
        rows = [x.reshape(self.layout.nodes, -1) for x in jnp.split(rows, ends[:-1])]
        ends = list(itertools.accumulate(self.layout.widths))
        lost = jnp.split(lost, ends[:-1]) if self.wire.narrow else [lost for _ in widths]
        return tuple(rows), tuple(lost), heads

    def start(
        self, leaves: Leaves, head: jax.Array, step: jax.Array, turn: jax.Array
    ) -> tuple[jax.Array, PyTree, Leaves]:
        """Starts a late exchange.

        Args:
            leaves: what this node sends, float32.
            head: its header.
            step: completed updates.
            turn: which local device sends first; the segments go round from there.

        Returns:
            The ticket (step + 1), what is in flight, and what was sent as the wire rounded it.
        """
        if self.session.simulated:
            encoded = [self.wire.encode(chunk) for chunk in pack(self.layout, leaves)]
            sent = unpack(self.layout, tuple(self.wire.decode(chunk) for chunk in encoded))
            flight = _to_flight(*reduce_virtual(self.session, self.wire, encoded, head))
            return step + 1, flight, sent
        encoded = [self.wire.encode_leaf(leaf) for leaf in leaves]
        sent = tuple(
            self.wire.decode_leaf(parts, leaf.shape)
            for parts, leaf in zip(encoded, leaves, strict=True)
        )
        calls = []
        for s, segment in enumerate(self.layout.segments):
            parts = tuple(itertools.chain(*encoded[segment.first : segment.last]))
            start = partial(self.channel.start_segment, s=s)
            if self._joins and parts:
                start = partial(_start_parted, start, sizes=tuple(x.size for x in parts))
                parts = joined(parts, len(self.wire.parts))
            calls.append((start, parts))
        return self._hand_over(calls, head, step, turn), (), sent

    def _hand_over(
        self,
        calls: Sequence[tuple[Callable[..., int], tuple[jax.Array, ...]]],
        head: jax.Array,
        step: jax.Array,
        turn: jax.Array,
    ) -> jax.Array:
        """Calls the channel with arrays, once each, the local devices in turn; gives the ticket."""
        shape, tokens = ShapeDtype((), jnp.int32), []
        for k, (start, arrays) in enumerate(calls):
            call = partial(_start, start, owner=self.owner)
            # A start that is refused keeps its ticket, so that the wait for it says why.
            call = guarded(call, self.session, lambda ticket, *_: np.array(ticket))
            call = partial(self._call, call, shape, step + 1, head, self._device, *arrays)
            tokens.append(self._from_one(turn + k, call, shape))
        # The ticket comes from the callbacks, so that no later wait can be scheduled before them.
        return jnp.stack(tokens).max()

    def wait(
        self, ticket: jax.Array, flight: PyTree, turn: jax.Array, common: Common | None = None
    ) -> Received:
        """Waits for a late exchange. Raises on every node what the headers say.

        Args:
            ticket: what `start` gave.
            flight: the same.
            turn: which local device asks the host first.
            common: of what the headers hold the checksum.
        """
        wire, layout = self.wire, self.layout
        if self.session.simulated:
            rows, lost, heads = self._from_flight(flight)
            found = self._received(rows, lost, heads, common)
            return dataclasses.replace(found, total=unpack(layout, found.total))
        heads = self._wait_for_heads(ticket, turn, common)
        leaves: list[jax.Array] = []
        for s, segment in enumerate(layout.segments):
            size = segment.end - segment.begin
            shapes = tuple(ShapeDtype((size // each,), dtype) for dtype, each in wire.parts)
            fetch = partial(self.channel.fetch_segment, s=s)
            vectors = self._fetch(fetch, shapes, ticket, heads, turn + s)
            for leaf in range(segment.first, segment.last):
                low, high = (x - segment.begin for x in layout.offsets[leaf : leaf + 2])
                parts = [
                    jax.lax.slice(vector, (low // each,), (high // each,))
                    for vector, (_, each) in zip(vectors, wire.parts, strict=True)
                ]
                leaves.append(wire.decode_leaf(parts, layout.exchanged[leaf].reals))
        residual = ()
        if wire.narrow:
            shapes = tuple(ShapeDtype((width,), jnp.float32) for width in layout.widths)
            shapes = (*shapes, ShapeDtype((), jnp.int32))
            # With the node's number, for the reason of `ask_node`.
            residual = self._fetch(self.channel.fetch_residual, shapes, ticket, heads, turn)
        return Received(tuple(leaves), residual, heads)

    def add_residual(self, leaves: Leaves, received: Received, factor: jax.Array) -> Leaves:
        """`leaves` with `factor` times what the wire took from the part that this node summed."""
        layout = self.layout
        if self.session.simulated:
            lost = unpack(layout, received.residual)
            return tuple(x + factor * y for x, y in zip(leaves, lost, strict=True))
        flat, shapes = [replicated(x).reshape(-1) for x in leaves], [x.shape for x in leaves]
        *rows, node = received.residual
        low = 0
        for row in rows:
            high = low + row.size * layout.nodes
            chunk = jnp.zeros(high - low, row.dtype)
            chunk = jax.lax.dynamic_update_slice(chunk, factor * row, (node * row.size,))
            for number, offset in enumerate(layout.offsets[:-1]):
                begin, end = max(low, offset), min(high, offset + flat[number].size)
                if begin < end:
                    piece = jax.lax.slice(chunk, (begin - low,), (end - low,))
                    place = slice(begin - offset, end - offset)
                    flat[number] = flat[number].at[place].add(piece)
            low = high
        return tuple(x.reshape(shape) for x, shape in zip(flat, shapes, strict=True))

    def _fetch(
        self, fetch: Callable[..., Any], shapes: Any, ticket: jax.Array, heads: jax.Array, turn: Any
    ) -> Any:
        """What the channel gives, on one local device, and from it on all."""
        nothing = partial(_zeros, shapes)
        # The headers are an argument so that XLA cannot fetch before it has waited.
        call = guarded(lambda t, _: fetch(int(t)), self.session, nothing)
        return self._from_one(turn, partial(self._call, call, shapes, ticket, heads[0, 0]), shapes)

    def _wait_for_heads(
        self, ticket: jax.Array, turn: jax.Array, common: Common | None
    ) -> jax.Array:
        channel, nodes = self.channel, self.layout.nodes
        refused = np.zeros((self.layout.nodes, HEADER), np.int32)
        refused[:, STATUS] = FAILED
        ask = lambda t, d: channel.wait(int(t), int(d), owner=self.owner)  # noqa: E731
        wait = guarded(ask, self.session, refused)
        shape = ShapeDtype((nodes, HEADER), jnp.int32)
        call = partial(self._call, wait, shape, ticket, self._device)
        heads = self._from_one(turn, call, shape)
        return self._report(heads, common)

    def total(
        self, chunks: Chunks, head: jax.Array, step: jax.Array, common: Common | None = None
    ) -> Received:
        """Sum over nodes; the step waits for it. `common` is what the header sums up."""
        if self.owner <= 0 and jax.process_count() > 1:  # that of JAX does not look at devices
            head += host_call(lambda: np.int32(0), ShapeDtype((), jnp.int32))
        if self.session.simulated or self._in_step:
            encoded = [self.wire.encode(chunk) for chunk in chunks]
            if self.session.simulated:
                reduced = reduce_virtual(self.session, self.wire, encoded, head)
                return self._received(*reduced, common)
            head = head.at[STATUS].set(signed(self.owner))
            call = self._call
            reduced = reduce_by_mpi4jax(self.session, self.wire, encoded, head, step, call)
            return self._received(*reduced, common)
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
        return self._received(tuple(rows), tuple(lost), heads, reported=True)

    def _received(
        self,
        rows: Chunks,
        lost: Chunks,
        heads: jax.Array,
        common: Common | None = None,
        *,
        reported: bool = False,
    ) -> Received:
        if not reported:
            checked = self._report(heads, common)
            rows = after(jnp.max(checked - heads), rows)
            heads = checked
        total = tuple(self.wire.decode(row) for row in rows)
        if not self.wire.narrow:
            return Received(total, (), heads)
        node = self.node
        mine = jnp.arange(self.layout.nodes)[:, None] == node
        parts = tuple(jnp.where(mine, part, jnp.zeros_like(part)) for part in lost)
        return Received(total, parts, heads)

    @property
    def node(self) -> Any:
        """This node's number; between virtual nodes a traced one."""
        return (
            jax.lax.axis_index(Session.node_axis) if self.session.simulated else self.session.node
        )

    def ask_node(self) -> jax.Array:
        """The same, from the host while the step runs.

        Where it decides between numbers it must not be a constant of the program. XLA would drop
        what is not taken, fuse the rest otherwise than on other nodes, and so round otherwise:
        what is to be the same on all nodes would part by a bit.
        """
        if self.session.simulated:
            return self.node
        node = np.int32(self.session.node)
        return self._call(lambda: node, ShapeDtype((), jnp.int32))

    def _report(self, heads: jax.Array, common: Common | None) -> jax.Array:
        """Every device of every node raises together if the headers say that something is wrong.

        Returns the headers, so that nothing that follows can come before.
        """
        wrong = (
            jnp.any(heads[:, STATUS] == FAILED) | differ(heads[:, STEP]) | weights_are_wrong(heads)
        )
        if common is not None:
            wrong |= common.is_wrong(heads)
        if self.raise_nonfinite:
            wrong |= jnp.any(heads[:, BAD_LEAF] != 0)
        paths = tuple(leaf.path for leaf in self.layout.exchanged)
        common_paths = () if common is None else common.paths

        def report(heads: Any, prints: Any) -> np.ndarray:
            words = np.array(heads)
            if not self.raise_nonfinite:
                words[:, BAD_LEAF] = 0
            self.session.report(words, paths, common_paths, np.asarray(prints))
            return np.zeros((), np.int32)

        shape, callback = ShapeDtype((), jnp.int32), self._call
        if self.session.simulated:
            # The headers are the same on all virtual nodes; said so, vmap leaves cond a cond. It
            # takes no effects there, so this callback is kept by the use of its result; and XLA
            # may call a pure one where the branch is not taken.
            wrong = jax.lax.pmax(wrong.astype(jnp.int32), Session.node_axis) > 0
            heads = jax.lax.pmax(heads, Session.node_axis)
            callback = partial(jax.pure_callback, vmap_method="sequential")

        def call() -> jax.Array:
            prints = jnp.zeros(0, jnp.int32)
            if common is not None:
                prints = common.prints(self.ask_node(), self.local_axis)
            if self.session.simulated:
                prints = jax.lax.all_gather(prints, Session.node_axis)
            return callback(report, shape, heads, prints)

        return heads + jax.lax.cond(wrong, call, lambda: jnp.int32(0))

    def _from_one(self, device: Any, call: Callable[[], PyTree], shapes: PyTree) -> PyTree:
        """Calls on one local device and hands the result to all; plainly without a local axis."""
        if self.local_axis is None:
            return call()
        devices = jax.lax.axis_size(self.local_axis)
        mine = jax.lax.axis_index(self.local_axis) == device % devices
        none = lambda: jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), shapes)  # noqa: E731
        return jax.tree.map(partial(_spread, self.local_axis), jax.lax.cond(mine, call, none))
