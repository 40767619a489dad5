"""Norms and factors of matrices, against NumPy."""

from functools import partial

import numpy as np
import pytest
from array_nodes import on_nodes
from nights import rows

import jdaso.array as ja
from jdaso.array.linalg import _solve

RNG = np.random.default_rng(0)
A = RNG.normal(size=(12, 3)).astype(np.float32)
B = RNG.normal(size=12).astype(np.float32)


def check(nodes, function, expected, rtol=1e-4, atol=1e-5):
    for found in on_nodes(nodes, lambda: np.asarray(function())):
        assert found.shape == np.shape(expected)
        np.testing.assert_allclose(found, expected, rtol=rtol, atol=atol)


@pytest.mark.parametrize("nodes", rows((1, 3, 9), day=(3,)))
@pytest.mark.parametrize("axis", rows((None, 0, 1), day=(0,)))
def test_norms_and_factors(nodes, axis):
    def split():
        return ja.asarray(A, split=axis)

    def again():
        u, s, vh = ja.linalg.svd(split(), full_matrices=False)
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
    solved = np.linalg.lstsq(A, B, rcond=None)
    for k, wanted in enumerate(solved):
        check(nodes, lambda k=k: ja.linalg.lstsq(split(), ja.asarray(B, split=0))[k], wanted)


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


# Three nodes have as many rows each, and compile one program; four have not.
S = RNG.normal(size=(6, 6)).astype(np.float32)
C = (S + 1j * RNG.normal(size=S.shape)).astype(np.complex64)
H = C @ C.T.conj() + 6 * np.eye(6, dtype=np.float32)
STACK = RNG.normal(size=(3, 3, 3)).astype(np.float32)
RIGHT = RNG.normal(size=(6, 2)).astype(np.float32)


@pytest.mark.parametrize("nodes", rows((1, 3, 4, 9), day=(3,)))
@pytest.mark.parametrize("axis", rows((None, 0, 1), day=(0,)))
@pytest.mark.parametrize("matrix", rows(("S", "C"), day=("C",)))
def test_square_systems(nodes, axis, matrix, monkeypatch):
    monkeypatch.setattr(_solve, "PANEL", 3)  # several panels

    def split(x, axis=axis):
        return ja.asarray(x, split=axis)

    near = dict(rtol=1e-3, atol=2e-4)
    x = {"S": S, "C": C}[matrix]
    for right in (RIGHT, RIGHT[:, 0]):
        wanted = np.linalg.solve(x, right)
        solve = partial(lambda right: ja.linalg.solve(split(x), split(right, 0)), right)
        check(nodes, solve, wanted, **near)
    check(nodes, lambda: ja.linalg.inv(split(x)), np.linalg.inv(x), **near)
    check(nodes, lambda: ja.linalg.cholesky(split(H)), np.linalg.cholesky(H), **near)
    upper = np.linalg.cholesky(H).T.conj()
    check(nodes, lambda: ja.linalg.cholesky(split(H), upper=True), upper, **near)
    wanted = np.linalg.solve(H, C[0])
    check(nodes, lambda: ja.linalg.cg(split(H), C[0], tol=1e-6), wanted, **near)


@pytest.mark.parametrize("nodes", rows((1, 3), day=(3,)))
@pytest.mark.parametrize("axis", rows((None, 0, 1, 2), day=(0,)))
@pytest.mark.parametrize("matrix", rows(("S", "C", "STACK"), day=("STACK",)))
def test_values_of_matrices(nodes, axis, matrix):
    x = globals()[matrix]
    axis = axis if axis is None else min(axis, x.ndim - 1)

    def split(y=x):
        return ja.asarray(y, split=axis)

    near, both = dict(rtol=1e-3, atol=1e-3), x + np.swapaxes(x, -1, -2).conj()
    singular = np.linalg.svd(x, compute_uv=False)
    for name in ("det", "pinv", "matrix_rank"):
        wanted = getattr(np.linalg, name)(x)
        check(nodes, lambda name=name: getattr(ja.linalg, name)(split()), wanted, **near)
    check(nodes, lambda: ja.linalg.slogdet(split()).logabsdet, np.linalg.slogdet(x)[1], **near)
    check(nodes, lambda: ja.linalg.svdvals(split()), singular, **near)
    check(nodes, lambda: ja.linalg.eigvalsh(split(both)), np.linalg.eigvalsh(both), **near)
    by_size = lambda values: np.sort_complex(np.round(values, 3))  # noqa: E731
    wanted = by_size(np.linalg.eigvals(x))
    for found in on_nodes(nodes, lambda: np.asarray(ja.linalg.eigvals(split()))):
        np.testing.assert_allclose(by_size(found), wanted, atol=5e-3)
    values, vectors = ja.linalg.eig(ja.asarray(x))
    again = np.asarray(vectors) * np.asarray(values)[..., None, :]
    np.testing.assert_allclose(x @ np.asarray(vectors), again, atol=1e-3)
    check(nodes, lambda: ja.linalg.trace(split(), offset=1), np.trace(x, 1, -2, -1), **near)
    for offset in (-2, 0, 1, 99):
        wanted = np.diagonal(x, offset, -2, -1)
        check(nodes, lambda k=offset: ja.linalg.diagonal(split(), offset=k), wanted)
    for power in (0, 3, -1):
        wanted = np.linalg.matrix_power(x, power)
        check(nodes, lambda n=power: ja.linalg.matrix_power(split(), n), wanted, 2e-2, 2e-2)


