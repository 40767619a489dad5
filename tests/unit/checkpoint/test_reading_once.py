"""Files that a restore reads once, however often it needs something of them."""

import shutil

import numpy as np
import pytest

from jdaso.checkpoint import _arrays
from jdaso.checkpoint._files import DamagedError, Manifest, SavedLeaf
from jdaso.checkpoint._joined import part_of

RANDOM = np.random.default_rng(0)
ARRAYS = {
    "a": RANDOM.normal(size=(3, 5)).astype(np.float32),
    "large": RANDOM.normal(size=(80_000,)).astype(np.float32),
    "b": RANDOM.integers(9, size=7),
}


def leaf_of(name, array):
    return SavedLeaf(name, name, str(array.dtype), array.shape, common=False)


LEAVES = [leaf_of(name, array) for name, array in ARRAYS.items()]


def read(folder, names, known):
    wanted = [leaf for leaf in LEAVES if leaf.file in names]
    found = _arrays.read_arrays(folder, "node_0", LEAVES, wanted, known)
    assert found.keys() == set(names)
    for name, array in found.items():
        np.testing.assert_array_equal(array, ARRAYS[name])


def test_small_arrays_are_read_with_the_first_that_is_wanted(tmp_path):
    _arrays.write_arrays(tmp_path, "node_0", list(zip(LEAVES, ARRAYS.values(), strict=True)))
    known = {}
    read(tmp_path, ["large"], known)
    assert not known
    read(tmp_path, ["a"], known)
    shutil.rmtree(tmp_path / "node_0")
    read(tmp_path, ["a", "b"], known)
    with pytest.raises(DamagedError):
        read(tmp_path, ["a", "large"], known)
    with pytest.raises(DamagedError, match="small leaves differ in size"):
        read(tmp_path, ["a"], {"node_0": known["node_0"][1:]})


def manifest(node, number=3):
    facts = {"begun": 2, "score": None, "facts": (), "leaves": (), "parted": 0, "flights": ()}
    return Manifest(
        run="r", number=number, step=4, node=node, nodes=2, files={}, versions={}, **facts
    )


def test_the_manifests_of_a_save_are_read_once(tmp_path):
    first, second = manifest(0), manifest(1)
    second.write(tmp_path)
    assert part_of(tmp_path, 0, first) is first
    found = part_of(tmp_path, 1, first)
    (tmp_path / "node_1.json").unlink()
    assert part_of(tmp_path, 1, first) is found and found == second
    manifest(1, number=4).write(tmp_path)
    with pytest.raises(DamagedError, match="do not belong together"):
        part_of(tmp_path, 1, manifest(0))
