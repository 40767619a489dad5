"""Host memory of a channel: rows to send, places for results, and the positions of leaves in them.

A chunk is rows ``[nodes, width]`` of a vector (`Layout`). Rows of a blockwise wire have scales
after the numbers; rows of the last chunk to send end in the header. So a leaf, which is one run of
the vector, is one run of memory in the simple case, and otherwise pieces of several rows.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

import numpy as np

from .._payload.layout import Layout, Segment
from .._payload.wire import Wire

Piece = tuple[int, slice, np.ndarray]
"""One copy: the number of an array, a slice of it, and the memory it is copied to."""


class Place:
    """Memory for the results of one exchange: the rows of each chunk, one after another."""

    def __init__(self, layout: Layout, wire: Wire):
        sizes = [layout.nodes * wire.encoded_width(width) for width in layout.widths]
        ends = itertools.accumulate(sizes, initial=0)
        self.whole = np.zeros(sum(sizes), wire.dtype)
        self.readers = 0  # readers of an exchange's results after its merge
        ranges = itertools.pairwise(ends)
        self.rows = [self.whole[a:b].reshape(layout.nodes, -1) for a, b in ranges]

    def hold(self) -> None:
        """Keeps the place for a reader, until `release`."""
        self.readers += 1

    def release(self) -> None:
        """Releases the place that `hold` kept."""
        self.readers -= 1


class Staging:
    """The positions of a layout's segments in rows to send, and in rows of results.

    Both take the size of what is sent; they are allocated once and reused for every exchange.
    """

    def __init__(self, layout: Layout, wire: Wire):
        self._layout, self._wire = layout, wire
        self.shapes = [(layout.nodes, wire.encoded_width(width)) for width in layout.widths]
        widths = [width for _, width in self.shapes]
        widths[-1] += wire.header_width
        self.rows = [np.zeros((layout.nodes, width), wire.dtype) for width in widths]
        self.places = [Place(layout, wire)]
        self._copies = [self._copies_of(segment) for segment in layout.segments]

    @property
    def nbytes(self) -> int:
        """Bytes of memory that it holds."""
        return sum(x.nbytes for x in (*self.rows, *(place.whole for place in self.places)))

    def add_place(self) -> Place:
        """Adds a place for results and returns it."""
        self.places.append(Place(self._layout, self._wire))
        return self.places[-1]

    def chunks_of(self, segment: Segment) -> range:
        """The chunks that contain parts of a segment; for an empty tree its only chunk."""
        full = self._layout.widths[0] * self._layout.nodes
        return range(segment.begin // full, max(-(-segment.end // full), 1))

    def write_chunk(self, k: int, rows: np.ndarray) -> Iterator[int]:
        """Copies encoded rows ``[nodes, w]`` to those of chunk k; yields k once they are there."""
        np.copyto(self.rows[k][:, : rows.shape[1]], rows)
        yield k

    def write_segment(self, s: int, arrays: Sequence[np.ndarray]) -> Iterator[int]:
        """Copies segment s, with leaves from `Wire.encode_leaf`, to the rows to send.

        Yields each chunk once the segment's part of it is there: if a leaf is larger than a chunk,
        the first can be on the wire while the rest is still being copied.
        """
        flat = [array.reshape(-1) for array in arrays]
        for k, copies in self._copies[s].items():
            for number, source, target in copies:
                np.copyto(target, flat[number][source].view(target.dtype))
            yield k

    def read(self, s: int, place: Place | None) -> tuple[np.ndarray, ...]:
        """The parts of segment s in a place; zeros without one."""
        segment, parts = self._layout.segments[s], self._wire.parts
        if place is not None and len(parts) == 1:
            return (place.whole[segment.begin : segment.end],)
        size = segment.end - segment.begin
        found = tuple(np.zeros(size // each, dtype) for dtype, each in parts)
        if place is not None:  # scales are at the ends of rows
            for _, part, target, source in self._pieces(place.rows, segment.begin, segment.end):
                np.copyto(found[part][target].view(source.dtype), source)
        return found

    def _copies_of(self, segment: Segment) -> dict[int, list[Piece]]:
        """The copies for each chunk of a segment: from its arrays to the rows."""
        parts, ends = len(self._wire.parts), self._layout.offsets
        copies: dict[int, list[Piece]] = {k: [] for k in self.chunks_of(segment)}
        for leaf in range(segment.first, segment.last):
            for k, part, source, target in self._pieces(self.rows, ends[leaf], ends[leaf + 1]):
                copies[k].append(((leaf - segment.first) * parts + part, source, target))
        return copies

    def _pieces(
        self, buffers: Sequence[np.ndarray], low: int, high: int
    ) -> Iterator[tuple[int, int, slice, np.ndarray]]:
        """The positions of elements `low` to `high` of the vector in the rows of chunks.

        A row holds its parts (`Wire.parts`) one after another. Yields the chunk, the part, the
        slice of that part, and the memory.
        """
        nodes, widths = self._layout.nodes, self._layout.widths
        full, unit = widths[0] * nodes, self._wire.dtype.itemsize
        parts = [(each, dtype.itemsize // unit) for dtype, each in self._wire.parts]
        for k in range(low // full, -(-high // full)):
            rows, width, start = buffers[k], widths[k], k * full
            here, there = max(low, start), min(high, start + width * nodes)
            if rows.shape[1] == width and len(parts) == 1:  # one run of memory
                memory = rows.reshape(-1)[here - start : there - start]
                yield k, 0, slice(here - low, there - low), memory
                continue
            for row in range((here - start) // width, -(-(there - start) // width)):
                at = start + row * width
                begin, end, first = max(here, at), min(there, at + width), 0
                for part, (each, size) in enumerate(parts):
                    source = slice((begin - low) // each, (end - low) // each)
                    ends = (first + size * ((x - at) // each) for x in (begin, end))
                    yield k, part, source, rows[row, slice(*ends)]
                    first += size * (width // each)
