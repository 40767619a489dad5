"""Elementwise functions: local work, on operands that first get the same layout.

Movement that gives two operands one layout, for each axis of the result that is split:

================  =======================================  ==================
one operand       the other one                            moves
================  =======================================  ==================
split, counts c   whole on each node                       nothing
split, counts c   split along the same axis, counts c      nothing
split             split otherwise                          the smaller one
split             of length 1 there, split along it        the shorter one
================  =======================================  ==================
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ._array import METHODS, Array, as_array, made, method, world_of
from ._create import placed
from ._layout import ArrayLayout
from ._move import cut, laid, resplit
from ._special import SPECIAL
from ._varied import beside, varied
from ._whole_numbers import is_outside, require_fit
from ._world import World


def elementwise(function: Callable[..., jax.Array], *operands: Any) -> Array:
    """Applies an elementwise function to operands that are broadcast against each other.

    Args:
        function: of blocks; keeps their (broadcast) shape.
        operands: arrays or numbers; Python's numbers keep their weak type.
    """
    arrays = [x for x in operands if isinstance(x, Array)]
    if not arrays:
        operands = _fitting(function, operands)
        return as_array(function(*(np.asarray(x) if isinstance(x, list) else x for x in operands)))
    first = arrays[0]
    if len(arrays) == len(operands) and all(_alike(x, first) for x in arrays[1:]):
        blocks = [x.block for x in arrays]
        block = function(*blocks)
        found = block if 0 not in block.shape else beside(block, *blocks)
        return Array(found, first.layout, first.world)
    operands = _fitting(function, operands)
    shape = np.broadcast_shapes(
        *(np.shape(x) if not isinstance(x, Array) else x.shape for x in operands)
    )
    layout = _layout_of(arrays, shape)
    at = world_of(*arrays)
    pieces = [piece(x, layout, at) for x in operands]
    block = function(*pieces)
    if block.weak_type:  # of numbers alone
        block = block.astype(block.dtype)
    return Array(block if block.size else beside(block, *pieces), layout, at)


def _fitting(function: Callable[..., jax.Array], operands: tuple[Any, ...]) -> tuple[Any, ...]:
    """Returns operands of which none wraps around in the type of the others.

    A function that returns fractions is given a float in place of a large Python integer.

    Raises:
        ValueError: numbers of NumPy do not fit the type that JAX has for them.
        OverflowError: a Python integer does not fit the type of the arrays beside it.
    """
    for x in operands:
        require_fit(x)
    kinds = [x.dtype for x in operands if hasattr(x, "dtype") and x.dtype != bool]
    if any(jnp.issubdtype(kind, jnp.inexact) for kind in kinds):
        return tuple(_as_fraction(x) for x in operands)
    whole = bool(kinds) and all(kind.kind in "iu" for kind in kinds)
    if not whole or not any(type(x) is int for x in operands):
        return operands
    kind = jnp.result_type(*kinds)
    outside = [x for x in operands if is_outside(x, kind)]
    if not outside:
        return operands
    like = [jnp.zeros((), x.dtype) if hasattr(x, "dtype") else 0 for x in operands]
    if not jnp.issubdtype(jax.eval_shape(function, *like).dtype, jnp.inexact):
        raise OverflowError(
            f"{outside[0]} is outside of {kind}, the type of the arrays beside it. Convert them "
            'first: x.astype("int32").'
        )
    return tuple(float(x) if is_outside(x, kind) else x for x in operands)


def _as_fraction(x: Any) -> Any:
    """A Python integer beyond JAX's own as a float, infinity if it is larger than all of them."""
    if not is_outside(x, jnp.result_type(int)):
        return x
    most = int(np.finfo(float).max)
    return float(x) if -most <= x <= most else math.inf if x > 0 else -math.inf


def _alike(x: Array, y: Array) -> bool:
    """Returns whether two arrays have one layout, on the same nodes."""
    return x.world is y.world and (x.layout is y.layout or x.layout == y.layout)


def _layout_of(arrays: Sequence[Array], shape: tuple[int, ...]) -> ArrayLayout:
    """The layout of the result: that of the largest operand split there and not broadcast."""
    best: tuple[int, ArrayLayout] | None = None
    for x in arrays:
        if x.split is None:
            continue
        axis = x.split + len(shape) - x.ndim
        if x.shape[x.split] == shape[axis] and (best is None or x.nbytes > best[0]):
            best = x.nbytes, ArrayLayout(shape, axis, x.counts)
    return ArrayLayout(shape) if best is None else best[1]


