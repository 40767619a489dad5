"""Files that each node reads and writes in part."""

import os
import shutil
import sys
from functools import partial

import h5py
import numpy as np
import pytest
import zarr
from array_nodes import on_nodes
from scipy.io import netcdf_file

import jdaso.array as ja
from jdaso.array._formats import _csv
from jdaso.data import Source

X = np.random.default_rng(0).normal(size=(7, 3)).astype(np.float32)


NAMES = ["x.h5", "x.npy", "x.nc", "x.zarr", "x.csv"]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("axis", [None, 0, 1])
def test_what_is_saved_is_read_again_on_other_nodes(tmp_path, name, axis):
    path = tmp_path / name
    on_nodes(3, lambda: ja.save(ja.asarray(X, split=axis), path, dataset="x"))
    for nodes, split in ((1, None), (2, 0), (9, 0), (2, 1)):
        for found in on_nodes(nodes, lambda split=split: np.asarray(ja.load(path, split=split))):
            np.testing.assert_array_equal(found, X)
    if name == "x.h5":
        with h5py.File(path) as file:
            np.testing.assert_array_equal(file["x"][:], X)


def test_a_type_that_jax_does_not_have_is_a_warning(tmp_path):
    ja.save(ja.asarray(X), tmp_path / "x.npy")
    with pytest.warns(UserWarning, match="read as float32, not as float64.*JAX_ENABLE_X64=1"):
        found = ja.load(tmp_path / "x.npy", dtype="float64")
    assert found.dtype == np.float32


def with_another(path):
    """Writes a file that holds another array."""
    if path.suffix == ".zarr":
        zarr.open_group(path, mode="w").create_array("other", data=X)
    elif path.suffix == ".cdf":
        with netcdf_file(path, "w") as file:
            file.createDimension("row", 7)
            file.createVariable("other", "f4", ("row",))[:] = X[:, 0]
    else:
        with h5py.File(path, "w") as file:
            file["group/other" if path.suffix == ".h5" else "other"] = X


@pytest.mark.parametrize("name", ["x.h5", "x.nc", "x.cdf", "x.zarr"])
def test_a_file_that_holds_another_array_is_not_replaced(tmp_path, name):
    path, nodes = tmp_path / name, 2
    on_nodes(nodes, lambda: ja.save(ja.asarray(X, split=0), path, dataset="x"))
    on_nodes(nodes, lambda: ja.save(ja.asarray(2 * X, split=0), path, dataset="x"))
    np.testing.assert_array_equal(np.asarray(ja.load(path)), 2 * X)
    error = (ValueError, OSError)  # node 0's, or what the other is told of it
    with pytest.raises(error, match="holds the arrays x, which saving 'y' would remove"):
        on_nodes(nodes, lambda: ja.save(ja.asarray(X, split=0), path, dataset="y"))
    (shutil.rmtree if path.is_dir() else os.remove)(path)
    with_another(path)
    with pytest.raises(error, match="other, which saving 'x' would remove"):
        on_nodes(nodes, lambda: ja.save(ja.asarray(X, split=0), path, dataset="x"))


@pytest.mark.parametrize("name", ["x.h5", "x.nc", "x.zarr"])
def test_a_name_within_groups(tmp_path, name):
    """Arrays there are read, by name or as the only one, and can be replaced."""
    path, error = tmp_path / name, (ValueError, OSError)
    for factor, dataset in ((1, "g/x"), (2, "g/x"), (3, "/g/x")):
        save = partial(ja.save, dataset=dataset)
        on_nodes(2, lambda save=save, y=factor * X: save(ja.asarray(y, split=0), path))
        for named in ("g/x", "/g/x", None):
            for found in on_nodes(3, lambda named=named: np.asarray(ja.load(path, named))):
                np.testing.assert_array_equal(found, factor * X)
    with pytest.raises(error, match="holds the arrays g/x, which saving 'g/y' would remove"):
        on_nodes(2, lambda: ja.save(ja.asarray(X, split=0), path, dataset="g/y"))
    with pytest.raises(error, match="has the data sets .*g/x.*, got 'x'"):
        on_nodes(2, lambda: ja.load(path, "x"))


