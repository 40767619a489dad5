"""Means and variances of many rows, which are summed side by side, against NumPy in 64 bits."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from array_nodes import on_nodes

import jdaso.array as ja

RNG = np.random.default_rng(5)
# Fewer rows than are summed together, a multiple of them, and others; one column, and too many.
SHAPES = [(31, 4), (192, 4), (305, 3), (305, 1), (70, 65), (40, 7, 2, 3), (0, 3), (305, 0)]
NEAR = {"rtol": 2e-6, "atol": 2e-6}


def numbers(shape, dtype=np.float32):
    x = RNG.normal(3.0, 2.0, shape)
    return (x + 1j * RNG.normal(size=shape) if dtype == np.complex64 else x).astype(dtype)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("axes", [0, (0, 1), -1], ids=str)
@pytest.mark.filterwarnings("ignore:.*:RuntimeWarning")  # NumPy warns of means of no numbers
def test_moments_of_rows(shape, axes):
    x = numbers(shape, np.complex64 if shape == (305, 3) else np.float32)
    wide = x.astype(np.complex128 if x.dtype.kind == "c" else np.float64)

    def ours():
        split = ja.asarray(x, split=0)
        return [np.asarray(f(split, axis=axes)) for f in (ja.mean, ja.var)]

    for mean, variance in on_nodes(2, ours):
        np.testing.assert_allclose(mean, wide.mean(axes), **NEAR)
        np.testing.assert_allclose(variance, wide.var(axes), **NEAR)


@pytest.mark.parametrize("rows", [31, 305])
def test_a_mean_and_a_variance_have_slopes(rows):
    x = numbers((rows, 3))

    def ours(x):
        return jnp.sum(jnp.sin(ja.mean(x, axis=0).block) + ja.var(x, axis=0).block)

    def theirs(x):
        return jnp.sum(jnp.sin(jnp.mean(x, 0)) + jnp.var(x, 0))

    np.testing.assert_allclose(jax.jit(jax.grad(ours))(x), jax.grad(theirs)(x), **NEAR)
