"""Common points of narrow wires and outer optimizers, for runs that no saved one fits."""

from __future__ import annotations

from collections.abc import Mapping

import jax
import numpy as np

from .._engines.saved import Saved
from .._jax.types import PyTree
from .._payload.layout import describe
from .._payload.spans import Span
from .._session import Session
from ._files import CheckpointError
from ._flights import flights_of, held_by


def require_common_points(session: Session, nodes: int) -> None:
    """Raises if optimizers here need a common point, which the run of a single node has not saved.

    Args:
        session: the nodes.
        nodes: the number of nodes of the run that saved.

    Raises:
        CheckpointError: see above.
    """
    several = session.num_nodes > 1 and not session.simulated
    completions = session.optimizers.completions.values()
    if nodes == 1 and several and any(x.anchored() for x in completions):
        raise CheckpointError(
            "The checkpoint was saved by one node, which has no point common to all nodes, and "
            'narrow wires and outer optimizers need one. Use merge="corrected" or "paper" with '
            'wire="float32", or a single node.'
        )


def begin_anew(session: Session, state: PyTree, params: PyTree) -> None:
    """Makes parameters that are the same on all nodes the common point of their exchanges.

    Error feedback and outer optimizers begin with zeros. All ranks call this together.

    Args:
        session: the nodes.
        state: with states of `daso`, none of which names an exchange in flight.
        params: the parameters, as this rank holds them.
    """
    if session.num_nodes == 1 or session.simulated:
        return
    paths = (leaf.path for leaf in describe(params))
    leaves = {path: _numbers(x) for path, x in zip(paths, jax.tree.leaves(params), strict=True)}
    for flight in flights_of(state):
        for _, held in held_by(session, flight.optimizer, flight.fragment):
            if held.versions.anchored:
                anchor = [_cut(span, leaves) for span in held.spans]
                about = flight.ticket, flight.optimizer, flight.model
                held.versions.adopt(*about, Saved({"anchor": anchor}, {}), in_flight=False)


def _numbers(leaf: jax.Array) -> np.ndarray:
    """Returns a leaf as float32 numbers; complex ones are two each."""
    array = np.asarray(leaf)
    if np.iscomplexobj(array):
        return np.ascontiguousarray(array, np.complex64).view(np.float32)
    return array.astype(np.float32)


def _cut(span: Span, leaves: Mapping[str, np.ndarray]) -> np.ndarray:
    """Returns the numbers of a span."""
    whole = leaves[span.path].reshape(span.whole)
    places = (zip(box.begin, box.shape, strict=True) for box in span.boxes)
    boxes = [whole[tuple(slice(a, a + n) for a, n in place)].reshape(-1) for place in places]
    return np.concatenate(boxes) if boxes else np.zeros(0, np.float32)
