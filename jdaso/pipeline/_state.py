"""The state of a pipeline."""

from __future__ import annotations

from typing import NamedTuple

import optax

from .._jax.types import PyTree


class PipelineState(NamedTuple):
    """The state of one rank of a pipeline between two steps."""

    params: PyTree  # the rows that this rank holds; see `Holding`
    opt_state: optax.OptState  # for `params`
    state: PyTree  # the model's state; leaves that other ranks hold are empty arrays
