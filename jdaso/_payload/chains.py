"""Sums and differences of many leaves as one operation of a compiled step.

XLA compiles a loop for each leaf of a new shape. On a CPU one call of compiled code takes all
leaves instead; the numbers are the same.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from .._compat import bound_axes, chain


def by_leaf(
    signs: str,
    formula: Callable[..., Any],
    *groups: Sequence[Any],
    into: int | None = None,
) -> list[Any]:
    """``formula(x0, x1, ...)`` of each leaf, which is ``x0 + x1 - x2`` for the signs ``"+-"``.

    Float32 leaves of one shape, on no mesh and in no ``vmap`` or ``shard_map``, are computed
    together, the others by the formula.

    Args:
        signs: of each group after the first.
        formula: the same for one leaf, of any dtypes.
        groups: the terms of each leaf.
        into: the group whose memory the results may take.
    """
    terms = list(zip(*groups, strict=True))
    together = [] if bound_axes() else [k for k, each in enumerate(terms) if _fit(each)]
    columns = zip(*(terms[k] for k in together), strict=True)
    found = dict(zip(together, chain(signs, *columns, into=into), strict=True))
    return [found[k] if k in found else formula(*each) for k, each in enumerate(terms)]


def _fit(terms: Sequence[Any]) -> bool:
    return all(_is_plain(x) and x.shape == terms[0].shape for x in terms)


def _is_plain(x: Any) -> bool:
    if isinstance(x, np.ndarray) or not isinstance(x, jax.Array):
        return False
    about: Any = jax.typeof(x)
    return x.dtype == jnp.float32 and not about.weak_type and about.sharding.mesh.empty