def piece(x: Any, layout: ArrayLayout, at: World) -> Any:
    """Returns the part of an operand that belongs to a node's block of the result."""
    if not isinstance(x, Array):
        if np.ndim(x) == 0:
            return x if layout.split is None else varied(x, at)
        x = as_array(x)
    if layout.split is None:
        return resplit(x, None).block
    axis = layout.split - len(layout.shape) + x.ndim
    if axis < 0 or (x.shape[axis] == 1 and layout.shape[axis - x.ndim] != 1):
        return varied(resplit(x, None).block, at)
    if x.split is None:
        return cut(varied(x.block, at), axis, layout.slice_of(at.node))
    return laid(x, ArrayLayout(x.shape, axis, layout.counts)).block


def _of_numpy(name: str) -> Callable[..., Array]:
    function: Callable[..., jax.Array] = SPECIAL.get(name) or getattr(jnp, name)

    def call(x: Any, /) -> Array:
        return elementwise(function, x)

    return made(name, f"`jax.numpy.{name}`, element by element. Moves nothing.", call)


def _of_two(name: str, *, compares: bool = False) -> Callable[..., Array]:
    function: Callable[..., jax.Array] = SPECIAL.get(name) or getattr(jnp, name)

    def call(x1: Any, x2: Any, /) -> Array:
        if compares:
            x1, x2 = _comparable(x1, x2), _comparable(x2, x1)
        return elementwise(function, x1, x2)

    told = "element by element. Moves nothing if both have the same layout, else the smaller one."
    return made(name, f"`jax.numpy.{name}`, {told}", call)


def _comparable(x: Any, other: Any) -> Any:
    """A Python integer; infinity in place of one that is outside of the other operand's type."""
    if not is_outside(x, getattr(other, "dtype", bool)):
        return _as_fraction(x)
    return math.inf if x > 0 else -math.inf


abs = _of_numpy("abs")  # noqa: A001
acos = _of_numpy("acos")
acosh = _of_numpy("acosh")
add = _of_two("add")
angle = _of_numpy("angle")
asin = _of_numpy("asin")
asinh = _of_numpy("asinh")
atan = _of_numpy("atan")
atan2 = _of_two("atan2")
atanh = _of_numpy("atanh")
bitwise_and = _of_two("bitwise_and")
bitwise_invert = _of_numpy("bitwise_invert")
bitwise_left_shift = _of_two("bitwise_left_shift")
bitwise_or = _of_two("bitwise_or")
bitwise_right_shift = _of_two("bitwise_right_shift")
bitwise_xor = _of_two("bitwise_xor")
cbrt = _of_numpy("cbrt")
ceil = _of_numpy("ceil")
conj = _of_numpy("conj")
copysign = _of_two("copysign")
cos = _of_numpy("cos")
cosh = _of_numpy("cosh")
deg2rad = _of_numpy("deg2rad")
divide = _of_two("divide")
equal = _of_two("equal", compares=True)
exp = _of_numpy("exp")
exp2 = _of_numpy("exp2")
expm1 = _of_numpy("expm1")
fabs = _of_numpy("fabs")
float_power = _of_two("float_power")
floor = _of_numpy("floor")
floor_divide = _of_two("floor_divide")
fmax = _of_two("fmax")
fmin = _of_two("fmin")
fmod = _of_two("fmod")
gcd = _of_two("gcd")
greater = _of_two("greater", compares=True)
greater_equal = _of_two("greater_equal", compares=True)
heaviside = _of_two("heaviside")
hypot = _of_two("hypot")
imag = _of_numpy("imag")
isfinite = _of_numpy("isfinite")
isinf = _of_numpy("isinf")
isnan = _of_numpy("isnan")
isneginf = _of_numpy("isneginf")
isposinf = _of_numpy("isposinf")
lcm = _of_two("lcm")
less = _of_two("less", compares=True)
less_equal = _of_two("less_equal", compares=True)
log = _of_numpy("log")
log10 = _of_numpy("log10")
log1p = _of_numpy("log1p")
log2 = _of_numpy("log2")
logaddexp = _of_two("logaddexp")
logaddexp2 = _of_two("logaddexp2")
logical_and = _of_two("logical_and")
logical_not = _of_numpy("logical_not")
logical_or = _of_two("logical_or")
logical_xor = _of_two("logical_xor")
maximum = _of_two("maximum")
minimum = _of_two("minimum")
multiply = _of_two("multiply")
negative = _of_numpy("negative")
nextafter = _of_two("nextafter")
not_equal = _of_two("not_equal", compares=True)
positive = _of_numpy("positive")
pow = _of_two("pow")  # noqa: A001
rad2deg = _of_numpy("rad2deg")
real = _of_numpy("real")
reciprocal = _of_numpy("reciprocal")
remainder = _of_two("remainder")
sign = _of_numpy("sign")
signbit = _of_numpy("signbit")
sin = _of_numpy("sin")
sinc = _of_numpy("sinc")
sinh = _of_numpy("sinh")
sqrt = _of_numpy("sqrt")
square = _of_numpy("square")
subtract = _of_two("subtract")
tan = _of_numpy("tan")
tanh = _of_numpy("tanh")
trunc = _of_numpy("trunc")


