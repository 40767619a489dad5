"""The record that flows through one update."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax

from .._exchange.order import after
from .._jax.types import PyTree
from .._rules.decide import Actions
from .copies import Copies
from .state import DasoState


class Update(NamedTuple):
    """One update of one node, as it is traced; each stage returns the record that the next takes.

    Attributes:
        params: the parameters before the update.
        updates: gradients until the inner optimizer has run, then what is added to the parameters.
        state: the state so far; ``state.step`` is the number of completed updates.
        act: the tasks of this update.
        value: the node's loss, or None.
        given_weight: the node's weight, float32; 1 if none was given.
        weight: the same relative to ``state.weight``; None if none was given.
        extra: the user's arguments for the inner optimizer.
        mean_value: the loss that the inner optimizer is given; blocking, the mean over nodes.
        apart: whether nodes that must be equal differ.
        copies: of the parameters, in the inner state.
    """

    params: PyTree
    updates: PyTree
    state: DasoState
    act: Actions
    value: Any
    given_weight: jax.Array
    weight: jax.Array | None
    extra: dict[str, Any]
    mean_value: Any
    apart: jax.Array
    copies: Copies = ()

    def with_state(self, **fields: Any) -> Update:
        """The record with fields of its state replaced."""
        return self._replace(state=self.state._replace(**fields))

    def after(self, token: jax.Array) -> Update:
        """The record, from which later calls to the host run after the one that gave `token`."""
        return self.with_state(step=after(token, self.state.step))
