"""Fourier transforms of n dimensions, of arrays with any split.

A node transforms its block along the axes that are whole there. For the split axis, the array is
first divided along another one (`resplit`): each node sends n (P - 1) / P² bytes to the others. The
result is split along that other axis. An array of one axis is gathered on all nodes.

Functions, arguments and norms are those of `jax.numpy.fft` and of the array API standard.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from ._array import Array, as_array
from ._create import asarray
from ._layout import ArrayLayout, Axes, axes_of, axis_of, replaced
from ._move import resplit
from ._shape import roll

__all__ = [
    "fft", "fft2", "fftfreq", "fftn", "fftshift", "hfft", "ifft", "ifft2", "ifftn", "ifftshift",
    "ihfft", "irfft", "irfftn", "rfft", "rfftfreq", "rfftn",
]  # fmt: skip


def _away_from(x: Array, axis: int) -> Array:
    """The array, not split along an axis, but along the longest of the others, if any."""
    if x.split != axis:
        return x
    others = [k for k in range(x.ndim) if k != axis]
    return resplit(x, max(others, key=lambda k: x.shape[k], default=None))


def _along(
    x: Array, function: Callable[..., jax.Array], axis: int, n: int | None, norm: str
) -> Array:
    """A transform along one axis that is not split."""
    points = _points(function, x.shape[axis]) if n is None else n
    if points < 1:
        raise ValueError(
            f"A transform has 1 point or more, got {points} along axis {axis} of an array of the "
            f"shape {x.shape}. Give more points, or an axis of more elements."
        )
    block = function(x.block, n, axis, norm)
    shape = replaced(x.shape, axis, block.shape[axis])
    return Array(block, ArrayLayout(shape, x.split, x.counts), x.world)


def _points(function: Callable[..., jax.Array], size: int) -> int:
    """The number of points of a transform that is given none."""
    return max(0, 2 * (size - 1)) if function in (jnp.fft.irfft, jnp.fft.hfft) else size


def _of_one(name: str) -> Callable[..., Array]:
    function = getattr(jnp.fft, name)

    def call(x: Any, *, n: int | None = None, axis: int = -1, norm: str = "backward") -> Array:
        x = as_array(x)
        along = axis_of(axis, x.ndim)
        return _along(_away_from(x, along), function, along, n, norm)

    call.__name__ = call.__qualname__ = name
    call.__doc__ = f"`jax.numpy.fft.{name}` along an axis; see the module for what moves."
    return call


fft, ifft = _of_one("fft"), _of_one("ifft")
rfft, irfft = _of_one("rfft"), _of_one("irfft")
hfft, ihfft = _of_one("hfft"), _of_one("ihfft")


def _axes(
    x: Array, s: Sequence[int] | None, axes: Sequence[int] | None
) -> list[tuple[int, int | None]]:
    """The axes of a transform, with the sizes that they are padded or cut to (None: their own)."""
    if axes is None:
        if s is not None and len(s) > x.ndim:
            raise ValueError(
                f"s has {len(s)} sizes, {tuple(s)}, for an array of {x.ndim} axes. Give at most "
                "one for each axis."
            )
        axes = range(x.ndim) if s is None else range(x.ndim - len(s), x.ndim)
    along = [axis_of(axis, x.ndim) for axis in axes]
    if s is not None and len(s) != len(along):
        raise ValueError(f"s has {len(s)} sizes for {len(along)} axes. Give one for each axis.")
    return list(zip(along, [None] * len(along) if s is None else s, strict=True))


def _each(
    x: Array, todo: list[tuple[int, int | None]], function: Callable[..., jax.Array], norm: str
) -> Array:
    """A transform along several axes: first along those that are whole here."""
    for axis, n in sorted(todo, key=lambda one: one[0] == x.split):
        x = _along(_away_from(x, axis), function, axis, n, norm)
    return x


def _of_many(name: str) -> Callable[..., Array]:
    function = getattr(jnp.fft, name.removesuffix("n"))

    def call(
        x: Any,
        *,
        s: Sequence[int] | None = None,
        axes: Sequence[int] | None = None,
        norm: str = "backward",
    ) -> Array:
        x = as_array(x)
        return _each(x, _axes(x, s, axes), function, norm)

    call.__name__ = call.__qualname__ = name
    call.__doc__ = (
        f"`jax.numpy.fft.{name}` over axes (None: all, or the last of `s`). Moves one `resplit`."
    )
    return call


fftn, ifftn = _of_many("fftn"), _of_many("ifftn")


def fft2(x: Any, *, axes: Sequence[int] = (-2, -1), norm: str = "backward") -> Array:
    """`fftn` over two axes; moves the same."""
    return fftn(x, axes=axes, norm=norm)


def ifft2(x: Any, *, axes: Sequence[int] = (-2, -1), norm: str = "backward") -> Array:
    """`ifftn` over two axes; moves the same."""
    return ifftn(x, axes=axes, norm=norm)


def rfftn(
    x: Any,
    *,
    s: Sequence[int] | None = None,
    axes: Sequence[int] | None = None,
    norm: str = "backward",
) -> Array:
    """`jax.numpy.fft.rfftn`: half of the last axis of real numbers. Moves two `resplit`."""
    x = as_array(x)
    *todo, (last, n) = _axes(x, s, axes)
    x = _along(_away_from(x, last), jnp.fft.rfft, last, n, norm)
    return _each(x, todo, jnp.fft.fft, norm)


def irfftn(
    x: Any,
    *,
    s: Sequence[int] | None = None,
    axes: Sequence[int] | None = None,
    norm: str = "backward",
) -> Array:
    """`jax.numpy.fft.irfftn`: the inverse of `rfftn`. Moves two `resplit`."""
    x = as_array(x)
    *todo, (last, n) = _axes(x, s, axes)
    x = _each(x, todo, jnp.fft.ifft, norm)
    return _along(_away_from(x, last), jnp.fft.irfft, last, n, norm)


def fftfreq(
    n: int, *, d: float = 1.0, dtype: Any = None, device: Any = None, split: int | None = None
) -> Array:
    """The frequencies of `fft` of n samples at a distance d. Nothing moves."""
    return asarray(jnp.fft.fftfreq(n, d, dtype=dtype), device=device, split=split)


def rfftfreq(
    n: int, *, d: float = 1.0, dtype: Any = None, device: Any = None, split: int | None = None
) -> Array:
    """The frequencies of `rfft` of n samples at a distance d. Nothing moves."""
    return asarray(jnp.fft.rfftfreq(n, d, dtype=dtype), device=device, split=split)


def fftshift(x: Any, *, axes: Axes | None = None) -> Array:
    """The zero frequency moved to the middle of axes (None: all). Moves what `roll` moves."""
    x = as_array(x)
    along = axes_of(axes, x.ndim)
    return roll(x, tuple(x.shape[k] // 2 for k in along), axis=along)


def ifftshift(x: Any, *, axes: Axes | None = None) -> Array:
    """The inverse of `fftshift`; moves the same."""
    x = as_array(x)
    along = axes_of(axes, x.ndim)
    return roll(x, tuple(-(x.shape[k] // 2) for k in along), axis=along)
