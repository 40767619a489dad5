"""Operations between nodes as parts of compiled programs: mpi4jax, on real ranks, beside NumPy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jdaso
import jdaso.array as ja
from jdaso.array import _in_place

pytestmark = [pytest.mark.any_mpi, pytest.mark.several, pytest.mark.two_nodes]

RNG = np.random.default_rng(0)
A, B = RNG.normal(size=(2, 7, 5)).astype(np.float32)
W = RNG.normal(size=5).astype(np.float32)
NEAR = {"rtol": 2e-5, "atol": 1e-5}


@pytest.fixture(scope="module")
def session():
    with jdaso.Session() as session:
        ja.sum(ja.ones(9, split=0))  # the nodes' communicator is opened outside of programs
        yield session


PROGRAMS = {
    "sum": (lambda x, y: ja.sum(x, axis=0), A.sum(0)),
    "whole sum": (lambda x, y: ja.sum(x * y), (A * B).sum()),
    "product": (lambda x, y: ja.prod(x, axis=0), A.prod(0)),
    "greatest": (lambda x, y: ja.max(x, axis=0), A.max(0)),
    "place of the greatest": (lambda x, y: ja.argmax(x, axis=0), A.argmax(0)),
    "deviation": (lambda x, y: ja.std(x, axis=0), A.std(0)),
    "standardized": (
        lambda x, y: (x - ja.mean(x, axis=0)) / ja.std(x, axis=0),
        (A - A.mean(0)) / A.std(0),
    ),
    "inner product": (lambda x, y: x.T @ y, A.T @ B),
    "product of rows": (lambda x, y: x @ y.T, A @ B.T),
    "sum of products": (lambda x, y: ja.einsum("nd,nk->dk", x, y), A.T @ B),
    "products of rows": (lambda x, y: ja.einsum("nd,nd->n", x, y), (A * B).sum(1)),
    "one row": (lambda x, y: x[5], A[5]),
    "running sum": (lambda x, y: ja.cumulative_sum(x, axis=0), A.cumsum(0)),
    "histogram": (
        lambda x, y: ja.histogram(x, 4, range=(-2, 2))[0],
        np.histogram(A, 4, range=(-2, 2))[0],
    ),
}


@pytest.mark.parametrize("program", PROGRAMS.values(), ids=PROGRAMS)
def test_a_compiled_operation_has_numpys_numbers(session, program):
    function, expected = program
    x, y = ja.asarray(A, split=0), ja.asarray(B, split=0)
    found = jax.jit(function)(x, y)
    assert found.block.shape == found.layout.block_shape(session.node)
    np.testing.assert_allclose(np.asarray(found), expected, **NEAR)


SLOPES = {
    "diagonal": (lambda x: ja.diagonal(x, 1), lambda a: np.diagonal(a, 1)),
    "diagonal matrix": (lambda x: ja.diag(x[:, 0]), lambda a: np.diag(a[:, 0])),
    "diagonal of a tall matrix": (lambda x: ja.diag(x[:, :2]), lambda a: np.diag(a[:, :2])),
    "trace": (lambda x: ja.linalg.trace(x[:, :2]), lambda a: np.trace(a[:, :2])),
}


@pytest.mark.parametrize("name", SLOPES)
def test_derivatives_where_a_node_has_no_part(session, name):
    ours, theirs = SLOPES[name]
    slope = jax.grad(lambda x: ja.sum(ours(x) ** 2).block)(ja.asarray(A, split=0))
    wanted, step = np.zeros_like(A), 1e-3
    for place in np.ndindex(*A.shape):
        ends = [A.astype(float), A.astype(float)]
        ends[0][place], ends[1][place] = A[place] - step, A[place] + step
        low, high = (np.sum(theirs(one) ** 2) for one in ends)
        wanted[place] = (high - low) / (2 * step)
    np.testing.assert_allclose(np.asarray(slope), wanted, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("rows", [7, 1])
@pytest.mark.parametrize("split", [None, 0])
def test_derivatives_of_known_points(session, rows, split):
    """Numbers that all nodes have get the derivatives of all rows."""
    places, values = np.linspace(-3, 3, 8).astype(np.float32), B.reshape(-1)[:8].copy()

    def loss(x, places, values):
        return ja.sum(ja.interp(x, places, values) ** 2).block

    def alone(x, places, values):
        return jnp.sum(jnp.interp(x, places, values) ** 2)

    given = ja.asarray(A[:rows], split=0), *(ja.asarray(x, split=split) for x in (places, values))
    found = jax.grad(loss, (0, 1, 2))(*given)
    wanted = jax.grad(alone, (0, 1, 2))(jnp.asarray(A[:rows]), places, values)
    for one, other in zip(found, wanted, strict=True):
        np.testing.assert_allclose(np.asarray(one), other, **NEAR)


def test_a_loop_around_operations_is_one_program(session):
    """Power iteration on ``A^T A``: two products of which one is a reduction, until it stands."""

    def loop(x):
        def step(state):
            vector, _, count = state
            image = (x.T @ (x @ vector)).block
            image = image / jnp.linalg.norm(image)
            return image, jnp.max(jnp.abs(image - vector)), count + 1

        begin = jnp.ones(5) / 5**0.5, jnp.float32(1), 0
        return jax.lax.while_loop(lambda s: (s[1] > 1e-6) & (s[2] < 500), step, begin)

    vector, _, count = jax.jit(loop)(ja.asarray(A, split=0))
    assert 3 < count < 500
    value, expected = np.linalg.norm(A @ vector), np.linalg.norm(A, 2)
    np.testing.assert_allclose(value, expected, rtol=1e-5)


def test_gradients_go_through_operations(session):
    x = ja.asarray(A, split=0)

    def loss(w, x):
        """A loss of numbers that all nodes have, and of a node's own rows."""
        left = ja.einsum("nd,d->n", x, w) - 1
        return ja.mean(left**2).block + ja.sum(ja.var(x, axis=0)).block

    of_w, of_x = jax.jit(jax.grad(lambda w, x: loss(w, x), argnums=(0, 1)))(W, x)
    left = A @ W - 1
    by_x = 2 / 7 * left[:, None] * W + 2 / 7 * (A - A.mean(0))
    np.testing.assert_allclose(np.asarray(of_x), by_x, **NEAR)
    np.testing.assert_allclose(of_w, 2 / 7 * A.T @ left, **NEAR)  # the sum over the nodes


