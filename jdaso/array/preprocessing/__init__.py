"""Estimators that prepare rows, with scikit-learn's interface."""

from ._standard_scaler import StandardScaler as StandardScaler
