"""One pass of a batch's micro-batches through the stages of one rank."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ..._jax.types import PyTree
from ..._nodes.mail import Address
from .._plan.equations import struct_of
from .._schedule import Action
from .compiled import CompiledStage, Edge
from .given import own_copy
from .gradients import GradientSums
from .place import Post, RankPlace
from .work import StageWork

_WINDOW = 4
"""A rank starts to receive the inputs of an action this many actions ahead."""


class StepResult(NamedTuple):
    """The result of a step, on every rank of a pipeline."""

    loss: np.ndarray  # the mean over this pipeline's batch, before the update
    aux: PyTree  # of micro-batches: floats' mean, weighted by samples; integers' sum; booleans' or


class BatchRun:
    """Runs one batch: `follow` a schedule, then ask for `gradients`, `result` and `state`.

    Args:
        work: the stages of this rank.
        mail: sends and receives arrays.
        place: the place of this rank.
        params: this rank's own tree.
        state: the model's; this rank uses the leaves it holds.
        batch: the whole batch.
    """

    def __init__(
        self,
        work: StageWork,
        mail: Post,
        place: RankPlace,
        params: PyTree,
        state: PyTree,
        batch: PyTree,
    ):
        self._work, self._plan, self._mail, self._place = work, work.plan, mail, place
        self._rank, self._ranks = place.rank, self._plan.num_partitions
        self._leaves = self._plan.microbatches.check(batch)
        self._sizes = self._plan.microbatches.sizes
        self._weights = self._plan.microbatches.weights()
        self._states, self._state_tree = jax.tree.flatten(state)
        self._residuals: dict[tuple[int, int], Any] = {}
        self._given: dict[int, list[Any]] = defaultdict(list)
        # Arrays passed between stages of this rank; key: (backward, from, to, micro-batch).
        self._handed: dict[tuple[bool, int, int, int], list[Any]] = {}
        self._bound: dict[int, list[Any]] = {}
        self._sums = GradientSums(work, mail, place)
        holding = self._plan.holding
        self._units: dict[int, Any] = dict(holding.split(params, self._rank))
        for k in holding.owned_by(self._rank):
            for rank in holding.borrowers(holding.units[k]):
                mail.send(self._at(rank, ("lend", k)), self._units[k])
        self._borrowed = [k for k in holding.used_by(self._rank) if k not in self._units]
        for k in self._borrowed:
            unit = holding.units[k]
            at = self._at(holding.owner(unit), ("lend", k))
            mail.expect(at, holding.unit_shape(unit), holding.dtypes[unit.leaf])

    def follow(self, order: Sequence[Action]) -> None:
        """Computes actions in order."""
        for at, action in enumerate(order):
            self._expect(order[at : at + _WINDOW])
            got = self._receive(action)
            if action.backward:
                self._do_backward(action, got)
            else:
                self._do_forward(action, got)

    def state(self) -> PyTree:
        """Returns the model's state after the last micro-batch, for leaves that this rank holds."""
        return jax.tree.unflatten(self._state_tree, self._states)

    def gradients(self) -> dict[int, jax.Array]:
        """Returns sums over micro-batches for the units that this rank holds."""
        return self._sums.gathered()

    def result(self) -> StepResult:
        """Returns the loss and the auxiliary output on every rank, once all messages are sent."""
        values, states = {}, len(self._states)
        part = self._plan.parts[max(self._plan.parts)]
        others = [rank for rank in range(self._ranks) if rank != self._rank]
        givers = {k: stage.number for stage in part.stages for k in stage.gives}
        wanted = [0, *range(1 + states, len(part.program.outs))]
        for k in wanted:
            giver, struct = givers[k] % self._ranks, struct_of(part.program.outs[k])
            if giver == self._rank:
                values[k] = _mean(self._given[k], self._sizes)
                for rank in others:
                    self._mail.send(self._at(rank, ("out", k)), values[k])
            else:
                self._mail.expect(self._at(giver, ("out", k)), struct.shape, struct.dtype)
        for k in wanted:
            if k not in values:
                at = self._at(givers[k] % self._ranks, ("out", k))
                values[k] = self._mail.take(at, f"waits for the loss of stage {givers[k]}")
        self._mail.drain()
        aux = [values[k] for k in wanted[1:]]
        tree = self._plan.aux
        return StepResult(values[0], None if tree is None else jax.tree.unflatten(tree, aux))

    def _at(self, rank: int, key: Any) -> Address:
        return self._place.address(rank, self._work.tags[key])

    def _compiled(self, action: Action) -> CompiledStage:
        return self._work.by_size[self._sizes[action.microbatch]][action.stage]

    def _inputs(self, action: Action) -> dict[int, list[Edge]]:
        """Returns the inputs of an action, by the stage that they come from."""
        compiled = self._compiled(action)
        if not action.backward:
            return compiled.received_from
        return {user: [e for e in edges if e.backward] for user, edges in compiled.sent_to.items()}

    def _address(self, action: Action, other: int, k: int) -> Address:
        """Returns the address of the k-th array between an action's stage and another rank's."""
        first, last = sorted((other, action.stage))
        key = ("edge", action.backward, first, last, k, action.microbatch)
        return self._at(other % self._ranks, key)

    def _expect(self, actions: Sequence[Action]) -> None:
        """Starts to receive the inputs of actions."""
        for action in actions:
            for stage, edges in self._inputs(action).items():
                for k, edge in enumerate(edges):
                    if stage % self._ranks != self._rank:
                        at = self._address(action, stage, k)
                        if not self._mail.expects(at):
                            self._mail.expect(at, edge.struct.shape, edge.dtype)

    def _receive(self, action: Action) -> dict[int, list[Any]]:
        """Waits for the inputs of an action; returns them by the stage that made them."""
        back, own, m = action
        got: dict[int, list[Any]] = {}
        for stage, edges in self._inputs(action).items():
            if stage % self._ranks == self._rank:
                got[stage] = self._handed.pop((back, stage, own, m)) if edges else []
                continue
            what = f"waits for what {action} needs from stage {stage}"
            arrays = [
                self._mail.take(self._address(action, stage, k), what) for k in range(len(edges))
            ]
            got[stage] = [self._place.put_samples(x, self._sizes[m]) for x in arrays]
        return got

    def _send(self, action: Action, stage: int, arrays: list[Any]) -> None:
        """Sends results of an action to another stage, which may be on this rank."""
        back, own, m = action
        if stage % self._ranks == self._rank:
            self._handed[back, own, stage, m] = arrays
            return
        for k, array in enumerate(arrays):
            self._mail.send(self._address(action, stage, k), array)

    def _do_forward(self, action: Action, got: dict[int, list[Any]]) -> None:
        compiled, m = self._compiled(action), action.microbatch
        received = [x for maker in compiled.received_from for x in got[maker]]
        stage, size, part = compiled.stage, self._sizes[m], self._plan.microbatches.part
        parts = [own_copy(part(self._leaves[k], m)) for k in stage.batch]
        batch = [self._place.put_samples(x, size) for x in parts]
        states = [self._states[k] for k in stage.state]
        pieces = self._pieces(action.stage)
        sent, given, residuals = compiled.forward(pieces, received, states, batch)
        for user, arrays in sent.items():
            self._send(action, user, arrays)
        for k, value in given.items():
            if 1 <= k <= len(self._states):
                self._states[k - 1] = value
            else:
                self._given[k].append(value)
        if compiled.has_backward:
            self._residuals[action.stage, m] = residuals

    def _do_backward(self, action: Action, got: dict[int, list[Any]]) -> None:
        compiled, m = self._compiled(action), action.microbatch
        if not compiled.has_backward:
            return
        sums, flowing = compiled.backward(
            self._residuals.pop((action.stage, m)),
            got,
            self._weights[m],
            self._sums.of(action.stage),
        )
        self._sums.keep(action.stage, sums)
        for maker, arrays in flowing.items():
            self._send(action, maker, arrays)

    def _pieces(self, stage: int) -> list[Any]:
        """Returns the parameters of a stage; waits for those of other ranks at their first use."""
        if stage not in self._bound:
            holding, rows = self._plan.holding, []
            for k in self._borrowed:
                owner = holding.units[k].users[0]
                if k not in self._units and stage in holding.units[k].users:
                    at = self._at(owner % self._ranks, ("lend", k))
                    array = self._mail.take(at, f"waits for parameters of stage {owner}")
                    self._units[k] = self._place.put(array)
            for piece in self._work.stages[stage].stage.pieces.values():
                found = [
                    self._units[k]
                    if inside == slice(0, holding.units[k].end - holding.units[k].begin)
                    else self._units[k][inside]
                    for k, inside, _ in holding.spans(piece, self._units)
                ]
                array = found[0] if len(found) == 1 else jnp.concatenate(found)
                rows.append(array.reshape(()) if piece.leaf in holding.scalars else array)
            self._bound[stage] = rows
        return self._bound[stage]


def _mean(values: list[Any], sizes: tuple[int, ...]) -> np.ndarray:
    """Combines micro-batches: floats' mean, weighted by samples; integers' sum; booleans' or."""
    arrays = [np.asarray(value) for value in values]
    dtype = arrays[0].dtype
    if dtype == np.bool_:
        return np.asarray(np.logical_or.reduce(arrays))
    if not jnp.issubdtype(dtype, jnp.inexact):
        return np.asarray(sum(arrays), dtype)
    wide = np.complex128 if jnp.issubdtype(dtype, jnp.complexfloating) else np.float64
    total = sum(size * x.astype(wide) for size, x in zip(sizes, arrays, strict=True))
    return np.asarray(total / sum(sizes), dtype)
