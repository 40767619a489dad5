"""Estimators that find groups, with scikit-learn's interface."""

from ._kmeans import KMeans as KMeans
