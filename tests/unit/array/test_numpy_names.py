"""Functions of NumPy that the array API standard does not have, against NumPy."""

import numpy as np
import pytest
import scipy.stats
from array_nodes import on_nodes
from nights import rows

import jdaso.array as ja
from jdaso.array._layout import ArrayLayout
from jdaso.array._move import laid

RNG = np.random.default_rng(0)
LINE = RNG.normal(size=11).astype(np.float32)
OTHER = RNG.normal(size=11).astype(np.float32)
A = RNG.normal(size=(5, 4)).astype(np.float32)
B = RNG.normal(size=(5, 4)).astype(np.float32)
CUBE = RNG.normal(size=(3, 4, 2)).astype(np.float32)
WHOLE = RNG.integers(0, 4, size=(6, 3)).astype(np.int32)
GAPS = A.copy()
GAPS[[0, 1, 3], [1, 2, 3]] = [np.nan, np.inf, -np.inf]
COMPLEX = (A + 1j * B).astype(np.complex64)
BELOW = np.sort(LINE)

NODES = rows((1, 2, 3, 7), day=(2,))
SPLITS = {2: (0,)}  # by day in one way, and several arrays each in another
EVERY_SPLIT = None, 0, 1, 2
UNEVEN = 3
"""A number of nodes whose arrays are not shared out evenly."""


def uneven(x, k):
    """The array with two rows on one node, none on the next, and the others on the third."""
    if x.split is None:
        return x
    size = x.shape[x.split]
    counts = np.roll([max(size - 2, 0), 0, min(size, 2)], k).tolist()
    return laid(x, ArrayLayout(x.shape, x.split, tuple(counts)))


def check(ours, theirs, nodes, *arrays):
    """Compares a call on arrays, split in each way and all ways at once, with NumPy's."""
    wanted = theirs(*arrays)
    wanted = wanted if isinstance(wanted, tuple | list) else [wanted]
    splits = [[split for x in arrays] for split in SPLITS.get(nodes, EVERY_SPLIT)]
    if len(arrays) > 1:
        splits += [[k % max(x.ndim, 1) if k else None for k, x in enumerate(arrays)]]
    for split in splits:

        def on_node(split=split):
            given = [
                ja.asarray(x, split=None if one is None or one >= x.ndim else one)
                for one, x in zip(split, arrays, strict=True)
            ]
            if nodes == UNEVEN:
                given = [uneven(x, k) for k, x in enumerate(given)]
            found = ours(*given)
            found = found if isinstance(found, tuple | list) else [found]
            for one in found:
                assert one.block.shape == one.layout.block_shape(one.world.node), "not its layout"
            return [np.asarray(one) for one in found]

        for found in on_nodes(nodes, on_node):
            assert len(found) == len(wanted)
            for one, other in zip(found, wanted, strict=True):
                np.testing.assert_allclose(one, other, rtol=3e-5, atol=3e-6)
                assert one.shape == np.shape(other)
                assert one.dtype.kind == np.asarray(other).dtype.kind


def same(name, *rest, **options):
    """A call of both libraries' function of a name."""

    def called(library):
        def call(*arrays):
            return getattr(library, name)(*arrays, *rest, **options)

        return call

    return called(ja), called(np)


def listed(name, **options):
    """A call with a list of arrays."""
    return (
        lambda *arrays: getattr(ja, name)(list(arrays), **options),
        lambda *arrays: getattr(np, name)(list(arrays), **options),
    )


ONE = ("angle cbrt deg2rad exp2 fabs isneginf isposinf rad2deg sinc ptp flatnonzero argwhere modf "
       "nan_to_num atleast_1d atleast_2d atleast_3d flipud").split()  # fmt: skip
TWO = "float_power fmax fmin fmod heaviside logaddexp2 inner vdot kron append".split()


@pytest.mark.parametrize("nodes", NODES)
@pytest.mark.parametrize("name", ONE)
def test_of_one(name, nodes):
    for x in (LINE, A, CUBE, np.float32(1.5)):
        if name != "flipud" or np.ndim(x):
            check(*same(name), nodes, np.asarray(x))


@pytest.mark.parametrize("nodes", NODES)
@pytest.mark.parametrize("name", TWO)
def test_of_two(name, nodes):
    x, y = (np.abs(A), np.abs(B)) if name == "float_power" else (A, B)
    check(*same(name), nodes, x, y)


