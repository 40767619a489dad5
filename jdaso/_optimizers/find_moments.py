"""Pairs of first and second moments in an inner optimizer's state, as Adam keeps them.

They are two trees like the parameters, in the fields ``mu`` and ``nu`` of one record. A trial shows
whether they are averages of gradients and of their squares, and how fast they decay::

    mu <- d mu + (1 - d) g
    nu <- d' nu + (1 - d') g^2

Not found, and so left alone: second moments without first ones (RMSProp, schedule-free), those of
deviations (AdaBelief), those that do not decay at a fixed rate (Yogi), those of gradients that were
normalized or made noisy, and those of several updates at once (``optax.MultiSteps`` inside of
`daso`; it belongs around it).
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from .._jax.types import PyTree
from .._payload.layout import path_of
from .._payload.trees import travels
from .._rules.second_moments import LEAST_DECAY
from .stand_ins import Trial, first_line, zeros_of

log = logging.getLogger("jdaso")

_GRADIENT = 1e-8
"""The smallest gradient of the trial; optimizers that clip leave such gradients alone."""

_LOOK = 8
"""Numbers of each array that the trial looks at."""


class Moments(NamedTuple):
    """The moments of one parameter.

    Attributes:
        first: the place of the first moments in the flat inner state.
        second: the place of the second moments.
        parameter: the place of the parameter in the flat parameters; None if the optimizer keeps
            its moments in another tree.
        count: the place of the number of updates n by which the optimizer corrects the bias of the
            moments towards 0; None if it does not.
        first_decay: d.
        second_decay: d'.
    """

    first: int
    second: int
    parameter: int | None
    count: int | None
    first_decay: float = 0.0
    second_decay: float = 0.0

    def bias(self, flat: list[Any]) -> Any:
        """The factor that makes first moments as far from their limits as second ones.

        After n updates the weights in a moment add up to ``1 - d^n``.
        """
        if self.count is None:
            return jnp.float32(1)
        updates = jnp.maximum(flat[self.count], 1).astype(jnp.float32)
        first, second = (1 - jnp.float32(d) ** updates for d in self[-2:])
        return jnp.sqrt(second) / first


class FoundMoments(NamedTuple):
    """The result of a trial.

    Attributes:
        shared: moments that are running means.
        missed: paths of second moments, paired with first ones, that are not running means of
            squares, or whose trial failed.
        failure: the error that ended the trial; "" if there was none.
    """

    shared: tuple[Moments, ...]
    missed: tuple[str, ...]
    failure: str = ""


class MomentsFinder(Trial[FoundMoments]):
    """The moments in an inner optimizer's state, of those parameters that have them."""

    def _nothing(self, failure: str) -> FoundMoments:
        return FoundMoments((), (), failure)

    def _found(self, params: PyTree) -> FoundMoments:
        state = jax.eval_shape(self._init, params)
        paths = [path_of(path) for path, _ in jax.tree_util.tree_flatten_with_path(state)[0]]
        shared, failure = self._shared(params)
        seconds = {each.second for each in shared}
        missed = [x.second for x in pairs_of(params, state) if x.second not in seconds]
        return FoundMoments(shared, tuple(paths[place] for place in missed), failure)

    def _shared(self, params: PyTree) -> tuple[tuple[Moments, ...], str]:
        """The moments that are shared; the error that ended the last trial."""
        failure = ""
        for side in (2, None):  # an optimizer may insist on the parameters' own shapes
            try:
                return self._tried(params, side), ""
            except Exception as error:  # or need real gradients, or arguments of its own
                about = "Second moments are not shared: the trial with axes of %s has failed."
                log.debug(about, side or "their own length", exc_info=True)
                failure = first_line(error)
        return (), failure

    def _tried(self, params: PyTree, side: int | None) -> tuple[Moments, ...]:
        """The moments that are averages, found by a trial on arrays with axes of that length."""
        small = jax.eval_shape(lambda: zeros_of(params, side))
        real, state = (jax.eval_shape(self._init, x) for x in (params, small))
        if jax.tree.structure(real) != jax.tree.structure(state):
            raise ValueError("the state depends on the shapes of the parameters")
        return _averages(
            self._init, self._update, lambda: zeros_of(params, side), pairs_of(params, state)
        )


