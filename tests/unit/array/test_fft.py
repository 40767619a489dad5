"""Fourier transforms against NumPy's, for each split, and what they move."""

from functools import partial

import numpy as np
import pytest
from array_nodes import on_nodes
from nights import rows

import jdaso.array as ja

RNG = np.random.default_rng(0)
X = RNG.normal(size=(6, 5)).astype(np.float32)
Z = (X + 1j * X[::-1]).astype(np.complex64)

LINES = {"fft": Z, "ifft": Z, "rfft": X, "irfft": Z, "hfft": Z, "ihfft": X}
PLANES = {"fftn": Z, "ifftn": Z, "rfftn": X, "irfftn": Z, "fft2": Z, "ifft2": Z}


def check(nodes, function, expected):
    for found in on_nodes(nodes, lambda: np.asarray(function())):
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("nodes", rows((1, 3, 8), day=(3,)))
@pytest.mark.parametrize("axis", rows((None, 0, 1), day=(0,)))
@pytest.mark.parametrize("name", rows(LINES, day=("fft", "irfft")))
def test_transforms_along_an_axis(nodes, axis, name):
    x = LINES[name]
    ours, theirs = getattr(ja.fft, name), getattr(np.fft, name)
    for about in ({"axis": 0}, {"axis": 1, "n": 4, "norm": "ortho"}):
        call = partial(lambda about: ours(ja.asarray(x, split=axis), **about), about)
        check(nodes, call, theirs(x, **about))


@pytest.mark.parametrize("nodes", rows((1, 3, 8), day=(3,)))
@pytest.mark.parametrize("axis", rows((None, 0, 1), day=(0,)))
@pytest.mark.parametrize("name", rows(PLANES, day=("fftn", "rfftn")))
def test_transforms_along_several_axes(nodes, axis, name):
    x = PLANES[name]
    check(nodes, lambda: getattr(ja.fft, name)(ja.asarray(x, split=axis)), getattr(np.fft, name)(x))


@pytest.mark.parametrize("nodes", rows((1, 3, 8), day=(3,)))
@pytest.mark.parametrize("axis", rows((None, 0, 1), day=(0,)))
def test_sizes_and_shifts(nodes, axis):
    cut = {"s": (4, 8), "axes": (0, 1)}
    check(nodes, lambda: ja.fft.fftn(ja.asarray(Z, split=axis), **cut), np.fft.fftn(Z, **cut))
    check(nodes, lambda: ja.fft.fftshift(ja.asarray(X, split=axis)), np.fft.fftshift(X))
    check(
        nodes, lambda: ja.fft.ifftshift(ja.asarray(X, split=axis), axes=0), np.fft.ifftshift(X, 0)
    )
    check(nodes, lambda: ja.fft.rfft(ja.asarray(X[:, 0], split=axis and 0)), np.fft.rfft(X[:, 0]))


def test_frequencies():
    check(2, lambda: ja.fft.fftfreq(7, d=0.5, split=0), np.fft.fftfreq(7, 0.5))
    check(2, lambda: ja.fft.rfftfreq(8), np.fft.rfftfreq(8))


@pytest.mark.parametrize(
    ("function", "calls"),
    [
        (lambda x: ja.fft.fft(x, axis=1), 0),
        (lambda x: ja.fft.fft(x, axis=0), 1),
        (lambda x: ja.fft.fftn(x), 1),
        (lambda x: ja.fft.rfftn(x), 1),
    ],
)
def test_a_transform_moves_an_array_at_most_once(function, calls):
    x = np.ones((8, 8), np.complex64).real.astype(np.float32)

    def run():
        with ja.counted() as count:
            function(ja.asarray(x, split=0))
        return count.calls

    assert on_nodes(4, run) == [calls] * 4


def test_sizes_that_do_not_fit_the_axes_are_refused():
    with pytest.raises(ValueError, match="s has 1 sizes for 2 axes"):
        ja.fft.fftn(X, s=(4,), axes=(0, 1))
