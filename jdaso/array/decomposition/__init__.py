"""Estimators that find the main directions of rows, with scikit-learn's interface."""

from ._pca import PCA as PCA