def test_files_of_other_programs(tmp_path):
    """A table with a header and blanks, both kinds of netCDF, Zarr's older version."""
    text = "a;b;c\n" + "\n".join("; ".join(map(repr, row)) for row in X.tolist())
    (tmp_path / "x.csv").write_text(text)
    with netcdf_file(tmp_path / "x.nc", "w") as file:
        file.createDimension("row", 7)
        file.createDimension("column", 3)
        file.createVariable("row", "i4", ("row",))[:] = np.arange(7)
        file.createVariable("x", "f4", ("row", "column"))[:] = X
    zarr.create_array(tmp_path / "x.zarr", data=X, chunks=(2, 2), zarr_format=2)
    for name, about in (("x.csv", {"delimiter": ";", "header": 1}), ("x.nc", {}), ("x.zarr", {})):
        for split in (0, 1, None):
            read = partial(ja.load, tmp_path / name, split=split, **about)
            for found in on_nodes(3, lambda read=read: np.asarray(read())):
                np.testing.assert_array_equal(found, X)


def test_each_node_reads_a_part_of_the_lines(tmp_path):
    ja.save(ja.asarray(np.arange(40, dtype=np.int32)), tmp_path / "x.csv")
    parts = on_nodes(
        3, lambda: (x := ja.load(tmp_path / "x.csv", dtype=np.int32)).counts and x.block
    )
    assert all(10 < len(part) < 17 for part in parts)
    np.testing.assert_array_equal(np.concatenate(parts)[:, 0], np.arange(40))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("axis", [None, 0, 1])
def test_rows_of_a_file_are_read_by_their_numbers(tmp_path, name, axis):
    path = tmp_path / name
    ja.save(ja.asarray(X), path, dataset="x")

    def read():
        ranges = slice(2, 6), slice(5), slice(4, None), slice(5, 99), slice(1, 2)
        found = [ja.load(path, split=axis, rows=one) for one in ranges]
        for x, one in zip(found, ranges, strict=True):
            np.testing.assert_array_equal(np.asarray(x), X[one])
            assert axis != 0 or max(x.counts) - min(x.counts) < 2, "not shared out evenly"
        return ja.load(path, split=axis, rows=slice(7, 9)).shape

    assert on_nodes(3, read) == [(0, 3)] * 3


def test_lines_without_numbers_are_no_rows(tmp_path):
    (tmp_path / "x.csv").write_text("a,b\n# nothing\n1,2\n\n3,4 # behind\n  \n5,6\n")

    def read():
        return np.asarray(ja.load(tmp_path / "x.csv", header=1, rows=slice(1, 3)))

    for found in on_nodes(2, read):
        np.testing.assert_array_equal(found, [[3, 4], [5, 6]])


def test_whole_numbers_that_do_not_fit_are_an_error_on_all_nodes(tmp_path):
    np.save(tmp_path / "x.npy", np.array([1, 2, 5_000_000_000]))

    def read():
        with pytest.raises((ValueError, OSError), match="5000000000 do not fit int32"):
            ja.load(tmp_path / "x.npy")
        return np.asarray(ja.load(tmp_path / "x.npy", rows=slice(0, 2)))

    for found in on_nodes(2, read):
        np.testing.assert_array_equal(found, [1, 2])
    with pytest.raises(ValueError, match="do not fit int32"):
        ja.asarray(np.array([-5_000_000_000]))

    def join():
        with pytest.raises((ValueError, OSError), match="5000000000 do not fit int32"):
            ja.from_blocks(np.array([5_000_000_000 * ja.asarray(0).world.node]))

    on_nodes(2, join)


def test_parts_of_lines_are_found_where_the_last_one_ended(tmp_path, monkeypatch):
    """Each line is looked at about twice, however many parts there are."""
    (tmp_path / "x.csv").write_text("".join(f"{k},{k + 0.5}\n" for k in range(100)))
    seen, look = [], _csv._has_numbers
    monkeypatch.setattr(_csv, "_has_numbers", lambda line: seen.append(line) or look(line))
    parts = [ja.load(tmp_path / "x.csv", rows=slice(k, k + 10)) for k in range(0, 110, 10)]
    np.testing.assert_array_equal(np.concatenate(parts)[:, 0], np.arange(100))
    assert parts[-1].shape[0] == 0 and len(seen) < 210
    assert float(ja.load(tmp_path / "x.csv", rows=slice(3, 4))[0, 0]) == 3
    (tmp_path / "x.csv").write_text("7,8\n9,0\n")
    np.testing.assert_array_equal(ja.load(tmp_path / "x.csv", rows=slice(1, 5)), [[9, 0]])


