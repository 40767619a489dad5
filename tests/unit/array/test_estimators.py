"""Estimators beside scikit-learn's, on its data sets, over one, two and three nodes alike."""

import jax
import numpy as np
import pytest
from array_nodes import on_nodes
from nights import nightly, rows
from sklearn import (
    cluster,
    datasets,
    decomposition,
    linear_model,
    naive_bayes,
    neighbors,
    preprocessing,
)

import jdaso.array as ja
from jdaso.array import _in_place
from jdaso.array._estimator import NotFittedError
from jdaso.cli.demo import fashion_mnist

NODES = rows((1, 2, 3), day=(3,))


def fashion(*, return_X_y):
    """A sixth of Fashion-MNIST's test images, of 196 numbers: every second row and column."""
    assert return_X_y
    found = fashion_mnist()
    x = found.test_images[:1700].reshape(-1, 28, 28)[:, ::2, ::2].reshape(-1, 196)
    return x.astype(float), found.test_labels[:1700]


LOADERS = {
    name: getattr(datasets, f"load_{name}")
    for name in ("iris", "wine", "digits", "breast_cancer", "diabetes")
} | {"fashion": fashion}
BY_DAY = ("wine",)
CLASSES = ("iris", "wine", "digits", "breast_cancer", "fashion")


def data(name):
    """Rows and targets; as many on each of three nodes, for which one program is compiled then.

    A third of the rows are, too.
    """
    x, y = LOADERS[name](return_X_y=True)
    count = len(x) // 9 * 9
    return x[:count].astype(np.float32), y[:count]


def split(x):
    return ja.asarray(x, split=0)


def each(nodes, function):
    """Results of all nodes, as NumPy's."""
    return on_nodes(nodes, lambda: {k: np.asarray(v) for k, v in function().items()})


def close(found, expected, **about):
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, err_msg=name, **about)


