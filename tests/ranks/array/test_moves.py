"""Arrays that real ranks lay along other axes and sort, bit for bit."""

import contextlib
import itertools

import jax.numpy as jnp
import numpy as np
import pytest
from nights import at_night

import jdaso
import jdaso.array as ja
from jdaso._mpi import arrays
from jdaso.array import _in_place
from jdaso.array._layout import ArrayLayout
from jdaso.array._move import laid

pytestmark = [pytest.mark.any_mpi, pytest.mark.three_nodes]
SHAPES = [(7, 5), (0, 4), (6, 4, 5)]
TYPES = ["bfloat16", at_night("float32"), at_night("complex64"), at_night("bool")]


@pytest.fixture
def session():
    with jdaso.Session(timeout_seconds=60) as session:
        yield session


def numbers(shape, dtype="float32"):
    return (3 * np.random.default_rng(0).normal(size=shape)).astype(jnp.dtype(dtype))


def whole(x):
    return np.asarray(ja.resplit(x, None).block)


@pytest.mark.parametrize("piece_bytes", [at_night(arrays.PIECE_BYTES), 64])
@pytest.mark.parametrize("dtype", TYPES)
def test_another_axis(piece_bytes, dtype, session, monkeypatch):
    """Parts that are contiguous are sent and received in place, others packed."""
    monkeypatch.setattr(arrays, "PIECE_BYTES", piece_bytes)
    monkeypatch.setattr(_in_place, "PIECE_BYTES", piece_bytes)
    for shape in SHAPES:
        x = numbers(shape, dtype)
        for a, b in itertools.product([*range(len(shape)), None], repeat=2):
            found = whole(ja.resplit(ja.asarray(x, split=a), b))
            assert found.tobytes() == x.tobytes(), (shape, a, b)


@pytest.mark.parametrize("splits", [*itertools.product([0, 1, None], repeat=2)])
def test_products_of_more_than_one_piece(splits, session, monkeypatch):
    monkeypatch.setattr(_in_place, "PIECE_BYTES", 64)
    a, b = np.arange(35.0, dtype=np.float32).reshape(7, 5), np.eye(5, 9, dtype=np.float32)
    for rows in (a, a[:1], a[:0]):
        found = ja.asarray(rows, split=splits[0]) @ ja.asarray(b, split=splits[1])
        np.testing.assert_array_equal(whole(found), rows @ b)


@pytest.mark.parametrize("n", [at_night(1), at_night(2), 9])
def test_uneven_counts(n, session):
    ends = np.random.default_rng(1).integers(0, n + 1, session.num_nodes - 1)
    counts = tuple(np.diff([0, *sorted(ends), n]).tolist())
    for axis, shape in enumerate([(n, 4), (4, n)]):
        x = numbers(shape)
        own = laid(ja.asarray(x, split=axis), ArrayLayout(shape, axis, counts))
        for found in (ja.resplit(own, 0), ja.resplit(own, 1), ja.balance(own)):
            assert whole(found).tobytes() == x.tobytes()


@pytest.mark.parametrize(
    "dtype",
    ["float32", at_night("bfloat16"), at_night("int32"), at_night("bool")],
)
def test_sorted_lines(dtype, session):
    for n in (0, 5, 1000):
        x = numbers(n, dtype)
        as_float = x.astype(np.float32)
        line = ja.asarray(x, split=0)
        np.testing.assert_array_equal(whole(ja.sort(line)).astype(np.float32), np.sort(as_float))
        np.testing.assert_array_equal(whole(ja.argsort(line)), as_float.argsort(kind="stable"))


def test_messages_of_more_bytes_than_mpi_counts(session, monkeypatch):
    """Open MPI 5 counts to 2^31: elements are then larger than a byte."""
    counted, units = arrays._counted, []

    @contextlib.contextmanager
    def noted(*sizes):
        with counted(*sizes) as (unit, kind):
            assert max(sizes, default=0) // unit <= 40
            units.append(unit)
            yield unit, kind

    monkeypatch.setattr(arrays, "_MOST_COUNT", 40)
    monkeypatch.setattr(arrays, "_counted", noted)
    x = numbers((9, 12))
    for a, b in itertools.product([0, 1, None], repeat=2):
        assert whole(ja.resplit(ja.asarray(x, split=a), b)).tobytes() == x.tobytes()
    found = ja.sort(ja.asarray(x.reshape(-1), split=0))
    np.testing.assert_array_equal(whole(found), np.sort(x.reshape(-1)))
    squares = ((x[:, None] - x[None]) ** 2).sum(-1)
    found = ja.cdist(ja.asarray(x, split=0), ja.asarray(x, split=0))
    np.testing.assert_allclose(whole(found) ** 2, squares, rtol=1e-4, atol=1e-4)
    assert session.num_nodes == 1 or max(units) > 1
