"""Parameters whose updates have a fixed length, like those of Muon and Lion.

Candidates have first moments and no second ones: a field ``mu`` without ``nu`` in one record of the
inner state. A trial compares updates after gradients that are always the same, after random ones,
and after larger ones. If all are about equally long, the length is fixed. SGD's grow with the
gradient, and averages of random gradients are short.

A part of an update that is a multiple of the parameter, decoupled weight decay, is no part of that
length: it is the same on all nodes, and a mean over the nodes does not shorten it.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from .._jax.types import PyTree
from .._payload.trees import travels
from .stand_ins import Trial, first_line, zeros_of

log = logging.getLogger("jdaso")

_SIDES = 2, 16
"""Longest axes of the stand-ins, tried in turn: labels may depend on sizes."""

_STEPS = 32
"""Updates of a trial, of which the last quarter counts."""

_FEW = 3
"""Updates before the trial of weight decay."""

_GRADIENT, _SCALE = 1e-5, 16.0
"""Size of gradients, below what optimizers clip; the factor by which larger ones are larger."""

_BETWEEN = 0.5, 2.0
"""Lengths are alike within this ratio: Muon's, from a few steps of an iteration, are not exact."""


class FoundLengths(NamedTuple):
    """The result of a trial.

    Attributes:
        leaves: numbers, among the exchanged leaves, of parameters with updates of a fixed length.
        failure: the error that ended the trial; "" if there was none.
        decayed: those of `leaves` whose updates hold a multiple of the parameter.
    """

    leaves: tuple[int, ...]
    failure: str = ""
    decayed: tuple[int, ...] = ()


