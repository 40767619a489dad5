"""Placements of leaves over devices: the shard of a device, checked against NumPy's indexing."""

import dataclasses
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import AbstractMesh, AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

from jdaso._exchange.shared_copies import _bits
from jdaso._payload.layout import Layout, Leaf, describe
from jdaso._payload.placement import Placement, divisions_of, joined, placement_of, spec
from jdaso._payload.shards import Part, Shards, in_order, parts_of
from jdaso._payload.whole import Whole

AXES = {"data": 2, "model": 3}
SPECS = [
    P(),
    P("model"),
    P(None, "data"),
    P("model", "data"),
    P(("data", "model")),
    P(("model", "data"), None),
]


def placement(*specs, mesh=None):
    leaves = tuple(jnp.zeros((12, 6)) for _ in specs)
    return Placement(mesh, tuple(AXES.items()), divisions_of(specs, leaves, AXES))


def pieces_as_jax_cuts(array, given):
    """The part of an array on each device, by its place in the mesh: computed by splitting axes."""
    found = []
    for place in itertools.product(*(range(n) for n in AXES.values())):
        at, piece = dict(zip(AXES, place, strict=True)), array
        for dim, entry in enumerate(given):
            for name in entry if isinstance(entry, tuple) else (entry,):
                if name is not None:
                    piece = np.split(piece, AXES[name], dim)[at[name]]
        found.append(piece)
    return found


@pytest.mark.parametrize("given", SPECS, ids=str)
def test_each_device_has_the_shard_that_jax_gives_it(given):
    whole = np.arange(72.0).reshape(12, 6)
    mine = pieces_as_jax_cuts(whole, given)
    shards = Shards(placement(given))
    found = shards.gathered([[x] for x in mine])
    assert len(found) == len({x.tobytes() for x in mine}) == shards.counts[0]
    for x, (y,) in zip(mine, shards.dealt(found), strict=True):
        np.testing.assert_array_equal(x, y)


def test_leaves_of_several_divisions_go_to_the_host_and_come_back():
    wholes = [k + np.arange(72.0).reshape(12, 6) for k in range(0, 1000, 200)]
    wholes = wholes[: len(SPECS)] + [np.ones((12, 6))]
    by_leaf = [pieces_as_jax_cuts(x, given) for x, given in zip(wholes, SPECS, strict=True)]
    by_device = list(zip(*by_leaf, strict=True))
    shards = Shards(placement(*SPECS))
    found = shards.gathered(by_device)
    assert shards.first == [0, 1, 4, 6, 12, 18] and len(found) == sum(shards.counts) == 24
    for given, taken in zip(by_device, shards.dealt(found), strict=True):
        for x, y in zip(given, taken, strict=True):
            np.testing.assert_array_equal(x, y)


def test_copies_that_differ_are_seen():
    whole = np.arange(72.0).reshape(12, 6)
    by_device = [[x.copy(), whole.copy()] for x in pieces_as_jax_cuts(whole, P("model"))]
    shards = Shards(placement(P("model"), P()))
    assert shards.alike(by_device) == [True, True]
    by_device[4][0][0, 0] = -0.0  # of device 1's shard
    assert shards.alike(by_device) == [False, True]
    by_device[0][0][0, 0] = -0.0
    by_device[5][1][0, 0] = -0.0
    assert shards.alike(by_device) == [False, False]


@pytest.mark.parametrize("given", SPECS, ids=str)
def test_a_shard_has_its_shape_inside_and_outside_of_shard_map(given):
    mesh = AbstractMesh(tuple(AXES.values()), tuple(AXES))
    (leaf,) = placement(given, mesh=mesh).leaves([jnp.zeros((12, 6), jnp.bfloat16)])
    piece = pieces_as_jax_cuts(np.zeros((12, 6)), given)[0]
    assert leaf.shape == piece.shape and leaf.whole == (12, 6)
    (inside,) = placement(given).leaves([jnp.zeros(piece.shape, jnp.bfloat16)])
    assert (inside.shape, inside.whole, inside.shards) == (leaf.shape, leaf.whole, leaf.shards)
    assert leaf.shards * np.prod(leaf.shape) == 72
    assert pieces_as_jax_cuts(np.zeros((12, 6)), spec(leaf.division))[0].shape == leaf.shape


def expanded(leaves):
    """The leaves with each shard of a divided one as a leaf of its own."""
    axes = dict.fromkeys(axis for leaf in leaves for axes in leaf.division for axis in axes)
    return Shards(Placement(None, tuple(axes), tuple(x.division for x in leaves))).leaves(leaves)


def test_shards_are_named_by_their_number():
    leaves = placement(P("model"), P()).leaves([jnp.zeros((4, 6)), jnp.zeros((2,))])
    assert [leaf.path for leaf in expanded(leaves)] == [
        *(f"[0] (shard {k} of 3)" for k in range(3)),
        "[1]",
    ]
    assert not any(leaf.division for leaf in expanded(leaves))


