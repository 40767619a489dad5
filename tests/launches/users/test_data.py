"""A loader on two nodes: stopped, and gone on with on one and on two, as if never stopped."""

import json
import shutil

import numpy as np
import pytest
from launcher import PROGRAMS, mpirun

from jdaso.data import Order

SCRIPT = PROGRAMS / "data_trained.py"


def train(nodes, path, folder, end):
    done = mpirun(nodes, [SCRIPT, path, folder, end], quick_compiling=True)
    assert done.returncode == 0, done.stdout
    said = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    return sorted(said, key=lambda node: node["node"])


@pytest.fixture
def path(tmp_path):
    """Rows: x, y and the number of the sample."""
    x = np.random.default_rng(0).normal(size=(50, 3))
    rows = np.concatenate([x, x @ [[1], [2], [3]], np.arange(50)[:, None]], axis=1)
    np.save(tmp_path / "x.npy", rows.astype(np.float32))
    return tmp_path / "x.npy"


def test_stopped_and_gone_on_with(path, tmp_path):
    train(2, path, tmp_path / "a", 7)  # saved at steps 3 and 6
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    stream, ends = Order(50, seed=5).samples(0, 12 * 11).reshape(11, 12), {}
    for nodes, folder in ((2, "a"), (1, "b")):
        said = train(nodes, path, tmp_path / folder, 11)
        assert [node["begin"] for node in said] == [6] * nodes
        joined = np.concatenate([node["given"] for node in said], axis=1)
        np.testing.assert_array_equal(joined, stream[6:])
        ends[nodes] = said[0]["weights"]
    expected, rows = np.zeros(3), np.load(path).astype(float)
    for samples in stream:
        x, y = rows[samples, :3], rows[samples, 3]
        expected -= 0.1 * 2 / 12 * x.T @ (x @ expected - y)
    np.testing.assert_allclose(ends[1], expected, rtol=1e-4)
    np.testing.assert_allclose(ends[2], expected, rtol=1e-4)


def test_what_cannot_be_shared_out_is_said_on_all_nodes(path):
    code = """
import jdaso, sys
from jdaso.data import Loader, Npy
with jdaso.Session() as session:
    try:
        Loader(Npy(sys.argv[1]), 7, session)
    except ValueError as error:
        print(f"{error}\\n", end="", flush=True)
    if session.node == 1:
        Loader(Npy(sys.argv[1]), 8, session, seed=1)
    else:
        Loader(Npy(sys.argv[1]), 8, session)
"""
    done = mpirun(2, ["-c", code, path])
    assert done.stdout.count("multiple of 2 (2 nodes times 1 local devices), got 7. Take 6 or") == 2
    assert "seed=1" in done.stdout and "NodeError" in done.stdout and done.returncode != 0
