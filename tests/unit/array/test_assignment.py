"""Assignment that makes a new array, against NumPy's own, which changes one."""

import numpy as np
import pytest
from array_nodes import on_nodes
from nights import rows

import jdaso.array as ja

RNG = np.random.default_rng(0)
A = RNG.normal(size=(7, 5)).astype(np.float32)
SPLITS = (None, 0, 1)
ROW, ROWS = np.arange(5, dtype=np.float32), np.arange(15, dtype=np.float32).reshape(3, 5)

PLACES = {
    "element": (np.s_[3, -1], 9.0),
    "row": (np.s_[2], ROW),
    "rows": (np.s_[2:5], ROWS),
    "steps": (np.s_[::3, 1:], ROWS[:, 1:]),
    "back": (np.s_[5:0:-2], ROWS),
    "none": (np.s_[3:3], 1.0),
    "all": (np.s_[...], 0.0),
    "new axis": (np.s_[None, 4], ROW),
    "numbers": (np.s_[[0, -1, 3]], ROWS),
    "pairs": (np.s_[[1, 6, 2], [0, 3, 3]], ROW[:3]),
    "columns": (np.s_[:, [4, 0]], ROWS[:2].T[:2][:1]),
    "mask": (A > 0, -1.0),
    "mask of rows": (A[:, 0] > 0, ROW),
    "mask, each its own": (A > 1, np.arange((A > 1).sum(), dtype=np.float32)),
}

DAY = ("element", "rows", "back", "pairs", "mask", "mask, each its own")


@pytest.mark.parametrize("nodes", rows((1, 2, 3, 9), day=(3,)))
@pytest.mark.parametrize("axis", rows(SPLITS, day=(0,)))
@pytest.mark.parametrize("name", rows(PLACES, day=DAY))
def test_places_of_a_new_array_have_the_value(nodes, axis, name):
    key, value = PLACES[name]
    expected = A.copy()
    expected[key] = value

    def changed():
        x = ja.asarray(A, split=axis)
        given = value if np.ndim(value) == 0 else ja.asarray(value, split=axis and 0)
        y = x.at[key].set(given)
        assert y.layout == x.layout
        return np.asarray(y), np.asarray(x), np.asarray(x.at[key].add(value))

    summed = A.copy()
    summed[key] += value
    for found, before, more in on_nodes(nodes, changed):
        np.testing.assert_array_equal(found, expected)
        np.testing.assert_array_equal(before, A)
        np.testing.assert_allclose(more, summed, rtol=1e-6)


def test_equal_places_take_each_value():
    index, value = np.array([1, 6, 1, 1]), np.array([1, 2, 3, 4], np.float32)
    for how, numpys in (("add", np.add), ("max", np.maximum), ("multiply", np.multiply)):
        expected = np.ones(7, np.float32)
        numpys.at(expected, index, value)
        place = lambda how=how: getattr(ja.ones(7, split=0).at[index], how)(value)  # noqa: E731
        for found in on_nodes(3, lambda place=place: np.asarray(place())):
            np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize(
    ("function", "sent"),
    [
        (lambda x: x.at[2:5].set(1.0), 0),
        (lambda x: x.at[3].add(ROW), 0),
        (lambda x: x.at[x > 0].set(0.0), 0),
        (lambda x: x.at[[1, 5]].set(0.0), 0),
        (lambda x: x.at[:].set(ja.asarray(A, split=0)), 0),
        (lambda x: x.at[:].set(ja.asarray(A, split=1)), A.nbytes * 11 // 21),
    ],
)
def test_what_an_assignment_moves(function, sent):
    def run():
        x = ja.asarray(A, split=0)
        with ja.counted() as count:
            function(x)
        return count.bytes_sent

    assert abs(sum(on_nodes(3, run)) - sent) <= A.nbytes // 7


def test_an_array_refuses_assignment_with_a_sentence():
    x = ja.asarray(A)
    with pytest.raises(TypeError, match=r"immutable. Take x = x.at\[key\].set\(value\)"):
        x[0] = 1
    with pytest.raises(ValueError, match=r"\(3,\) does not fit the shape \(7, 5\)"):
        x.at[:].set(np.zeros(3))
    with pytest.raises(IndexError, match="out of range for axis 0 of length 7"):
        x.at[7].set(0)
    y = x
    y += 1
    assert y is not x and float(x[0, 0]) == A[0, 0]
