"""Copies of the parameters in an inner optimizer's state, which must move with a merge.

Some optimizers keep a point of their own and pull the parameters back to it: float32 master weights
of bfloat16 parameters, the z of schedule-free, the first parameters of COCOB and MADGRAD. If a
merge moves only the parameters, the next updates undo the merge. So such copies move by the same
difference: the node goes on as if it had always been at the new point.

One question decides: is a shift of the parameters undone? Then the copy moves. All else stays as
optax makes it: averages of parameters that only record, distances to the first parameters (DoG,
Prodigy), weak pulls to a point that is the same on all nodes (weight decay, L2-SP), and differences
to the previous parameters (L-BFGS).

The search costs a trace of `init` and `update`; nothing if the state is empty. An optimizer is run
on trial only if some state that steers updates was made from parameters, which Adam's is not. The
trial uses stand-ins of a few elements for each parameter, with gradients of 0: so it needs no real
gradients, seldom real shapes, and works where `init` itself is traced. Weight decay shrinks a shift
as it shrinks parameters that had the shift from the start; that part is subtracted. A pull back is
not found if it is slower than `_LOSS`, or begins only after `_STEPS` updates.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jax.interpreters.partial_eval import dce_jaxpr

from .._jax.types import Leaves, PyTree
from .._payload.layout import describe, is_float
from .._payload.trees import to_leaves, travels
from .stand_ins import trial

Copies = tuple[tuple[int, int], ...]
"""Pairs of numbers: a leaf of the inner state, and the exchanged parameter leaf that it copies."""

_SIDES = 4, 32, 256, None
"""Maximum elements along each axis of a stand-in, tried in turn; None: the parameters' own shapes.
Larger ones are needed if labels or masks depend on sizes, or if `init` fails on smaller ones."""

_STEPS, _LEAST_STEPS, _WORK = 1024, 64, 2**20
"""Updates for which a shift is followed: `optax.MultiSteps` makes no step before its k-th. Fewer,
but not fewer than the second number, if updates times elements would exceed the third."""

_SHIFT, _LOSS = 100.0, 0.05
"""The shift added to the stand-ins, and the share of it that one update may take back. The shift
is large beside the steps of optimizers that normalize gradients, weight decay among them: it
changes the length of such a step by at most a learning rate."""

_LARGE = 500.0
"""Numbers above this are too coarse in bfloat16 to show a shift."""


class Finder:
    """Finds the copies that an inner optimizer holds, once for each tree of parameters.

    Args:
        init: the inner optimizer's `init`.
        update: the inner optimizer's update; see `update_with`.
    """

    def __init__(self, init: Callable[..., Any], update: Callable[..., Any]):
        self._init, self._update = init, update
        self._known: dict[Any, Copies] = {}

    def at_init(self, params: PyTree, state: PyTree) -> None:
        """Searches early, unless `update` needs arguments that come later.

        Raises:
            ValueError: see `copies`.
        """
        try:
            grads = jax.tree.map(jnp.zeros_like, params)
            steers = self._steering(grads, state, params, {}, {})
        except Exception:  # update needs a loss, a function, or gradients of another tree
            return
        self._known[_key(params)] = self._copies(params, state, steers, {})

    def copies(
        self, grads: PyTree, state: PyTree, params: PyTree, losses: Mapping, extra: Mapping
    ) -> Copies:
        """Returns the copies in a state, given the arguments of an update.

        Raises:
            ValueError: the inner optimizer undoes merges, through state that cannot be moved.
        """
        key = _key(params)
        if key not in self._known:
            try:
                steers = self._steering(grads, state, params, losses, extra)
            except (jax.errors.JAXTypeError, TypeError):  # update runs outside of jit only
                steers = [True for _ in jax.tree.leaves(state)]
            self._known[key] = self._copies(params, state, steers, extra)
        return self._known[key]

    def _steering(
        self, grads: PyTree, state: PyTree, params: PyTree, losses: Mapping, extra: Mapping
    ) -> list[bool]:
        """Flags leaves of the state that steer updates; none if none was made from parameters."""
        if not jax.tree.leaves(state):
            return []
        update = lambda g, s, p: self._update(g, s, p, losses, **extra)  # noqa: E731
        step, (updates, _) = jax.make_jaxpr(update, return_shape=True)(grads, state, params)
        begin, count, out = (len(jax.tree.leaves(x)) for x in (grads, state, updates))
        steers, found = [False] * count, [True]
        while found:
            _, used = dce_jaxpr(step.jaxpr, [True] * out + steers)
            found = [k for k in range(count) if used[begin + k] and not steers[k]]
            for k in found:
                steers[k] = True
        _, used = dce_jaxpr(step.jaxpr, [False] * out + steers)
        made = any(used[begin + count :])
        try:
            start = jax.make_jaxpr(self._init)(params)
            made |= any(dce_jaxpr(start.jaxpr, list(steers))[1])
        except jax.errors.JAXTypeError:  # NumPy functions raise it
            made = True
        return steers if made else [False] * count

    def _copies(
        self, params: PyTree, state: PyTree, steers: Sequence[bool], extra: Mapping
    ) -> Copies:
        if not any(steers):
            return ()
        with jax.ensure_compile_time_eval(), trial():
            stand_ins, held = self._tried(params, state)
            held = tuple((place, number) for place, number in held if steers[place])
            try:
                undone = self._undone(stand_ins, (), extra)
            except Exception:  # update needs real gradients or arguments
                undone = None
            if undone is None:  # move every copy, to be safe
                return held
            if not any(undone):
                return ()
            held = tuple((place, number) for place, number in held if undone[number])
            if held and not any(self._undone(stand_ins, held, extra) or ()):
                return held
        paths = [leaf.path for leaf in describe(params) if leaf.exchanged]
        named = [path for path, is_undone in zip(paths, undone, strict=True) if is_undone]
        raise ValueError(
            "The inner optimizer of jdaso.daso keeps the parameters in its state, in a form that "
            f"jdaso cannot move with a merge: after a merge of parameters {named[0] or 'array'} "
            f"({len(named)} of {len(paths)} leaves), the next updates pull them back and undo the "
            "merge. Wrap jdaso.daso in the transformation that keeps the parameters, so that daso "
            "is given what is kept (float32 master weights: jdaso.master_weights(jdaso.daso(...)))."
            " Or use jdaso.synchronous, which has no late merges."
        )

    def _tried(self, params: PyTree, state: PyTree) -> tuple[PyTree, Copies]:
        """Stand-ins whose state is built like the real one, and the copies in that state."""
        stand_ins, held = params, ()
        for side in _SIDES:
            stand_ins = _stand_ins(params, side)
            try:
                tried = self._init(stand_ins)
            except Exception:  # some sizes do not fit each other
                continue
            held = _equal_leaves(tried, stand_ins)
            if _kinds(tried) == _kinds(state):
                break
        return stand_ins, held

    def _undone(self, params: PyTree, held: Copies, extra: Mapping) -> list[bool] | None:
        """Flags leaves whose shift is undone even if these copies shift too; None: unknown."""
        extra = jax.tree.map(_known_value, extra)
        elements = sum(np.size(x) for x in jax.tree.leaves(params))
        steps = max(_LEAST_STEPS, min(_STEPS, _WORK // max(elements, 1)))

        def course(before: Any, between: Any, size: Any) -> tuple[jax.Array, jax.Array]:
            """`_means` after each update, with shifts before and after the first update."""

            def step(params: PyTree, state: PyTree, size: Any) -> tuple[PyTree, PyTree]:
                grads = jax.tree.map(lambda x: _wave(size, x), params)
                losses = {"value": jnp.float32(1), "mean_loss": jnp.float32(1)}
                updates, new = self._update(grads, state, params, losses, **extra)
                params = jax.tree.map(lambda p, u: _add(p, u) if travels(p) else p, params, updates)
                return params, jax.tree.map(_alike, state, new)

            start = _shifted(params, before)
            start, state = step(start, self._init(start), size)
            start = _shifted(start, between)
            shifts = tuple(jnp.full_like(x, between) for x in to_leaves(start))
            state = move(state, held, shifts)

            def body(carry: Any, size: Any) -> tuple[Any, Any]:
                carry = step(carry[0], carry[1], size)
                return carry, _means(carry[0])

            sizes = size * (2 * (jnp.arange(steps) % 2) - 1)  # alternating: values stay near
            _, seen = jax.lax.scan(body, (start, state), sizes)
            return jax.tree.map(lambda x, y: jnp.concatenate([x[None], y]), _means(start), seen)

        run = jax.jit(course)
        for size in (0.0, 0.1):  # some optimizers divide by 0 without gradients
            up, down = (_lost(run, shift, size) for shift in (_SHIFT, -_SHIFT))
            if up is not None and down is not None:
                # If a shift only makes steps longer or shorter, one of the two shows no loss.
                return [bool(x > _LOSS) for x in np.max(np.minimum(up, down), axis=0)]
        return None


def _lost(run: Callable[..., Any], shift: float, size: float) -> np.ndarray | None:
    """The share of a shift that each update takes back, by leaf; None: unknown.

    The share that an update takes from parameters that had the shift from the start does not count.
    """
    shifts = (0.0, 0.0), (0.0, shift), (shift, 0.0)
    courses = [jax.tree.map(np.asarray, run(*each, size)) for each in shifts]
    means, sizes = (np.stack(x) for x in zip(*courses, strict=True))
    if not np.isfinite(means[:, :2]).all():
        return None
    fine = np.logical_and.accumulate((sizes < _LARGE).all(axis=0))  # until they grow too large
    kept, expected = (means[k] - means[0] for k in (1, 2))
    with np.errstate(invalid="ignore"):
        lost = (np.diff(expected, axis=0) - np.diff(kept, axis=0)) / shift
    return np.where(fine[1:, None], lost, 0.0)


def move(state: PyTree, copies: Copies, shifts: Leaves) -> PyTree:
    """Returns the inner state, each copy moved by the shift of its parameter (float32)."""
    flat, tree = jax.tree.flatten(state)
    for place, number in copies:
        flat[place] = moved(flat[place], shifts[number])
    return jax.tree.unflatten(tree, flat)


def moved(copy: Any, shift: jax.Array) -> jax.Array:
    """A copy, or a piece of it, moved by the shift (float32) of its parameter."""
    return _add(copy, _as_numbers(shift, copy))


def places_in_leaves(state: PyTree, copies: Copies) -> dict[int, int]:
    """Returns `copies` as a dict; its keys number the state's exchanged leaves only."""
    flat = jax.tree.leaves(state)
    return {sum(travels(x) for x in flat[:place]): number for place, number in copies}