class LengthsFinder(Trial[FoundLengths]):
    """The parameters with updates of a fixed length."""

    def _nothing(self, failure: str) -> FoundLengths:
        return FoundLengths((), failure)

    def _found(self, params: PyTree) -> FoundLengths:
        kinds = _candidates(params, jax.eval_shape(self._init, params))
        if not kinds:
            return FoundLengths(())
        first = {kind: place for place, kind in reversed(kinds.items())}
        fixed: dict[Any, bool] = {}
        decays: dict[Any, bool] = {}
        failure = ""
        # One parameter of each kind is compiled much faster than all. Labels may need all of them.
        for places, side in itertools.product((set(first.values()), None), _SIDES):
            try:
                some = _pruned(params, places)
                fixed, decays, failure = self._tried(some, side), self._decays(some, side), ""
                break
            except Exception as error:  # update needs other parameters, shapes or arguments
                about = "The trial of update lengths with axes of %d has failed."
                log.debug(about, side, exc_info=True)
                failure = first_line(error)
        paths = _paths(params)
        exchanged = [place for place, x in enumerate(jax.tree.leaves(params)) if travels(x)]

        def are(facts: dict[Any, bool]) -> tuple[int, ...]:
            """Numbers of the leaves whose kinds have a property."""
            kind_of = ((k, kinds[place]) for k, place in enumerate(exchanged) if place in kinds)
            return tuple(k for k, kind in kind_of if facts.get(paths[first[kind]], False))

        found, decayed = are(fixed), set(are(decays))
        return FoundLengths(found, failure, tuple(k for k in found if k in decayed))

    def _tried(self, params: PyTree, side: int) -> dict[Any, bool]:
        """Flags, by path, parameters whose updates were about equally long in all trials."""
        small = jax.eval_shape(lambda: zeros_of(params, side))
        real, state = (jax.tree.structure(jax.eval_shape(self._init, x)) for x in (params, small))
        if real != state:
            raise ValueError("the state depends on the shapes of the parameters")
        random = np.random.default_rng(0)
        noise = [random.normal(size=(_STEPS, *x.shape)) for x in jax.tree.leaves(small)]
        same = [np.broadcast_to(x[:1], x.shape) for x in noise]
        trials = zip(same, noise, [_SCALE * x for x in noise], strict=True)
        gradients = [jnp.asarray(_GRADIENT * np.stack(x), jnp.float32) for x in trials]
        run = jax.jit(lambda x: jax.lax.map(lambda y: self._lengths(params, side, y), x))
        lengths = np.asarray(run(gradients))
        ratios = lengths / np.where(lengths[0] > 0, lengths[0], np.inf)
        fixed = np.all((ratios > _BETWEEN[0]) & (ratios < _BETWEEN[1]), axis=0)
        return {path: bool(x) for path, x in zip(_paths(params), fixed, strict=True)}

    def _decays(self, params: PyTree, side: int) -> dict[Any, bool]:
        """Flags, by path, parameters of which updates hold a multiple; none if that fails."""
        random = np.random.default_rng(1)

        def trial() -> list[jax.Array]:
            start = zeros_of(params, side)
            like, tree = jax.tree.flatten(start)
            draw = lambda x: jnp.asarray(random.normal(size=x.shape), x.dtype)  # noqa: E731
            grads = jax.tree.unflatten(tree, [_GRADIENT * draw(x) for x in like])
            losses = {"value": jnp.float32(1), "mean_loss": jnp.float32(1)}
            state = self._init(start)
            for _ in range(_FEW):  # the learning rate may begin with 0
                state = self._update(grads, state, start, losses)[1]
            places = [place for place, x in enumerate(like) if travels(x)]
            numbers = [draw(like[place]) for place in places]
            update = lambda given: self._update(grads, state, given, losses)[0]  # noqa: E731
            filled = jax.tree.unflatten(tree, like)
            parts = parts_of_params(update, filled, places, numbers)
            found = [jnp.bool_(False)] * len(like)
            for place, x, part in zip(places, numbers, parts, strict=True):
                ratio = part / x
                found[place] = (jnp.min(jnp.abs(ratio)) > 0) & jnp.allclose(
                    ratio, ratio.reshape(-1)[0], rtol=0.05, atol=0
                )
            return found

        try:
            found = jax.device_get(jax.jit(trial)())
        except Exception:  # an update that has no derivative
            log.debug("The trial of weight decay has failed.", exc_info=True)
            return {}
        return {path: bool(x) for path, x in zip(_paths(params), found, strict=True)}

    def _lengths(self, params: PyTree, side: int, gradients: list[jax.Array]) -> jax.Array:
        """The mean length of each leaf's updates, given gradients by leaf and step."""

        def step(state: PyTree, given: list[jax.Array]) -> tuple[PyTree, jax.Array]:
            start = zeros_of(params, side)
            like, tree = jax.tree.flatten(start)
            grads = [g.astype(x.dtype) for g, x in zip(given, like, strict=True)]
            losses = {"value": jnp.float32(1), "mean_loss": jnp.float32(1)}
            moved, new = self._update(jax.tree.unflatten(tree, grads), state, start, losses)
            moved = [jnp.abs(x).astype(jnp.float32) for x in tree.flatten_up_to(moved)]
            return jax.tree.map(_strong, new), jnp.stack([jnp.linalg.norm(x) for x in moved])

        begin = jax.tree.map(_strong, self._init(zeros_of(params, side)))
        begin = step(begin, [x[0] for x in gradients])[0]  # a first update may change dtypes
        lengths = jax.lax.scan(step, begin, gradients)[1]
        return jnp.mean(lengths[-_STEPS // 4 :], axis=0)


def parts_of_params(
    update: Callable[[PyTree], PyTree], params: PyTree, places: Sequence[int], numbers: list[Any]
) -> list[jax.Array]:
    """The parts of updates that are linear in some parameters.

    These are derivatives: what else an update computes, from gradients alone, costs nothing.

    Args:
        update: from parameters to updates.
        params: the parameters.
        places: those of the parameters concerned, in the flat parameters.
        numbers: their values.
    """
    flat, tree = jax.tree.flatten(params)

    def of(given: list[Any]) -> list[Any]:
        new = list(flat)
        for place, x in zip(places, given, strict=True):
            new[place] = x
        moved = tree.flatten_up_to(update(jax.tree.unflatten(tree, new)))
        mine = [moved[place] for place in places]
        return [0 * y if x is None else x for x, y in zip(mine, given, strict=True)]

    return jax.jvp(of, (numbers,), (numbers,))[1]


def _strong(x: Any) -> Any:
    """An array that keeps its dtype in a loop; keys already do."""
    is_key = jnp.issubdtype(jnp.result_type(x), jax.dtypes.prng_key)
    return x if is_key else jax.lax.convert_element_type(x, jnp.result_type(x))


def _paths(tree: PyTree) -> list[Any]:
    return [path for path, _ in jax.tree_util.tree_flatten_with_path(tree)[0]]


def _pruned(params: PyTree, places: set[int] | None) -> PyTree:
    """The parameters with only these leaves; with all of them if None."""
    if places is None:
        return params
    flat, tree = jax.tree.flatten(params)
    return jax.tree.unflatten(tree, [x if k in places else None for k, x in enumerate(flat)])


def _candidates(params: PyTree, state: PyTree) -> dict[int, Any]:
    """Places of the parameters that have ``mu`` and no ``nu``, each with its kind.

    A kind is the record, the number of axes, and the dtype.
    """
    mu, nu = (jax.tree_util.GetAttrKey(name) for name in ("mu", "nu"))
    found: dict[Any, dict[Any, Any]] = {mu: {}, nu: {}}
    for path in _paths(state):
        for at, key in enumerate(path):
            if key in found:
                found[key][path[at + 1 :]] = path[:at]
    leaves = enumerate(zip(_paths(params), jax.tree.leaves(params), strict=True))
    return {
        place: (found[mu][path], x.ndim, x.dtype)
        for place, (path, x) in leaves
        if travels(x) and jnp.issubdtype(x.dtype, jnp.floating)
        if path in found[mu] and path not in found[nu]
    }
