"""scikit-learn's own checks of estimators, and those that do not apply, with reasons."""

import warnings

import jax
import pytest
from nights import rows
from sklearn.utils.estimator_checks import check_estimator

import jdaso.array as ja

UNFITTED = {"check_estimators_unfitted": "the error is scikit-learn's own class"}
ONE_COLUMN = {"check_supervised_y_2d": "a warning of scikit-learn's own class; it is refused here"}
OUT = {"check_classifiers_train": "NumPy's sum() asks for out=, which JAX's arrays do not have"}
ESTIMATORS = {
    "StandardScaler": (ja.preprocessing.StandardScaler, {}),
    "PCA": (ja.decomposition.PCA, {}),
    "Lasso": (ja.linear_model.Lasso, UNFITTED | ONE_COLUMN),
    "KNeighborsClassifier": (ja.neighbors.KNeighborsClassifier, UNFITTED | ONE_COLUMN | OUT),
    "GaussianNB": (ja.naive_bayes.GaussianNB, UNFITTED | ONE_COLUMN | OUT),
    "KMeans": (ja.cluster.KMeans, UNFITTED),
    "KMedians": (ja.cluster.KMedians, UNFITTED),
    "KMedoids": (ja.cluster.KMedoids, UNFITTED),
    "SpectralClustering": (ja.cluster.SpectralClustering, {}),
}


@pytest.mark.parametrize("name", rows(ESTIMATORS, day=()))
def test_checks_of_scikit_learn(name):
    make, apart = ESTIMATORS[name]
    with jax.enable_x64(True), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = check_estimator(make(), on_skip=None, on_fail=None)
    failed = {one["check_name"] for one in found if one["status"] == "failed"}
    assert len(found) > 40 and failed == set(apart)
