"""Waits for other nodes: an unusually long one is reported with the missing nodes; every one ends.

The usual duration is measured. A wait that takes more than twice as long is reported once, and
again each time its duration has doubled. It times out much later, since a node may be compiling;
sooner if a node is silent and its process is not known to run; at once if the process has ended.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence

from .._base.errors import NodeError
from .known import Known

log = logging.getLogger("jdaso")

_ANSWER_SECONDS = 0.4
"""Time for a node to answer when asked where it is."""

_AHEAD_SECONDS = 1.0
"""Late nodes are asked where they are this long before the limit: they may wait for a core."""

_YIELD_SECONDS = 3.0
"""Extra time for a late node that is itself waiting and about to time out: it is closer to the
cause and should report it first."""


class Wait:
    """One wait for other nodes.

    Attributes:
        step: completed updates, for messages.
        waited_seconds: how long the wait had lasted at the last check.

    Args:
        known: this node's facts about the other nodes.
        kind: the kind of wait, for which the usual duration is measured.
        doing: this node's activity, "waits for the exchange started at step 3".
        call: the number of the awaited call, among calls that all nodes make in the same order;
            0 if the wait is for no such call, and then only silent nodes count as missing.
        column: the kind of these calls, a column of `Heartbeats`.
        step: see above.
        limit_seconds: the longest wait, if it is not that of `Patience`.
        nodes: the nodes waited for, if not all.
    """

    def __init__(
        self,
        known: Known,
        kind: str,
        doing: str,
        *,
        call: int,
        column: int,
        step: int | None = None,
        limit_seconds: float | None = None,
        nodes: Sequence[int] | None = None,
    ):
        self._known, self._kind, self._doing = known, kind, doing
        self._nodes = nodes
        self._call, self._column, self.step = call, column, step
        self._limit = limit_seconds
        self._last, self.waited_seconds = time.monotonic(), 0.0
        late = known.heartbeats.usual_delay_seconds  # before that, arrivals may not be known
        self._warn_at, self._asked_at = known.patience.warn_seconds(kind, late), 0.0
        self._over_at = 0.0
        self._asked_ahead: set[int] = set()

    def why_no_longer(self) -> str | None:
        """The reason to end the wait; None to wait on. Logs a warning when one is due."""
        now = time.monotonic()
        # Time in which this process was stopped does not count as waited.
        self.waited_seconds, self._last = self.waited_seconds + min(now - self._last, 1.0), now
        known, waited = self._known, self.waited_seconds
        known.waiting.note(f"{self._doing}, for {waited:.1f} s now")
        if (why := known.why_wait_no_longer(waited, self._doing)) is not None:
            return why
        patience = known.patience
        limit = patience.limit_seconds(self._kind) if self._limit is None else self._limit
        if waited > limit - min(_AHEAD_SECONDS, limit / 2) and not self._asked_ahead:
            self._asked_ahead = {*self._late()}
            known.ask_where(self._asked_ahead)
        if waited > limit and not self._yields(waited):
            return (
                f"This node {self._doing}, which did not end within {limit:g} s. {self._missing()} "
                "Look for a node that is stuck; raise Session(timeout_seconds=...) if one is only "
                "slow."
            )
        if self._is_in_vain(patience.silence_seconds(self._kind)):
            return f"This node {self._doing}. {self._missing()} The wait is given up."
        if waited > self._warn_at:
            self._warn(waited, limit)
        return None

    def check(self) -> None:
        """Raises `NodeError` if there is a reason to end the wait."""
        if (why := self.why_no_longer()) is not None:
            raise NodeError(f"{self._known.topology.prefix(self.step)} {why}")

    def _is_in_vain(self, silence_seconds: float) -> bool:
        """Returns whether a silent node has ended, or is silent for long and not known to run."""
        known, heartbeats = self._known, self._known.heartbeats
        silent = {x: heartbeats.silent_seconds(x) for x in self._late()}
        silent = {x: s for x, s in silent.items() if s > heartbeats.usual_delay_seconds}
        for node in silent:
            known.witnesses.ask(node)
        ended = set(filter(known.witnesses.has_ended, silent)) - known.left - known.ended
        if ended and not known.survives:  # if MPI itself detects failures, this is left to MPI
            return True
        long = (x for x, s in silent.items() if s > silence_seconds)
        lost = not all(map(known.witnesses.runs, long))
        return lost and self.waited_seconds > silence_seconds / 2

    def _yields(self, waited: float) -> bool:
        """Returns whether to let late nodes report first, past the limit; asks where they are."""
        known, late = self._known, self._late()
        if not self._over_at:
            answered = self._asked_ahead & known.places.keys()
            known.ask_where(node for node in late if node not in answered)
            self._over_at = waited
        if any(node in known.waits for node in late):
            return waited < self._over_at + _YIELD_SECONDS
        answered = all(node in known.places for node in late)
        return not answered and waited < self._over_at + _ANSWER_SECONDS

    def _late(self) -> list[int]:
        """Nodes that have not arrived, and nodes that are silent (they may have arrived before)."""
        if self._nodes is not None:
            return list(self._nodes)
        return sorted({*self._not_arrived(), *self._silent()})

    def _not_arrived(self) -> list[int]:
        if self._nodes is not None:
            return list(self._nodes)
        if not self._call:
            return self._silent()
        return self._known.heartbeats.missing(self._column, self._call)

    def _silent(self) -> list[int]:
        heartbeats = self._known.heartbeats
        delay = heartbeats.usual_delay_seconds
        return [x for x in range(heartbeats.nodes) if heartbeats.silent_seconds(x) > delay]

    def _warn(self, waited: float, limit: float) -> None:
        """Asks missing nodes where they are, and logs their answers a little later."""
        if not self._asked_at:
            self._known.ask_where(self._late())
            self._asked_at = waited
        answered = all(node in self._known.places for node in self._late())
        if not answered and waited < self._asked_at + _ANSWER_SECONDS:
            return
        usual = self._known.patience.usual_seconds(self._kind)
        log.warning(
            "%s This node %s, for %.1f s now (usual: %s; longest: %g s). %s",
            self._known.prefix(self.step),
            self._doing,
            waited,
            "not known yet" if usual is None else f"{usual:.1f} s",
            limit,
            self._missing(),
        )
        self._warn_at, self._asked_at = 2 * waited, 0.0

    def _missing(self) -> str:
        """Names and describes the nodes that have not arrived, or have been silent since."""
        late, absent = self._late(), self._not_arrived()
        if not late:
            return "All nodes have arrived: the network is slow, or stuck."
        of = {
            "Not arrived": absent,
            "Arrived, and silent since": [node for node in late if node not in absent],
        }
        return " ".join(
            f"{what}: {'; '.join(map(self._known.describe, nodes))}."
            for what, nodes in of.items()
            if nodes
        )
