"""One header for all ranks of a node, each of which exchanges its own part of the numbers.

A rank has facts about its own parts only: whether they are finite, the checksum of what it holds,
the times that it measured. All nodes must decide alike on all parts, so the ranks of a node combine
their headers before they send them; on one host that takes microseconds.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from .._mpi.requests import byte, finish
from .._nodes.control import Control
from .._payload.words import BAD_LEAF, CHECKSUM, FAILED, LEFT_OUT, STATUS, STEP, WEIGHT


class SharedHeader:
    """Combines the headers of a node's ranks.

    Args:
        comm: a communicator of them that nothing else uses.
        control: the nodes.
    """

    def __init__(self, comm: Any, control: Control):
        self._comm, self._control = comm, control

    def of(self, words: np.ndarray) -> np.ndarray:
        """The node's header, given this rank's; all ranks call it for each exchange, in order.

        The wait ends with that of the step for this exchange, which has a limit.

        Raises:
            NodeError: a rank failed, or the ranks differ in updates, optimizers or weights.
        """
        words = np.ascontiguousarray(words)
        rows = np.empty((self._comm.Get_size(), words.size), words.dtype)
        request = self._comm.Iallgather([words, byte()], [rows, byte()])
        finish(request, self._control.check, words, rows, most_pause=1e-4)
        for place, name in ((STEP, "updates"), (STATUS, "optimizers"), (WEIGHT, "weights")):
            of_ranks = rows[:, place]
            if (of_ranks != of_ranks[0]).any() and not (rows[:, STATUS] == FAILED).any():
                numbers = of_ranks.view(np.float32) if place == WEIGHT else of_ranks
                raise self._control.error(
                    f"The ranks of this node have different {name} ({numbers.tolist()}, by rank). "
                    "They are one node, and go through the same steps: give all of them the same "
                    "values, such as the samples of the whole node as weight=."
                )
        return one_header(rows)


def one_header(rows: np.ndarray) -> np.ndarray:
    """The header of a node, from those of its ranks, int32 ``[R, HEADER]``.

    Has the first leaf that is not finite on any rank, and the sum of checksums, unless one is left
    out; a failure of one rank is that of all. The other words are those of the first rank.
    """
    found = np.array(rows[0])
    bad = rows[:, BAD_LEAF]
    found[BAD_LEAF] = bad[bad != 0][0] if bad.any() else 0
    sums = rows[:, CHECKSUM]
    total = np.uint32(int(sums.view(np.uint32).sum(dtype=np.uint64)) & 0xFFFFFFFF)
    found[CHECKSUM] = LEFT_OUT if (sums == LEFT_OUT).any() else total.view(np.int32)
    found[STATUS] = FAILED if (rows[:, STATUS] == FAILED).any() else found[STATUS]
    return found
