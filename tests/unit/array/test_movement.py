"""Bytes that operations move: no more than they have to; and errors that say what to do."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from array_nodes import on_nodes

import jdaso.array as ja
from jdaso.array import _in_place

NODES, A = 4, np.arange(96.0, dtype=np.float32).reshape(8, 12)
N = A.nbytes


def moved(function, nodes=NODES):
    """Operations between nodes, and the bytes that all nodes send in them."""

    def run():
        with ja.counted() as count:
            function()
        return count.calls, count.bytes_sent

    calls, sent = zip(*on_nodes(nodes, run), strict=True)
    return max(calls), sum(sent)


def split(axis):
    return ja.asarray(A, split=axis)


@pytest.mark.parametrize(
    ("function", "calls", "sent"),
    [
        (lambda: split(0) + split(0), 0, 0),
        (lambda: split(0) * 2 - 1, 0, 0),
        (lambda: split(0) + ja.asarray(A), 0, 0),
        (lambda: split(0) * jnp.arange(12.0), 0, 0),
        (lambda: ja.sum(split(0), axis=1), 0, 0),
        (lambda: split(0)[2:5], 0, 0),
        (lambda: split(0).T, 0, 0),
        (lambda: split(0) @ jnp.ones((12, 2)), 0, 0),
        (lambda: split(0).resplit(1), 1, N * (NODES - 1) // NODES),
        (lambda: split(0).resplit(None), 1, N * (NODES - 1)),
        (lambda: ja.asarray(A).resplit(0), 0, 0),
        (lambda: split(0).balance(), 0, 0),
        (lambda: split(0).reshape((4, 24)), 0, 0),
        (lambda: ja.sum(split(0)), 1, 2 * 4 * (NODES - 1)),
        (lambda: ja.var(split(0), axis=0), 1, 2 * 12 * 4 * NODES * (NODES - 1)),
        (lambda: split(1) @ split(1).T, 1, 2 * 64 * 4 * (NODES - 1)),
        (lambda: split(0) @ split(1).T.resplit(1), 2, None),
    ],
)  # fmt: skip
def test_an_operation_moves_no_more_than_it_has_to(function, calls, sent):
    found = moved(function)
    assert found[0] == calls and (sent is None or found[1] == sent), found


@pytest.mark.parametrize(("piece_bytes", "calls"), [(N, 1), (N - 1, NODES - 1)])
@pytest.mark.parametrize(
    "product",
    [
        lambda: split(0) @ ja.asarray(A.T, split=0),
        lambda: split(0) @ ja.asarray(A.T, split=1),
        lambda: split(1) @ ja.asarray(A.T, split=1),
    ],
    ids=["rows", "rows and columns", "columns"],
)
def test_a_block_crosses_each_link_once(product, piece_bytes, calls, monkeypatch):
    """Small operands are gathered, others pass from node to node."""
    monkeypatch.setattr(_in_place, "PIECE_BYTES", piece_bytes)
    assert moved(product) == (calls, N * (NODES - 1))


def test_nodes_whose_blocks_do_not_fit_are_named():
    def make():
        node = ja.asarray(0.0).world.node
        return ja.from_blocks(np.zeros((node, 2 + (node == 2))))

    with pytest.raises(ValueError, match=r"node 0 has 0 .*\(-1, 2\), node 2 2 .*\(-1, 3\)"):
        on_nodes(3, make)


def test_blocks_of_any_length_make_an_array():
    def make():
        node = ja.asarray(0.0).world.node
        x = ja.from_blocks(np.full((node, 2), node, np.float32))
        return x.counts, np.asarray(x)[:, 0], x.balance().counts

    for counts, whole, even in on_nodes(3, make):
        assert counts == (0, 1, 2) and even == (1, 1, 1) and whole.tolist() == [1, 2, 2]


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (lambda x: x[9], "Index 9 is out of range for axis 0 of length 8"),
        (lambda x: x[[9]], "out of range for axis 0 of length 8"),
        (lambda x: x.reshape((5, 5)), "96 elements do not fit"),
        (lambda x: x.resplit(2), "axis 2 is out of range"),
        (lambda x: x @ x, "inner sizes differ"),
        (lambda x: bool(x), "Only one element"),
        (lambda x: ja.max(x[:0]), "max of no elements"),
        (lambda x: ja.histogram(x, range=(2, 1)), "must be finite and rise"),
    ],
)
def test_errors_say_what_was_given(function, words):
    with pytest.raises((ValueError, IndexError, TypeError), match=words):
        function(split(0))


def test_an_array_cannot_be_changed_and_prints_without_the_other_nodes():
    x = split(0)
    with pytest.raises(AttributeError, match="immutable"):
        x.block = A
    printed = on_nodes(3, lambda: repr(split(0)) if ja.asarray(0).world.node == 1 else None)
    assert "node 1 of 3" in printed[1]


def test_an_array_goes_through_jit_grad_and_a_tree():
    x = split(0)
    assert float(jax.jit(lambda x: ja.sum(x * 2))(x)) == 2 * A.sum()
    slope = jax.grad(lambda x: ja.sum(x * x).block)(x)
    np.testing.assert_array_equal(np.asarray(slope), 2 * A)
    assert jax.tree.leaves(x)[0] is x.block


def test_clusters_are_those_of_one_node():
    rng = np.random.default_rng(1)
    rows = np.concatenate([rng.normal(m, 0.1, (20, 2)) for m in (-3, 0, 3)]).astype(np.float32)

    def fit():
        model = ja.cluster.KMeans(3, random_state=2).fit(ja.asarray(rows, split=0))
        return np.asarray(model.cluster_centers_), np.asarray(model.labels_), model.inertia_

    ((centers, labels, inertia),) = on_nodes(1, fit)
    assert len(set(labels[:20])) == len(set(labels[20:40])) == 1
    for found in on_nodes(3, fit):
        np.testing.assert_allclose(found[0], centers, rtol=1e-5)
        np.testing.assert_array_equal(found[1], labels)
        assert found[2] == pytest.approx(inertia, rel=1e-4)


def test_clusters_far_from_the_origin_are_those_near_it():
    rng = np.random.default_rng(1)
    rows = np.concatenate([rng.normal(m, 0.1, (20, 2)) for m in (-3, 0, 3)]).astype(np.float32)

    def fit(offset):
        x = ja.asarray(rows + np.float32(offset), split=0)
        model = ja.cluster.KMeans(3, random_state=2).fit(x)
        centers = np.asarray(model.cluster_centers_) - offset
        return centers, np.asarray(model.labels_), np.asarray(model.predict(x)), model.inertia_

    near, far = on_nodes(2, fit, 0)[0], on_nodes(2, fit, 1e4)
    for centers, labels, predicted, inertia in far:
        np.testing.assert_allclose(centers, near[0], atol=2e-3)
        np.testing.assert_array_equal(labels, near[1])
        np.testing.assert_array_equal(predicted, labels)
        assert inertia == pytest.approx(near[3], rel=1e-2)


WHOLE = ja.asarray(A)  # of one node: made before the others were there


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (lambda: WHOLE + split(0), 2 * A),
        (lambda: WHOLE @ split(1).T, A @ A.T),
        (lambda: ja.concat([WHOLE, split(0)]), np.concatenate([A, A])),
        (lambda: ja.where(WHOLE > 3, split(0), WHOLE), A),
        (lambda: split(0)[WHOLE[:, 0] > 30], A[A[:, 0] > 30]),
        (lambda: ja.histogram(split(0), 4, weights=WHOLE)[0], np.histogram(A, 4, weights=A)[0]),
    ],
)
def test_an_array_that_is_whole_takes_the_nodes_of_the_other(function, expected):
    for nodes, found in on_nodes(3, lambda: (function().world.nodes, np.asarray(function()))):
        assert nodes == 3
        np.testing.assert_allclose(found, expected)


def test_two_arrays_that_are_split_over_different_nodes_do_not_meet():
    before = split(0)
    for function in (lambda: before + split(0), lambda: ja.concat([split(0), before])):
        with pytest.raises(ValueError, match="Make both in the same session"):
            on_nodes(3, function)


def test_a_node_without_a_block_ends_all():
    def make():
        node = ja.asarray(0.0).world.node
        with pytest.raises((TypeError, OSError), match="object" if node == 1 else "Node 1 could"):
            ja.from_blocks(object() if node == 1 else np.zeros(3))
        return True

    assert on_nodes(3, make) == [True] * 3
