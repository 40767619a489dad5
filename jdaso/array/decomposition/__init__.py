"""Estimators that find the main directions of rows, with scikit-learn's interface.

May live here: what such an estimator keeps of a decomposition. May not: the decomposition itself
(`jdaso.array.linalg`), and MPI.
"""

from ._pca import PCA as PCA
