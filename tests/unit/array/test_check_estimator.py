"""scikit-learn's own checks of estimators, and those that do not apply, with reasons."""

import os
import subprocess
import sys

import pytest
from launcher import PROGRAMS
from nights import rows

UNFITTED = {"check_estimators_unfitted": "the error is scikit-learn's own class"}
ONE_COLUMN = {"check_supervised_y_2d": "a warning of scikit-learn's own class; it is refused here"}
OUT = {"check_classifiers_train": "NumPy's sum() asks for out=, which JAX's arrays do not have"}
ESTIMATORS = {
    "preprocessing.StandardScaler": {},
    "decomposition.PCA": {},
    "linear_model.Lasso": UNFITTED | ONE_COLUMN,
    "neighbors.KNeighborsClassifier": UNFITTED | ONE_COLUMN | OUT,
    "naive_bayes.GaussianNB": UNFITTED | ONE_COLUMN | OUT,
    "cluster.KMeans": UNFITTED,
    "cluster.KMedians": UNFITTED,
    "cluster.KMedoids": UNFITTED,
    "cluster.SpectralClustering": {},
}


@pytest.mark.parametrize("name", rows(ESTIMATORS, day=()))
def test_checks_of_scikit_learn(name):
    """Runs in another process: checked types would refuse what these checks pass on purpose."""
    settings = {k: v for k, v in os.environ.items() if k != "JDASO_TYPECHECK"}
    command = [sys.executable, PROGRAMS / "checked.py", name]
    done = subprocess.run(command, env=settings, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr
    count, *failed = done.stdout.split()
    assert int(count) > 40 and failed == sorted(ESTIMATORS[name])
