"""The largest difference between two orders of the same sums: a bound from the sums themselves.

A sum of n products, computed in any order, carries a relative error of about ``sqrt(n) u`` with
``u = eps / 2``: each of n roundings adds at most u of a partial sum, with random sign, and a bound
that holds with probability ``1 - 2 exp(-c^2 / 2)`` is ``c sqrt(n) u`` (Higham and Mary 2019, SIAM
J. Sci. Comput. 41, A2815, theorem 2.4). Sums that follow each other, as layers do, add up their
roundings: n is then the number of additions on the longest way through the program. A test compares
some 10^6 numbers, none of which may fail in 10^6 runs: ``2 exp(-c^2 / 2) = 10^-12``, so c = 7.5.

After S steps of SGD the update is a sum of S gradients, each with that error and with the error of
the parameters at which it was computed, which in a stable descent grows no larger: S times the
bound. Each step also rounds the parameters once. Both computations have errors, hence the 2:

    |p - q| <= 2 S u (c sqrt(n) |p - p_0| + |p|)
    |loss - loss'| <= 2 S u c sqrt(n) |loss|

where |.| is the norm of a leaf. The condition of the network is left out: it multiplies relative
errors by about 1 if layers are normalized or have He's scale.
"""

import math

import jax
import jax.numpy as jnp
import numpy as np

CONFIDENCE = 7.5


def additions(function, *args) -> int:
    """Additions and other roundings on the longest path through a function."""
    closed = jax.make_jaxpr(function)(*args)
    return _longest(closed.jaxpr, [0] * len(closed.jaxpr.invars))


def unit(dtype) -> float:
    return float(jnp.finfo(dtype).eps) / 2


def params_bound(start, end, n: int, steps: int) -> list[float]:
    """The largest distance between two computations of each leaf."""
    bounds = []
    for p0, p in zip(jax.tree.leaves(start), jax.tree.leaves(end), strict=True):
        moved = math.sqrt(n) * CONFIDENCE * norm(p - p0)
        bounds.append(2 * steps * unit(p.dtype) * (moved + norm(p)))
    return bounds


def loss_bound(loss, n: int, steps: int) -> float:
    return 2 * steps * unit(np.float32) * CONFIDENCE * math.sqrt(n) * abs(float(loss))


def norm(x) -> float:
    return float(np.linalg.norm(np.asarray(x, np.float64)))


def _longest(jaxpr, begin):
    depth = dict(zip(jaxpr.invars, begin, strict=True))

    def of(atom):
        return 0 if isinstance(atom, jax.extend.core.Literal) else depth.get(atom, 0)

    for eqn in jaxpr.eqns:
        before = max(map(of, eqn.invars), default=0)
        bodies = [getattr(x, "jaxpr", x) for x in eqn.params.values() if _is_body(x)]
        inner = max((_longest(body, [0] * len(body.invars)) for body in bodies), default=None)
        more = _terms(eqn) if inner is None else inner * eqn.params.get("length", 1)
        depth |= dict.fromkeys(eqn.outvars, before + more)
    return max(map(of, jaxpr.outvars), default=0)


def _is_body(value):
    return hasattr(getattr(value, "jaxpr", value), "eqns")


def _terms(eqn):
    out, name = eqn.outvars[0].aval, eqn.primitive.name
    if not jnp.issubdtype(out.dtype, jnp.floating):
        return 0
    if name == "dot_general":
        return math.prod(eqn.invars[0].aval.shape[k] for k in eqn.params["dimension_numbers"][0][0])
    if name == "conv_general_dilated":
        weights = eqn.invars[1].aval.shape
        return math.prod(weights) // weights[eqn.params["dimension_numbers"].rhs_spec[0]]
    if name == "reduce_sum":
        return eqn.invars[0].aval.size // max(out.size, 1)
    if name == "scatter-add":
        return math.prod(eqn.invars[1].aval.shape[:-1])
    return 1