def test_gradients_of_shared_numbers_beside_rows(session):
    """Gradients in functions of elements: a number, a row, a column that is cut, a split row."""
    x, column = ja.asarray(A, split=0), np.arange(1.0, 8, dtype=np.float32)

    def loss(number, row, column):
        return ja.sum(x * number * ja.asarray(row) * column[:, None]).block

    found = jax.jit(jax.grad(loss, argnums=(0, 1, 2)))(np.float32(2), W, column)
    wide = A * column[:, None]
    np.testing.assert_allclose(found[0], (wide * W).sum(), **NEAR)
    np.testing.assert_allclose(found[1], 2 * wide.sum(0), **NEAR)
    np.testing.assert_allclose(found[2], 2 * (A * W).sum(1), **NEAR)
    line = ja.asarray(W, split=0)
    of_line = jax.jit(jax.grad(lambda line: ja.sum(x * line).block))(line)
    np.testing.assert_allclose(np.asarray(of_line), A.sum(0), **NEAR)


def test_one_reduction_for_a_batch(session):
    x, weights = ja.asarray(A, split=0), np.stack([W, 2 * W, -W])
    found = jax.jit(jax.vmap(lambda w: ja.sum((x * w) ** 2, axis=0).block))(weights)
    np.testing.assert_allclose(found, ((A * weights[:, None]) ** 2).sum(1), **NEAR)


def test_compiled_clusters_are_the_eager_ones(session):
    rows = np.concatenate([RNG.normal(m, 1.0, (50, 3)) for m in (-3, 0, 3)]).astype(np.float32)
    x = ja.asarray(rows, split=0)
    eager, compiled = (
        ja.cluster.KMeans(3, random_state=1, compiled=way).fit(x) for way in (False, True)
    )
    assert eager.n_iter_ == compiled.n_iter_ > 2
    np.testing.assert_allclose(
        np.asarray(compiled.cluster_centers_), np.asarray(eager.cluster_centers_), rtol=1e-6
    )
    assert compiled.inertia_ == pytest.approx(eager.inertia_, rel=1e-6)


def test_what_cannot_be_compiled_says_so(session):
    x = ja.asarray(A, split=0)
    with pytest.raises(NotImplementedError, match="outside of jax.jit"):
        jax.jit(lambda x: x.resplit(1))(x)


