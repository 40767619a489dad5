"""Numbers of exchanges in flight move between layouts: from any one to any other, by NumPy."""

from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import AbstractMesh
from jax.sharding import PartitionSpec as P

import jdaso
from jdaso._engines.saved import OuterForm, Saved
from jdaso._payload.fragments import deal
from jdaso._payload.layout import Layout, Leaf
from jdaso._payload.placement import Placement, divisions_of
from jdaso._payload.spans import Box, boxes_of, spans_of
from jdaso._payload.whole import Whole
from jdaso._rules.merge import merge_of
from jdaso._session import Held
from jdaso.checkpoint._files import Manifest, SavedFlight
from jdaso.checkpoint._flights import arrays_of
from jdaso.checkpoint._pieces import copy_overlap, saved_pieces
from jdaso.checkpoint._resumed import _can_merge, _Rooms, _saves

PARAMS = {
    "a": jnp.zeros((240, 6)),
    "b": jnp.zeros((8, 4, 4), jnp.bfloat16),
    "c": jnp.zeros((10,), jnp.complex64),
    "d": jnp.zeros((7,)),
    "n": jnp.zeros(()),
}
LAYOUTS = {  # mesh, specs by leaf, ranks of a node, fragments
    "one device": ({}, {}, 1, 1),
    "copies, two ranks": ({"d": 4}, {}, 2, 1),
    "rows": ({"d": 4}, {"a": P("d"), "b": P("d")}, 1, 1),
    "rows, two ranks": ({"d": 4}, {"a": P("d"), "b": P("d")}, 2, 1),
    "rows, four ranks": ({"d": 4}, {"a": P("d"), "b": P(None, "d"), "c": P()}, 4, 1),
    "six devices, three ranks": (
        {"data": 2, "model": 3},
        {"a": P("data", "model"), "b": P("data")},
        3,
        1,
    ),
    "data and model, two ranks": (
        {"data": 2, "model": 2},
        {"a": P(("model", "data")), "b": P(None, "model", "data"), "c": P("data")},
        2,
        1,
    ),
    "three fragments": ({}, {}, 1, 3),
    "three fragments of columns, two ranks": ({"d": 2}, {"a": P(None, "d"), "b": P("d")}, 2, 3),
    "three fragments of rows": ({"d": 2}, {"a": P("d"), "c": P("d")}, 1, 3),
}
MEANING = "int8, outer, 5 leaves"


def manifest(flights=(), leaves=()):
    about = {"run": "", "number": 1, "step": 9, "node": 0, "nodes": 2, "begun": 2, "score": None}
    rest = {"facts": (), "parted": 0, "files": {}, "versions": {}}
    return Manifest(**about, **rest, leaves=tuple(leaves), flights=tuple(flights))


def wholes():
    """The leaves in float32; no number occurs twice."""
    found, at = {}, 1
    for name, x in PARAMS.items():
        shape = (*x.shape, 2) if jnp.iscomplexobj(x) else x.shape
        size = int(np.prod(shape))
        found[f"['{name}']"] = np.arange(at, at + size, dtype=np.float32).reshape(shape)
        at += size
    return found


def spans(layout):
    """The spans of each rank, by fragment."""
    axes, specs, ranks, fragments = LAYOUTS[layout]
    placement = None
    devices = int(np.prod([*axes.values()], dtype=int))
    if axes:
        mesh = AbstractMesh(tuple(axes.values()), tuple(axes))
        of_leaf = {name: specs.get(name, P()) for name in PARAMS}
        divisions = divisions_of(of_leaf, PARAMS, axes)
        placement = Placement(mesh, tuple(axes.items()), divisions)
        leaves = placement.leaves(PARAMS)
    else:
        leaves = Placement(None, (), ((),) * len(PARAMS)).leaves(PARAMS)
    found = []
    for fragment in deal(leaves, fragments, placement):
        of_rank = []
        for rank in range(ranks):
            mine = placement
            if placement is not None and ranks > 1:
                each = devices // ranks
                own = tuple(range(rank * each, (rank + 1) * each))
                mine = Placement(placement.mesh, placement.axes, placement.divisions, own)
            of_rank.append(spans_of(fragment, leaves, mine, cuts_copies=ranks > 1))
        found.append(of_rank)
    return found


def numbers_of(mine):
    """The numbers of spans, from the whole leaves; an exchange may send zeros after them."""
    all_of = wholes()
    found = []
    for path, _, boxes in mine:
        parts = [
            all_of[path][tuple(slice(a, a + n) for a, n in zip(*box, strict=True))].reshape(-1)
            for box in boxes
        ]
        found.append(np.concatenate([*parts, np.zeros(3, np.float32)]))
    return found


def saved_by(layout, kinds=("numbers", "anchor")):
    """A checkpoint of a layout: the manifest's exchanges, and each rank's arrays."""
    of_fragment = spans(layout)
    first = manifest(SavedFlight(1, 1, f, 4, True, MEANING) for f in range(len(of_fragment)))
    files = []
    for rank in range(len(of_fragment[0])):
        arrays = []
        for f, of_rank in enumerate(of_fragment):
            saved = Saved({kind: numbers_of(of_rank[rank]) for kind in kinds}, {})
            arrays += arrays_of(f, saved, of_rank[rank], shares=False)
        files.append((_saves(manifest(leaves=[x for x, _ in arrays]), common=False), arrays))
    return first, files


def copied(first, files, target, number, kind):
    """The numbers of one kind that a rank reads, span by span, and their count."""
    rooms, count = _Rooms(target), 0
    for saves, arrays in files:
        of_file = {leaf.file: array for leaf, array in arrays}
        for _, (leaf, pieces) in rooms.wanted(first, saves, number, [kind]):
            for piece in saved_pieces(leaf, of_file[leaf.file]):
                count += sum(copy_overlap(piece, room) for room in pieces)
    return rooms.numbers(kind), count