def test_the_ranks_of_a_node_have_all_shards_together():
    """Ranks gather shards from their own devices, and deal to these."""
    wholes = [k + np.arange(72.0).reshape(12, 6) for k in range(0, 1200, 200)]
    by_leaf = [pieces_as_jax_cuts(x, given) for x, given in zip(wholes, SPECS, strict=True)]
    by_device = list(zip(*by_leaf, strict=True))
    leaves = placement(*SPECS).leaves(list(by_device[0]))
    seen = set()
    for own in ((0, 2), (1, 5), (4, 3)):
        shards = Shards(dataclasses.replace(placement(*SPECS), own=own))
        given = [by_device[d] for d in own]
        for mine, taken in zip(given, shards.dealt(shards.gathered(given)), strict=True):
            for x, y in zip(mine, taken, strict=True):
                np.testing.assert_array_equal(x, y)
        seen |= {leaf.path for leaf in shards.leaves(leaves)}
    assert seen == {leaf.path for leaf in Shards(placement(*SPECS)).leaves(leaves)}


@pytest.mark.parametrize("shape", [(12, 6), (7,), (), (2, 3)], ids=str)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "complex64"])
def test_devices_that_hold_copies_exchange_parts_of_them(shape, dtype):
    """Parts are disjoint, as equal as can be, and together the copy; zeros fill the last."""
    x = (1 + jnp.arange(np.prod(shape, dtype=int))).reshape(shape).astype(dtype)
    x = x * (1 + 2j) if dtype == "complex64" else x
    (leaf,) = describe([x])
    (part,) = parts_of(Placement(None, (("d", 6),), ((),)), [leaf])
    parts = jax.vmap(lambda _: part.cut(x), axis_name="d")(jnp.zeros(6))
    assert parts.shape == (6, part.length) and part.length == -(-leaf.size // 6)
    assert parts.dtype == (jnp.float32 if dtype == "complex64" else dtype)
    whole = jax.vmap(part.join, axis_name="d")(parts.astype(jnp.float32))
    reals = np.stack([x.real, x.imag], -1) if dtype == "complex64" else np.asarray(x, np.float32)
    for mine in whole:
        np.testing.assert_array_equal(mine, reals)
    flat = np.asarray(parts, np.float32).reshape(-1)
    np.testing.assert_array_equal(flat[: leaf.size], reals.reshape(-1))
    assert not flat[leaf.size :].any()


def test_a_leaf_that_no_two_devices_share_is_one_part():
    leaf = Leaf("w", (4, 2), "float32", ((("d", 2),), ()))
    (part,) = parts_of(Placement(None, (("d", 2),), (leaf.division,)), [leaf])
    assert part == Part(leaf, ()) and part.exchanged.shape == (8,)
    np.testing.assert_array_equal(part.cut(jnp.ones((4, 2))), jnp.ones(8))
    np.testing.assert_array_equal(part.join(jnp.ones(8)), jnp.ones((4, 2)))


def test_types_on_explicit_meshes_have_the_placement():
    mesh = AbstractMesh((4, 1), ("d", "one"), axis_types=(AxisType.Explicit,) * 2)
    found = []

    def note(tree):
        found.append(placement_of(tree))
        return tree

    def like(shape, *entries):
        return jax.ShapeDtypeStruct(shape, jnp.float32, sharding=NamedSharding(mesh, P(*entries)))

    with jax.sharding.use_abstract_mesh(mesh):
        jax.eval_shape(note, {"a": like((8, 2), "d"), "b": like((3,)), "c": like((4,), "one")})
        jax.eval_shape(note, {"b": like((3,)), "c": like((4,), "one")})
    first, second = found
    assert first.axes == (("d", 4), ("one", 1)) and second is None
    assert first.divisions == (((("d", 4),), ()), (), ())


def test_arrays_of_one_device_are_not_divided():
    assert placement_of({"a": jnp.ones((4, 2)), "n": np.ones(3), "k": 1.0}) is None


def test_joined_placements_go_through_the_trees_in_order():
    one = placement(P("model"), P())
    found = joined([None, one], [{"a": 1.0}, [1.0, 2.0]], ({"a": 1.0}, [1.0, 2.0], (3.0, 4.0)))
    assert found.divisions == ((), *one.divisions, (), ())
    assert joined([None, None], [{"a": 1.0}, ()], {"a": 1.0}) is None


def test_a_tree_with_none_has_the_placements_of_the_others():
    one = placement(P("model"), P("data"), P())
    params = {"a": jnp.zeros(1), "b": [jnp.zeros(1), jnp.zeros(1)]}
    assert one.along(params, {"a": None, "b": [1.0, 2.0]}).divisions == one.divisions[1:]
    assert one.along(params, {"a": 1.0, "b": None}).divisions == one.divisions[:1]


def test_divisions_follow_the_order_of_arrays_on_the_host():
    tree = [jnp.ones(2, jnp.int32), jnp.ones(2), jnp.zeros(0), jnp.ones(2, jnp.bfloat16)]
    assert in_order(tree, [((("i", 2),),), ((("f", 2),),), (), ()]) == [
        ((("f", 2),),),
        (),
        ((("i", 2),),),
    ]


def test_specs_may_be_the_beginning_of_a_tree():
    tree = {"a": jnp.ones((6, 6)), "b": {"c": jnp.ones(6), "d": jnp.ones((3, 2))}}
    found = divisions_of({"a": None, "b": P("model")}, tree, AXES)
    assert found == ((), ((("model", 3),),), ((("model", 3),), ()))


@pytest.mark.parametrize(
    ("specs", "text"),
    [
        ({"a": P("heads")}, r"over axis 'heads'.*the axes are 'data', 'model', 'odd'"),
        ({"a": P(None, None, "data")}, r"for parameter \['a'\], float32\[6,6\], which has 2"),
        ({"b": P()}, "neither a tree like the parameters"),
        ({"a": "model"}, "expected a PartitionSpec"),
        ({"a": P(None, "odd")}, r"\['a'\], float32\[6,6\]: 6 cannot be divided into 4 equal parts"),
    ],
    ids=str,
)
def test_specs_that_do_not_fit_are_named(specs, text):
    with pytest.raises(ValueError, match=text):
        divisions_of(specs, {"a": jnp.ones((6, 6))}, AXES | {"odd": 4})


def test_descriptions_keep_divisions():
    leaf = Leaf("['a']", (3, 6), "float32", ((("data", 2),), ()))
    assert describe({"x": leaf}) == (leaf,) and leaf.whole == (6, 6)


def test_an_outer_optimizer_sees_whole_leaves():
    """Shards of divided leaves and of others, to whole leaves and back."""
    wholes = [k + np.arange(72.0).reshape(12, 6) for k in range(0, 1200, 200)]
    wholes = [x.astype(np.float32) for x in wholes]
    mesh = AbstractMesh(tuple(AXES.values()), tuple(AXES))
    leaves = placement(*SPECS, mesh=mesh).leaves(wholes)
    by_leaf = [pieces_as_jax_cuts(x, given) for x, given in zip(wholes, SPECS, strict=True)]
    shards = Shards(placement(*SPECS)).gathered(list(zip(*by_leaf, strict=True)))
    whole = Whole(Layout(expanded(leaves), 2, 512), leaves)
    for found in (whole.assemble(list(map(jnp.asarray, shards))), whole.put_together(shards)):
        for x, y in zip(found, wholes, strict=True):
            np.testing.assert_array_equal(x, y)
    for x, y in zip(whole.cut(list(map(jnp.asarray, wholes))), shards, strict=True):
        np.testing.assert_array_equal(x, y)


def test_whole_leaves_of_scalars_and_complex_numbers():
    divided = Leaf("['a']", (3,), "complex64", ((("data", 2),),))
    scalar = Leaf("['n']", (), "float32")
    whole = Whole(Layout(expanded([divided, scalar]), 2, 512), (divided, scalar))
    pairs = np.arange(12, dtype=np.float32).reshape(6, 2)
    found = whole.assemble([jnp.asarray(pairs[:3]), jnp.asarray(pairs[3:]), jnp.float32(12)])
    np.testing.assert_array_equal(found[0], pairs)
    assert [x.shape for x in whole.cut(found)] == [(3, 2), (3, 2), ()]


def test_shards_inside_of_shard_map_have_any_length():
    assert divisions_of({"a": P("odd")}, {"a": jnp.ones(6)}, {"odd": 4}, inside=True) == (
        ((("odd", 4),),),
    )


def test_gradients_of_a_pair_of_trees_are_those_of_the_first():
    """As optax.lookahead has them: its parameters are pairs, its gradients are not."""
    tree = {"a": jnp.zeros((4, 2)), "b": jnp.zeros(3)}
    divided = ((("d", 2),), ()), ((),)
    pair = optax.LookaheadParams(tree, tree)
    placement = Placement(None, (("d", 2),), divided + divided)
    assert placement.along(pair, tree).divisions == divided
    assert placement.along(pair, tree | {"b": None}).divisions == divided[:1]


def test_copies_are_compared_by_place_and_by_each_bit():
    one = jnp.asarray([1.0, 2.0, 3.0, 4.0], jnp.bfloat16)
    swapped = one[jnp.array([1, 0, 2, 3])]
    ulp = jnp.asarray([2.0**-7, 0, -(2.0**-6), 0], jnp.bfloat16)
    others = [one, one + ulp, swapped, jnp.asarray([1.0, 2.0, 3.0, 4.0]), one * 1j]
    found = [int(_bits(x)) for x in others]
    assert found[0] == found[3] and len(set(found)) == 4