CASES = {
    "where of a condition": ((lambda x: ja.where(x > 0), lambda x: np.where(x > 0)), A),
    "round to decimals": (same("round", 1), A),
    "reshape by numbers": ((lambda x: x.reshape(-1, 2), lambda x: x.reshape(-1, 2)), A),
    "squeeze all": (same("squeeze"), A[None, :1]),
    "sort of all": (same("sort", axis=None), A),
    "argsort of all": (same("argsort", axis=None, kind="stable"), A),
    "std by the older name": (same("std", 0, ddof=1), A),
    "nanvar by the older name": (same("nanvar", 0, ddof=1), A),
    "bincount with weights": (same("bincount"), WHOLE[:, 0].copy(), OTHER[:6].copy()),
    "gcd": (same("gcd"), WHOLE, WHOLE[::-1].copy()),
    "lcm": (same("lcm"), WHOLE, WHOLE[::-1].copy()),
    "angle of complex": (same("angle"), COMPLEX),
    "nan_to_num with numbers": (same("nan_to_num", nan=1.0, posinf=2.0, neginf=3.0), GAPS),
    "nan_to_num": (same("nan_to_num"), np.where(np.isinf(GAPS), 0, GAPS)),
    "ptp of rows": (same("ptp", axis=1), A),
    "swapaxes": (same("swapaxes", 0, -1), CUBE),
    "fliplr": (same("fliplr"), A),
    "rot90": (same("rot90"), A),
    "rot90 thrice": (same("rot90", 3, (1, 2)), CUBE),
    "rot90 twice": (same("rot90", -2), A),
    "hstack": (listed("hstack"), A, B),
    "hstack of lines": (listed("hstack"), LINE, OTHER),
    "vstack": (listed("vstack"), A, B),
    "vstack of lines": (listed("vstack"), LINE, OTHER),
    "dstack": (listed("dstack"), A, B),
    "column_stack": (listed("column_stack"), A, A[:, 0].copy()),
    "append along": (same("append", axis=1), A, B),
    "split": (same("split", 2, axis=1), CUBE),
    "split at": (same("split", [1, 3]), A),
    "split beyond": (same("split", [3, 9]), A),
    "array_split": (same("array_split", 3), A),
    "hsplit": (same("hsplit", 2), A),
    "hsplit of a line": (same("hsplit", [4]), LINE),
    "vsplit": (same("vsplit", [2]), A),
    "dsplit": (same("dsplit", 2), CUBE),
    "diag of a line": (same("diag"), LINE),
    "diag above": (same("diag", 2), LINE),
    "diag below": (same("diag", -3), LINE),
    "diag of a matrix": (same("diag", -1), A),
    "diagonal": (same("diagonal"), CUBE),
    "diagonal of others": (same("diagonal", 1, 2, 0), CUBE),
    "dot of lines": (same("dot"), LINE, OTHER),
    "dot": (same("dot"), A, B.T.copy()),
    "dot of a stack": (same("dot"), CUBE, CUBE.transpose(1, 2, 0).copy()),
    "dot of a number": (same("dot"), A, np.float32(2)),
    "inner of more axes": (same("inner"), CUBE, CUBE[0].copy()),
    "vdot of complex": (same("vdot"), COMPLEX, COMPLEX[::-1].copy()),
    "kron of other axes": (same("kron"), CUBE, LINE[:2].copy()),
    "kron the other way": (same("kron"), LINE[:2].copy(), A),
    "trapezoid": (same("trapezoid"), A),
    "trapezoid of columns": (same("trapezoid", dx=0.5, axis=0), A),
    "trapezoid at places": (same("trapezoid", axis=0), A, np.sort(A[:, 0])),
    "trapezoid at each one's": (same("trapezoid"), A, np.sort(B, 1)),
    "gradient": (same("gradient"), LINE),
    "gradient of all axes": (same("gradient", 0.5, [0.0, 1.0, 3.0, 3.5]), A),
    "gradient along": (same("gradient", axis=(-1, 0)), CUBE),
    "gradient of whole numbers": (same("gradient", axis=0), WHOLE),
    "interp": (same("interp"), A, BELOW, OTHER),
    "interp with ends": (same("interp", left=-1.0, right=7.0), A, BELOW, OTHER),
    "unique": (same("unique"), WHOLE),
    "unique with all": (same("unique", True, True, True), WHOLE),
    "unique with counts": (same("unique", return_counts=True), WHOLE),
    "unique of NaN": (same("unique", False, True, True), np.stack([LINE, LINE * np.nan])),
    "unique of NaN apart": (same("unique", equal_nan=False), GAPS),
    "unique of complex NaN": (same("unique", return_counts=True), COMPLEX * np.nan),
    "kron of truth": (same("kron"), A > 0, B > 0),
    "modf at the ends": (same("modf"), np.array([np.inf, -np.inf, -2, 0.5, -0.0], np.float32)),
    "nan_to_num by position": (same("nan_to_num", True, 1.0), np.float32([np.nan, 2])),
    "einsum without others": (same("vdot"), A, B.T.copy()),
    "unique of a line along it": (same("unique", axis=0, equal_nan=False), GAPS[:, 1].copy()),
    "union": (same("union1d"), WHOLE, WHOLE[:2] + 3),
    "union with NaN": (same("union1d"), GAPS, GAPS[0].copy()),
    "intersection": (same("intersect1d"), WHOLE, WHOLE[:2] + 2),
    "intersection with NaN": (same("intersect1d"), GAPS, GAPS[:2].copy()),
    "difference": (same("setdiff1d"), A, A[1:3].copy()),
    "elements of one alone": (same("setxor1d"), WHOLE, WHOLE[:2] + 2),
    "nanargmax": (same("nanargmax"), GAPS),
    "nanargmin along": (same("nanargmin", axis=0), GAPS),
    "nanargmin of whole numbers": (same("nanargmin", axis=1), WHOLE),
    "unique rows": (same("unique", True, True, True, axis=0), WHOLE[[0, 3, 0, 1, 3, 0, 5]]),
    "unique columns": (same("unique", True, True, True, 1), WHOLE[:, [1, 0, 1, 2, 2, 1]]),
}  # fmt: skip


