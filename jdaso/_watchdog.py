"""Waits for other nodes: when one takes unusually long, who is missing is said; all have an end.

What is usual is measured. A wait that takes more than twice that is reported once, and again each
time it has doubled. It is given up much later, for a node may be compiling; sooner where nothing is
heard of a node any more and its process is not known to run; at once where the process has ended.
"""

from __future__ import annotations

import logging
import math
import time
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ._lookout import Lookout

log = logging.getLogger("jdaso")

_WARN_FIRST_SECONDS = 30.0
_LEAST_LIMIT_SECONDS, _LEAST_SILENCE_SECONDS = 600.0, 60.0
_LIMIT, _SILENCE = 100, 20
"""Times the usual: how long a wait may last; and while a missing node is silent."""

_ANSWER_SECONDS = 0.4
"""How long a node that is asked where it is may take to answer."""

_YIELD_SECONDS = 3.0
"""How much longer a node waits for one that waits itself, whose limit is near too: it knows better
what the cause is, and should say so first."""

_WAITING_SECONDS = 1.0
"""A wait looks around more often than that: one that did not for so long has ended."""


class Patience:
    """How long waits usually take, and so how long to wait.

    Args:
        timeout_seconds: the longest wait; None derives it from what is usual.
    """

    def __init__(self, timeout_seconds: float | None):
        self._timeout_seconds = timeout_seconds
        self._taken: dict[str, deque[float]] = {}

    def note(self, kind: str, seconds: float) -> None:
        """A wait of this kind took so long, from its begin on all nodes to its end."""
        self._taken.setdefault(kind, deque(maxlen=16)).append(seconds)

    def usual_seconds(self, kind: str) -> float | None:
        """The longest of the last few; None before the first."""
        taken = self._taken.get(kind)
        return max(taken) if taken else None

    def warn_seconds(self, kind: str, late_seconds: float = 0.0) -> float:
        """After how long a wait is reported, where news take so long."""
        usual = self.usual_seconds(kind)
        return _WARN_FIRST_SECONDS if usual is None else 2 * usual + max(late_seconds, 1.0)

    def limit_seconds(self, kind: str) -> float:
        """The longest wait."""
        if self._timeout_seconds is not None:
            return self._timeout_seconds
        return max(_LEAST_LIMIT_SECONDS, _LIMIT * (self.usual_seconds(kind) or 0.0))

    def silence_seconds(self, kind: str) -> float:
        """The longest wait for a node of which nothing is heard, and whose process may not run."""
        if self._timeout_seconds is not None:
            return self._timeout_seconds
        return max(_LEAST_SILENCE_SECONDS, _SILENCE * (self.usual_seconds(kind) or 0.0))


class Waiting:
    """What a node's program waits for, if it does, whichever of its sessions it waits in."""

    def __init__(self):
        self._last = (-math.inf, "")  # another thread reads it, so it is replaced as one

    def note(self, doing: str) -> None:
        """A wait looks around: "waits for the exchange started at step 3, for 2.0 s now"."""
        self._last = (time.monotonic(), doing)

    def now(self) -> str:
        """What it does; nothing where the last wait has ended."""
        looked, doing = self._last
        return doing if time.monotonic() - looked < _WAITING_SECONDS else ""


class Wait:
    """One wait for other nodes.

    Attributes:
        step: completed updates, for messages.
        waited_seconds: how long it has waited when it was last asked.

    Args:
        lookout: what this node knows of them.
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
        lookout: Lookout,
        kind: str,
        doing: str,
        *,
        call: int,
        column: int,
        step: int | None = None,
        limit_seconds: float | None = None,
        nodes: Sequence[int] | None = None,
    ):
        self._lookout, self._kind, self._doing = lookout, kind, doing
        self._nodes = nodes
        self._call, self._column, self.step = call, column, step
        self._limit = limit_seconds
        self._last, self.waited_seconds = time.monotonic(), 0.0
        late = lookout.heartbeats.usual_delay_seconds  # before, who has come may not be known
        self._warn_at, self._asked_at = lookout.patience.warn_seconds(kind, late), 0.0
        self._over_at = 0.0

    def why_no_longer(self) -> str | None:
        """What ends the wait early, or at last; None to wait on. Warns where it is time to."""
        now = time.monotonic()
        # A process that is stopped for a while has not waited meanwhile.
        self.waited_seconds, self._last = self.waited_seconds + min(now - self._last, 1.0), now
        lookout, waited = self._lookout, self.waited_seconds
        lookout.waiting.note(f"{self._doing}, for {waited:.1f} s now")
        if (why := lookout.why_wait_no_longer(waited, self._doing)) is not None:
            return why
        patience = lookout.patience
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
        lookout, heartbeats = self._lookout, self._lookout.heartbeats
        silent = {x: heartbeats.silent_seconds(x) for x in self._late()}
        silent = {x: s for x, s in silent.items() if s > heartbeats.usual_delay_seconds}
        for node in silent:
            lookout.witnesses.ask(node)
        ended = set(filter(lookout.witnesses.has_ended, silent)) - lookout.left - lookout.ended
        if ended and not lookout.survives:  # where MPI itself notices deaths, it is left to MPI
            return True
        long = (x for x, s in silent.items() if s > silence_seconds)
        lost = not all(map(lookout.witnesses.runs, long))
        return lost and self.waited_seconds > silence_seconds / 2

    def _yields(self, waited: float) -> bool:
        """Whether, after its limit, to let others speak first; asks them where they are."""
        lookout, late = self._lookout, self._late()
        if not self._over_at:
            lookout.ask_where(late)
            self._over_at = waited
        if any(node in lookout.waits for node in late):
            return waited < self._over_at + _YIELD_SECONDS
        answered = all(node in lookout.places for node in late)
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
        return self._lookout.heartbeats.missing(self._column, self._call)

    def _silent(self) -> list[int]:
        heartbeats = self._lookout.heartbeats
        delay = heartbeats.usual_delay_seconds
        return [x for x in range(heartbeats.nodes) if heartbeats.silent_seconds(x) > delay]

    def _warn(self, waited: float, limit: float) -> None:
        """Asks those that are missing where they are, and a little later says it."""
        if not self._asked_at:
            self._lookout.ask_where(self._late())
            self._asked_at = waited
        answered = all(node in self._lookout.places for node in self._late())
        if not answered and waited < self._asked_at + _ANSWER_SECONDS:
            return
        usual = self._lookout.patience.usual_seconds(self._kind)
        log.warning(
            "%s This node %s, for %.1f s now (usual: %s; longest: %g s). %s",
            self._lookout.prefix(self.step),
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
            f"{what}: {'; '.join(map(self._lookout.describe, nodes))}."
            for what, nodes in of.items()
            if nodes
        )
