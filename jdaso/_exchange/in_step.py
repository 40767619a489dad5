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

from .._nodes.compare import crossed
from .._payload.wire import Wire
from .._payload.words import STATUS, WELL
from .._session import Session
from .._types import ShapeDtype
from .order import after
from .received import Reduced
from .virtual import _reduce


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
        session.control.detector.enter(int(step))
        return np.zeros((), np.int32)

    def leave(_: Any, heads: Any, step: Any) -> np.ndarray:
        seconds = session.control.detector.leave()
        if crossed(np.asarray(heads)) is not None:
            session.report(np.asarray(heads), ())
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
    left = callback(leave, shape, rows[-1][0, 0], heads, step)
    return after(left, rows), lost, heads.at[:, STATUS].set(WELL)