@pytest.mark.parametrize("nodes", NODES)
@pytest.mark.parametrize("case", CASES)
def test_as_numpy(case, nodes):
    calls, *arrays = CASES[case]
    check(*calls, nodes, *arrays)


@pytest.mark.parametrize("nodes", NODES)
@pytest.mark.parametrize("mode", ["full", "same", "valid"])
@pytest.mark.parametrize("width", [1, 2, 5, 11, 14])
def test_convolutions(width, mode, nodes):
    short = RNG.normal(size=width).astype(np.float32)
    check(*same("convolve", mode), nodes, LINE, short)
    check(*same("correlate", mode), nodes, LINE, short)


def test_convolutions_of_whole_and_complex_numbers():
    short = np.array([1, -2], np.int32)
    large = np.array([2**24 + 1, 1, 3, 2**25 + 1], np.int32)
    check(*same("convolve"), 2, large, np.array([1, 1], np.int32))
    check(*same("convolve"), 2, LINE > 0, np.array([True, False, True]))
    check(*same("convolve", "valid"), 7, COMPLEX[:, 0].copy(), LINE[:2].copy())
    check(*same("convolve"), 2, WHOLE[:, 0].copy(), short)
    check(*same("correlate", "full"), 2, COMPLEX[:, 0].copy(), COMPLEX[0].copy())


EINSUMS = {
    "nd,md->nm": (A, B),
    "nd,nk->dk": (A, B),
    "nd->d": (A,),
    "nd->": (A,),
    "nd->dn": (A,),
    "ij,jk": (A, B.T.copy()),
    "ba,b": (A, A[:, 0].copy()),
    "ii->i": (A[:4],),
    "ii": (A[:4],),
    "...d,d->...": (CUBE, CUBE[0, 0].copy()),
    "...ij,...jk": (CUBE, CUBE.transpose(0, 2, 1).copy()),
    "i...->...": (CUBE,),
    "nd,nd,nd->n": (A, B, A[:1]),
    "i,j,k->ijk": (LINE, OTHER[:3].copy(), A[0].copy()),
    "nd,nk,dk->": (A, B, A[:4]),
    " n d , n d -> n ": (COMPLEX, COMPLEX),
}


