"""Estimators based on the nearest rows, with scikit-learn's interface.

May live here: predictions from the nearest rows. May not: distances themselves (`_distances`), and
MPI.
"""

from ._classifier import KNeighborsClassifier as KNeighborsClassifier
