"""Emulated clusters of a study: made when a cell first needs one, kept for the cells after it.

The cells of a study are shuffled, and making and measuring a cluster takes as long as a cell.
"""

from __future__ import annotations

import contextlib
from collections import OrderedDict

from .._emulate.cluster import Cluster, emulated_cluster
from .chosen import ChosenFabric

_MOST = 8
"""Clusters kept at a time; the least recently used one is removed."""


class Clusters:
    """Context with emulated clusters; all are removed at its end."""

    def __init__(self):
        self._made: OrderedDict[tuple[str, int], tuple[Cluster, contextlib.ExitStack]] = (
            OrderedDict()
        )

    def of(self, fabric: ChosenFabric, nodes: int) -> Cluster | None:
        """Returns the cluster of a fabric and a number of nodes; None for a real fabric.

        Raises:
            ClusterError: the cluster cannot be made, or its links do not have the rate.
        """
        if not fabric.rate:
            return None
        key = fabric.name, max(nodes, 2)
        if key not in self._made:
            while len(self._made) >= _MOST:
                self._made.popitem(last=False)[1][1].close()
            stack = contextlib.ExitStack()
            made = emulated_cluster(key[1], fabric.rate, check=fabric.check)
            self._made[key] = stack.enter_context(made), stack
        self._made.move_to_end(key)
        return self._made[key][0]

    def __enter__(self) -> Clusters:
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.ExitStack() as all_of_them:
            for _cluster, stack in self._made.values():
                all_of_them.push(stack)
            self._made.clear()
