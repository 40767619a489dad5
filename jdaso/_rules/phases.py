"""The settings of a run: warm-up, cycling, cool-down, and the steps between exchanges."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

LEAST_BYTES = 10**5
"""The smallest fragment, in float32 bytes: smaller exchanges are all latency."""

LEAST_CHANGING_BYTES = 10**6
"""The same if B changes: with a small B several fragments start in a step."""

MOST_FRAGMENTS = 8
"""Most fragments that ``"auto"`` takes: each has a channel, and two conditions in a step."""

FIRST_STEPS, MOST_STEPS = 1, 64
"""Initial value and upper limit of B with ``"auto"``."""

MEASURED_FRAGMENTS = 4
"""Most fragments that ``"auto"`` takes if B is ``"auto"``: with B = 1 all start in every step."""


@dataclasses.dataclass(frozen=True)
class Plateau:
    """The rule by which the loss sets B, S and l while cycling.

    At the end of each window of steps the loss is averaged over its exchanges and nodes. A window
    is bad if this mean is not below the best by the share `threshold`. After `patience` bad windows
    in a row, B and l are divided by `reduction` and S is lowered by 1 (none below 1); if B was
    already 1, all three return to their largest values.

    Attributes:
        window_steps: steps of a window (an epoch, say).
        first: (B, S, l) at the beginning of the cycling phase.
        largest: (B, S, l) after a plateau at B = 1.
        patience: bad windows in a row that make a plateau.
        threshold: improvement that counts, as a share of the best loss.
        reduction: divisor of B and l.
    """

    window_steps: int
    first: tuple[int, int, int]
    largest: tuple[int, int, int]
    patience: int = 3
    threshold: float = 0.05
    reduction: int = 2

    def __post_init__(self) -> None:
        _check_count("window_steps", self.window_steps, 1)
        _check_count("patience", self.patience, 1)
        _check_count("reduction", self.reduction, 2)
        if not 0 <= self.threshold < 1:
            raise ValueError(f"threshold is a share, 0 <= threshold < 1, got {self.threshold}.")


@dataclasses.dataclass(frozen=True)
class Phases:
    """The phases of a run: warm-up (blocking), cycling, cool-down (blocking).

    Update n, counted from 0, is warm-up if ``n < warmup_steps``, cool-down if
    ``n >= total_steps - cooldown_steps``, else cycling. While cycling an exchange starts every B
    updates and is merged S updates after its start. Past `total_steps` the run stays blocking.

    The parameters are divided into F fragments, about equal in size, which are exchanged in turn:
    the exchange of fragment f starts ``floor(f B / F)`` updates after that of fragment 0. Each
    takes about 1/F of the time of all, so that S can be 1/F as large, and results are fresher.
    F = 1 is the paper's rule.

    Args:
        total_steps: updates of the whole run.
        warmup_steps: blocking updates at the beginning.
        cooldown_steps: blocking updates at the end.
        sync_every: B, steps from one start to the next, at least 1. A tuple is cycled through, one
            entry per exchange: (4, 2, 1) with the same `delay` is the setting of the authors'
            poster. ``"auto"`` sets B from measured times: the smallest, within 1..64, with which a
            cycle's steps hide its exchanges, and starts and merges take at most 5 % of them. All
            nodes agree on B, which begins at 1, follows each cycle's times for the first minute of
            cycling, slowly where they change by less than a factor of 2, and afterwards only where
            they change by more.
        delay: S, steps from a start to its merge, 1 <= S <= B. A tuple as for B. ``"auto"`` sets S
            after each exchange to the exchange's time, as measured by the last node to start,
            divided by the slowest node's step time, rounded up, within 1..B; all nodes agree on S,
            which begins at 1. With ``sync_every="auto"`` the delay is ``"auto"`` or 1; with 1 a
            step waits for the part of a fragment's exchange that one step does not hide.
        fragments: F, which divides B (every B of a tuple; the largest B if the loss sets it).
            ``"auto"`` takes the largest F up to 8 that leaves every fragment 0.1 MB in float32, or
            1 MB if loss or measured times set B. With ``sync_every="auto"`` any F will do, and
            ``"auto"`` takes up to 4.
        local_every: l, steps between averages inside a node, at least 1. With l > 1 the local
            devices diverge in between, and the optimizer needs a `local_axis`.
        by_loss: lets the loss set B, S and l; their three settings above are then not used.

    Raises:
        ValueError: a setting is out of range.

    Example:
        >>> import jdaso
        >>> phases = jdaso.Phases(total_steps=1000, warmup_steps=100, cooldown_steps=100)
        >>> phases.name(99), phases.name(100), phases.name(900)
        ('warm-up', 'cycling', 'cool-down')

    Reference: arXiv 2104.05588, section III-B.
    """

    total_steps: int
    warmup_steps: int = 0
    cooldown_steps: int = 0
    sync_every: int | tuple[int, ...] | str = 4
    delay: int | tuple[int, ...] | str = 1
    local_every: int = 1
    by_loss: Plateau | None = None
    fragments: int | str = "auto"

    def __post_init__(self) -> None:
        _check_count("total_steps", self.total_steps, 1)
        _check_count("warmup_steps", self.warmup_steps, 0)
        _check_count("cooldown_steps", self.cooldown_steps, 0)
        _check_count("local_every", self.local_every, 1)
        if self.warmup_steps + self.cooldown_steps > self.total_steps:
            raise ValueError(
                "warmup_steps + cooldown_steps must not exceed total_steps, got "
                f"{self.warmup_steps} + {self.cooldown_steps} > {self.total_steps}. "
                "total_steps counts all updates of the run; shorten a phase."
            )
        self._check_auto()
        for sync_every, delay in self.pairs:
            if sync_every < 1:
                raise ValueError(
                    f"sync_every must be at least 1, got {sync_every}. "
                    "To average after every step use jdaso.synchronous()."
                )
            if not 1 <= delay <= sync_every:
                raise ValueError(
                    f"delay must be within 1..sync_every, got delay={delay} with "
                    f"sync_every={sync_every}. An exchange is merged before the next starts."
                )
        self._check_fragments()

    def _check_auto(self) -> None:
        if isinstance(self.sync_every, str) and self.sync_every != "auto":
            raise TypeError(
                f'sync_every is a count and must be an int, or "auto", got {self.sync_every!r}.'
            )
        if self.sync_every == "auto" and self.by_loss is None and self.delay not in (1, "auto"):
            raise ValueError(
                f'sync_every="auto" needs delay="auto" or 1, got {self.delay!r}: B may become 1, '
                "and S is at most B."
            )

    def _check_fragments(self) -> None:
        if self.fragments == "auto":
            return
        if isinstance(self.fragments, str):
            raise ValueError(f'fragments is a number or "auto", got {self.fragments!r}.')
        _check_count("fragments", self.fragments, 1)
        if self.sync_every == "auto" and self.by_loss is None:
            return  # a turn is rounded down to whole steps
        if self._common_interval % self.fragments:
            which = "the largest sync_every" if self.by_loss else "sync_every"
            raise ValueError(
                f"fragments must divide {which}, got fragments={self.fragments} with "
                f"{self._common_interval}: fragments are exchanged in turn, one every "
                'sync_every / fragments steps. Use fragments="auto", or a divisor.'
            )

    @property
    def _common_interval(self) -> int:
        """The number of steps that F must divide; a bound on F if B is ``"auto"``."""
        if self.by_loss is not None:
            return max(sync_every for sync_every, _ in self.pairs)
        if self.sync_every == "auto":
            return MEASURED_FRAGMENTS
        return math.gcd(*(sync_every for sync_every, _ in self.pairs))

    def fragments_of(self, size_bytes: int) -> tuple[int, ...]:
        """Values of F for parameters of this many float32 bytes, to be tried in this order."""
        if not isinstance(self.fragments, str):
            return (self.fragments,)
        changes = self.by_loss is not None or self.sync_every == "auto"
        least_bytes = LEAST_CHANGING_BYTES if changes else LEAST_BYTES
        most = largest_count(self._common_interval, size_bytes, least_bytes)
        return tuple(f for f in range(most, 0, -1) if self._common_interval % f == 0)

    @property
    def sets_delay(self) -> bool:
        """True if S is set during the run, by the loss or by measured times."""
        return self.by_loss is not None or "auto" in (self.delay, self.sync_every)

    @classmethod
    def plateau(
        cls,
        total_steps: int,
        window_steps: int,
        warmup_steps: int = 0,
        cooldown_steps: int = 0,
        max_sync_every: int = 8,
        max_delay: int | None = None,
        patience: int = 3,
        threshold: float = 0.05,
        reduction: int = 2,
        fragments: int | str = "auto",
    ) -> Phases:
        """B and S follow the loss as in the paper; pass the loss as ``update(..., value=loss)``.

        The run begins at the largest B. See `Plateau` for the rule.

        Args:
            total_steps: see `Phases`.
            window_steps: steps between two evaluations of the loss.
            warmup_steps: see `Phases`.
            cooldown_steps: see `Phases`.
            max_sync_every: the largest B.
            max_delay: S at the largest B; by default a quarter of that B.
            patience: bad windows in a row that make a plateau.
            threshold: improvement that counts, as a share of the best loss.
            reduction: divisor of B on a plateau.
            fragments: F, see `Phases`.
        """
        _check_count("max_sync_every", max_sync_every, 1)
        delay = max(max_sync_every // 4, 1) if max_delay is None else max_delay
        largest = (max_sync_every, delay, 1)
        rule = Plateau(window_steps, largest, largest, patience, threshold, reduction)
        return cls(total_steps, warmup_steps, cooldown_steps, by_loss=rule, fragments=fragments)

    @classmethod
    def heat(
        cls,
        *,
        steps_per_epoch: int,
        total_epochs: int,
        max_skips: int = 8,
        warmup_epochs: int = 4,
        cooldown_epochs: int = 4,
        stability: float = 0.05,
        reduction: int = 2,
        local_skip_factor: int = 4,
        fragments: int | str = "auto",
    ) -> Phases:
        """The schedule and the defaults of HeAT's DASO.

        (B, S, l) begins at (4, 1, 1); the third epoch in a row without an improvement of
        `stability` halves B and l and lowers S; at B = 1 it returns to (max_skips, m, m) with
        ``m = max_skips // local_skip_factor``. Unlike in HeAT, `max_skips` also bounds the first
        cycle, the loss of the warm-up counts as a best loss, and merges are weighted by their true
        age.

        Args:
            steps_per_epoch: updates of an epoch.
            total_epochs: epochs of the run.
            max_skips: the largest B.
            warmup_epochs: blocking epochs at the beginning.
            cooldown_epochs: blocking epochs at the end.
            stability: improvement that counts, as a share of the best loss.
            reduction: divisor of B and l on a plateau.
            local_skip_factor: see above.
            fragments: F, see `Phases`; HeAT has 1.

        Reference: heat/optim/dp_optimizer.py of HeAT.
        """
        _check_count("steps_per_epoch", steps_per_epoch, 1)
        _check_count("max_skips", max_skips, 1)
        _check_count("local_skip_factor", local_skip_factor, 1)
        skips = max(max_skips // local_skip_factor, 1)
        rule = Plateau(
            window_steps=steps_per_epoch,
            first=(min(4, max_skips), 1, 1),
            largest=(max_skips, skips, skips),
            threshold=stability,
            reduction=reduction,
        )
        return cls(
            total_steps=total_epochs * steps_per_epoch,
            warmup_steps=warmup_epochs * steps_per_epoch,
            cooldown_steps=cooldown_epochs * steps_per_epoch,
            by_loss=rule,
            fragments=fragments,
        )

    @property
    def pairs(self) -> tuple[tuple[int, int], ...]:
        """(B, S) of each exchange of a period; with ``"auto"``, their initial values."""
        if self.by_loss is not None:
            return self.by_loss.first[:2], self.by_loss.largest[:2]
        every: Any = FIRST_STEPS if self.sync_every == "auto" else self.sync_every
        every = every if isinstance(every, tuple) else (every,)
        if self.delay == "auto":
            delays = (1,)
        elif isinstance(self.delay, str):
            raise ValueError(f'delay is a number of steps or "auto", got {self.delay!r}.')
        else:
            delays = self.delay if isinstance(self.delay, tuple) else (self.delay,)
        for name, values in (("sync_every", every), ("delay", delays)):
            if not values:
                raise ValueError(f"{name} must not be an empty tuple.")
            for value in values:
                _check_type(name, value)
        length = math.lcm(len(every), len(delays))
        return tuple((every[i % len(every)], delays[i % len(delays)]) for i in range(length))

    @property
    def max_local_every(self) -> int:
        """The largest l that can occur."""
        if self.by_loss is not None:
            return max(self.by_loss.first[2], self.by_loss.largest[2])
        return self.local_every

    @property
    def cycling_steps(self) -> int:
        """Number of cycling updates."""
        return self.total_steps - self.warmup_steps - self.cooldown_steps

    def name(self, step: int) -> str:
        """The phase of update `step`: ``"warm-up"``, ``"cycling"`` or ``"cool-down"``."""
        if step < self.warmup_steps:
            return "warm-up"
        return "cycling" if step < self.total_steps - self.cooldown_steps else "cool-down"


def _check_type(name: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name} is a count and must be an int, got {value!r}.")


def _check_count(name: str, value: object, least: int) -> None:
    _check_type(name, value)
    if value < least:  # pyright: ignore[reportOperatorIssue]
        raise ValueError(f"{name} must be at least {least}, got {value}.")


def largest_count(sync_every: int, size_bytes: int, least_bytes: int = LEAST_BYTES) -> int:
    """The largest divisor of B, at most `MOST_FRAGMENTS`, that leaves each part `least_bytes`."""
    most = min(max(size_bytes // least_bytes, 1), MOST_FRAGMENTS, sync_every)
    return next(f for f in range(most, 0, -1) if sync_every % f == 0)
