"""Learning rates for more nodes: scaled with the batch, and lowered on a plateau."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Int
from optax.contrib import ReduceLROnPlateauState
from optax.contrib import reduce_on_plateau as on_each_value

from .._jax.types import PyTree
from .._rules.state import NO_MEAN_LOSS

WORST_LOSS = 1e30
"""The best loss before the first: optax uses infinity, which a mean over nodes must not contain."""


def scaled_warmup(
    base_rate: float,
    *,
    batch_size: int,
    base_batch_size: int = 256,
    warmup_steps: int,
    then: optax.Schedule | None = None,
) -> optax.Schedule:
    """A learning rate that grows linearly to one that suits a larger batch.

    With ``k = batch_size / base_batch_size``, and n updates before this one::

        rate(n) = base_rate (1 + (k - 1) n / warmup_steps)    n < warmup_steps
        rate(n) = k base_rate then(n - warmup_steps)          afterwards

    The result is a plain schedule, which any optax optimizer takes as its learning rate.

    Args:
        base_rate: the rate that suits `base_batch_size`, more than 0.
        batch_size: samples per step of all nodes together.
        base_batch_size: samples per step for which `base_rate` was found.
        warmup_steps: updates until the scaled rate is reached; 0 for none. Five epochs in the
            reference.
        then: a factor as a function of the updates since warm-up, such as
            ``optax.cosine_decay_schedule(1.0, steps)``; constant 1 if None.

    Raises:
        ValueError: an argument is out of range.

    Example:
        >>> import jdaso
        >>> rate = jdaso.scaled_warmup(0.1, batch_size=2048, warmup_steps=100)
        >>> [round(float(rate(n)), 2) for n in (0, 50, 100, 1000)]
        [0.1, 0.45, 0.8, 0.8]

    Reference: Goyal et al. 2017, arXiv 1706.02677, sections 2.1 and 2.2. The ImageNet example of
    HeAT's DASO cites it: ``0.0125 e (G - 1) / 6`` in epoch e < 5 on G GPUs, then lowered
    on a plateau.
    """
    if not base_rate > 0:
        raise ValueError(f"base_rate must be more than 0, got {base_rate}.")
    for name, value in (("batch_size", batch_size), ("base_batch_size", base_batch_size)):
        if value < 1:
            raise ValueError(f"{name} counts samples and must be at least 1, got {value}.")
    if warmup_steps < 0:
        raise ValueError(f"warmup_steps must be at least 0, got {warmup_steps}.")
    peak = base_rate * batch_size / base_batch_size
    rise = optax.linear_schedule(base_rate, peak, warmup_steps)

    def rate(count: Any) -> Any:
        after = jnp.maximum(count - warmup_steps, 0)
        factor = 1.0 if then is None else then(after)
        return jnp.where(count < warmup_steps, rise(count), peak * factor)

    return rate


class PlateauState(NamedTuple):
    """State of `reduce_on_plateau`; the same on all nodes."""

    step: Int[Array, ""]  # updates so far
    loss_sum: Float[Array, ""]  # of this window's mean losses
    losses: Int[Array, ""]  # number of losses in that sum
    plateau: ReduceLROnPlateauState  # optax's; its `scale` is the factor in force


def reduce_on_plateau(
    window_steps: int,
    *,
    factor: float = 0.5,
    patience: int = 5,
    rtol: float = 0.05,
    atol: float = 0.0,
    cooldown: int = 0,
    min_scale: float = 0.0,
) -> optax.GradientTransformationExtraArgs:
    """Multiplies updates by a factor that falls when the nodes' mean loss stops improving.

    Put `reduce_on_plateau` after the optimizer, both inside `daso` or `synchronous`, and give the
    loss to ``tx.update(..., value=loss)``. At the end of each window the mean of the losses
    received in it goes to ``optax.contrib.reduce_on_plateau``. This mean is bad if it is not below
    ``best (1 - rtol) - atol``; after `patience` bad ones in a row the factor is multiplied by
    `factor`. The loss travels in exchanges that are made anyway. All nodes receive the same number
    at the same update, so that their factors are the same bit for bit. While cycling the loss is
    S to B + S steps late. A window in which no loss arrived does not count.

    Args:
        window_steps: updates per window (an epoch, say), at least 1.
        factor: multiplies the current factor on each plateau, between 0 and 1.
        patience: bad windows in a row that make a plateau, at least 1. PyTorch's scheduler counts
            differently: its 5 is 6 here.
        rtol: improvement that counts, as a share of the best loss. For losses below 0 a share is
            no improvement: use 0, and an `atol`.
        atol: improvement that counts, added to that share, in the loss's unit.
        cooldown: windows after a plateau that do not count.
        min_scale: lower limit of the factor.

    Returns:
        A transformation whose ``update`` needs ``mean_loss=``, which `daso` and `synchronous` pass
        to their inner optimizer: a scalar, NaN (or 1e30) if no new loss arrived.

    Raises:
        ValueError: an argument is out of range; ``update`` was given no loss, or is not inside
            `daso` or `synchronous`.

    *On failure*: if the factors diverge nevertheless (a flipped bit), the exact mean that ends the
    cycling phase makes them equal again.

    Example:
        >>> import jdaso, optax
        >>> session = jdaso.Session()
        >>> inner = optax.chain(optax.sgd(0.1), jdaso.reduce_on_plateau(window_steps=100))
        >>> tx = jdaso.daso(inner, phases=jdaso.Phases(total_steps=1000), session=session)
        >>> state = tx.init({"w": 1.0})
        >>> float(optax.tree.get(state, "plateau").scale)
        1.0
        >>> session.close()

    Reference: the ImageNet example of HeAT's DASO, the source of the other defaults, has
    ``ReduceLROnPlateau(factor=0.5, patience=5, threshold=0.05, min_lr=1e-4)`` of PyTorch.
    """
    for name, value in (("window_steps", window_steps), ("patience", patience)):
        if value < 1:
            raise ValueError(f"{name} must be at least 1, got {value}.")
    rule = on_each_value(factor, patience, rtol, atol, cooldown, min_scale=min_scale)

    def init(params: PyTree) -> PlateauState:
        with jax.debug_nans(False), jax.debug_infs(False):  # the state contains infinity at first
            plateau: Any = rule.init(jnp.float32(0))
        plateau = plateau._replace(best_value=jnp.float32(WORST_LOSS))
        # An array for each count: JAX donates no buffer twice.
        step, losses = (jnp.zeros((), jnp.int32) for _ in range(2))
        return PlateauState(step, jnp.float32(0), losses, plateau)

    def update(
        updates: PyTree,
        state: PlateauState,
        params: PyTree | None = None,
        *,
        mean_loss: Any = None,
        **extra: Any,
    ) -> tuple[PyTree, PlateauState]:
        if mean_loss is None:
            raise ValueError(
                "jdaso.reduce_on_plateau was given no mean_loss. Put it inside jdaso.daso(...) or "
                "jdaso.synchronous(...), and call tx.update(grads, state, params, value=loss)."
            )
        mean_loss = jnp.asarray(mean_loss, jnp.float32)
        heard = jnp.isfinite(mean_loss) & (mean_loss < NO_MEAN_LOSS)
        step = state.step + 1
        losses = state.losses + heard.astype(jnp.int32)
        loss_sum = state.loss_sum + jnp.where(heard, mean_loss, 0.0)
        look = (step % window_steps == 0) & (losses > 0)
        _, looked = rule.update((), state.plateau, value=loss_sum / jnp.maximum(losses, 1))
        plateau = jax.tree.map(lambda new, old: jnp.where(look, new, old), looked, state.plateau)
        updates = jax.tree.map(lambda u: (plateau.scale * u).astype(u.dtype), updates)
        losses, loss_sum = jnp.where(look, 0, losses), jnp.where(look, 0.0, loss_sum)
        return updates, PlateauState(step, loss_sum, losses, plateau)

    # optax's protocol names its own aliases of Any for states.
    return optax.GradientTransformationExtraArgs(init, update)  # pyright: ignore


def select_inner(condition: Any, new: PyTree, old: PyTree) -> PyTree:
    """`jnp.where` over the floats of inner states; counts, keys and a `PlateauState` are new.

    A node out of data keeps its moments, but counts updates and follows the loss as the others do:
    its schedules must not fall behind.
    """

    def pick(new: Any, old: Any) -> Any:
        if new is None or isinstance(new, PlateauState):
            return new
        moves = jnp.issubdtype(jnp.result_type(new), jnp.inexact)
        return jnp.where(condition, new, old) if moves else new

    return jax.tree.map(pick, new, old, is_leaf=lambda x: x is None or isinstance(x, PlateauState))
