"""Classifiers by Bayes' theorem, with scikit-learn's interface.

May live here: one distribution of features per module. May not: the interface of all classifiers
(`_classifier`), and MPI.
"""

from ._gaussian import GaussianNB as GaussianNB
