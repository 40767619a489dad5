"""Arrays of a file that each node reads in part: the example, over real nodes, beside NumPy."""

import ast
import re

import h5py
import numpy as np
import pytest
from launcher import PROGRAMS, ROOT, mpirun
from nights import nightly, rows
from sklearn.cluster import KMeans

SCRIPT = ROOT / "examples" / "arrays.py"
LIMIT_MEGABYTES = 1000
"""The most that a rank may allocate; it has 370 of them before it reads a row."""

TIMES = 13
"""The file repeats the same rows so many times: the test has memory for them."""


def points(path):
    """Four groups of rows, many times over, in a file that is larger than the limit."""
    random = np.random.default_rng(4)
    centers = random.normal(scale=40.0, size=(4, 64))
    x = centers[random.integers(4, size=160_001)] + random.normal(size=(160_001, 64))
    with h5py.File(path, "w") as file:
        stored = file.create_dataset("x", (TIMES * len(x), 64), float)
        for k in range(TIMES):
            stored[k * len(x) : (k + 1) * len(x)] = x
    assert path.stat().st_size > LIMIT_MEGABYTES * 2**20
    return x


@pytest.mark.parametrize(
    ("nodes", "mpi"),
    rows(
        [(2, "mpich"), (3, "mpich"), (2, "openmpi"), (3, "openmpi")],
        day=[(3, "mpich")],
    ),
)
def test_a_file_larger_than_a_nodes_memory_has_the_numbers_of_numpy(tmp_path, nodes, mpi):
    x = points(tmp_path / "points.h5")
    program = [PROGRAMS / "limited.py", LIMIT_MEGABYTES, tmp_path / "points.h5"]
    done = mpirun(nodes, [*map(str, program), SCRIPT, tmp_path / "points.h5"], mpi=mpi, timeout=200)
    assert done.returncode == 0, done.stdout
    assert done.stdout.count("whole: Unable to allocate") == nodes, done.stdout
    expected = (x - x.mean(0)) / x.std(0)
    with h5py.File(tmp_path / "standardized.h5") as file:
        assert len(file["x"]) == TIMES * len(x)
        for k in (0, TIMES - 1):
            found = file["x"][k * len(x) : (k + 1) * len(x)]
            np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)
    inertia = float(re.search(r"inertia (\S+)", done.stdout)[1])
    theirs = KMeans(4, n_init=3, random_state=0).fit(expected[::10])
    nearest = theirs.predict(expected)
    own = sum(((g := expected[nearest == k]) - g.mean(0)).__pow__(2).sum() for k in range(4))
    assert inertia == pytest.approx(TIMES * own, rel=1e-3)
    counts, _ = np.histogram(expected[:, 0], bins=8)
    assert f"column 0: {(TIMES * counts).tolist()}" in done.stdout


def test_a_node_that_cannot_read_its_rows_ends_all_with_its_words(tmp_path):
    program = tmp_path / "program.py"
    program.write_text(
        "import sys, jdaso, jdaso.array as ja\n"
        "with jdaso.Session() as session:\n"
        "    ja.load(sys.argv[1 + session.node])\n"
    )
    with h5py.File(tmp_path / "points.h5", "w") as file:
        file["x"] = np.zeros((10, 3))
    gone = tmp_path / "gone" / "points.h5"
    done = mpirun(2, [program, gone, tmp_path / "points.h5"], timeout=60)
    assert done.returncode != 0
    assert "Node 0 could not read points.h5: FileNotFoundError" in done.stdout


@nightly
@pytest.mark.parametrize(("nodes", "mpi"), [(2, "mpich"), (3, "openmpi")])
def test_estimators_over_nodes_have_the_numbers_of_one(nodes, mpi):
    """Compares estimators, and a LASSO and a k-means compiled with their reductions."""
    program = PROGRAMS / "fitted.py"
    found = []
    for count in (1, nodes):
        done = mpirun(count, [program], mpi=mpi, timeout=300)
        assert done.returncode == 0, done.stdout
        found.append(ast.literal_eval(re.search(r"found ({.*})", done.stdout)[1]))
    assert found[1] == pytest.approx(found[0], rel=1e-6)