@pytest.mark.parametrize("nodes", NODES)
@pytest.mark.parametrize("subscripts", EINSUMS)
def test_einsum(subscripts, nodes):
    arrays = EINSUMS[subscripts]
    check(
        lambda *given: ja.einsum(subscripts, *given),
        lambda *given: np.einsum(subscripts, *given),
        nodes,
        *arrays,
    )


def test_einsum_moves_the_least():
    long, short = np.ones((60, 4), np.float32), np.ones((8, 4), np.float32)

    def ours(subscripts, splits, *arrays):
        given = [ja.asarray(x, split=split) for x, split in zip(arrays, splits, strict=True)]
        with ja.counted() as count:
            found = ja.einsum(subscripts, *given)
        return count.bytes_sent, found.split, found.counts

    for moved, split, counts in on_nodes(3, ours, "nd,md->nm", (0, None), long, short):
        assert (moved, split, counts) == (0, 0, (20, 20, 20))
    for moved, split, _ in on_nodes(3, ours, "nd,md->nm", (0, 0), long, short):
        assert split == 0 and moved <= short.nbytes
    for moved, split, _ in on_nodes(3, ours, "nd,nk->dk", (0, 0), long, long):
        assert split is None and moved == int(2 * 2 / 3 * 16 * 4)


@pytest.mark.parametrize(
    "subscripts, arrays, told",
    [
        ("ij,jk", (A,), "2 arrays"),
        ("ijk", (A,), "does not fit"),
        ("ij->ik", (A,), "'k'"),
        ("ij->ii", (A,), "'i'"),
        ("ij,jk", (A, B), "'j' has the lengths 4 and 5"),
        ("i1", (A,), "'1' is no letter"),
        ("i", (A,), "does not fit"),
    ],
)
def test_einsum_refuses(subscripts, arrays, told):
    with pytest.raises(ValueError, match=told):
        ja.einsum(subscripts, *arrays)


@pytest.mark.parametrize("nodes", NODES)
@pytest.mark.parametrize("axis", [None, 0, 1])
def test_shape_of_a_distribution(axis, nodes):
    for bias in (True, False):
        check(
            lambda x, b=bias: ja.skew(x, axis, bias=b),
            lambda x, b=bias: scipy.stats.skew(x, axis, bias=b),
            nodes,
            A,
        )
        check(
            lambda x, b=bias: ja.kurtosis(x, axis, bias=b, fisher=b),
            lambda x, b=bias: scipy.stats.kurtosis(x, axis, bias=b, fisher=b),
            nodes,
            A,
        )


@pytest.mark.parametrize("nodes", NODES)
def test_lines(nodes):
    def ours():
        made = [
            ja.logspace(0, 3, 7, split=0),
            ja.logspace(1, 2, 4, base=2.0, endpoint=False, split=0),
            ja.geomspace(1, 1000, 5, split=0),
            ja.geomspace(-8, -1, 4),
            ja.geomspace(1, -1 + 0j, 5, split=0),
            ja.logspace(0, 3, 4, dtype=np.int32),
        ]
        return [np.asarray(x) for x in made]

    wanted = [
        np.logspace(0, 3, 7),
        np.logspace(1, 2, 4, base=2.0, endpoint=False),
        np.geomspace(1, 1000, 5),
        np.geomspace(-8, -1, 4),
        np.geomspace(1, -1 + 0j, 5),
        np.logspace(0, 3, 4, dtype=np.int32),
    ]
    for found in on_nodes(nodes, ours):
        for one, other in zip(found, wanted, strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-6, atol=1e-7)


def test_whole_numbers_at_equal_ratios_and_far_ends():
    for ends in ((1, 1000), (-1000, -1)):
        found = np.asarray(ja.geomspace(*ends, 4, dtype=np.int32))
        np.testing.assert_array_equal(found, np.geomspace(*ends, 4, dtype=np.int32))
    np.testing.assert_allclose(np.asarray(ja.geomspace(1e-30, 1e30, 3)), [1e-30, 1, 1e30])


def test_equal_numbers_have_no_skewness():
    for x in (np.full((7, 3), 0.1, np.float32), np.full((7, 3), 1 / 3, np.float32)):
        for split in (None, 0, 1):
            found = ja.skew(ja.asarray(x, split=split), 0), ja.kurtosis(ja.asarray(x, split=split))
            assert all(np.isnan(np.asarray(one)).all() for one in found)


