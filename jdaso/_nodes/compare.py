"""Finds nodes that have diverged: the differing leaves, and the value that most nodes hold."""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Mapping

import numpy as np

from .._payload.words import (
    BAD_LEAF,
    CHECKSUM,
    LEFT_OUT,
    LIFT,
    LIFTED,
    STEP,
    WEIGHT,
    senders,
)
from .control import Control

log = logging.getLogger("jdaso")

_COMPARE = "compare what should be the same on all nodes"

_DRIVES = ("sync_every", "phase.delay", "local_every")
"""Leaves that decide when a node exchanges: if they differ, so do the counts of updates."""


class Comparison:
    """Compares the nodes leaf by leaf; they communicate only if their headers differ.

    A step compares them while the program may already be in a call of its own, on one node in this
    order, on another in that: the comparison has its own communicator. All nodes make it together.

    Args:
        control: the nodes.
        virtual: whether the nodes share this process.
    """

    def __init__(self, control: Control, *, virtual: bool):
        self._control, self._virtual = control, virtual
        self._lock = threading.Lock()
        self._comm = None if virtual or control.alone else control.duplicate().comm
        # The headers that were compared, and the checksums of the nodes.
        self._last: tuple[object, dict[int, np.ndarray] | Exception] | None = None

    def complaint(
        self,
        heads: np.ndarray,
        leaves: tuple[str, ...],
        common: tuple[str, ...],
        prints: np.ndarray | None,
    ) -> str | None:
        """The error that the headers of an exchange show, the same on all nodes; None if fine.

        Args:
            heads: headers of all nodes.
            leaves: paths of the leaves that were exchanged.
            common: paths of the leaves that must be replicated on all nodes.
            prints: checksums of these leaves, or None to skip them; with virtual nodes those of
                all nodes.
        """
        text, step = complaint(heads, leaves), int(heads[0, STEP])
        if prints is None:
            return text
        if text is not None:
            if len(set(heads[:, STEP].tolist())) == 1:
                return text
            # A leaf that decides when a node exchanges may have changed in that node's memory.
            odd = self._who_differs(heads, common, prints)
            return drifted(step, odd) if any(name in odd for name in _DRIVES) else text
        words = heads[:, [CHECKSUM]]
        if (words == words[0]).all():
            return None
        odd = self._who_differs(heads, common, prints)
        if not odd:  # the difference is no longer there
            said = {node: word for node, word in enumerate(words) if word != LEFT_OUT}
            right = said[majority(said)]
            others = [str(node) for node, word in said.items() if word != right]
            odd = f"nodes {', '.join(others)}"
        return drifted(step, odd)

    def _everyones(self, prints: np.ndarray) -> dict[int, np.ndarray]:
        """The checksums of each living node."""
        control = self._control
        if self._comm is None or control.survives:  # a failed node is not in the communicator
            everyone = control.allgather(_COMPARE, prints)
        else:
            prints = np.ascontiguousarray(prints)
            everyone = np.empty((len(control.ranks), *prints.shape), prints.dtype)
            request = self._comm.Iallgather(prints, everyone)
            control.wait(request, _COMPARE, prints, everyone)
        return {node: everyone[node] for node in control.living}

    def _who_differs(self, heads: np.ndarray, common: tuple[str, ...], prints: np.ndarray) -> str:
        """Names the nodes whose bits differ from the majority's, and the leaves concerned."""
        if self._virtual:
            return odd_leaves(dict(enumerate(prints)), common)
        with self._lock:  # each local device calls; nodes communicate once, even on failure
            asked = common, heads.tobytes()
            if self._last is None or self._last[0] != asked:
                try:
                    self._last = asked, self._everyones(prints)
                except Exception as error:
                    self._last = asked, error
            found = self._last[1]
        if isinstance(found, Exception):
            raise found
        return odd_leaves(found, common)


