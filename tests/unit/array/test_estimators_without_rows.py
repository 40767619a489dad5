"""Estimators where some nodes have no rows, or numbers that are none; as on one node."""

import numpy as np
import pytest
from array_nodes import on_nodes
from nights import nightly

import jdaso.array as ja

X = np.random.default_rng(0).normal(size=(9, 2)).astype(np.float32)
Y = (X[:, 0] > 0).astype(np.int32)
ESTIMATORS = {
    "StandardScaler": lambda x, y: ja.preprocessing.StandardScaler().fit_transform(x),
    "PCA": lambda x, y: ja.decomposition.PCA().fit_transform(x),
    "Lasso": lambda x, y: ja.linear_model.Lasso(0.01).fit(x, y).predict(x),
    "KNeighborsClassifier": lambda x, y: ja.neighbors.KNeighborsClassifier(2).fit(x, y).predict(x),
    "GaussianNB": lambda x, y: ja.naive_bayes.GaussianNB().fit(x, y).predict_proba(x),
    "KMeans": lambda x, y: ja.cluster.KMeans(2).fit_predict(x),
    "KMedians": lambda x, y: ja.cluster.KMedians(2).fit_predict(x),
    "KMedoids": lambda x, y: ja.cluster.KMedoids(2).fit_predict(x),
    "SpectralClustering": lambda x, y: ja.cluster.SpectralClustering(2).fit_predict(x),
}


def ragged(x, counts):
    node = ja.asarray(0).world.node
    begin = sum(counts[:node])
    return ja.from_blocks(x[begin : begin + counts[node]])


@nightly
@pytest.mark.parametrize("counts", [(0, 6, 3), (9, 0, 0)])
@pytest.mark.parametrize("name", ESTIMATORS)
def test_nodes_without_rows(name, counts):
    (alone,) = on_nodes(1, lambda: np.asarray(ESTIMATORS[name](X, Y)))

    def run():
        found = ESTIMATORS[name](ragged(X, counts), ragged(Y, counts))
        assert found.counts == counts
        return np.asarray(found)

    for found in on_nodes(3, run):
        np.testing.assert_allclose(found, alone, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (np.float32("nan"), "X contains NaN"),
        (np.float32("inf"), "X contains infinity"),
        (1j, "Complex data not supported"),
    ],
)
def test_numbers_that_are_none_are_refused_on_all_nodes(wrong, words):
    x = np.where(np.arange(9) == 8, wrong, 1).reshape(-1, 1)

    def refused():
        with pytest.raises(ValueError, match=words):
            ja.preprocessing.StandardScaler().fit(ja.asarray(x, split=0))
        return True

    assert on_nodes(3, refused) == [True] * 3


def test_other_rows_than_fitted_ones_are_refused():
    model = ja.preprocessing.StandardScaler()
    with pytest.raises(AttributeError, match="StandardScaler is not fitted yet"):
        model.transform(X)
    with pytest.raises(ValueError, match="X has 1 features, but StandardScaler is expecting 2"):
        model.fit(X).transform(X[:, :1])
    with pytest.raises(ValueError, match="Invalid parameter 'means'"):
        model.set_params(means=1)
    with pytest.raises(ValueError, match=r"1d array of 9 numbers, got shape \(8,\)"):
        ja.linear_model.Lasso().fit(X, Y[:8])