def test_gradients_of_shared_numbers_in_other_operations(session):
    """Distances, stacks, assignments and running sums; a whole mask has no gradient."""
    x, rows = ja.asarray(A, split=0), A[:2]
    stack = ja.asarray(np.stack([A, 2 * A, 3 * A]), split=0)
    numbers = np.arange(2.0, dtype=np.float32)

    def loss(rows, stacked, value, x):
        near = ja.sum(ja.cdist(x, ja.asarray(rows), "sqeuclidean"))
        products = ja.sum(stack @ ja.asarray(stacked))
        put = ja.sum(x.at[np.array([0, 6]), 0].set(value))
        masked = ja.sum(ja.where(np.arange(5) % 2 == 0, x, 0))
        return (near + products + put + masked + ja.sum(ja.cumulative_sum(x, axis=0))).block

    arguments = rows, W[:, None], numbers, x
    by_rows, by_stacked, by_value, by_x = jax.jit(jax.grad(loss, argnums=range(4)))(*arguments)
    np.testing.assert_allclose(by_rows, -2 * (A[:, None] - rows).sum(0), **NEAR)
    np.testing.assert_allclose(by_stacked[:, 0], 6 * A.sum(0), **NEAR)
    np.testing.assert_allclose(by_value, [1, 1], **NEAR)
    expected = 2 * (A[:, None] - rows).sum(1) + np.arange(7, 0, -1)[:, None] + [[1, 0, 1, 0, 1]]
    expected = expected + 1
    expected[[0, 6], 0] -= 1
    np.testing.assert_allclose(np.asarray(by_x), expected, **NEAR)


def _places(x, weights):
    """Assignments of shared numbers to the first and to the last row."""
    first, last = x.at[:1].set(weights), x.at[-1:, 1:3].set(weights[1:3])
    return [first, x.at[np.array([0]), :].add(weights), last]


def _loss(x, weights):
    """Uses shared numbers beside rows in each kind of operation, one after the other."""
    ones, pair = ja.asarray(weights), ja.asarray(np.stack([W, W]) * weights)
    found = [x @ ones, x * ones, ja.cdist(x, pair, "sqeuclidean"), ja.where(x > 0, x, ones)]
    return sum(ja.sum(one * one) for one in [*found, *_places(x, weights)]).block


def _loss_on_one(x, weights):
    """The same in jax.numpy."""
    far = jnp.sum((x[:, None] - jnp.stack([W, W]) * weights) ** 2, -1)
    found = [x @ weights, x * weights, far, jnp.where(x > 0, x, weights)]
    return sum(jnp.sum(one * one) for one in [*found, *_places(x, weights)])


def test_gradients_where_the_last_node_has_no_rows(session):
    """Its program reduces the shared numbers' derivatives as often as the others'."""
    rows = jnp.asarray(A[: session.num_nodes - 1])
    x = ja.asarray(rows, split=0)
    assert x.layout.block_shape(session.num_nodes - 1)[0] == 0
    found = jax.jit(jax.grad(_loss, argnums=1))(x, W)
    np.testing.assert_allclose(found, jax.grad(_loss_on_one, argnums=1)(rows, W), rtol=1e-4)


@pytest.mark.parametrize("piece_bytes", [_in_place.PIECE_BYTES, 16])
def test_gradients_of_products_where_the_last_node_has_no_rows(piece_bytes, session, monkeypatch):
    """The node passes the others' blocks, and their derivatives back, as often as the others."""
    monkeypatch.setattr(_in_place, "PIECE_BYTES", piece_bytes)
    rows, others = np.round(3 * A[: session.num_nodes - 1]), np.round(3 * B)
    x, y = ja.asarray(rows, split=0), ja.asarray(others, split=0)

    def loss(x, y):
        return ja.sum(ja.square(x @ y.T)).block + ja.sum(ja.square(y.T @ y)).block

    of_x, of_y = jax.jit(jax.grad(loss, argnums=(0, 1)))(x, y)
    product, square = rows @ others.T, others.T @ others
    np.testing.assert_array_equal(np.asarray(of_x), 2 * product @ others)
    expected = 2 * product.T @ rows + 4 * others @ square
    np.testing.assert_array_equal(np.asarray(of_y), expected)
