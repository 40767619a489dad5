"""Norms and factors of matrices, against NumPy."""

import numpy as np
import pytest
from array_nodes import on_nodes
from nights import rows

import jdaso.array as ja

RNG = np.random.default_rng(0)
A = RNG.normal(size=(12, 3)).astype(np.float32)
B = RNG.normal(size=12).astype(np.float32)


def check(nodes, function, expected):
    for found in on_nodes(nodes, lambda: np.asarray(function())):
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("nodes", rows((1, 3, 9), day=(3,)))
@pytest.mark.parametrize("axis", rows((None, 0, 1), day=(0,)))
def test_norms_and_factors(nodes, axis):
    def split():
        return ja.asarray(A, split=axis)

    def again():
        u, s, vh = ja.linalg.svd(split())
        return (u * s) @ vh

    def squares():
        q = ja.linalg.qr(split()).Q
        return q.T @ q

    check(nodes, lambda: ja.linalg.norm(split()), np.linalg.norm(A))
    one = np.linalg.norm(A, 1, axis=0)
    check(nodes, lambda: ja.linalg.vector_norm(split(), axis=0, ord=1), one)
    check(nodes, lambda: ja.linalg.trace(split()), np.trace(A))
    check(nodes, again, A)
    check(nodes, squares, np.eye(3))
    check(nodes, lambda: ja.linalg.svdvals(split().T), np.linalg.svd(A, compute_uv=False))
    solved = np.linalg.lstsq(A, B, rcond=None)[0]
    check(nodes, lambda: ja.linalg.lstsq(split(), ja.asarray(B, split=0)), solved)


@pytest.mark.parametrize(("m", "n"), rows([(2, 5), (5, 5), (1, 1), (0, 3)], day=[(2, 5)]))
def test_factors_of_all_shapes(m, n):
    shape = m, n
    x = RNG.normal(size=shape).astype(np.float32) + 1j * RNG.normal(size=shape)
    x = x.astype(np.complex64)

    def run():
        q, r = ja.linalg.qr(ja.asarray(x, split=0))
        return q @ r, q.T.conj() @ q, r

    for again, squares, r in on_nodes(3, lambda: [np.asarray(one) for one in run()]):
        np.testing.assert_allclose(again, x, atol=1e-5)
        np.testing.assert_allclose(squares, np.eye(min(shape)), atol=1e-5)
        np.testing.assert_allclose(r, np.triu(r), atol=1e-6)
        assert (np.diagonal(r).real >= 0).all()


def test_least_squares_need_a_tall_matrix():
    with pytest.raises(ValueError, match=r"m >= n, the shape is \(3, 12\)"):
        ja.linalg.lstsq(A.T, B[:3])
