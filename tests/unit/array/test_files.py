"""Files that each node reads and writes in part."""

import h5py
import numpy as np
import pytest
from array_nodes import on_nodes

import jdaso.array as ja

X = np.random.default_rng(0).normal(size=(7, 3)).astype(np.float32)


@pytest.mark.parametrize("name", ["x.h5", "x.npy"])
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