@pytest.mark.parametrize("axis", rows((None, 0, 1, 2), day=(0,)))
@pytest.mark.parametrize(
    "kind", rows(("fro", "nuc", 1, -1, 2, -2, np.inf, -np.inf), day=("nuc", np.inf))
)
def test_norms_of_matrices(axis, kind):
    wanted = np.linalg.norm(STACK, kind, (-2, -1), keepdims=True)
    near = dict(rtol=1e-3, atol=1e-3)

    def norm(function, **about):
        return function(ja.asarray(STACK, split=axis), ord=kind, **about)

    check(3, lambda: norm(ja.linalg.matrix_norm, keepdims=True), wanted, **near)
    check(3, lambda: norm(ja.linalg.norm, axis=(-2, -1)), wanted[..., 0, 0], **near)


@pytest.mark.parametrize("axis", rows((None, 0, 1), day=(0,)))
def test_vector_products(axis):
    x, y = A, A[::-1].copy()
    wanted = np.cross(x, y)
    check(3, lambda: ja.linalg.cross(ja.asarray(x, split=axis), ja.asarray(y, split=0)), wanted)
    check(3, lambda: ja.linalg.outer(ja.asarray(B, split=0), A[0]), np.outer(B, A[0]))


@pytest.mark.parametrize("axis", rows((None, 0, 1), day=(0,)))
def test_bases_of_powers(axis):
    both = (C + C.T.conj()).astype(np.complex64)

    def run():
        v, t = ja.linalg.lanczos(ja.asarray(both, split=axis), 6)
        return v @ t @ v.T.conj(), v.T.conj() @ v, t

    for again, squares, t in on_nodes(3, lambda: [np.asarray(one) for one in run()]):
        np.testing.assert_allclose(again, both, atol=1e-4)
        np.testing.assert_allclose(squares, np.eye(6), atol=1e-5)
        np.testing.assert_allclose(t, np.triu(np.tril(t, 1), -1))


@pytest.mark.parametrize("axis", rows((None, 0, 1), day=(0,)))
def test_factors_of_low_rank(axis):
    x = (RNG.normal(size=(40, 3)) @ RNG.normal(size=(3, 20))).astype(np.float32)

    def run():
        u, s, vh = ja.linalg.rsvd(ja.asarray(x, split=axis), 3, oversamples=2)
        assert u.shape == (40, 3) and (axis is None) == (u.split is None)
        return (u * s) @ vh

    check(3, run, x)


def test_columns_that_are_nearly_the_same(monkeypatch):
    """Both columns are in one panel, after other panels: Q stays unitary."""
    monkeypatch.setattr(_solve, "PANEL", 8)
    random = np.random.default_rng(3)
    x = random.normal(size=(24, 24)).astype(np.float32)
    x[:, 17] = x[:, 16] + 1e-4 * random.normal(size=24)
    right = x @ np.ones(24, np.float32)
    check(3, lambda: ja.linalg.solve(ja.asarray(x, split=0), right), np.ones(24), 0, 0.05)
    q = on_nodes(3, lambda: np.asarray(_solve.factors(ja.asarray(x, split=0))[0]))[0]
    np.testing.assert_allclose(q.T @ q, np.eye(24), atol=3e-6)


def test_the_lower_triangle_is_read():
    x = np.array([[4, 9], [2, 5]], np.float32)
    for axis in (None, 0):
        check(2, lambda axis=axis: ja.linalg.cholesky(ja.asarray(x, split=axis)), [[2, 0], [1, 2]])


def test_a_basis_that_holds_all_products_goes_on_with_others():
    x = np.diag([1.0, 2, 3]).astype(np.float32)
    vectors, small = ja.linalg.lanczos(x, 3, v0=np.array([1.0, 0, 0], np.float32))
    vectors = np.asarray(vectors)
    np.testing.assert_allclose(vectors.T @ vectors, np.eye(3), atol=1e-6)
    np.testing.assert_allclose(np.linalg.eigvalsh(np.asarray(small)), [1, 2, 3], atol=1e-5)
    with pytest.raises(ValueError, match="1 to 3 vectors"):
        ja.linalg.lanczos(x, 4)


def test_sums_over_axes_of_other_lengths_are_refused():
    with pytest.raises(ValueError, match="these differ"):
        ja.tensordot(np.ones((2, 3)), np.ones((3, 2)), axes=2)
