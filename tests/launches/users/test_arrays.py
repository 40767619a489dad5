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


def points(path, count):
    """Four groups of rows, in a file; returns them."""
    random = np.random.default_rng(4)
    centers = np.array([[-9, -9, 0], [-9, 9, 0], [9, -9, 0], [9, 9, 0.0]])
    x = (centers[random.integers(4, size=count)] + random.normal(size=(count, 3))).astype("f4")
    with h5py.File(path, "w") as file:
        file["x"] = x
    return x


@pytest.mark.parametrize(("nodes", "mpi"), rows([(3, "mpich"), (2, "openmpi")], day=[(3, "mpich")]))
def test_the_example_over_nodes_has_the_numbers_of_one(tmp_path, nodes, mpi):
    x = points(tmp_path / "points.h5", 1001)
    done = mpirun(nodes, [SCRIPT, tmp_path / "points.h5"], mpi=mpi, timeout=120)
    assert done.returncode == 0, done.stdout
    expected = (x - x.mean(0, dtype=float)) / x.std(0, dtype=float)
    with h5py.File(tmp_path / "standardized.h5") as file:
        np.testing.assert_allclose(file["x"][:], expected, rtol=1e-4, atol=1e-5)
    inertia = float(re.search(r"inertia (\S+)", done.stdout)[1])
    theirs = KMeans(4, n_init=10, random_state=0).fit(expected)
    assert inertia == pytest.approx(theirs.inertia_, rel=1e-3)
    counts, _ = np.histogram(expected[:, 0], bins=8)
    assert f"column 0: {counts.tolist()}" in done.stdout


def test_a_node_that_cannot_read_its_rows_ends_all_with_its_words(tmp_path):
    program = tmp_path / "program.py"
    program.write_text(
        "import sys, jdaso, jdaso.array as ja\n"
        "with jdaso.Session() as session:\n"
        "    ja.load(sys.argv[1 + session.node])\n"
    )
    points(tmp_path / "points.h5", 10)
    gone = tmp_path / "gone" / "points.h5"
    done = mpirun(2, [program, gone, tmp_path / "points.h5"], timeout=60)
    assert done.returncode != 0
    assert "Node 0 could not read points.h5: FileNotFoundError" in done.stdout


@nightly
@pytest.mark.parametrize(("nodes", "mpi"), [(2, "mpich"), (3, "openmpi")])
def test_estimators_over_nodes_have_the_numbers_of_one(nodes, mpi):
    """Beside them a LASSO and a k-means that are one compiled program, with their reductions."""
    program = PROGRAMS / "fitted.py"
    found = []
    for count in (1, nodes):
        done = mpirun(count, [program], mpi=mpi, timeout=300)
        assert done.returncode == 0, done.stdout
        found.append(ast.literal_eval(re.search(r"found ({.*})", done.stdout)[1]))
    assert found[1] == pytest.approx(found[0], rel=1e-6)