def test_large_places_that_are_close():
    places, height = 1e9 + np.arange(11) * 0.5, LINE.astype(float)
    np.testing.assert_allclose(ja.gradient(LINE, places), np.gradient(height, places), rtol=1e-5)
    np.testing.assert_allclose(ja.trapezoid(LINE, places), np.trapezoid(height, places), rtol=1e-5)


@pytest.mark.parametrize("nodes", NODES)
def test_select(nodes):
    check(
        lambda x, y: ja.select([x > 1, x > 0], [y, x * 2], -1.0),
        lambda x, y: np.select([x > 1, x > 0], [y, x * 2], -1.0),
        nodes,
        A,
        B,
    )


@pytest.mark.parametrize(
    "call, told",
    [
        (lambda: ja.where(A > 0, A), "Give both"),
        (lambda: ja.vdot(LINE[:1], LINE), "as many elements"),
        (lambda: ja.einsum("...d->d", A), "lacks the '...'"),
        (lambda: ja.interp(A, LINE, LINE, period=0), "period must not be 0"),
        (lambda: ja.gradient(A, LINE), "1 distances"),
        (lambda: ja.gradient(A, axis=(0, 0)), "each axis once"),
        (lambda: ja.logspace(0, 2, 3, base=[2.0, 3.0]), "one base"),
        (lambda: ja.geomspace([1, 2], 3), "two numbers"),
        (lambda: ja.linspace(0, [1, 2], 3), "two numbers"),
        (lambda: ja.vsplit(LINE, 1), "2 axes"),
        (lambda: ja.nanargmax(A * np.nan), "NaN alone"),
        (lambda: ja.split(A, 3), "array_split"),
        (lambda: ja.array_split(A, 0), "one part or more"),
        (lambda: ja.hsplit(np.float32(1), 1), "axes or more"),
        (lambda: ja.fliplr(LINE), "2 axes"),
        (lambda: ja.rot90(A, axes=(0, 0)), "two different axes"),
        (lambda: ja.diag(CUBE), "diagonal"),
        (lambda: ja.convolve(LINE, A), "two lines"),
        (lambda: ja.convolve(LINE, LINE, "all"), "full, same or valid"),
        (lambda: ja.gradient(LINE, 1.0, 2.0), "2 distances"),
        (lambda: ja.gradient(LINE[:1]), "two indices"),
        (lambda: ja.gradient(LINE, [1.0, 2.0]), "11 places"),
        (lambda: ja.trapezoid(A, LINE), "x has"),
        (lambda: ja.interp(A, LINE, A), "one length"),
        (lambda: ja.select([A > 0], []), "as many choices"),
        (lambda: ja.geomspace(-1, 1), "one sign"),
        (lambda: ja.unique(COMPLEX, axis=0), "ordered numbers"),
    ],
)
def test_refuses(call, told):
    with pytest.raises(ValueError, match=told):
        call()


def test_other_names_are_told():
    for name, told in (("concatenate", "concat"), ("arctan2", "atan2"), ("cumsum", "cumulative")):
        with pytest.raises(AttributeError, match=rf"no '{name}'. Take ja.{told}"):
            getattr(ja, name)
    with pytest.raises(AttributeError, match="no 'nonsense'.$"):
        ja.nonsense  # noqa: B018
    with pytest.raises(AttributeError, match="no attribute 'cumsum'. Take ja.cumulative_sum"):
        ja.asarray(A).cumsum()
    with pytest.raises(TypeError, match=r"ja.save\(x, path\)"):
        ja.save(ja.asarray(A), ja.asarray(A))
    with pytest.raises(TypeError, match="slice"):
        ja.load("x.npy", rows=(0, 1))
    with pytest.raises(TypeError, match="a text such as|str"):
        ja.einsum(A, [0, 1])
    with pytest.raises(TypeError, match="a number or edges"):
        ja.histogram(A, "auto")


def test_an_array_is_its_own_copy_and_becomes_lists():
    x = ja.asarray(A)
    assert x.copy() is x and x.tolist() == A.tolist()
    np.testing.assert_allclose(ja.log([1.0, 2.0]), np.log([1.0, 2.0]), rtol=1e-6)
