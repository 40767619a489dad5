"""Waits for other nodes: when one takes unusually long, who is missing is said; all have an end.

What is usual is measured. A wait that takes more than twice that is reported once, and again each
time it has doubled. It is given up much later, for a node may be compiling; sooner where nothing is
heard of a node any more and its process is not known to run; at once where the process has ended.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence

from .known import Known

log = logging.getLogger("jdaso")

_ANSWER_SECONDS = 0.4
"""How long a node that is asked where it is may take to answer."""

_YIELD_SECONDS = 3.0
"""How much longer a node waits for one that waits itself, whose limit is near too: it knows better
what the cause is, and should say so first."""


class Wait:
    """One wait for other nodes.

    Attributes:
        step: completed updates, for messages.
        waited_seconds: how long it has waited when it was last asked.

    Args:
        known: what this node knows of them.
        kind: what is usual is measured for each kind.
        doing: what this node does, "waits for the exchange started at step 3".
        call: of the calls that all nodes make in the same order, the number of the one waited for;
            0 where it is none, and only those that are silent are missing.
        column: which of them, a column of `Heartbeats`.
        step: see above.
        limit_seconds: the longest wait, where that is not `Patience`'s.
        nodes: who is waited for, where that is not all.
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
        late = known.heartbeats.usual_delay_seconds  # before, who has come may not be known
        self._warn_at, self._asked_at = known.patience.warn_seconds(kind, late), 0.0
        self._over_at = 0.0

    def why_no_longer(self) -> str | None:
        """What ends the wait early, or at last; None to wait on. Warns where it is time to."""
        now = time.monotonic()
        # A process that is stopped for a while has not waited meanwhile.
        self.waited_seconds, self._last = self.waited_seconds + min(now - self._last, 1.0), now
        known, waited = self._known, self.waited_seconds
        known.waiting.note(f"{self._doing}, for {waited:.1f} s now")
        if (why := known.why_wait_no_longer(waited, self._doing)) is not None:
            return why
        patience = known.patience
        limit = patience.limit_seconds(self._kind) if self._limit is None else self._limit
        if waited > limit and not self._yields(waited):
            return (
                f"This node {self._doing}, which did not end within {limit:g} s. {self._missing()} "
                "Look for a node that is stuck; raise Session(timeout_seconds=...) if one is only "
                "slow."
            )
        if self._is_in_vain(patience.silence_seconds(self._kind)):
            return f"This node {self._doing}. {self._missing()} It is given up."
        if waited > self._warn_at:
            self._warn(waited, limit)
        return None

    def _is_in_vain(self, silence_seconds: float) -> bool:
        """Returns whether a silent node has ended, or is silent for long and not known to run."""
        known, heartbeats = self._known, self._known.heartbeats
        silent = {x: heartbeats.silent_seconds(x) for x in self._late()}
        silent = {x: s for x, s in silent.items() if s > heartbeats.usual_delay_seconds}
        for node in silent:
            known.witnesses.ask(node)
        ended = set(filter(known.witnesses.has_ended, silent)) - known.left - known.ended
        if ended and not known.survives:  # where MPI itself notices deaths, it is left to MPI
            return True
        long = (x for x, s in silent.items() if s > silence_seconds)
        lost = not all(map(known.witnesses.runs, long))
        return lost and self.waited_seconds > silence_seconds / 2

    def _yields(self, waited: float) -> bool:
        """Whether, after its limit, to let others speak first; asks them where they are."""
        known, late = self._known, self._late()
        if not self._over_at:
            known.ask_where(late)
            self._over_at = waited
        if any(node in known.waits for node in late):
            return waited < self._over_at + _YIELD_SECONDS
        answered = all(node in known.places for node in late)
        return not answered and waited < self._over_at + _ANSWER_SECONDS

    def _late(self) -> list[int]:
        """Nodes that have not arrived, and those that may have and are silent since."""
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
        """Asks those that are missing where they are, and a little later says it."""
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
        """Names the nodes that have not arrived or are silent since, and says what is known."""
        late, absent = self._late(), self._not_arrived()
        if not late:
            return "All nodes have come so far: the network is slow, or stuck."
        of = {
            "Not arrived": absent,
            "Arrived, and silent since": [node for node in late if node not in absent],
        }
        return " ".join(
            f"{what}: {'; '.join(map(self._known.describe, nodes))}."
            for what, nodes in of.items()
            if nodes
        )
