"""The order in which a rank computes the forward and backward passes of micro-batches."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import NamedTuple

SCHEDULES = ("gpipe", "1f1b", "interleaved")


class Action(NamedTuple):
    """One pass of one micro-batch through one stage."""

    backward: bool
    stage: int
    microbatch: int

    def __str__(self) -> str:
        return f"{'backward' if self.backward else 'forward'}({self.stage}, {self.microbatch})"


@dataclasses.dataclass(frozen=True)
class Schedule:
    """The passes that each rank of a pipeline computes in a step, in order.

    Stage s belongs to rank ``s % ranks``. A rank computes its actions one by one. Before a forward
    pass it waits for the results of other stages' forward passes of the same micro-batch; before a
    backward pass, for the gradients from later stages' backward passes. It waits for nothing else.

    No order of these schedules can deadlock, whatever skip connections the model has:

    1. Sends are posted and not waited for, and a receive is matched by its tag. So a rank waits
       only for an action of another rank, and never for a rank to receive a message.
    2. Stage s of micro-batch m needs only forward(r, m) of stages r < s; backward(s, m) needs
       only backward(r, m) of stages r > s and its own forward(s, m). Whatever the skips, these
       are among "all earlier stages" and "all later stages", which the chain of neighbors implies.
    3. So it is enough that the orders of all ranks together with the chain have no cycle; `check`
       simulates that. For 1F1B the argument is: before backward(m) rank k has computed forwards
       up to number m + a(k), where a(k) is how far ahead it is, and rank k is at least one further
       ahead than rank k + 1. Rank k, about to do backward(m), waits for rank k + 1's backward(m).
       For that rank k + 1 needs rank k's forwards up to m + a(k + 1); rank k has computed
       m + a(k) of them or more. Rank k, about to do forward(n), waits for rank k - 1's
       forward(n). For that rank k - 1 needs rank k's backward(n - a(k - 1) - 1), which precedes
       rank k's backward(n - a(k) - 1), and so this forward(n).

    Attributes:
        name: one of ``SCHEDULES``.
        ranks: number of ranks in the pipeline.
        chunks: stages per rank.
        microbatches: micro-batches per step.
        order: the actions of each rank.
    """

    name: str
    ranks: int
    chunks: int
    microbatches: int
    order: tuple[tuple[Action, ...], ...]

    @property
    def stages(self) -> int:
        """The number of stages."""
        return self.ranks * self.chunks

    def bound(self) -> float:
        """Returns the share of a step in which a rank computes if all passes take equally long.

        ``M / (M + (K - 1) / V)`` with M micro-batches, K ranks, V chunks per rank; a step takes
        ``(M + (K - 1) / V) (f + b)``, with f and b the times of a rank's passes of a micro-batch.
        Sources: GPipe (1811.06965, section 3.2), Megatron-LM (2104.04473, section 2.2).
        """
        return self.microbatches / (self.microbatches + (self.ranks - 1) / self.chunks)

    def in_flight(self, rank: int) -> list[int]:
        """Returns the maximum of micro-batches that each stage of a rank holds between passes."""
        held, most = [0] * self.chunks, [0] * self.chunks
        for action in self.order[rank]:
            chunk = action.stage // self.ranks
            held[chunk] += -1 if action.backward else 1
            most[chunk] = max(most[chunk], held[chunk])
        return most


def make_schedule(name: str, ranks: int, microbatches: int, chunks: int = 1) -> Schedule:
    """Makes the schedule of a pipeline.

    Args:
        name: ``"gpipe"``: all forward passes, then all backward ones. ``"1f1b"``: just enough
            forward passes ahead to keep all ranks busy, then one backward after each forward. This
            is as fast, but holds at most ``ranks - rank + 1`` micro-batches instead of all.
            ``"interleaved"``: the same with several stages per rank, so that the pipeline fills
            ``chunks`` times as fast.
        ranks: K.
        microbatches: M.
        chunks: V, stages per rank; 1 except for ``"interleaved"``.

    Raises:
        ValueError: a number is out of range.
    """
    if name not in SCHEDULES:
        raise ValueError(f"schedule must be one of {', '.join(SCHEDULES)}, got {name!r}.")
    if ranks < 1 or microbatches < 1:
        raise ValueError(
            f"num_partitions and num_microbatches must be at least 1, got {ranks} and "
            f"{microbatches}."
        )
    if chunks < 1 or (name == "interleaved") != (chunks > 1):
        raise ValueError(
            f'schedule="interleaved" needs chunks of 2 or more, the others 1; got {name!r} with '
            f"chunks={chunks}."
        )
    orders = {"gpipe": _gpipe, "1f1b": _one_forward_one_backward, "interleaved": _interleaved}
    order = tuple(tuple(orders[name](rank, ranks, microbatches, chunks)) for rank in range(ranks))
    return Schedule(name, ranks, chunks, microbatches, order)


def _gpipe(rank: int, ranks: int, microbatches: int, chunks: int) -> list[Action]:
    return [Action(back, rank, m) for back in (False, True) for m in range(microbatches)]


def _one_forward_one_backward(
    rank: int, ranks: int, microbatches: int, chunks: int
) -> list[Action]:
    """Rank k makes K - k forward passes before it starts to alternate; the last rank none.

    One fewer would do if messages took no time. But then rank k's next forward pass, which rank
    k + 1 waits for, comes after a backward pass that rank k itself waits for: in each turn both
    ranks idle during two messages. One more pass ahead hides that, until the messages of a step on
    one link take as long as a pass.
    """
    forward = [Action(False, rank, m) for m in range(microbatches)]
    backward = [Action(True, rank, m) for m in range(microbatches)]
    return _alternate(forward, backward, ranks - rank if rank < ranks - 1 else 0)


def _interleaved(rank: int, ranks: int, microbatches: int, chunks: int) -> list[Action]:
    """Each group of micro-batches passes through the first chunk, then the second, ...

    Before it alternates, rank k makes ``2 (K - k - 1) + (V - 1) G`` forward passes: until the first
    micro-batch has come back. G is the size of a group: K, as in Megatron-LM, if K divides M.
    Otherwise groups are larger by as little as possible, the first ones by one more.
    """
    forward, backward = [], []
    groups = max(1, microbatches // ranks)
    size, larger = divmod(microbatches, groups)
    for number in range(groups):
        begin = number * size + min(number, larger)
        group = range(begin, begin + size + (number < larger))
        for chunk in range(chunks):
            forward += [Action(False, chunk * ranks + rank, m) for m in group]
            last = (chunks - 1 - chunk) * ranks + rank
            backward += [Action(True, last, m) for m in group]
    largest = size + (larger > 0)
    return _alternate(forward, backward, 2 * (ranks - rank - 1) + (chunks - 1) * largest)


def _alternate(forward: list[Action], backward: list[Action], ahead: int) -> list[Action]:
    ahead = min(ahead, len(forward))
    order = forward[:ahead]
    for k, action in enumerate(forward[ahead:]):
        order += [action, backward[k]]
    return order + backward[len(forward) - ahead :]


class Deadlock(RuntimeError):
    """Ranks wait for each other forever."""


def check(
    schedule: Schedule,
    needs: Callable[[int], Sequence[int]] | None = None,
    seconds: Callable[[Action], float] = lambda action: 1.0,
) -> float:
    """Simulates a schedule; returns how long a step takes if messages take no time.

    Args:
        schedule: the order of passes on each rank.
        needs: maps a stage to the earlier stages whose results it uses; by default all of them.
        seconds: maps an action to its duration.

    Raises:
        Deadlock: the step does not end; the message lists which rank waits for what.
        ValueError: an action is missing or listed twice.
    """
    stages, ranks = schedule.stages, schedule.ranks
    expected = {
        Action(back, s, m)
        for back in (False, True)
        for s in range(stages)
        for m in range(schedule.microbatches)
    }
    listed = [action for order in schedule.order for action in order]
    if len(listed) != len(expected) or set(listed) != expected:
        raise ValueError(f"A schedule must hold each of {len(expected)} actions once.")
    before = {s: tuple(range(s)) if needs is None else tuple(needs(s)) for s in range(stages)}
    after = {s: tuple(r for r in range(stages) if s in before[r]) for s in range(stages)}
    ended: dict[Action, float] = {}
    clock, at = [0.0] * ranks, [0] * ranks

    def waits_for(action: Action) -> list[Action]:
        back, s, m = action
        if not back:
            return [Action(False, r, m) for r in before[s]]
        return [Action(False, s, m), *(Action(True, r, m) for r in after[s])]

    moved = True
    while moved:
        moved = False
        for rank in range(ranks):
            while at[rank] < len(schedule.order[rank]):
                action = schedule.order[rank][at[rank]]
                waits = waits_for(action)
                if any(other not in ended for other in waits):
                    break
                begin = max([clock[rank], *(ended[other] for other in waits)])
                clock[rank] = ended[action] = begin + seconds(action)
                at[rank] += 1
                moved = True
    if stuck := [rank for rank in range(ranks) if at[rank] < len(schedule.order[rank])]:
        said = []
        for rank in stuck:
            action = schedule.order[rank][at[rank]]
            missing = [str(other) for other in waits_for(action) if other not in ended]
            said.append(f"rank {rank} at {action} waits for {', '.join(missing)}")
        raise Deadlock("; ".join(said))
    return max(clock)