@pytest.mark.parametrize("nodes", NODES)
@pytest.mark.parametrize("name", rows(LOADERS, day=()))
def test_standard_scaler(nodes, name):
    x, _ = data(name)
    theirs = preprocessing.StandardScaler().fit(x.astype(float))

    def run(parts):
        model = ja.preprocessing.StandardScaler()
        for part in parts:
            model.partial_fit(split(part))
        scaled = model.transform(split(x))
        back = model.inverse_transform(scaled)
        return dict(mean=model.mean_, var=model.var_, scaled=scaled, back=back)

    expected = dict(mean=theirs.mean_, var=theirs.var_, scaled=theirs.transform(x), back=x)
    for found in each(nodes, lambda: run([x[:57], x[57:]])):
        close(found, expected, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("nodes", NODES)
@pytest.mark.parametrize("name", rows(LOADERS, day=BY_DAY))
@pytest.mark.parametrize("solver", rows(("full", "covariance_eigh"), day=("full",)))
def test_pca(nodes, name, solver):
    x, _ = data(name)
    theirs = decomposition.PCA(3, whiten=True).fit(x.astype(float))

    def run(parts):
        model = ja.decomposition.PCA(3, whiten=True, svd_solver=solver)
        for part in parts:
            model.partial_fit(split(part))
        found = model.transform(split(x))
        assert (model.n_components_, found.split) == (3, 0)
        return dict(
            components=model.components_,
            ratio=model.explained_variance_ratio_,
            singular=model.singular_values_,
            noise=model.noise_variance_,
            scores=found,
            back=model.inverse_transform(found),
        )

    scores = theirs.transform(x)
    expected = dict(
        components=theirs.components_,
        ratio=theirs.explained_variance_ratio_,
        singular=theirs.singular_values_,
        noise=theirs.noise_variance_,
        scores=scores,
        back=theirs.inverse_transform(scores),
    )
    for found in each(nodes, lambda: run([x[:57], x[57:]])):
        close(found, expected, rtol=2e-3, atol=2e-3 * np.sqrt(x.var(0).max()))


@pytest.mark.parametrize("kept", [2, 4])
def test_densities_of_principal_components(kept):
    x, _ = data("iris")
    theirs = decomposition.PCA(kept).fit(x.astype(float))

    def run():
        model = ja.decomposition.PCA(kept, whiten=True).fit(split(x))
        return dict(rows=model.score_samples(split(x)), mean=model.score(x))

    expected = dict(rows=theirs.score_samples(x), mean=theirs.score(x))
    for found in each(3, run):
        close(found, expected, rtol=1e-3, atol=1e-3)


def test_rows_without_a_density():
    flat = np.random.default_rng(0).normal(size=(9, 3)) * [1, 1, 0]
    for rows_given in (flat, flat[:2]):
        model = ja.decomposition.PCA().fit(rows_given)
        with pytest.raises(ValueError, match="fewer than 3 directions"):
            model.score(rows_given)


@nightly
def test_a_share_of_the_variance_says_how_many_components():
    x, _ = data("digits")
    theirs = decomposition.PCA(0.9, svd_solver="full").fit(x)
    for found in on_nodes(2, lambda: ja.decomposition.PCA(0.9).fit(split(x)).n_components_):
        assert found == theirs.n_components_


@pytest.mark.parametrize("nodes", NODES)
@pytest.mark.parametrize("name", rows(LOADERS, day=("diabetes",)))
def test_lasso(nodes, name):
    x, y = data(name)
    x = preprocessing.StandardScaler().fit_transform(x)
    alpha = 0.05 * np.std(y)
    theirs = linear_model.Lasso(alpha, tol=1e-6).fit(x, y)
    alphas, path, _ = linear_model.lasso_path(x, y - y.mean(), alphas=7, tol=1e-6)

    def run():
        model = ja.linear_model.Lasso(float(alpha), tol=1e-6).fit(split(x), split(y))
        target = split((y - y.mean()).astype(np.float32))
        ours = ja.linear_model.lasso_path(split(x), target, n_alphas=7, tol=1e-6)
        return dict(
            coef=model.coef_,
            intercept=model.intercept_,
            predicted=model.predict(split(x)),
            score=model.score(split(x), split(y)),
            alphas=ours[0],
            path=ours[1],
        )

    expected = dict(
        coef=theirs.coef_,
        intercept=theirs.intercept_,
        predicted=theirs.predict(x),
        score=theirs.score(x, y),
        alphas=alphas,
        path=path,
    )
    for found in each(nodes, run):
        close(found, expected, rtol=1e-3, atol=2e-3 * np.std(y))


def test_targets_without_signal():
    """A path of zeros; the score of targets that are all the same: 1 if exact, else 0."""
    x, y = data("wine")
    alphas, path, _ = linear_model.lasso_path(x, 0 * y, alphas=7)

    def run():
        ours = ja.linear_model.lasso_path(split(x), split(0 * y), n_alphas=7)
        model = ja.linear_model.Lasso(1.0).fit(split(x), split(0 * y))
        scores = [model.score(split(x), split(0 * y + k)) for k in (0, 1)]
        return dict(alphas=ours[0], path=ours[1], scores=scores)

    for found in each(2, run):
        close(found, dict(alphas=alphas, path=path, scores=[1.0, 0.0]), rtol=1e-6)


def test_the_slope_of_a_loss_by_the_penalty_is_that_of_differences():
    x, y = data("diabetes")
    x, y = preprocessing.StandardScaler().fit_transform(x).astype(float), y / 50

    with jax.enable_x64(True):

        def loss(alpha):
            w = ja.linear_model.lasso(x[:300], y[:300], alpha, tol=0, max_iter=5000)
            return ja.mean((x[300:] @ w - (y[300:] - y.mean())) ** 2).block

        for alpha in (0.02, 0.2):
            slope = float(jax.jit(jax.grad(loss))(alpha))
            by_differences = float(loss(alpha + 1e-5) - loss(alpha - 1e-5)) / 2e-5
            assert slope == pytest.approx(by_differences, rel=1e-6)


@pytest.mark.parametrize("nodes", NODES)
@pytest.mark.parametrize("name", rows(CLASSES, day=BY_DAY))
@pytest.mark.parametrize("weights", rows(("uniform", "distance"), day=("distance",)))
def test_nearest_neighbours(nodes, name, weights):
    x, y = data(name)
    some, other = np.arange(len(x)) % 3 > 0, np.arange(len(x)) % 3 == 0
    theirs = neighbors.KNeighborsClassifier(4, weights=weights, algorithm="brute")
    theirs.fit(x[some], y[some])

    def run():
        model = ja.neighbors.KNeighborsClassifier(4, weights=weights)
        model.fit(split(x[some]), split(y[some]))
        distances, _ = model.kneighbors(split(x[other]))
        found = model.predict_proba(split(x[other]))
        score = model.score(split(x[other]), split(y[other]))
        return dict(distances=distances, shares=found, score=score)

    near = theirs.kneighbors(x[other])[0]
    expected = theirs.predict_proba(x[other])
    for found in each(nodes, run):
        np.testing.assert_allclose(found["distances"], near, rtol=1e-4, atol=1e-3)
        differ = np.abs(found["shares"] - expected).max(1) > 1e-3
        assert differ.mean() < 0.02, "more than ties"
        assert found["score"] == pytest.approx(theirs.score(x[other], y[other]), abs=0.01)


def test_no_neighbours_are_refused():
    x, y = data("wine")

    def run():
        model = ja.neighbors.KNeighborsClassifier(3).fit(split(x), split(y))
        assert model.kneighbors(split(x[:9]))[0].shape == (9, 3)
        with pytest.raises(ValueError, match="n_neighbors = 0"):
            model.kneighbors(split(x[:9]), 0)

    on_nodes(2, run)


@pytest.mark.parametrize("nodes", NODES)
@pytest.mark.parametrize("name", rows(CLASSES, day=BY_DAY))
def test_gaussian_naive_bayes(nodes, name):
    x, y = data(name)
    theirs = naive_bayes.GaussianNB(var_smoothing=1e-4).fit(x.astype(float), y)

    def run():
        model = ja.naive_bayes.GaussianNB(var_smoothing=1e-4).fit(split(x), split(y))
        return dict(
            classes=model.classes_,
            theta=model.theta_,
            var=model.var_,
            prior=model.class_prior_,
            logs=model.predict_joint_log_proba(split(x)),
            labels=model.predict(split(x)),
            score=model.score(split(x), split(y)),
        )

    expected = dict(
        classes=theirs.classes_,
        theta=theirs.theta_,
        var=theirs.var_,
        prior=theirs.class_prior_,
        logs=theirs.predict_joint_log_proba(x),
        labels=theirs.predict(x),
        score=theirs.score(x, y),
    )
    for found in each(nodes, run):
        close(found, expected, rtol=1e-3, atol=1e-3)


def test_gaussian_naive_bayes_in_parts():
    x, y = data("iris")
    early = np.random.default_rng(0).permutation(np.flatnonzero(y < 2))
    parts = [early[:30], early[30:], np.flatnonzero(y == 2)]
    theirs = ja.naive_bayes.GaussianNB().fit(x, y)

    def run():
        model = ja.naive_bayes.GaussianNB()
        for part in parts:
            model.partial_fit(split(x[part]), split(y[part]), classes=[2, 0, 1])
            likely = np.asarray(model.predict_proba(x[:3]))
            np.testing.assert_allclose(likely.sum(1), 1, rtol=1e-5)
        return dict(theta=model.theta_, var=model.var_, prior=model.class_prior_)

    expected = dict(theta=theirs.theta_, var=theirs.var_, prior=theirs.class_prior_)
    for found in each(2, run):
        close(found, expected, rtol=1e-4)
    model = ja.naive_bayes.GaussianNB()
    with pytest.raises(ValueError, match="on the first call"):
        model.partial_fit(x, y)
    with pytest.raises(ValueError, match="Give all of them"):
        model.partial_fit(x, y, classes=[0, 1])
    with pytest.raises(NotFittedError):
        model.predict(x)
    model.partial_fit(x, y, classes=[0, 1, 2])
    with pytest.raises(ValueError, match="not those of the first call"):
        model.partial_fit(x, y, classes=[0, 1, 2, 3])


def begin_of(x, k):
    """First centers that are rows, far from each other."""
    return x[np.linspace(0, len(x) - 1, k).astype(int)]


def same_groups(found, expected):
    """Labels are the same up to naming."""
    pairs = set(zip(found.tolist(), expected.tolist(), strict=True))
    return len(pairs) == len(set(found.tolist())) == len(set(expected.tolist()))


@pytest.mark.parametrize("nodes", NODES)
@pytest.mark.parametrize("name", rows(CLASSES, day=()))
def test_k_means(nodes, name):
    x, _ = data(name)
    theirs = cluster.KMeans(3, init=begin_of(x, 3), n_init=1, tol=1e-6).fit(x)

    def run():
        model = ja.cluster.KMeans(3, init=begin_of(x, 3), tol=1e-6).fit(split(x))
        return dict(centers=model.cluster_centers_, labels=model.labels_, inertia=model.inertia_)

    for found in each(nodes, run):
        assert same_groups(found["labels"], theirs.labels_)
        assert found["inertia"] == pytest.approx(theirs.inertia_, rel=1e-4)
        close(found, dict(centers=theirs.cluster_centers_), rtol=1e-3, atol=1e-3)


def medians(x, centers):
    """The method in NumPy: centers, labels and sum of distances."""
    while True:
        distances = np.abs(x[:, None] - centers).sum(2)
        labels = distances.argmin(1)
        moved = np.stack([np.median(x[labels == k], 0) for k in range(len(centers))])
        if (moved == centers).all():
            return centers, labels, distances.min(1).sum()
        centers = moved


def medoids(x, centers):
    while True:
        distances = np.sqrt(((x[:, None] - centers) ** 2).sum(2))
        labels = distances.argmin(1)
        moved = []
        for k in range(len(centers)):
            own = x[labels == k]
            moved.append(own[np.sqrt(((own[:, None] - own) ** 2).sum(2)).sum(1).argmin()])
        if (np.stack(moved) == centers).all():
            return centers, labels, distances.min(1).sum()
        centers = np.stack(moved)


@pytest.mark.parametrize("nodes", NODES)
@pytest.mark.parametrize("name", rows(CLASSES, day=BY_DAY))
@pytest.mark.parametrize(
    ("make", "reference"),
    [
        (lambda first: ja.cluster.KMedians(3, init=first, tol=0), medians),
        (lambda first: ja.cluster.KMedoids(3, init=first), medoids),
    ],
    ids=["medians", "medoids"],
)
def test_other_centers_than_means(nodes, name, make, reference):
    x = data(name)[0][:400]
    centers, labels, inertia = reference(x.astype(float), begin_of(x, 3).astype(float))

    def run():
        model = make(begin_of(x, 3)).fit(split(x))
        return dict(
            centers=model.cluster_centers_,
            labels=model.labels_,
            inertia=model.inertia_,
            again=model.predict(split(x)),
        )

    for found in each(nodes, run):
        expected = dict(centers=centers, labels=labels, again=labels, inertia=inertia)
        close(found, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("nodes", rows((1, 2, 3), day=()))
def test_spectral_clustering(nodes):
    x, y = datasets.make_moons(240, noise=0.05, random_state=0)
    theirs = cluster.SpectralClustering(2, gamma=30, random_state=0).fit(x)

    def run():
        model = ja.cluster.SpectralClustering(2, gamma=30).fit(split(x.astype(np.float32)))
        assert model.affinity_matrix_.split == 0
        return dict(labels=model.labels_)

    assert same_groups(theirs.labels_, y)
    for found in each(nodes, run):
        assert same_groups(found["labels"], y)


@pytest.mark.parametrize("nodes", rows((1, 2, 3), day=(2,)))
def test_spectral_clustering_of_flowers(nodes):
    x = preprocessing.StandardScaler().fit_transform(data("iris")[0])
    theirs = cluster.SpectralClustering(3, gamma=0.25, random_state=0).fit(x)
    fit = lambda: ja.cluster.SpectralClustering(3, gamma=0.25).fit(split(x))  # noqa: E731
    for found in each(nodes, lambda: dict(labels=fit().labels_)):
        assert same_groups(found["labels"], theirs.labels_)


@nightly
@pytest.mark.parametrize("nodes", [1, 2, 3])
@pytest.mark.parametrize(("groups", "gamma"), [(3, 1.0), (5, 2.0), (10, 1.0)])
def test_spectral_clustering_of_clothes(groups, gamma, nodes):
    x = data("fashion")[0]
    x = (x / np.sqrt(x.var(0).sum())).astype(np.float32)
    theirs = cluster.SpectralClustering(groups, gamma=gamma, random_state=0).fit(x)

    def run():
        model = ja.cluster.SpectralClustering(groups, gamma=gamma, random_state=0).fit(split(x))
        return dict(labels=model.labels_)

    for found in each(nodes, run):
        assert same_groups(found["labels"], theirs.labels_)


def test_equal_distances_have_one_order_on_all_nodes(monkeypatch):
    """Large blocks pass in another order on each node; the query is whole on each."""
    monkeypatch.setattr(_in_place, "PIECE_BYTES", 4)
    rows, query = np.array([[0.0], [2.0]], np.float32), np.array([[1.0]], np.float32)

    def run():
        model = ja.neighbors.KNeighborsClassifier(1).fit(split(rows), np.array([0, 1]))
        return np.asarray(model.predict(ja.asarray(query)))

    assert on_nodes(2, run) == [[0], [0]]


def test_the_inertia_of_tight_groups_is_no_rounding():
    random = np.random.default_rng(0)
    rows = np.repeat([[-1000.0, 1000], [1000, -1000]], 500, 0) + random.normal(0, 0.1, (1000, 2))
    rows = rows.astype(np.float32)
    expected = sum(((part - part.mean(0)) ** 2).sum() for part in np.split(rows.astype(float), 2))
    found = ja.cluster.KMeans(2, init=np.sign(rows[[0, -1]]) * 1000).fit(rows).inertia_
    assert found == pytest.approx(expected, rel=1e-2)


def test_few_corners_of_a_graph():
    """Clusters a graph with fewer than twice as many corners as groups."""
    graph = np.array([[0, 1, 0], [1, 0, 1e-3], [0, 1e-3, 0]], np.float32)
    model = ja.cluster.SpectralClustering(2, affinity="precomputed")
    first, second, third = np.asarray(model.fit(graph).labels_)
    assert first == second != third


def test_first_centers_are_as_good_as_scikit_learns():
    """Of 16 groups, a start from one row for each center joins two groups in most runs."""
    x = datasets.make_blobs(800, 4, centers=16, cluster_std=0.3, random_state=0)[0]
    x = x.astype(np.float32)

    def ours():
        fits = [ja.cluster.KMeans(16, random_state=seed).fit(split(x)) for seed in range(4)]
        return [fit.inertia_ for fit in fits]

    theirs = [cluster.KMeans(16, n_init=1, random_state=k).fit(x).inertia_ for k in range(4)]
    for found in on_nodes(2, ours):
        assert np.mean(found) < 1.2 * np.mean(theirs)
        assert min(found) == pytest.approx(min(theirs), rel=1e-4)


def test_distances_to_means_and_their_score():
    x = datasets.load_iris().data.astype(np.float32)

    def ours():
        model = ja.cluster.KMeans(3).fit(split(x))
        return (
            model.cluster_centers_.block,
            np.asarray(model.transform(split(x))),
            model.score(split(x)),
        )

    for centers, distances, score in on_nodes(3, ours):
        model = cluster.KMeans(3, init=np.asarray(centers), n_init=1, max_iter=1).fit(x)
        np.testing.assert_allclose(distances, model.transform(x), rtol=1e-4, atol=1e-5)
        assert score == pytest.approx(model.score(x), rel=1e-5)


def test_labels_that_jax_cannot_hold():
    rows, labels = np.array([[0.0], [9.0]], np.float32), np.array([2**33, 2**33 + 1])
    found = ja.neighbors.KNeighborsClassifier(1).fit(rows, labels).predict(rows)
    np.testing.assert_array_equal(found, labels)
