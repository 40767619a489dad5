"""Estimators on real nodes: a compiled LASSO with its derivative, a compiled k-means, distances.

Every node checks its own numbers, in 64 bits; the first one prints them for the test to compare.
"""

import jax
import numpy as np
from sklearn import datasets

import jdaso
import jdaso.array as ja

jax.config.update("jax_enable_x64", True)
x, y = datasets.load_diabetes(return_X_y=True)
x, y = (x - x.mean(0)) / x.std(0), (y - y.mean()) / y.std()
some, other = slice(0, 300), slice(300, None)


def loss(alpha, fitted, checked):
    """The error on other rows, of weights that depend on alpha: one compiled program."""
    (a, b), (c, d) = fitted, checked
    weights = ja.linear_model.lasso(a, b, alpha, tol=0, max_iter=5000)
    return ja.mean((c @ weights - d) ** 2).block


with jdaso.Session() as session:
    rows = [tuple(ja.asarray(one[part], split=0) for one in (x, y)) for part in (some, other)]
    slope = float(jax.jit(jax.grad(loss))(0.02, *rows))
    run = jax.jit(loss)
    by_differences = float(run(0.02 + 1e-4, *rows) - run(0.02 - 1e-4, *rows)) / 2e-4
    assert abs(slope - by_differences) < 1e-7 * abs(slope), (slope, by_differences)

    fits = []
    for compiled in (False, True):
        model = ja.cluster.KMeans(3, init=x[:3], compiled=compiled).fit(ja.asarray(x, split=0))
        fits.append((np.asarray(model.cluster_centers_), model.inertia_, model.n_iter_))
    np.testing.assert_allclose(fits[1][0], fits[0][0])
    assert fits[0][2] == fits[1][2]

    near = ja.neighbors.KNeighborsClassifier(3).fit(ja.asarray(x, split=0), y > 0)
    medoids = ja.cluster.KMedoids(3, init=x[:3]).fit(ja.asarray(x, split=0))
    found = {
        "slope": slope,
        "k-means": fits[0][1],
        "medoids": medoids.inertia_,
        "medians": ja.cluster.KMedians(3, init=x[:3]).fit(ja.asarray(x, split=0)).inertia_,
        "score": near.score(ja.asarray(x, split=0), y > 0),
        "variance": np.asarray(ja.decomposition.PCA(2).fit(rows[0][0]).explained_variance_).sum(),
    }
    if session.node == 0:
        print("found", {name: round(float(one), 9) for name, one in found.items()}, flush=True)