def pairs_of(params: PyTree, state: PyTree) -> list[Moments]:
    """Returns leaves ``mu`` and ``nu`` of one record, for the same parameter."""
    flat = jax.tree_util.tree_flatten_with_path(state)[0]
    places = {path: place for place, (path, _) in enumerate(flat)}
    flat_params = jax.tree_util.tree_flatten_with_path(params)[0]
    parameters = {path: place for place, (path, _) in enumerate(flat_params)}
    mu, nu, count = (jax.tree_util.GetAttrKey(name) for name in ("mu", "nu", "count"))
    found = []
    for path, place in places.items():
        for at in [at for at, key in enumerate(path) if key == nu]:
            record, parameter = path[:at], path[at + 1 :]
            first = places.get((*record, mu, *parameter))
            if first is not None and _are_alike(flat[first][1], flat[place][1]):
                counted = places.get((*record, count))
                found.append(Moments(first, place, parameters.get(parameter), counted))
    return found


def _are_alike(first: Any, second: Any) -> bool:
    """Returns whether two arrays hold real numbers, have one shape, and are not empty."""
    real = all(jnp.issubdtype(x.dtype, jnp.floating) for x in (first, second))
    return real and first.shape == second.shape and first.size > 0


def _averages(
    init: Callable[..., Any],
    update: Callable[..., Any],
    zeros: Callable[[], PyTree],
    pairs: list[Moments],
) -> tuple[Moments, ...]:
    """The pairs that are averages, with the rates at which they decay."""
    if not pairs:
        return ()

    def after(first: Any, second: Any, gradient: Any) -> list[Any]:
        """The first numbers of all moments after an update, two arrays per pair."""
        params = zeros()
        start, tree = jax.tree.flatten(init(params))
        for pair in pairs:
            start[pair.first] = jnp.full_like(start[pair.first], first)
            start[pair.second] = jnp.full_like(start[pair.second], second)
        grads = jax.tree.map(
            lambda x: gradient.astype(x.dtype) * _ramp(x) if travels(x) else x, params
        )
        losses = {"value": jnp.float32(1), "mean_loss": jnp.float32(1)}
        new = jax.tree.leaves(update(grads, jax.tree.unflatten(tree, start), params, losses)[1])
        both = [(new[pair.first], new[pair.second]) for pair in pairs]
        return jax.tree.map(lambda x: jnp.ravel(x)[:_LOOK].astype(jnp.float32), both)

    # One after the other in one loop, so that the update is compiled once.
    trials = (0.0, 1.0, 0.0), (1.0, 1.0, 0.0), (0.0, 0.0, _GRADIENT), (0.0, 0.0, 2 * _GRADIENT)
    run = jax.jit(lambda: jax.lax.map(lambda x: after(*x), jnp.asarray(trials, jnp.float32)))
    every = jax.device_get(run())
    results = [jax.tree.map(lambda x, k=k: x[k], every) for k in range(len(trials))]
    found = []
    zipped = zip(pairs, *results, strict=True)
    for pair, (_, kept), (first, beside), (mean, squares), (_, fourfold) in zipped:
        rates = float(first[0]), float(kept[0])
        forget = LEAST_DECAY <= rates[0] < 1 and 0 < rates[1] < 1
        forget = forget and (first == rates[0]).all()
        forget = forget and (kept == rates[1]).all() and (beside == rates[1]).all()
        if not forget or not np.any(mean):
            continue
        gradients = mean / (1 - rates[0])  # as they reach the moments
        expected = (1 - rates[1]) * np.square(gradients)
        squared = np.allclose(squares, expected, rtol=0.05, atol=1e-3 * expected.max())
        if squared and np.allclose(fourfold, 4 * squares, rtol=0.02, atol=0):
            found.append(pair._replace(first_decay=rates[0], second_decay=rates[1]))
    return tuple(found)


def _ramp(x: Any) -> jax.Array:
    """1, 2, 3, ... in the shape and dtype of an array, starting again after a few."""
    numbers = 1 + jnp.arange(np.size(x)) % _LOOK
    return numbers.reshape(np.shape(x)).astype(jnp.result_type(x))
