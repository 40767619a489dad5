"""A node's own rows as a source of training data."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from ._array import Array, as_array
from ._move import balance, resplit


class Rows:
    """The rows that each node holds, as a source of `jdaso.data.Loader`; no row moves.

    Every node has equally many samples: rows are shared out evenly first, and the last row of nodes
    with one more is left out. Give the loader ``share=(0, 1)``, since each node deals its own
    samples, and the batch size of a node.

    Args:
        arrays: an array, or several by name, with the same number of rows.

    Attributes:
        own_node: the number of the node whose rows these are; None if there is only one.

    Raises:
        ValueError: the arrays have different numbers of rows, or fewer rows than nodes.

    Example:
        >>> import jdaso.array as ja, numpy as np
        >>> ja.Rows({"x": ja.ones((4, 2), split=0)}).rows(np.array([3, 0]))["x"].shape
        (2, 2)
    """

    def __init__(self, arrays: Array | Mapping[str, Array]):
        named = arrays if isinstance(arrays, Mapping) else {"": arrays}
        rows = {name: balance(resplit(as_array(x), 0)) for name, x in named.items()}
        first = next(iter(rows.values()))
        lengths = {name: x.shape[0] for name, x in rows.items()}
        self._length = (
            min(first.counts, default=first.shape[0]) if len(set(lengths.values())) == 1 else 0
        )
        if not self._length:
            raise ValueError(
                f"Samples are rows, one at least on each of {first.world.nodes} nodes, and equally "
                f"many of each array, got {lengths}."
            )
        self.own_node = first.world.node if first.world.nodes > 1 else None
        blocks = {name: np.asarray(x.block) for name, x in rows.items()}
        self._rows = blocks if isinstance(arrays, Mapping) else blocks[""]

    def __len__(self) -> int:
        """The number of samples of a node, the same on all."""
        return self._length

    def rows(self, indices: np.ndarray) -> np.ndarray | dict[str, np.ndarray]:
        """Returns a copy of this node's samples at `indices`, in that order."""
        if isinstance(self._rows, np.ndarray):
            return self._rows[indices]
        return {name: x[indices] for name, x in self._rows.items()}
