"""Float32 master weights: training narrow parameters without losing small steps."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from .._jax.transformations import require_transformation
from .._jax.types import PyTree
from .._payload.layout import path_of
from .._payload.trees import apply_updates, is_none, rounded, travels
from .settings import require_params
from .state import DasoState


class MasterWeights(NamedTuple):
    """State of `master_weights`."""

    master: PyTree  # the narrow parameters in float32; None for others
    inner: optax.OptState  # of the transformation that trains them


def master_weights(
    inner: optax.GradientTransformation,
) -> optax.GradientTransformationExtraArgs:
    """Trains float32 parameters, of which the caller holds a copy in bfloat16 or float16.

    A step that is smaller than half the distance between two bfloat16 numbers would be lost, as
    would most of a merge's change. So the float32 parameters w stay in the optimizer's state,
    `inner` trains them, and each update moves the caller's parameters p to w, rounded::

        w <- w + inner(float32(g), w),   p <- round(w)

    (`optax.apply_updates` adds the step to p in float32 and rounds, so that p may differ from the
    rounding by ``2^-24`` of the old p. The next update corrects that. Others, such as
    ``eqx.apply_updates``, return float32 parameters.)

    Put `master_weights` around `daso` or `synchronous`, so that the nodes exchange w. `finalize`
    takes w from the state, and returns its mean, rounded.

    Args:
        inner: the transformation that is given float32 gradients and parameters.

    Returns:
        A transformation whose ``update`` needs ``params``, and passes other arguments on. Leaves
        that are not narrow floats are passed on as they are, and trained as usual. The state holds
        4 bytes for each narrow parameter in addition to that of `inner`.

    Raises:
        TypeError: `inner` is not an optax transformation.
        ValueError: a parameter that was narrow in ``init`` is not in ``update``.

    On failure: as `inner`.

    Example:
        >>> import jax.numpy as jnp, jdaso, optax
        >>> session = jdaso.Session()
        >>> phases = jdaso.Phases(total_steps=100, warmup_steps=10, cooldown_steps=10)
        >>> tx = jdaso.daso(optax.adam(1e-3), phases=phases, session=session)
        >>> tx = jdaso.master_weights(tx)
        >>> params = {"w": jnp.ones(3, jnp.bfloat16)}
        >>> state = tx.init(params)
        >>> updates, state = tx.update({"w": jnp.ones(3, jnp.bfloat16)}, state, params)
        >>> optax.apply_updates(params, updates)["w"].dtype  # 0.999 is rounded to 1
        dtype(bfloat16)
        >>> float(state.master["w"][0])
        0.9990000128746033
        >>> session.close()

    Reference: Mixed Precision Training (Micikevicius et al.), arXiv 1710.03740, section 3.1.
    """
    require_transformation(inner, "jdaso.master_weights: inner")
    inner = optax.with_extra_args_support(inner)
    narrow: set[str] = set()  # paths of the last `init`

    def init(params: PyTree) -> MasterWeights:
        narrow.clear()
        narrow.update(path for path, x in _by_path(params) if _is_narrow(x))
        master = jax.tree.map(lambda x: _wide(x) if _is_narrow(x) else None, params)
        return MasterWeights(master, inner.init(_whole(master, params)))

    def update(
        updates: PyTree, state: MasterWeights, params: PyTree | None = None, **extra: Any
    ) -> tuple[PyTree, MasterWeights]:
        params = require_params(params, "master_weights")
        for path, x in _by_path(params):
            if path in narrow and not _is_narrow(x):
                raise ValueError(
                    f"Parameter {path} was a narrow float in jdaso.master_weights(...).init, and "
                    f"is {jnp.result_type(x)} in update. Add updates by optax.apply_updates, which "
                    "keeps the parameters' dtypes; p + u and eqx.apply_updates do not."
                )
        wide = jax.tree.map(lambda g: None if g is None else _wide(g), updates, is_leaf=is_none)
        start = _whole(state.master, params)
        steps, new = inner.update(wide, state.inner, start, **extra)
        target = apply_updates(start, steps)

        def lead(step: Any, target: Any, start: Any) -> Any:
            """The step, in float32, from a parameter to the rounding of its target."""
            if step is None or not _is_narrow(start):
                return step
            rounded = _rounded(target, start)
            return rounded - start.astype(jnp.float32)

        master = jax.tree.map(lambda x, p: x if _is_narrow(p) else None, target, params)
        return (
            jax.tree.map(lead, steps, target, params, is_leaf=is_none),
            MasterWeights(master, new),
        )

    return optax.GradientTransformationExtraArgs(init, update)  # pyright: ignore


def _whole(master: PyTree, params: PyTree) -> PyTree:
    """The masters, with the parameters that have none."""
    return jax.tree.map(lambda p, w: p if w is None else w, params, master, is_leaf=is_none)


def masters(params: PyTree, opt_state: PyTree) -> PyTree:
    """The parameters that nodes exchange: those in the state of `master_weights`, if it has any.

    In `optax.masked` and `optax.multi_transform` the state has some of them. Inside of a `daso`
    they are the inner optimizer's copies, which move with the parameters.
    """
    is_master = lambda x: isinstance(x, MasterWeights | DasoState)  # noqa: E731
    paths, tree = jax.tree_util.tree_flatten_with_path(params)
    places, found = {path: k for k, (path, _) in enumerate(paths)}, [x for _, x in paths]
    for each in jax.tree.leaves(opt_state, is_leaf=is_master):
        if not isinstance(each, MasterWeights):
            continue
        mine = jax.tree_util.tree_flatten_with_path(each.master)[0]
        if all(path in places for path, _ in mine):
            for path, x in mine:
                found[places[path]] = x
    return jax.tree.unflatten(tree, found)


def in_dtypes_of(params: PyTree, like: PyTree) -> PyTree:
    """Parameters in the dtypes of others."""
    return jax.tree.map(lambda x, y: x.astype(y.dtype) if _is_narrow(y) else x, params, like)


def _by_path(tree: PyTree) -> list[tuple[str, Any]]:
    return [(path_of(path), x) for path, x in jax.tree_util.tree_flatten_with_path(tree)[0]]


def _is_narrow(x: Any) -> bool:
    return travels(x) and jnp.result_type(x) in (jnp.bfloat16, jnp.float16)


def _wide(x: Any) -> Any:
    return jnp.asarray(x, jnp.float32) if _is_narrow(x) else x


def _rounded(x: jax.Array, like: Any) -> jax.Array:
    """Float32 numbers, rounded to the dtype of another array."""
    return rounded(x, jnp.result_type(like))
