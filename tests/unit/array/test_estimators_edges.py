"""Estimators where rows or arguments are unusual: as scikit-learn, or an error that helps."""

import warnings

import numpy as np
import pytest
from array_nodes import on_nodes
from sklearn import cluster, naive_bayes, neighbors

import jdaso.array as ja
from jdaso.array._estimator import NotFittedError

LINE = np.array([[0.0], [1.0], [10.0], [0.1]], np.float32)
WITHOUT_ROWS = np.array([[0.0], [1.0], [100.0]], np.float32)
CLOUD = np.random.default_rng(0).normal(size=(30, 4)).astype(np.float32)


@pytest.mark.parametrize(("nodes", "compiled"), [(1, False), (3, False), (1, True)])
def test_a_center_without_rows_moves_to_the_farthest_row(nodes, compiled):
    reference = cluster.KMeans(3, init=WITHOUT_ROWS, n_init=1).fit(LINE)

    def fitted():
        model = ja.cluster.KMeans(3, init=WITHOUT_ROWS, compiled=compiled)
        return model.fit(ja.asarray(LINE, split=0)).cluster_centers_

    for centers in on_nodes(nodes, lambda: np.asarray(fitted())):
        np.testing.assert_allclose(centers, reference.cluster_centers_, rtol=1e-6)


@pytest.mark.parametrize("nodes", [1, 2, 3])
def test_several_centers_without_rows(nodes):
    """On the way three centers have none; the rows that they take lie on different nodes."""
    begin = np.concatenate([CLOUD[:2], 50 + CLOUD[2:5]])
    reference = cluster.KMeans(5, init=begin, n_init=1, tol=0).fit(CLOUD)

    def fitted():
        model = ja.cluster.KMeans(5, init=begin, tol=0).fit(ja.asarray(CLOUD, split=0))
        return np.asarray(model.cluster_centers_), model.inertia_

    for centers, inertia in on_nodes(nodes, fitted):
        np.testing.assert_allclose(centers, reference.cluster_centers_, rtol=1e-5, atol=1e-6)
        assert inertia == pytest.approx(reference.inertia_, rel=1e-5)


def test_equal_rows_leave_clusters_without_rows():
    with pytest.warns(UserWarning, match="2 of 3 clusters have no rows"):
        model = ja.cluster.KMeans(3).fit(np.ones((4, 2)))
    assert set(np.asarray(model.labels_)) == {0}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ja.cluster.KMeans(3).fit(CLOUD)


def test_runs_of_two_seeds_have_other_first_centers():
    x, make = ja.asarray(CLOUD), ja.cluster.KMeans
    first, second = (make(3, n_init=10, random_state=s)._seeds(x) for s in (0, 1))
    assert len({*first, *second}) == 20 and (first[0], second[0]) == (0, 1)
    assert make(3, n_init=10, init=CLOUD[:3])._seeds(x) == [0]


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: ja.cluster.KMeans(2, n_init=0), "n_init must be at least 1, got 0"),
        (lambda: ja.cluster.KMeans(2, max_iter=0), "max_iter must be at least 1"),
        (lambda: ja.cluster.KMedoids(2, max_iter=0), "max_iter must be at least 1"),
        (lambda: ja.cluster.KMedians(1, init=np.full((1, 4), np.nan)), "init contains NaN"),
        (lambda: ja.cluster.SpectralClustering(2, gamma=-1.0), "gamma must be at least 0"),
    ],
)
def test_arguments_that_cannot_be(make, words):
    with pytest.raises(ValueError, match=words):
        make().fit(CLOUD)


def test_a_graph_of_equal_edges():
    assert len(np.asarray(ja.cluster.SpectralClustering(1, gamma=0).fit(CLOUD).labels_)) == 30


def test_coordinates_of_another_width_are_refused():
    model = ja.decomposition.PCA(3)
    with pytest.raises(NotFittedError):
        model.inverse_transform(CLOUD[:, :3])
    found = model.fit(CLOUD).transform(CLOUD)
    with pytest.raises(ValueError, match="1 coordinates, but this PCA has 3 components"):
        model.inverse_transform(found[:, :1])
    near = np.asarray(model.inverse_transform(found))
    assert np.abs(near - CLOUD).max() < np.abs(CLOUD).max()


def test_rows_that_were_refused_do_not_count():
    model, other = ja.decomposition.PCA(4), ja.decomposition.PCA(4)
    with pytest.raises(ValueError, match="n_components=4"):
        model.partial_fit(CLOUD[:3])
    with pytest.raises(NotFittedError):
        model.transform(CLOUD)
    for each in (model, other):
        each.partial_fit(CLOUD)
    with pytest.raises(ValueError, match="n_components=4"):
        model.fit(CLOUD[:3])
    assert model.n_samples_ == 30
    np.testing.assert_array_equal(model.components_, other.components_)
    classes = np.arange(30) % 2
    bayes = ja.naive_bayes.GaussianNB().fit(CLOUD, classes)
    bayes.priors = [0.5, 0.6]
    with pytest.raises(ValueError, match="priors must be 2 numbers"):
        bayes.partial_fit(CLOUD, classes)
    assert bayes.class_count_.sum() == 30


def test_whole_numbers_beyond_32_bits_are_rows():
    times = np.array([[1_700_000_000_000], [1_700_000_600_000], [1_700_001_200_000]])
    found = ja.preprocessing.StandardScaler().fit(times)
    assert float(found.mean_[0]) == pytest.approx(1_700_000_600_000, rel=1e-6)
    with pytest.raises(ValueError, match=r"a number above 3.4e\+38, the largest float32"):
        ja.preprocessing.StandardScaler().fit(np.array([[1e39], [0.0]]))


@pytest.mark.parametrize("count", [5, 100])
def test_many_classes(count):
    """More than 64 are added in another way; the numbers of a row's classes take no memory."""
    labels = np.arange(400) % count
    x = np.random.default_rng(1).normal(size=(400, 3)).astype(np.float32) + labels[:, None]
    for make, reference in (
        (ja.naive_bayes.GaussianNB(), naive_bayes.GaussianNB()),
        (ja.neighbors.KNeighborsClassifier(), neighbors.KNeighborsClassifier()),
    ):
        found = make.fit(x, labels).predict_proba(x)
        expected = reference.fit(x, labels).predict_proba(x)
        np.testing.assert_allclose(np.asarray(found), expected, atol=2e-4)


def test_a_path_that_did_not_converge_is_reported():
    y = CLOUD @ np.array([1.0, 2.0, 3.0, 4.0], np.float32)
    with pytest.warns(UserWarning, match=r"lasso_path did not converge for \d+ of 100 penalties"):
        ja.linear_model.lasso_path(CLOUD, y, max_iter=1, tol=1e-7)
