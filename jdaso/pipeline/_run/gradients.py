"""Sums of a batch's gradients: over micro-batches, stages and ranks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from .place import Post, RankPlace
from .work import StageWork


class GradientSums:
    """The sums of one rank, in float32 or wider until all gradients are in.

    Args:
        work: the stages of the rank.
        mail: sends and receives arrays.
        place: the place of the rank.
    """

    def __init__(self, work: StageWork, mail: Post, place: RankPlace):
        self._work, self._mail, self._place = work, mail, place
        self._holding, self._rank = work.plan.holding, place.rank
        self._of_stage: dict[int, list[Any]] = {}

    def of(self, stage: int) -> list[Any]:
        """Returns the sums of a stage so far, one for each piece, to be given up."""
        if stage not in self._of_stage:
            structs = self._work.sum_structs(self._work.stages[stage])
            zeros: Any = self._place.put([np.zeros(x.shape, x.dtype) for x in structs])
            return zeros
        return self._of_stage.pop(stage)

    def keep(self, stage: int, sums: Sequence[Any]) -> None:
        """Keeps the sums of a stage, one for each piece."""
        self._of_stage[stage] = list(sums)

    def gathered(self) -> dict[int, jax.Array]:
        """Returns the sums of all ranks for the units that this rank holds, in their own dtypes.

        The sums of the units that this rank has borrowed are sent to their holders.
        """
        holding, grads = self._holding, self._here()
        for k in sorted(set(grads) - set(holding.owned_by(self._rank))):
            self._mail.send(self._at(holding.owner(holding.units[k]), k), grads.pop(k))
        lent = [
            (k, self._at(rank, k))
            for k in holding.owned_by(self._rank)
            for rank in holding.borrowers(holding.units[k])
        ]
        for k, at in lent:
            self._mail.expect(at, grads[k].shape, grads[k].dtype)
        for k, at in lent:
            more = self._mail.take(at, "waits for gradients of parameters that stages share")
            grads[k] = grads[k] + self._place.put(more)
        return {k: x.astype(holding.dtypes[holding.units[k].leaf]) for k, x in grads.items()}

    def _here(self) -> dict[int, jax.Array]:
        """Returns the sums over this rank's stages for the units that they use."""
        holding, used = self._holding, self._holding.used_by(self._rank)
        grads: dict[int, Any] = {}
        for stage in sorted(self._of_stage):
            pieces = self._work.stages[stage].stage.pieces.values()
            for piece, total in zip(pieces, self._of_stage.pop(stage), strict=True):
                for k, inside, part in holding.spans(piece, used):
                    unit = holding.units[k]
                    rows = jnp.atleast_1d(total)[part]
                    if inside != slice(0, unit.end - unit.begin):
                        zeros = jnp.zeros(holding.unit_shape(unit), rows.dtype)
                        rows = zeros.at[inside].set(rows)
                    grads[k] = grads[k] + rows if k in grads else rows
        for k in sorted(set(used) - set(grads)):  # no stage uses it
            unit = holding.units[k]
            dtype = self._work.plan.microbatches.sum_dtype(holding.dtypes[unit.leaf])
            grads[k] = self._place.put(np.zeros(holding.unit_shape(unit), dtype))
        return grads

    def _at(self, rank: int, unit: int) -> Any:
        return self._place.address(rank, self._work.tags["grad", unit])
