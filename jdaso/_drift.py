"""Where nodes hold what they should not: which leaf of which node that is, and what most hold."""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Mapping

import numpy as np

from ._control import Control
from ._header import CHECKSUM, LEFT_OUT, STEP, complaint

log = logging.getLogger("jdaso")

_COMPARE = "compare what should be the same on all nodes"

_DRIVES = ("sync_every", "phase.delay", "local_every")
"""Leaves that decide when a node talks: where they part, so do the counts of updates."""


class Comparison:
    """What the nodes hold, leaf by leaf; they ask each other only after their headers differed.

    Args:
        control: the nodes.
        virtual: whether they share this process.
    """

    def __init__(self, control: Control, *, virtual: bool):
        self._control, self._virtual = control, virtual
        self._lock = threading.Lock()
        # For which headers, what the nodes hold.
        self._last: tuple[object, dict[int, np.ndarray] | Exception] | None = None

    def complaint(
        self,
        heads: np.ndarray,
        leaves: tuple[str, ...],
        common: tuple[str, ...],
        prints: np.ndarray | None,
    ) -> str | None:
        """What is wrong by the headers of an exchange, the same on all nodes; None if nothing.

        Args:
            heads: of all nodes.
            leaves: paths of the leaves that were exchanged.
            common: of those that are to be the same on all nodes.
            prints: checksums of these, if they count; between virtual nodes, of all nodes.
        """
        text, step = complaint(heads, leaves), int(heads[0, STEP])
        if prints is None:
            return text
        if text is not None:
            if len(set(heads[:, STEP].tolist())) == 1:
                return text
            # What decides when a node talks may have changed in its memory.
            odd = self._who_differs(heads, common, prints)
            return drifted(step, odd) if any(name in odd for name in _DRIVES) else text
        words = heads[:, [CHECKSUM]]
        if (words == words[0]).all():
            return None
        odd = self._who_differs(heads, common, prints)
        if not odd:  # what differed is not kept
            said = {node: word for node, word in enumerate(words) if word != LEFT_OUT}
            right = said[majority(said)]
            others = [str(node) for node, word in said.items() if word != right]
            odd = f"nodes {', '.join(others)}"
        return drifted(step, odd)

    def of_majority(
        self, prints: np.ndarray, paths: tuple[str, ...], leaves: tuple[np.ndarray, ...]
    ) -> tuple[np.ndarray, ...]:
        """The leaves of a node that holds what most do; says who does not.

        Args:
            prints: checksums of what this node holds.
            paths: what that is.
            leaves: what is taken.
        """

        def take() -> tuple[np.ndarray, ...]:
            everyone = self._everyones(prints)
            right = majority(everyone)
            log.warning(
                "%s Nodes held different bits where all should hold the same: %s. All take those "
                "of node %d.",
                self._control.topology.prefix(),
                odd_leaves(everyone, paths),
                right,
            )
            return tuple(self._control.broadcast(np.asarray(leaf), root=right) for leaf in leaves)

        return self._control.unless_someone_dies(take)

    def _everyones(self, prints: np.ndarray) -> dict[int, np.ndarray]:
        """What each node holds that lives."""
        everyone = self._control.allgather(_COMPARE, prints)
        return {node: everyone[node] for node in self._control.living}

    def _who_differs(self, heads: np.ndarray, common: tuple[str, ...], prints: np.ndarray) -> str:
        """Says which nodes hold other bits than most, and in which leaves."""
        if self._virtual:
            return odd_leaves(dict(enumerate(prints)), common)
        with self._lock:  # each local device asks; the nodes talk once, whatever comes of it
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
    """The first node of the largest number of nodes that hold the same."""
    rows = {node: row.tobytes() for node, row in prints.items()}
    counts = Counter(rows.values())
    return max(rows, key=lambda node: (counts[rows[node]], -node))


def odd_leaves(prints: Mapping[int, np.ndarray], paths: tuple[str, ...]) -> str:
    """Which nodes hold what differently from the majority, for errors; empty if none does."""
    right, said = prints[majority(prints)], []
    for node, row in prints.items():
        if odd := [path for path, same in zip(paths, row == right, strict=True) if not same]:
            more = f" and {len(odd) - 3} more leaves" if len(odd) > 3 else ""
            said.append(f"node {node} in {', '.join(odd[:3])}{more}")
    return "; ".join(said)


def drifted(step: int, odd: str) -> str:
    """What to say, and to do, where nodes hold what they should not."""
    if step == 0:
        return (
            f"Nodes differ at the first update: {odd}. Give all nodes the same with params = "
            "jdaso.broadcast(params, session) before tx.init."
        )
    return (
        f"Nodes hold different bits where all should hold the same: {odd}. Either a bit has "
        "changed in the memory of one of them, or a function of the program gives different "
        "results on different nodes: a line search or objective on the node's own batch, random "
        "numbers of its own, code that asks for the node. Average inside such a function with "
        'jdaso.mean, or use blocking="parameters". After a bit has changed, go on from a '
        'checkpoint, or let the majority decide with on_drift="repair". Where nodes are meant to '
        'differ, use on_drift="ignore".'
    )