@method("where")
def where(condition: Any, x: Any = None, y: Any = None) -> Any:
    """Elements of x where the condition is true, else of y.

    With a condition alone its places, as `nonzero` returns them.

    Moves nothing if all have one layout or are whole on each node; else the smaller ones.
    """
    if x is None and y is None:
        return METHODS["nonzero"](as_array(condition))
    if x is None or y is None:
        raise ValueError("where takes a condition, or a condition and two arrays. Give both.")
    return elementwise(jnp.where, condition, x, y)


@method("clip")
def clip(x: Any, min: Any = None, max: Any = None) -> Array:  # noqa: A002
    """Elements, not below `min` and not above `max`; None: no bound. Moves what `where` moves."""
    x = as_array(x)
    given = [_within(one, x.dtype) for one in (min, max) if one is not None]
    names = [name for name, one in (("min", min), ("max", max)) if one is not None]

    def clipped(x: jax.Array, *bounds: Any) -> jax.Array:
        return jnp.clip(x, **dict(zip(names, bounds, strict=True)))

    return elementwise(clipped, x, *given)


def _within(bound: Any, dtype: np.dtype) -> Any:
    """A bound; a Python integer that is outside of a whole type becomes the type's limit."""
    if not is_outside(bound, dtype):
        return _as_fraction(bound)
    about = np.iinfo(dtype)
    return int(about.max if bound > 0 else about.min)


@method("round")
def round(x: Any, decimals: int = 0) -> Array:  # noqa: A001
    """Elements rounded to a number of decimals, halves to even digits. Nothing moves."""
    x = as_array(x)
    if x.dtype.kind in "iu" and decimals < 0:
        return elementwise(partial(_rounded, step=10**-decimals), x)
    if decimals < 0 and jnp.issubdtype(x.dtype, jnp.inexact):
        return elementwise(partial(_rounded_to, step=10.0**-decimals), x)
    return elementwise(lambda block: jnp.round(block, decimals), x)


def _rounded_to(block: jax.Array, *, step: float) -> jax.Array:
    """Fractions, rounded to multiples of a power of ten, which divides them: 0.001 is not exact."""
    if step > float(jnp.finfo(block.dtype).max):
        return jnp.where(jnp.isfinite(block), 0 * block, block)
    return jnp.round(block / step) * step


def _rounded(block: jax.Array, *, step: int) -> jax.Array:
    """Whole numbers, rounded to multiples of a power of ten; halves to even multiples."""
    if step > np.iinfo(block.dtype).max:
        return jnp.zeros_like(block)
    multiple, rest = jnp.divmod(block, step)
    up = (rest > step - rest) | ((rest == step - rest) & (multiple % 2 == 1))
    return (multiple + up) * step


@method("astype")
def astype(x: Any, dtype: Any, *, copy: bool = True, device: Any = None) -> Array:
    """Elements converted to another type; of complex numbers the real parts. Nothing moves.

    Args:
        x: the array.
        dtype: the type.
        copy: makes no difference, since JAX's arrays are immutable.
        device: of this node's block; None: where it is.
    """
    x = as_array(x)
    block = x.block
    if x.dtype.kind == "c" and not jnp.isdtype(dtype, ("complex floating", "bool")):
        block = block.real
    return Array(placed(block.astype(dtype), device), x.layout, x.world)
