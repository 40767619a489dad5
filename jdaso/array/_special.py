"""Elementwise functions at special numbers, where `jax.numpy` differs from the array API standard.

The standard follows C's Annex G for complex numbers, rounds a quotient by an infinity to a zero,
and gives remainders of zero the sign of the divisor.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

Part = Callable[[jax.Array, jax.Array], jax.Array]
Number = Callable[[jax.Array, jax.Array], jax.Array | float] | None
INF, NAN, HALF = np.inf, np.nan, np.pi / 2


def _mended(name: str, *rules: tuple[Part, Number, Number]) -> Callable[[jax.Array], jax.Array]:
    """A function with rules for complex x + iy: where they apply, the real and imaginary part."""
    function = getattr(jnp, name)

    @jax.jit
    def mended(z: jax.Array) -> jax.Array:
        found = function(z)
        if not jnp.iscomplexobj(z):
            return found
        x, y, parts = jnp.real(z), jnp.imag(z), [jnp.real(found), jnp.imag(found)]
        for which, *numbers in rules:
            for k, number in enumerate(numbers):
                if number is not None:
                    parts[k] = jnp.where(which(x, y), number(x, y), parts[k])
        return jax.lax.complex(*(part.astype(x.dtype) for part in parts))

    return mended


def _is(number: float) -> Number:
    return lambda x, y: number


def _zero(part: int) -> Number:
    return lambda *z: jnp.copysign(0.0, z[part])


def _both(*which: Part) -> Part:
    return lambda x, y: jnp.logical_and(which[0](x, y), which[1](x, y))


def _either(*which: Part) -> Part:
    return lambda x, y: jnp.logical_or(which[0](x, y), which[1](x, y))


def _x(test: Callable[[jax.Array], jax.Array]) -> Part:
    return lambda x, y: test(x)


def _y(test: Callable[[jax.Array], jax.Array]) -> Part:
    return lambda x, y: test(y)


def _endless(y: jax.Array) -> jax.Array:
    return ~jnp.isfinite(y)


def _null(x: jax.Array) -> jax.Array:
    return x == 0


_x_inf_y_endless = _both(_x(jnp.isinf), _y(_endless))
_x_null_y_endless = _both(_x(_null), _y(_endless))
_x_null_y_nan = _both(_x(_null), _y(jnp.isnan))
_x_plus_y_nan, _x_minus_y_nan = (
    _both(_x(lambda x, end=end: x == end), _y(jnp.isnan)) for end in (INF, -INF)
)
_plus, _minus = (_both(_x(lambda x, e=e: x == e), _y(_endless)) for e in (INF, -INF))
_inf_and_nan = _either(_both(_x(jnp.isinf), _y(jnp.isnan)), _both(_x(jnp.isnan), _y(jnp.isinf)))

# If one part is NaN, the other one may be any number: both parts of the result are NaN.
_unknown = (
    _either(_both(_x(jnp.isfinite), _y(jnp.isnan)), _both(_x(jnp.isnan), _y(jnp.isfinite))),
    _is(NAN),
    _is(NAN),
)


def _exponential(name: str, least: float) -> Callable[[jax.Array], jax.Array]:
    return _mended(name, (_plus, _is(INF), _is(NAN)), (_minus, _is(least), _is(0.0)))


def _power(x1: Any, x2: Any) -> jax.Array:
    """``x1 ** x2``; of whole numbers in their common type, and with all bits of the exponent."""
    if type(x2) is int:
        return jnp.pow(x1, x2)
    kind = jnp.result_type(x1, x2)
    if not jnp.issubdtype(kind, jnp.integer):
        return jnp.pow(x1, x2)
    return _whole_power(jnp.asarray(x1, kind), jnp.asarray(x2, kind))


@jax.jit
def _whole_power(base: jax.Array, left: jax.Array) -> jax.Array:
    """By repeated squaring; 1 where the exponent is negative."""

    def square(found: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
        product, base, left = found
        return jnp.where(left % 2 == 1, product * base, product), base * base, left // 2

    base, left = jnp.broadcast_arrays(base, left)
    begin = jnp.ones_like(base), base, jnp.maximum(left, 0)
    return jax.lax.while_loop(lambda found: jnp.any(found[2] > 0), square, begin)[0]


@jax.jit
def _sign(x: jax.Array) -> jax.Array:
    return jnp.where(x == 0, jnp.zeros_like(x), jnp.sign(x))


@jax.jit
def _floor_divide(x1: jax.Array, x2: jax.Array) -> jax.Array:
    found = jnp.floor_divide(x1, x2)
    if jnp.issubdtype(found.dtype, jnp.integer):
        return jnp.where(jnp.equal(x2, 0), 0, found)  # as in NumPy
    if not jnp.issubdtype(found.dtype, jnp.floating):
        return found
    infinite = jnp.isinf(x1) & jnp.isfinite(x2) & (x2 != 0)
    small = jnp.isfinite(x1) & jnp.isinf(x2)
    special = infinite | small | (jnp.equal(x1, 0) & (x2 != 0))
    return jnp.where(special, jnp.floor(jnp.divide(x1, x2)), found)


@jax.custom_jvp
def _of_divisors_sign(x1: jax.Array, x2: jax.Array) -> jax.Array:
    found = jnp.remainder(x1, x2)
    if not jnp.issubdtype(found.dtype, jnp.floating):
        return found
    return jnp.where(found == 0, jnp.copysign(jnp.zeros_like(found), x2).astype(found.dtype), found)


@_of_divisors_sign.defjvp
def _slope(
    numbers: Sequence[jax.Array], changes: Sequence[jax.Array]
) -> tuple[jax.Array, jax.Array]:
    return _of_divisors_sign(*numbers), jax.jvp(jnp.remainder, numbers, changes)[1]


SPECIAL: dict[str, Callable[..., jax.Array]] = {
    "pow": _power,
    "acos": _mended("acos", _unknown, (_x_null_y_nan, _is(HALF), None)),
    "acosh": _mended("acosh", _unknown, (_x_null_y_nan, None, _is(HALF))),
    "asinh": _mended("asinh", _unknown, (_both(_x(jnp.isnan), _y(_null)), None, lambda x, y: y)),
    "atanh": _mended(
        "atanh",
        (_either(_x(jnp.isnan), _y(jnp.isnan)), _is(NAN), _is(NAN)),
        (_both(_x(jnp.isnan), _y(jnp.isinf)), _is(0.0), lambda x, y: jnp.copysign(HALF, y)),
        (_either(_x_null_y_nan, _both(_x(jnp.isinf), _y(jnp.isnan))), _zero(0), _is(NAN)),
    ),
    "cosh": _mended(
        "cosh", (_x_null_y_endless, _is(NAN), _is(0.0)), (_x_inf_y_endless, _is(INF), None)
    ),
    "exp": _exponential("exp", 0.0),
    "expm1": _exponential("expm1", -1.0),
    "floor_divide": _floor_divide,
    "log": _mended("log", (_inf_and_nan, _is(INF), None)),
    "log1p": _mended("log1p", (_inf_and_nan, _is(INF), None)),
    "remainder": jax.jit(_of_divisors_sign),
    "sign": _sign,
    "sinh": _mended(
        "sinh", (_x_null_y_endless, _zero(0), _is(NAN)), (_x_inf_y_endless, lambda x, y: x, None)
    ),
    "sqrt": _mended(
        "sqrt",
        (_x_plus_y_nan, _is(INF), None),
        (_x_minus_y_nan, None, _is(INF)),
        (_y(jnp.isinf), _is(INF), lambda x, y: y),
    ),
    "tanh": _mended(
        "tanh",
        (_x(jnp.isinf), lambda x, y: jnp.copysign(1.0, x), _zero(1)),
        (_x_null_y_endless, _zero(0), _is(NAN)),
    ),
}
"""The functions that differ, by their names in `jax.numpy`."""