def majority(prints: Mapping[int, np.ndarray]) -> int:
    """The first node of the largest group of nodes with the same checksums."""
    rows = {node: row.tobytes() for node, row in prints.items()}
    counts = Counter(rows.values())
    return max(rows, key=lambda node: (counts[rows[node]], -node))


def odd_leaves(prints: Mapping[int, np.ndarray], paths: tuple[str, ...]) -> str:
    """Names the nodes and leaves that differ from the majority, for errors; empty if none does."""
    right, said = prints[majority(prints)], []
    for node, row in prints.items():
        if odd := [path for path, same in zip(paths, row == right, strict=True) if not same]:
            more = f" and {len(odd) - 3} more leaves" if len(odd) > 3 else ""
            said.append(f"node {node} in {', '.join(odd[:3])}{more}")
    return "; ".join(said)


def drifted(step: int, odd: str) -> str:
    """The error text for nodes that have diverged, with the remedy."""
    if step == 0:
        return (
            f"Nodes differ at the first update: {odd}. Give all nodes the same values with params "
            "= jdaso.broadcast(params, session) before tx.init."
        )
    return (
        f"Nodes hold different bits where all should hold the same: {odd}. Either a bit has "
        "changed in the memory of one of them, or a function of the program gives different "
        "results on different nodes: a line search or objective on the node's own batch, random "
        "numbers of its own, code that depends on the node. Average inside such a function with "
        'jdaso.mean, or use blocking="parameters". After a bit has changed, go on from a '
        'checkpoint. If nodes are meant to differ, use on_drift="ignore".'
    )


def crossed(heads: np.ndarray) -> str | None:
    """The error if nodes exchanged with different optimizers; None if all had the same.

    Args:
        heads: headers of all nodes as they came over the wire, see `signed`.
    """
    numbers = senders(heads)
    if len(set(numbers.values())) < 2:
        return None
    where = ", ".join(f"node {node} with number {number}" for node, number in numbers.items())
    return (
        f"Nodes exchanged with different optimizers of equal shapes ({where}, as the session "
        "counts them), and their numbers must not be averaged. Give the second a name of its own, "
        "jdaso.daso(..., name='second'), and call the updates in the same order on all nodes."
    )


def complaint(heads: np.ndarray, leaves: tuple[str, ...]) -> str | None:
    """The error that the headers of an exchange show, the same on all nodes; None if fine.

    Args:
        heads: headers of all nodes, on the host.
        leaves: paths of the leaves that were exchanged.
    """
    if (text := crossed(heads)) is not None:
        return text
    steps = heads[:, STEP].tolist()
    if len(set(steps)) > 1:
        where = ", ".join(f"node {node} at {at}" for node, at in enumerate(steps))
        return (
            f"The nodes have made different numbers of updates ({where}). Skip updates on all "
            "nodes or on none: put optax.apply_if_finite inside jdaso.daso(...)."
        )
    weights = np.ascontiguousarray(heads[:, WEIGHT]).view(np.float32)
    wrong = [(node, w) for node, w in enumerate(weights) if not (np.isfinite(w) and w >= 0)]
    if wrong:
        said = lambda w: w / LIFT if -np.inf < w < -LIFTED else w  # noqa: E731
        where = ", ".join(f"node {node} gave {said(weight):g}" for node, weight in wrong)
        return (
            f"A weight must be finite and at least 0: {where} (in units of the nodes' mean). Give "
            "tx.update(..., weight=) the number of samples, or 0 if there are none."
        )
    bad = [(node, int(leaf)) for node, leaf in enumerate(heads[:, BAD_LEAF]) if leaf]
    if bad:
        where = "; ".join(f"node {node}, leaf {leaves[leaf - 1]}" for node, leaf in bad)
        return (
            f"Parameters are not finite (NaN or infinite): {where}. Lower the learning rate, "
            'clip gradients, or leave such exchanges out with on_nonfinite="skip".'
        )
    return None
