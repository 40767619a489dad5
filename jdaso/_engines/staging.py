"""Host memory of a channel: rows to send, and places for numbers and for results.

A chunk is rows ``[nodes, width]`` of a vector (`Layout`). Rows of a blockwise wire have scales
after the numbers; rows of the last chunk to send end in the header.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np

from .._jax.ffi import aligned
from .._jax.ffi.copying import copy_all
from .._jax.ffi.on_device import OnDevice
from .._payload.layout import Layout
from .._payload.wire import WIRES, Wire
from . import recycled

Memory = Callable[[int, np.dtype], np.ndarray]
"""Returns memory for this many numbers of a dtype; zeros, for `Places`."""


class StagingMemory:
    """Memory for the numbers of one exchange in a wire's format: the rows of all chunks."""

    def __init__(self, layout: Layout, wire: Wire, memory: Memory = aligned.zeros):
        sizes = [layout.nodes * wire.encoded_width(width) for width in layout.widths]
        ends = list(itertools.accumulate(sizes, initial=0))
        self.whole = memory(sum(sizes), wire.dtype)
        self.readers = 0  # that still need the contents
        self.ranges = list(itertools.pairwise(ends))
        self.rows = [self.whole[a:b].reshape(layout.nodes, -1) for a, b in self.ranges]

    def hold(self) -> None:
        """Keeps the place for a reader, until `release`."""
        self.readers += 1

    def release(self) -> None:
        """Releases the place that `hold` kept."""
        self.readers -= 1


class Places:
    """Places of one kind, reused from exchange to exchange."""

    def __init__(self, layout: Layout, wire: Wire, memory: Memory = aligned.zeros):
        self._make = lambda: StagingMemory(layout, wire, memory)
        self.all = [self._make()]

    def free(self, taken: Sequence[StagingMemory] = ()) -> StagingMemory:
        """A place that has no readers and is not taken; a new one if there is none."""
        for place in self.all:
            if not place.readers and place not in taken:
                return place
        self.all.append(self._make())
        return self.all[-1]


class RowsToSend:
    """The rows of one exchange to send, made when they are first needed.

    Those of the last chunk end in the header.
    """

    def __init__(self, shapes: Sequence[tuple[int, int]], wire: Wire):
        self._shapes, self._wire = shapes, wire
        self._made: dict[int, np.ndarray] = {}

    def __call__(self, k: int) -> np.ndarray:
        """The rows of chunk k."""
        if k not in self._made:
            self._made[k] = recycled.empty(self._shapes[k], self._wire.dtype)
        return self._made[k]

    def header(self) -> np.ndarray:
        """A copy of the header, int32."""
        return np.array(self(len(self._shapes) - 1)[0, -self._wire.header_width :]).view(np.int32)

    def set_header(self, words: np.ndarray) -> None:
        """Takes a header, int32."""
        rows = self(len(self._shapes) - 1)
        rows[:, -self._wire.header_width :] = words.view(self._wire.dtype)


class Staging:
    """Makes the memory of a channel's exchanges, each of which drops its own at its end.

    Attributes:
        shapes: of each chunk's encoded rows.
        sizes: bytes of the rows to send.
        rows: makes the rows of an exchange.
        numbers: makes a place for the numbers of an exchange, float32.
        sums: makes a place for the encoded sums.
    """

    def __init__(self, layout: Layout, wire: Wire):
        self.shapes = [(layout.nodes, wire.encoded_width(width)) for width in layout.widths]
        widths = [width for _, width in self.shapes]
        widths[-1] += wire.header_width
        shapes = [(layout.nodes, width) for width in widths]
        self.sizes = [nodes * width * wire.dtype.itemsize for nodes, width in shapes]
        self.rows = partial(RowsToSend, shapes, wire)
        self.numbers = partial(StagingMemory, layout, WIRES["float32"], recycled.empty)
        self.sums = partial(StagingMemory, layout, wire, recycled.empty)


class Leaves:
    """The leaves of a layout in a place of float32 numbers, one after another."""

    def __init__(self, layout: Layout):
        pairs = zip(layout.exchanged, layout.offsets, strict=False)
        self._spans = [(offset, offset + leaf.size, leaf.reals) for leaf, offset in pairs]

    def write(self, arrays: Sequence[np.ndarray | OnDevice], place: StagingMemory) -> Iterator[int]:
        """Copies arrays of any float or complex dtype; yields each chunk once all of it is there.

        So the first chunk can be on the wire while the rest is still being copied.
        """
        flat = [_reals(array) for array in arrays]
        first = 0
        for k, (low, high) in enumerate(place.ranges):
            pairs = []
            for number in range(first, len(flat)):
                begin, end, _ = self._spans[number]
                if begin >= high:
                    break
                a, b = max(begin, low), min(end, high)
                if a < b:
                    source = flat[number][a - begin : b - begin]
                    pairs.append((place.whole[a:b], source))
                first = number if end > high else number + 1
            copy_all(pairs)
            yield k

    def clear_gaps(self, whole: np.ndarray) -> None:
        """Puts 0 between the leaves and after them: a block that is sent must be finite there."""
        for (_, begin, _), (end, _, _) in itertools.pairwise([(0, 0, ()), *self._spans]):
            whole[begin:end] = 0
        whole[max([end for _, end, _ in self._spans], default=0) :] = 0

    def read(self, whole: np.ndarray) -> list[np.ndarray]:
        """Views of the leaves in a vector, in the shapes that `trees.to_leaves` gives."""
        return [whole[begin:end].reshape(reals) for begin, end, reals in self._spans]


def _reals(array: np.ndarray | OnDevice) -> Any:
    """A flat view of an array's numbers; a complex one becomes two."""
    if isinstance(array, OnDevice):
        return array.reals()
    flat = np.ascontiguousarray(array).reshape(-1)
    return flat.view(np.real(flat).dtype) if np.iscomplexobj(flat) else flat
