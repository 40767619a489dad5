"""Statistics and clusters of a file that no node holds whole: arrays over many nodes.

    mpirun -n 3 python examples/arrays.py [FILE.h5]

Each node reads its own rows of a data set "x" (a file with 200,000 rows is made if none is given),
standardizes them, finds clusters, counts values, and writes its rows of the result. A node needs
the memory of its rows twice: before and after they are standardized.
"""

import sys
from pathlib import Path

import h5py
import jax
import numpy as np

import jdaso
import jdaso.array as ja


@jax.jit  # one pass over the rows: no array for the difference alone
def scaled(x, mean, std):
    return (x - mean) / std


with jdaso.Session() as session:
    path = Path(sys.argv[1] if len(sys.argv) > 1 else "points.h5")
    if len(sys.argv) < 2 and session.node == 0:
        random = np.random.default_rng(0)
        centers = random.normal(scale=10.0, size=(4, 8))
        with h5py.File(path, "w") as file:
            file["x"] = centers[random.integers(4, size=200_000)] + random.normal(size=(200_000, 8))
    session.agree("go on to the file", [])

    x = ja.load(path, dataset="x", split=0)
    x = scaled(x, ja.mean(x, axis=0), ja.std(x, axis=0))
    model = ja.cluster.KMeans(n_clusters=4, random_state=0).fit(x)
    counts, edges = ja.histogram(x[:, 0], bins=8)
    ja.save(x, path.with_name("standardized.h5"), dataset="x")

    if session.node == 0:
        print(f"{x.shape[0]} rows on {session.num_nodes} nodes, {x.counts} of them each")
        print(f"k-means: {model.n_iter_} iterations, inertia {model.inertia_:.6g}")
        print("histogram of column 0:", counts.block.tolist())