def test_a_line_that_cannot_be_read_is_shown(tmp_path):
    (tmp_path / "x.csv").write_text("a,b\n1,2\n")
    with pytest.raises(ValueError, match=r"The line 'a,b' is no row of numbers .*header="):
        ja.load(tmp_path / "x.csv")
    good = "".join(f"{k},2\n" for k in range(500))
    for wrong in ("7,x", "1,2,3", "1;2"):
        (tmp_path / "x.csv").write_text(f"{good}{wrong}\n{good}")
        with pytest.raises(ValueError, match=f"The line '{wrong}' is no row"):
            ja.load(tmp_path / "x.csv")


@pytest.mark.parametrize("rows", [slice(-2, None), slice(0, 4, 2), slice(None, -1)])
def test_a_range_of_rows_counts_from_the_front(tmp_path, rows):
    ja.save(ja.asarray(X), tmp_path / "x.npy")
    with pytest.raises(ValueError, match="slice without a step"):
        ja.load(tmp_path / "x.npy", rows=rows)


def test_a_netcdf_file_has_dimensions(tmp_path):
    on_nodes(2, lambda: ja.save(ja.asarray(X, split=0), tmp_path / "x.nc", dataset="x"))
    with h5py.File(tmp_path / "x.nc") as file:
        scales = [dimension[0] for dimension in file["x"].dims]
        assert [scale.shape for scale in scales] == [(7,), (3,)]
        assert all(b"netCDF dimension" in scale.attrs["NAME"] for scale in scales)


@pytest.mark.parametrize("name", ["x.h5", "x.zarr", "x.nc"])
def test_a_missing_package_is_named_with_what_to_install(tmp_path, monkeypatch, name):
    path, package = tmp_path / name, "zarr" if name == "x.zarr" else "h5py"
    ja.save(ja.asarray(X), path)
    monkeypatch.setitem(sys.modules, package, None)
    for use in (lambda: ja.load(path), lambda: ja.save(ja.asarray(X, split=0), path)):
        with pytest.raises((ImportError, OSError), match=f"pip install {package}"):
            on_nodes(2, use)


@pytest.mark.parametrize(
    ("name", "x", "words"),
    [("x.csv", X[None], "Save a matrix"), ("x.nc", X + 1j, "no type for complex64")],
)
def test_what_a_format_cannot_hold_is_an_error(tmp_path, name, x, words):
    with pytest.raises(TypeError, match=words):
        ja.save(ja.asarray(x), tmp_path / name)


def test_rows_are_a_source_of_samples_on_the_node_that_holds_them():
    labels = np.arange(7)

    def deal():
        source = ja.Rows({"x": ja.asarray(X, split=1), "label": ja.asarray(labels, split=0)})
        batch = source.rows(np.arange(len(source))[::-1])
        return isinstance(source, Source), batch

    found = on_nodes(3, deal)
    assert all(is_source for is_source, _ in found)
    assert [batch["label"].tolist() for _, batch in found] == [[1, 0], [4, 3], [6, 5]]
    for _, batch in found:
        np.testing.assert_array_equal(batch["x"], X[batch["label"]])
    with pytest.raises(ValueError, match="one at least on each of 9 nodes"):
        on_nodes(9, lambda: ja.Rows(ja.asarray(X, split=0)))


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("x.h5", "has the data sets a, b, got None"),
        ("x.txt", "no known ending"),
        ("y.npy", "y.npy"),
    ],
)
def test_a_file_that_cannot_be_read_is_an_error(tmp_path, name, words):
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file["a"], file["b"] = X, X
    with pytest.raises((OSError, ValueError), match=words):
        on_nodes(2, lambda: ja.load(tmp_path / name))


@pytest.mark.parametrize("name", ["x.h5", "x.npy"])
def test_numbers_that_files_have_no_type_for_leave_the_older_file(tmp_path, name):
    path = tmp_path / name
    ja.save(ja.asarray(X), path)
    with pytest.raises(TypeError, match="no type for bfloat16"):
        on_nodes(2, lambda: ja.save(ja.asarray(X, split=0).astype("bfloat16"), path))
    np.testing.assert_array_equal(np.asarray(ja.load(path)), X)
