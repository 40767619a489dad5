"""Rows that each rank holds, and cuts of a batch: none is lost, and none is there twice."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jdaso._jax.axes import new_var
from jdaso.pipeline._plan.holding import Holding
from jdaso.pipeline._plan.microbatch import Microbatches
from jdaso.pipeline._plan.program import RowRange
from jdaso.pipeline._plan.stage import Stage


def stage(number, pieces):
    """A stage that only uses parameters."""
    named = {new_var(jax.typeof(np.float32(0))): piece for piece in pieces}
    return Stage(number, (), 0, 0, named, (), (), {}, {}, ())


SHAPES = st.lists(
    st.sampled_from([(), (0,), (0, 2), (1,), (2, 0), (3,), (5, 2), (6, 1, 2)]),
    min_size=1,
    max_size=5,
)


@st.composite
def used(draw):
    """A tree of parameters, ranks, and stages with the pieces that they use."""
    shapes, ranks = draw(SHAPES), draw(st.integers(1, 4))
    stages = []
    for number in range(ranks * draw(st.integers(1, 2))):
        pieces = []
        for leaf in draw(st.sets(st.integers(0, len(shapes) - 1))):
            rows = shapes[leaf][0] if shapes[leaf] else 0
            begin = draw(st.integers(0, max(rows - 1, 0)))
            whole = rows < 2 or draw(st.booleans())
            pieces.append(
                RowRange(leaf)
                if whole
                else RowRange(leaf, begin, draw(st.integers(begin + 1, rows)))
            )
        stages.append(stage(number, pieces))
    leaves = [
        100.0 * k + np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
        for k, shape in enumerate(shapes)
    ]
    return {"a": leaves[0], "rest": leaves[1:]}, stages, ranks


def rows_of(params, piece):
    leaf = np.atleast_1d(jax.tree.leaves(params)[piece.leaf])
    return leaf[piece.begin : piece.end]


@given(used())
def test_units_are_all_rows_once(example):
    params, stages, ranks = example
    holding = Holding.of(params, stages, ranks)
    for leaf, array in enumerate(jax.tree.leaves(params)):
        units = [unit for unit in holding.units if unit.leaf == leaf]
        rows = [row for unit in units for row in range(unit.begin, unit.end)]
        assert rows == list(range(array.shape[0] if array.ndim else 1))
        assert units, "each leaf is somebody's"
        pairs = zip(units, units[1:], strict=False)
        assert all(a.users != b.users for a, b in pairs), "these two could be one"
    owned = [k for rank in range(ranks) for k in holding.owned_by(rank)]
    assert sorted(owned) == list(range(len(holding.units)))


@given(used())
def test_own_and_whole_are_inverse(example):
    params, stages, ranks = example
    holding, units = Holding.of(params, stages, ranks), {}
    for rank in range(ranks):
        own = holding.own(jax.tree.leaves(params), rank)
        assert jax.tree.structure(own) == jax.tree.structure(params)
        mine = holding.split(own, rank)
        assert sorted(mine) == holding.owned_by(rank)
        for k, array in mine.items():
            assert array.shape == holding.unit_shape(holding.units[k])
        units |= mine
        joined = holding.join(mine, rank, np)
        jax.tree.map(np.testing.assert_array_equal, joined, own)
        for leaf, array in enumerate(jax.tree.leaves(own)):
            assert len(array) == holding.rows_held(leaf, rank)
    whole = holding.whole(units)
    jax.tree.map(np.testing.assert_array_equal, whole, params)
    assert jax.tree.map(np.shape, whole) == jax.tree.map(np.shape, params)


@given(used())
def test_a_stage_finds_its_pieces_among_what_its_rank_is_given(example):
    params, stages, ranks = example
    holding, leaves = Holding.of(params, stages, ranks), jax.tree.leaves(params)
    for one in stages:
        rank = one.number % ranks
        available = holding.used_by(rank)
        for piece in one.pieces.values():
            spans = holding.spans(piece, available)
            found = [holding.take(leaves, holding.units[k])[inside] for k, inside, _ in spans]
            np.testing.assert_array_equal(np.concatenate(found), rows_of(params, piece))
            at = np.concatenate(
                [np.arange(len(leaves[piece.leaf]) if leaves[piece.leaf].ndim else 1)]
            )
            places = [at[: len(rows_of(params, piece))][part] for _, _, part in spans]
            assert np.concatenate(places).tolist() == list(range(len(rows_of(params, piece))))
            for k, _, _ in spans:
                assert one.number in holding.units[k].users
                assert rank == holding.owner(holding.units[k]) or rank in holding.borrowers(
                    holding.units[k]
                )


@given(used(), st.data())
def test_other_stages_are_lent_what_they_use(example, data):
    """An evaluation may use other stages: holders stay, users change."""
    params, stages, ranks = example
    holding = Holding.of(params, stages, ranks)
    order = data.draw(st.permutations(range(len(stages))))
    others = [dataclasses.replace(stages[k], number=n) for n, k in enumerate(order)]
    lent = holding.lent_to(others)
    assert [lent.owner(u) for u in lent.units] == [holding.owner(u) for u in holding.units]
    leaves = jax.tree.leaves(params)
    for one in others:
        for piece in one.pieces.values():
            spans = lent.spans(piece, lent.used_by(one.number % ranks))
            found = [lent.take(leaves, lent.units[k])[inside] for k, inside, _ in spans]
            np.testing.assert_array_equal(np.concatenate(found), rows_of(params, piece))


def test_the_first_user_holds_and_the_others_borrow():
    params = {"w": np.arange(6.0), "unused": np.ones(2)}
    stages = [stage(0, []), stage(1, [RowRange(1, 0, 4)]), stage(2, [RowRange(1, 2, 6)])]
    holding = Holding.of(params, stages, 3)
    assert [(u.leaf, u.begin, u.end, u.users) for u in holding.units] == [
        (0, 0, 2, (0,)),
        (1, 0, 2, (1,)),
        (1, 2, 4, (1, 2)),
        (1, 4, 6, (2,)),
    ]
    assert [holding.owners(leaf) for leaf in (0, 1)] == [[0], [1, 2]]
    assert [holding.borrowers(unit) for unit in holding.units] == [[], [], [2], []]
    assert [holding.stage_of_row(1, row) for row in range(6)] == [1, 1, 1, 1, 2, 2]


BATCHES = st.dictionaries(
    st.sampled_from("abcd"), st.lists(st.integers(0, 3), max_size=2), min_size=1, max_size=3
)


@given(st.integers(1, 40), st.integers(1, 40), BATCHES)
def test_parts_of_a_batch_are_all_of_it(samples, number, inner):
    number = min(number, samples)
    batch = {
        name: np.arange(samples * np.prod(shape, dtype=int)).reshape(samples, *shape)
        for name, shape in inner.items()
    }
    batch["scalar"] = np.float32(3)
    cut = Microbatches.of(batch, number)
    assert (cut.samples, len(cut.sizes)) == (samples, number)
    assert max(cut.sizes) - min(cut.sizes) <= 1
    assert sum(cut.weights()) == pytest.approx(1)
    assert [w * samples for w in cut.weights()] == pytest.approx(cut.sizes)
    *arrays, scalar = cut.check(batch)
    assert all(cut.part(scalar, m) == 3 for m in range(number))
    for array in arrays:
        parts = [cut.part(array, m) for m in range(number)]
        assert [len(part) for part in parts] == list(cut.sizes)
        np.testing.assert_array_equal(np.concatenate(parts), array)
    for size in cut.sizes:
        shapes = jax.tree.map(lambda x: x.shape, cut.struct(size))
        assert shapes == {name: (size, *s) for name, s in inner.items()} | {"scalar": ()}


def test_keys():
    key = jax.random.key(3)
    keys = jax.random.split(key, 5)
    cut = Microbatches.of({"one": key, "each": keys, "x": np.ones(5)}, 2)
    each, one, _ = cut.check({"one": key, "each": keys, "x": np.ones(5)})
    drawn = [jax.random.key_data(cut.part(one, m)).tolist() for m in range(2)]
    assert drawn[0] != drawn[1]
    assert cut.part(each, 0).shape == (3,)
    assert bool((cut.part(each, 1) == keys[3:]).all())
    assert cut.struct(3)["each"].dtype == keys.dtype


def test_numbers_of_python_and_64_bits_are_as_jax_takes_them():
    cut = Microbatches.of({"x": np.ones((4, 2), np.float64), "n": np.arange(4), "rate": 0.5}, 2)
    assert jax.tree.map(lambda x: x.dtype.name, cut.struct(2)) == {
        "x": "float32",
        "n": "int32",
        "rate": "float32",
    }


@pytest.mark.parametrize(
    ("batch", "number", "said"),
    [
        ({"x": np.ones((4, 2)), "y": np.ones(3)}, 2, r"equally long.*'x'\] \(4, 2\).*'y'\] \(3,\)"),
        ({"x": np.float32(1)}, 1, r"equally long.*got \['x'\] \(\)"),
        ({}, 1, "got no arrays"),
        (np.ones(3), 4, "3 samples cannot be cut into num_microbatches=4"),
        (np.ones(3), 0, "num_microbatches=0"),
        (np.ones((0, 2)), 1, "0 samples cannot be cut"),
    ],
)
def test_batches_that_cannot_be_cut(batch, number, said):
    with pytest.raises(ValueError, match=said):
        Microbatches.of(batch, number)


@pytest.mark.parametrize(
    "other",
    [
        {"x": np.ones((3, 2))},
        {"x": np.ones((4, 3))},
        {"y": np.ones((4, 2))},
        {"x": np.ones((4, 2)), "y": np.ones(4)},
        [np.ones((4, 2))],
    ],
)
def test_another_batch_is_refused(other):
    cut = Microbatches.of({"x": jnp.ones((4, 2))}, 2)
    cut.check({"x": np.ones((4, 2))})
    with pytest.raises(ValueError, match="The plan was made for batches"):
        cut.check(other)
