"""Estimators that find groups, with scikit-learn's interface.

May live here: how groups and their centers are found. May not: distances, sums and sorting
themselves, which are functions of `jdaso.array`, and MPI.
"""

from ._kmeans import KMeans as KMeans
from ._kmedians import KMedians as KMedians
from ._kmedoids import KMedoids as KMedoids
from ._spectral import SpectralClustering as SpectralClustering
