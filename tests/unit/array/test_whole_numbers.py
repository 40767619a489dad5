"""Whole numbers outside of a type: NumPy's result, or a refusal; never one that wrapped around."""

import numpy as np
import pytest
from array_nodes import on_nodes

import jdaso.array as ja

WIDE = np.array([2**32 + 1, 7])
WHOLE = np.array([1, 7], np.int32)
BYTES, SIGNED = np.array([200, 10, 44], np.uint8), np.array([100, -100, 7], np.int8)
STEPS = np.array([-25, -15, -5, 0, 5, 14, 15, 25, 26, 120], np.int8)

# Given a function that makes an array: jdaso's result, and NumPy's.
FOUND = {
    "equal": (lambda a: a(BYTES) == 456, BYTES == 456),
    "equal, the number first": (lambda a: ja.equal(300, a(BYTES)), BYTES == 300),
    "not equal": (lambda a: a(BYTES) != 300, BYTES != 300),
    "less": (lambda a: a(BYTES) < 256, BYTES < 256),
    "more": (lambda a: a(BYTES) > -1, BYTES > -1),
    "the number is less": (lambda a: ja.less(-1, a(BYTES)), BYTES > -1),
    "at least": (lambda a: a(SIGNED) >= -129, SIGNED >= -129),
    "at most": (lambda a: a(SIGNED) <= 2**40, SIGNED <= 2**40),
    "clip above": (lambda a: ja.clip(a(BYTES), 20, 300), np.clip(BYTES, 20, 300)),
    "clip both": (lambda a: ja.clip(a(SIGNED), -200, 200), SIGNED),
    "clip below": (lambda a: ja.clip(a(SIGNED), -200, 50), np.clip(SIGNED, -200, 50)),
    "place": (lambda a: ja.searchsorted(a(np.uint8([10, 200])), 300), 2),
    "place below": (lambda a: ja.searchsorted(a(np.uint8([10, 200])), -1), 0),
    "quotients": (lambda a: a(BYTES) / 256, BYTES / 256),
    "angles": (lambda a: ja.atan2(2**33, a(BYTES)), np.arctan2(2.0**33, np.float32(BYTES))),
    "members": (lambda a: ja.isin(a(BYTES), 300), [False] * 3),
    "tens": (lambda a: ja.round(a(STEPS), -1), np.round(STEPS, -1)),
    "hundreds": (lambda a: ja.round(a(STEPS.astype(np.int32)), -2), np.round(STEPS, -2)),
    "thousands": (lambda a: ja.round(a(STEPS), -3), np.zeros(10)),
    "decimals": (lambda a: ja.round(a(STEPS), 1), STEPS),
    "bins with fractions": (
        lambda a: ja.digitize(a(np.int32([2**24, 2**24 + 1])), [2**24 + 0.5]), [0, 1],
    ),
    "bins that fall": (
        lambda a: ja.digitize(a(SIGNED), [300.5, 99.5, 7.0, -100.0, -300.0]),
        np.digitize(SIGNED, [300.5, 99.5, 7.0, -100.0, -300.0]),
    ),
    "bins that include the right edge": (
        lambda a: ja.digitize(a(SIGNED), [-128.5, -100.0, 6.5, 7.0, 127.0], right=True),
        np.digitize(SIGNED, [-128.5, -100.0, 6.5, 7.0, 127.0], right=True),
    ),
    "bins that fall and include": (
        lambda a: ja.digitize(a(BYTES), [256.0, 200.0, 44.5, 0.0, -1.0], right=True),
        np.digitize(BYTES, [256.0, 200.0, 44.5, 0.0, -1.0], right=True),
    ),
    "numbers of 64 bits that fit": (lambda a: a(WHOLE) + np.int64([1, 2]), [2, 9]),
    "elements of floats": (
        lambda a: ja.intersect1d(a(WHOLE), a(np.float32([7, 9.5]))), np.float32([7.0]),
    ),
    "a narrow array beside chosen numbers": (
        lambda a: ja.where(a(np.array([True])), 300, 0) + a(np.int8([1])), [301],
    ),
}  # fmt: skip


@pytest.mark.parametrize("split", [None, 0])
@pytest.mark.parametrize(("function", "wanted"), FOUND.values(), ids=FOUND)
def test_as_numpy(function, wanted, split):
    make = lambda x: ja.asarray(x, split=split)  # noqa: E731
    for found in on_nodes(2, lambda: np.asarray(function(make))):
        np.testing.assert_allclose(found, wanted, rtol=1e-6)


WIDER = "do not fit int32"
REFUSED = {
    "operand": (lambda a: a(WHOLE) + WIDE, ValueError, WIDER),
    "compared": (lambda a: a(WHOLE) == WIDE, ValueError, WIDER),
    "a number of NumPy": (lambda a: a(WHOLE) + np.int64(2**32), ValueError, WIDER),
    "members": (lambda a: ja.isin(a(WHOLE), WIDE), ValueError, WIDER),
    "places": (lambda a: ja.searchsorted(a(WHOLE), WIDE), ValueError, WIDER),
    "summed": (lambda a: ja.sum(WIDE), ValueError, WIDER),
    "bins": (lambda a: ja.digitize(a(WHOLE), np.array([0, 2**32])), ValueError, WIDER),
    "an array": (lambda a: ja.asarray(np.int64(2**32)), ValueError, WIDER),
    "filled": (lambda a: ja.full(2, np.int64(2**32)), ValueError, WIDER),
    "counted": (lambda a: ja.arange(2**31, 2**31 + 2, split=0), ValueError, WIDER),
    "counted down": (lambda a: ja.arange(0, -(2**40), -(2**39)), ValueError, WIDER),
    "added": (lambda a: a(BYTES) + 300, OverflowError, "300 is outside of uint8"),
    "the larger": (lambda a: ja.maximum(a(BYTES), -1), OverflowError, "-1 is outside of uint8"),
    "chosen": (lambda a: ja.where(a(BYTES) > 1, a(SIGNED), 128), OverflowError, "int8"),
}


@pytest.mark.parametrize("split", [None, 0])
@pytest.mark.parametrize(("function", "error", "words"), REFUSED.values(), ids=REFUSED)
def test_refused(function, error, words, split):
    def run():
        with pytest.raises(error, match=words):
            function(lambda x: ja.asarray(x, split=split))
        return True

    assert all(on_nodes(2, run))
