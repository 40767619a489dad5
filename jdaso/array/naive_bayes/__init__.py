"""Classifiers by Bayes's theorem, with scikit-learn's interface."""

from ._gaussian import GaussianNB as GaussianNB