def _key(params: PyTree) -> Any:
    return jax.tree.structure(params), describe(params)


def _as_numbers(reals: jax.Array, like: Any) -> jax.Array:
    complex_ones = jnp.issubdtype(jnp.result_type(like), jnp.complexfloating)
    return jax.lax.complex(reals[..., 0], reals[..., 1]) if complex_ones else reals


def _add(x: Any, y: Any) -> jax.Array:
    """The sum, computed in float32 or wider, in the dtype of `x`."""
    wide = jnp.promote_types(jnp.result_type(x), jnp.float32)
    return (jnp.asarray(x, wide) + jnp.asarray(y).astype(wide)).astype(jnp.result_type(x))


def _alike(old: Any, new: Any) -> Any:
    """`new` in the dtype of `old`; a scan needs the same dtypes after each step."""
    return new if new.dtype == old.dtype else new.astype(old.dtype)


def _shifted(params: PyTree, shift: Any) -> PyTree:
    return jax.tree.map(lambda x: _add(x, shift) if travels(x) else x, params)


def _wave(size: Any, x: Any) -> jax.Array:
    """A gradient like x: `size` and -`size` in turn, whose mean does not resemble a shift."""
    dtype = jnp.result_type(x)
    if not is_float(dtype):
        return jnp.zeros_like(x)
    signs = 1 - 2 * (jnp.arange(np.size(x)) % 2)
    return (size * signs).reshape(x.shape).astype(dtype)


