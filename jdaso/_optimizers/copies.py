"""Copies of the parameters in an inner optimizer's state, which have to move with a merge.

Some optimizers keep a point of their own and lead the parameters back to it: float32 master weights
of bfloat16 parameters, the z of schedule-free, the first parameters of COCOB and MADGRAD. A merge
that moves the parameters only is undone by the next updates. So what such a state holds moves with
them, by the same difference: the node goes on as if it had always been there.

One question decides: is a shift of the parameters undone? Then the copy moves. All else stays as
optax makes it: averages of parameters that only record, distances to the first parameters (DoG,
Prodigy), weak pulls to a point that is the same on all nodes (weight decay, L2-SP), and differences
to the parameters before (L-BFGS).

Finding out costs a trace of `init` and `update`. Only where a state that steers updates was made
from parameters at all, which Adam's is not, the optimizer is tried out: on stand-ins for the
parameters of a few elements each, with gradients of 0, so that real shapes and gradients are not
needed, and also where `init` is itself traced. What weight decay takes from a shift it takes from
parameters that were there from the start, too; that is subtracted.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.interpreters.partial_eval import dce_jaxpr

from .._payload.layout import describe, is_float
from .._payload.trees import to_leaves, travels
from .._types import Leaves, PyTree

Copies = tuple[tuple[int, int], ...]
"""The leaf of the inner state that copies each of the parameters' leaves that are exchanged."""

_SIDE = 4
"""Elements along each axis of a stand-in."""

_STEPS = 64
"""Updates for which a shift is followed: `optax.MultiSteps` makes none before its k-th."""

_SHIFT, _LOSS = 1.0, 0.05
"""The shift that is added to the stand-ins, and the share of it that one update may take back."""


class Finder:
    """Finds the copies that an inner optimizer holds, once for each tree of parameters.

    Args:
        init: of the inner optimizer.
        update: of the same, see `update_with`.
    """

    def __init__(self, init: Callable[..., Any], update: Callable[..., Any]):
        self._init, self._update = init, update
        self._known: dict[Any, Copies] = {}

    def at_init(self, params: PyTree, state: PyTree) -> None:
        """Raises early where it can: some updates need arguments that come later.

        Raises:
            ValueError: see `copies`.
        """
        try:
            grads = jax.tree.map(jnp.zeros_like, params)
            steers = self._steering(grads, state, params, {}, {})
        except Exception:  # it needs a loss, a function, or gradients of another tree
            return
        self._known[_key(params)] = self._copies(params, state, steers)

    def copies(
        self, grads: PyTree, state: PyTree, params: PyTree, losses: Mapping, extra: Mapping
    ) -> Copies:
        """The copies in a state, by the arguments of an update.

        Raises:
            ValueError: the inner optimizer undoes merges, by what cannot be moved with them.
        """
        key = _key(params)
        if key not in self._known:
            try:
                steers = self._steering(grads, state, params, losses, extra)
            except (jax.errors.JAXTypeError, TypeError):  # it runs outside of jit only
                steers = [True for _ in jax.tree.leaves(state)]
            self._known[key] = self._copies(params, state, steers)
        return self._known[key]

    def _steering(
        self, grads: PyTree, state: PyTree, params: PyTree, losses: Mapping, extra: Mapping
    ) -> list[bool]:
        """The leaves of the state that steer updates, if any of them was made from parameters."""
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
        except jax.errors.JAXTypeError:  # such as NumPy's functions raise
            made = True
        return steers if made else [False] * count

    def _copies(self, params: PyTree, state: PyTree, steers: Sequence[bool]) -> Copies:
        if not any(steers):
            return ()
        held: Copies = ()
        with jax.ensure_compile_time_eval():
            stand_ins = _stand_ins(params)
            try:
                held = _equal_leaves(self._init(stand_ins), stand_ins)
                held = tuple((place, number) for place, number in held if steers[place])
                undone = self._undone(stand_ins, ())
            except Exception:  # it wants real shapes, or arguments
                undone = None
            if undone is None:  # what it holds is moved, to be safe
                return held
            if not any(undone):
                return ()
            held = tuple((place, number) for place, number in held if undone[number])
            if held and not any(self._undone(stand_ins, held) or ()):
                return held
        paths = [leaf.path for leaf in describe(params) if leaf.exchanged]
        named = [path for path, is_undone in zip(paths, undone, strict=True) if is_undone]
        raise ValueError(
            "The inner optimizer of jdaso.daso keeps the parameters in its state, in a form that "
            f"jdaso cannot move with them: where a merge moves the parameters {named[0] or 'array'}"
            f" ({len(named)} of {len(paths)} leaves), its next updates lead them back, and the "
            "merge is undone. Put that which keeps them around jdaso.daso, so that daso is given "
            "what is kept (float32 master weights: give daso those, and make the bfloat16 ones in "
            "the loss); or take jdaso.synchronous, which merges nothing late."
        )

    def _undone(self, params: PyTree, held: Copies) -> list[bool] | None:
        """Of which leaves a shift is undone, where these copies are shifted too; None: unknown."""

        def course(before: Any, between: Any, size: Any) -> jax.Array:
            """Means of the leaves after each of some updates, with shifts on the way."""

            def step(params: PyTree, state: PyTree) -> tuple[PyTree, PyTree]:
                grads = jax.tree.map(lambda x: _wave(size, x), params)
                losses = {"value": jnp.float32(1), "mean_loss": jnp.float32(1)}
                updates, new = self._update(grads, state, params, losses)
                params = jax.tree.map(lambda p, u: _add(p, u) if travels(p) else p, params, updates)
                return params, jax.tree.map(_alike, state, new)

            start = _shifted(params, before)
            start, state = step(start, self._init(start))
            start = _shifted(start, between)
            shifts = tuple(jnp.full_like(x, between) for x in to_leaves(start))
            state = move(state, held, shifts)

            def body(carry: Any, _: Any) -> tuple[Any, Any]:
                carry = step(*carry)
                return carry, _means(carry[0])

            _, seen = jax.lax.scan(body, (start, state), length=_STEPS)
            return jnp.concatenate([_means(start)[None], seen])

        run = jax.jit(course)
        for size in (0.0, 0.1):  # some divide by what is 0 without a gradient
            plain, shifted, from_start = (
                np.asarray(run(*shifts, size))
                for shifts in ((0.0, 0.0), (0.0, _SHIFT), (_SHIFT, 0.0))
            )
            if np.isfinite([plain, shifted, from_start]).all():
                kept, expected = (shifted - plain) / _SHIFT, (from_start - plain) / _SHIFT
                lost = np.max(np.diff(expected, axis=0) - np.diff(kept, axis=0), axis=0)
                return [bool(x > _LOSS) for x in lost]
        return None


