"""Sums over nodes inside the compiled step, by collectives that XLA sees.

Two kinds of nodes allow it: virtual ones, which are an axis of ``vmap``, and real ones that drive
one device each, in means that the step waits for (mpi4jax's operations).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ._session import Session
from ._types import Chunks, ShapeDtype
from ._wire import Wire, attach, detach, sum_rows

Reduced = tuple[Chunks, Chunks, jax.Array]
"""Encoded sums ``[nodes, w]`` of each chunk, what encoding took from this node's row, headers."""


def reduce_virtual(
    session: Session, wire: Wire, chunks: Sequence[jax.Array], head: jax.Array
) -> Reduced:
    """Sums encoded chunks over the axis of the virtual nodes."""
    axis = session.node_axis

    def each(x: jax.Array) -> jax.Array:
        """Tells `vmap` to hold one x a node, also where it knows all to be the same."""
        return jnp.where(jax.lax.axis_index(axis) >= 0, x, x)

    def all_to_all(rows: jax.Array) -> jax.Array:
        return jax.lax.all_to_all(each(rows), axis, split_axis=0, concat_axis=0, tiled=True)

    return _reduce(wire, chunks, head, all_to_all, lambda row: jax.lax.all_gather(each(row), axis))


def reduce_by_mpi4jax(
    session: Session,
    wire: Wire,
    chunks: Sequence[jax.Array],
    head: jax.Array,
    step: jax.Array,
    callback: Callable[..., Any],
) -> Reduced:
    """Sums encoded chunks by mpi4jax's operations.

    They have no limit, so `callback` (an `io_callback`) brings word to the session before and
    after them.
    """
    import mpi4jax

    shape, comm = ShapeDtype((), jnp.int32), session.step_comm
    size = sum(chunk.nbytes for chunk in chunks)
    sent = size * 2 * (session.num_nodes - 1)

    def enter(step: Any) -> np.ndarray:
        if session.closed:  # one device: nobody waits for it in a collective, it may raise
            raise session.control.closed_error()
        session.control.lookout.enter(int(step))
        return np.zeros((), np.int32)

    def leave(_: Any, step: Any) -> np.ndarray:
        seconds = session.control.lookout.leave()
        step, begin = int(step), time.perf_counter() - seconds
        session.timeline.record("mean", step, begin, lane="exchange", size_bytes=size)
        session.timeline.stand("mean", step, begin, device=None)
        session.timeline.add(
            blocking_means=1, bytes_sent=sent // session.num_nodes, blocking_seconds=seconds
        )
        return np.zeros((), np.int32)

    entered = callback(enter, shape, step)
    first = after(entered, tuple(chunks[:1]))
    rows, lost, heads = _reduce(
        wire,
        [*first, *chunks[1:]],
        head + entered,
        partial(mpi4jax.alltoall, comm=comm),
        partial(mpi4jax.allgather, comm=comm),
    )
    return after(callback(leave, shape, rows[-1][0, 0], step), rows), lost, heads


def _reduce(
    wire: Wire,
    chunks: Sequence[jax.Array],
    head: jax.Array,
    all_to_all: Callable[[jax.Array], jax.Array],
    all_gather: Callable[[jax.Array], jax.Array],
) -> Reduced:
    """What `_engine._reduce` does on the host; the last chunk carries the header."""
    rows, lost, heads = [], [], head
    for k, chunk in enumerate(chunks):
        last = k == len(chunks) - 1
        received = all_to_all(attach(wire, chunk, head) if last else chunk)
        if last:
            received, heads = detach(wire, received)
        total = sum_rows(wire, received)
        encoded = wire.encode(total)
        lost.append(total - wire.decode(encoded) if wire.narrow else total[:0])
        rows.append(all_gather(encoded))
    return tuple(rows), tuple(lost), heads


def after(zero: jax.Array, rows: Chunks) -> Chunks:
    """Rows that nobody can have before that 0: what gave it is kept where the rows are used."""
    last = rows[-1]
    first = jnp.where(zero == 0, last[0, 0], jnp.zeros((), last.dtype))
    return (*rows[:-1], last.at[0, 0].set(first))
