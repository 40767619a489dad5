"""Rows that go around: rolled, tiled and padded with an array's own rows, against NumPy."""

import tracemalloc

import jax
import numpy as np
import pytest
from array_nodes import on_nodes
from nights import rows

import jdaso.array as ja
from jdaso.array._layout import ArrayLayout
from jdaso.array._move import laid

LINE, PLANE = np.arange(11.0, dtype=np.float32), np.arange(14.0, dtype=np.float32).reshape(7, 2)
COUNTS = {2: (0, 7), 3: (6, 0, 1), 5: (1, 0, 0, 4, 2), 9: (0, 1, 1, 1, 0, 1, 1, 1, 1)}
NODES = rows((1, 2, 3, 5, 9), day=(2, 5))
CALLS = {
    **{f"roll {by}": lambda np, x, by=by: np.roll(x, by, 0) for by in (-15, -7, -1, 0, 3, 7, 23)},
    **{f"tile {t}": lambda np, x, t=t: np.tile(x, (t, 1)) for t in (0, 1, 2, 3, 20)},
    **{
        f"{mode} {width}": lambda np, x, mode=mode, width=width: np.pad(
            x, (width, (0, 0)), mode=mode
        )
        for mode in ("wrap", "edge", "reflect", "symmetric")
        for width in ((0, 1), (3, 0), (6, 8), (30, 17))
    },
    "repeat": lambda np, x: np.repeat(x, 3, 0),
    "repeat no rows": lambda np, x: np.repeat(x, [0], 0),
}


@pytest.mark.parametrize("nodes", NODES)
@pytest.mark.parametrize("uneven", [False, True])
def test_as_numpy(nodes, uneven):
    def ours():
        x = ja.asarray(PLANE, split=0)
        if uneven and nodes in COUNTS:
            x = laid(x, ArrayLayout(x.shape, 0, COUNTS[nodes]))
        found = [call(ja, x) for call in CALLS.values()]
        for one in found:
            assert one.block.shape == one.layout.block_shape(one.world.node)
        return [np.asarray(one) for one in found]

    for found in on_nodes(nodes, ours):
        for name, one in zip(CALLS, found, strict=True):
            np.testing.assert_array_equal(one, CALLS[name](np, PLANE), err_msg=name)


def test_of_a_single_row_and_of_none():
    def ours():
        one, none = ja.asarray(PLANE[:1], split=0), ja.asarray(PLANE[:0], split=0)
        wide = [ja.pad(one, ((2, 3), (0, 0)), mode) for mode in ("wrap", "reflect", "symmetric")]
        return [np.asarray(x) for x in (*wide, ja.roll(none, 3, 0), ja.tile(none, (4, 1)))]

    for *wide, rolled, tiled in on_nodes(3, ours):
        for found in wide:
            np.testing.assert_array_equal(found, np.repeat(PLANE[:1], 6, 0))
        assert rolled.shape == tiled.shape == (0, 2)


@pytest.mark.parametrize(
    ("call", "moved"),
    [
        (lambda x: ja.roll(x, 1), 4),  # one element of each node, to the next one
        (lambda x: ja.roll(x, 3), 12),
        (lambda x: ja.roll(x, 12), 0),
        (lambda x: ja.pad(x, (0, 1), "edge"), 3),  # 0 to 3, 4 to 6, 7 to 9, and 10, 11, 11
        (lambda x: ja.pad(x, (0, 1), "wrap"), 4),
        (lambda x: ja.pad(x, (1, 0), "symmetric"), 0),  # 0, 0, 1, 2, then as before
        (lambda x: ja.tile(x, (8,)), 12 * 3),  # each element to each other node
        (
            lambda x: ja.tile(x, (2,)),
            3 + 6 + 6 + 3,
        ),  # node 0 has 0 to 2, wants 0 to 5
    ],
)
def test_each_row_moves_once_to_each_node_that_lacks_it(call, moved):
    def run():
        x = ja.arange(12, dtype=np.float32, split=0)
        with ja.counted() as count:
            call(x)
        return count.bytes_sent

    assert sum(on_nodes(4, run)) == 4 * moved


@pytest.mark.parametrize("name", ["roll 3", "tile 3", "wrap (3, 0)", "reflect (6, 8)", "repeat"])
def test_no_index_of_all_rows_is_made(name):
    """An index has 8 bytes a row: on many nodes more than the node's share of the array."""
    x = ja.zeros((1_000_000, 1), dtype=bool, split=0)
    CALLS[name](ja, x)
    tracemalloc.start()  # sees the memory of NumPy, not that of JAX
    try:
        CALLS[name](ja, x)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 500_000


def test_derivatives_go_around_too():
    weights = np.arange(22.0, dtype=np.float32)

    def slope(split):
        def loss(x):
            x = ja.asarray(x, split=split)
            return ja.sum(ja.roll(ja.tile(x, (2,)), 3) * ja.asarray(weights, split=split)).block

        return jax.jit(jax.grad(loss))(LINE)

    around = np.roll(weights, -3).reshape(2, 11).sum(0)
    for split in (None, 0):
        np.testing.assert_allclose(slope(split), around)