def move(state: PyTree, copies: Copies, shifts: Leaves) -> PyTree:
    """The inner state with its copies moved by what the parameters were, float32."""
    flat, tree = jax.tree.flatten(state)
    for place, number in copies:
        flat[place] = _add(flat[place], _as_numbers(shifts[number], flat[place]))
    return jax.tree.unflatten(tree, flat)


def places_in_leaves(state: PyTree, copies: Copies) -> dict[int, int]:
    """The same pairs, but of numbers among the state's leaves that are exchanged."""
    flat = jax.tree.leaves(state)
    return {sum(travels(x) for x in flat[:place]): number for place, number in copies}


def _key(params: PyTree) -> Any:
    return jax.tree.structure(params), describe(params)


def _as_numbers(reals: jax.Array, like: Any) -> jax.Array:
    complex_ones = jnp.issubdtype(jnp.result_type(like), jnp.complexfloating)
    return jax.lax.complex(reals[..., 0], reals[..., 1]) if complex_ones else reals


def _add(x: Any, y: Any) -> jax.Array:
    """A sum in float32 or wider, in the first one's dtype."""
    wide = jnp.promote_types(jnp.result_type(x), jnp.float32)
    return (jnp.asarray(x, wide) + jnp.asarray(y).astype(wide)).astype(jnp.result_type(x))


def _alike(old: Any, new: Any) -> Any:
    """A scan wants the same dtypes after each step."""
    return new if new.dtype == old.dtype else new.astype(old.dtype)


def _shifted(params: PyTree, shift: Any) -> PyTree:
    return jax.tree.map(lambda x: _add(x, shift) if travels(x) else x, params)


def _wave(size: Any, x: Any) -> jax.Array:
    """A gradient like x: `size` and -`size` in turn, whose mean does not look like a shift."""
    dtype = jnp.result_type(x)
    if not is_float(dtype):
        return jnp.zeros_like(x)
    signs = 1 - 2 * (jnp.arange(np.size(x)) % 2)
    return (size * signs).reshape(x.shape).astype(dtype)


def _means(params: PyTree) -> jax.Array:
    """The mean of each leaf that is exchanged; of complex ones the real part's."""
    leaves = [x for x in jax.tree.leaves(params) if travels(x)]
    return jnp.stack([jnp.mean(jnp.real(x).astype(jnp.float32)) for x in leaves])


def _stand_ins(params: PyTree) -> PyTree:
    """Arrays of the same dtypes and numbers of axes, each with numbers of its own."""
    random = np.random.default_rng(0)

    def stand_in(x: Any) -> jax.Array:
        dtype, shape = jnp.result_type(x), tuple(min(n, _SIDE) for n in np.shape(x))
        if jnp.issubdtype(dtype, jax.dtypes.prng_key):
            return jnp.broadcast_to(jax.random.key(0, impl=jax.random.key_impl(x)), shape)
        numbers = random.normal(size=shape) if is_float(dtype) else np.zeros(shape)
        return jnp.asarray(numbers).astype(dtype)

    return jax.tree.map(stand_in, params)


def _equal_leaves(state: PyTree, params: PyTree) -> Copies:
    """Leaves of a state that hold what a leaf of the parameters does, in whatever precision."""
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
