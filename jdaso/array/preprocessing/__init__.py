"""Estimators that prepare rows, with scikit-learn's interface.

May live here: transformations of rows that can be undone or applied to others. May not: estimators
that predict, and MPI.
"""

from ._standard_scaler import StandardScaler as StandardScaler
