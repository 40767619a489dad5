"""Estimators that find groups, with scikit-learn's interface."""

from ._kmeans import KMeans as KMeans
from ._kmedians import KMedians as KMedians
from ._kmedoids import KMedoids as KMedoids
from ._spectral import SpectralClustering as SpectralClustering