@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_ranks_of_a_node_have_each_number_once(layout):
    found = [x for of_rank in spans(layout) for mine in of_rank for x in numbers_of(mine)]
    found = np.concatenate([x[:-3] for x in found])
    np.testing.assert_array_equal(np.sort(found), np.arange(1, found.size + 1))


@pytest.mark.parametrize("before", LAYOUTS)
def test_numbers_come_back_in_any_layout(before):
    first, files = saved_by(before)
    for after in LAYOUTS:
        for f, of_rank in enumerate(spans(after)):
            for mine in of_rank:
                target = Held(None, mine)
                number = min(f, len(first.flights) - 1)
                found, count = copied(first, files, target, number, "numbers")
                assert count == sum(span.size for span in mine), (before, after)
                for x, y in zip(found, numbers_of(mine), strict=True):
                    np.testing.assert_array_equal(x, y[:-3], err_msg=f"{before} to {after}")


def test_a_number_that_was_not_in_flight_changes_nothing_or_ends_the_flight():
    first, files = saved_by("three fragments")
    flights = list(first.flights)
    flights[1] = flights[1]._replace(in_flight=False)  # it has a common point only
    first = manifest(flights)
    files = [
        (saves._replace(arrays=tuple(x for x in saves.arrays if x[:2] != (1, "numbers"))), arrays)
        for saves, arrays in files
    ]
    mine = spans("one device")[0][0]
    (found, count), (point, _) = (
        copied(first, files, Held(None, mine), 0, kind) for kind in ("numbers", "anchor")
    )
    assert 0 < count < sum(span.size for span in mine)
    for x, y, z in zip(found, numbers_of(mine), point, strict=True):
        assert np.isin(x[x != y[:-3]], 0).all()
        np.testing.assert_array_equal(z, y[:-3])
    for rule, merges in (("corrected", True), ("paper", False)):
        target = Held(SimpleNamespace(rule=merge_of(rule)), mine)
        assert _can_merge(first, [x for x, _ in files], 0, target) is merges


def test_errors_of_an_exchange_in_flight_stay_with_it():
    """The numbers that the flight's merge brings include the errors."""
    first, files = saved_by("three fragments", kinds=("error",))
    flights = [
        x._replace(in_flight=x.fragment != 1) for x in first.flights
    ]  # fragment 1 has been merged
    mine = Held(None, spans("one device")[0][0])
    all_of = sum(span.size for span in mine.spans)
    own = sum(span.size for span in spans("three fragments")[1][0])
    for number, wanted in ((0, all_of), (1, own)):
        _, count = copied(manifest(flights), files, mine, number, "error")
        assert count == wanted, number


@pytest.mark.parametrize("shape", [(), (7,), (3, 4), (2, 3, 4), (1, 5, 1, 2)])
def test_a_range_of_a_box_is_boxes_in_order(shape):
    size = int(np.prod(shape))
    begin = tuple(range(1, len(shape) + 1))
    big = np.zeros([a + n for a, n in zip(begin, shape, strict=True)])
    inner = tuple(slice(a, None) for a in begin)
    big[inner or ...] = np.arange(size).reshape(shape)
    for first in range(size):
        for end in range(first, size + 3):
            found = [
                big[tuple(slice(a, a + n) for a, n in zip(*box, strict=True))].reshape(-1)
                for box in boxes_of(Box(begin, shape), first, end)
            ]
            wanted = np.arange(first, min(end, size))
            np.testing.assert_array_equal(np.concatenate([*found, []]), wanted)
            assert len(found) <= max(2 * len(shape) - 1, 1)


@pytest.mark.parametrize(
    "outer",
    [optax.sgd(0.7, momentum=0.9), optax.adam(0.1), optax.sgd(1.0)],
    ids=["momentum", "adam", "sgd"],
)
def test_an_outer_optimizer_of_shards_and_one_of_whole_leaves_have_the_same_form(outer):
    """Copies by leaf, and single numbers such as the count of steps."""
    rule = jdaso.outer(outer)
    params = {"a": jnp.zeros((4, 6)), "empty": jnp.zeros(0), "n": jnp.zeros(())}
    axes = {"d": 2}
    divisions = divisions_of({"a": P("d"), "empty": P(), "n": P()}, params, axes)
    mesh = AbstractMesh((2,), ("d",))
    placement = Placement(mesh, (("d", 2),), divisions)
    leaves = tuple(leaf for leaf in placement.leaves(params) if leaf.exchanged)
    shards = (*(Leaf("['a']", (2, 6), "float32") for _ in range(2)), Leaf("['n']", (), "float32"))
    whole = Whole(Layout(shards, 2, 512), leaves)
    state = rule.init(params)
    filled = [np.arange(np.size(x)).reshape(np.shape(x)) + 1 for x in jax.tree.leaves(state)]
    state = jax.tree.unflatten(jax.tree.structure(state), filled)
    form = OuterForm(rule, params, state, whole)
    assert form.moves
    saved = Saved(*form.taken(state))
    parts = tuple(np.zeros(n) for n in (12, 12, 1))
    other = OuterForm(rule, parts, rule.init(parts))
    again = other.taken(other.given(saved))
    for x, y in zip(jax.tree.leaves(tuple(saved)), jax.tree.leaves(again), strict=True):
        np.testing.assert_array_equal(x, y)
    for x, y in zip(jax.tree.leaves(form.given(Saved(*again))), filled, strict=True):
        np.testing.assert_array_equal(x, y)