def _means(params: PyTree) -> tuple[jax.Array, jax.Array]:
    """The mean of each exchanged leaf (complex: of the real part); the largest absolute value."""
    leaves = [x for x in jax.tree.leaves(params) if travels(x)]
    reals = [jnp.real(x).astype(jnp.float32) for x in leaves]
    largest = jnp.max(jnp.stack([jnp.max(jnp.abs(x)) for x in reals]))
    return jnp.stack([jnp.mean(x) for x in reals]), largest


def _known_value(x: Any) -> Any:
    """An argument of an update; if it is traced, and so has no known value, ones instead."""
    return jnp.ones(x.shape, x.dtype) if isinstance(x, Tracer) else x


def _kinds(state: PyTree) -> Any:
    """The structure of a state: its tree, and dtype and number of axes of each leaf."""
    leaves = jax.tree.leaves(state)
    return jax.tree.structure(state), [(jnp.result_type(x), np.ndim(x)) for x in leaves]


def _stand_ins(params: PyTree, side: int | None) -> PyTree:
    """Arrays of the same dtypes and numbers of axes; floats get different numbers."""
    random = np.random.default_rng(0)

    def stand_in(x: Any) -> jax.Array:
        dtype, shape = jnp.result_type(x), tuple(min(n, side or n) for n in np.shape(x))
        if jnp.issubdtype(dtype, jax.dtypes.prng_key):
            return jnp.broadcast_to(jax.random.key(0, impl=jax.random.key_impl(x)), shape)
        numbers = random.normal(size=shape) if is_float(dtype) else np.zeros(shape)
        return jnp.asarray(numbers).astype(dtype)

    return jax.tree.map(stand_in, params)


def _equal_leaves(state: PyTree, params: PyTree) -> Copies:
    """Leaves of a state that equal a leaf of the parameters, in any precision."""
    leaves = [x for x in jax.tree.leaves(params) if travels(x)]
    found = []
    for place, x in enumerate(jax.tree.leaves(state)):
        if not hasattr(x, "dtype") or not travels(x):
            continue
        for number, leaf in enumerate(leaves):
            if x.shape == leaf.shape and bool(jnp.all(x == leaf.astype(x.dtype))):
                found.append((place, number))
                break
    return tuple(found)
