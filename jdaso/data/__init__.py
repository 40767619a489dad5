"""Data: each node's share of samples, read from sources larger than memory ahead of time.

May live here: sources, the order of samples, their division over nodes, threads that read ahead.
May not: training, and what nodes exchange while it runs; datasets are those of the user.
"""

from ._arrays import Arrays, Source
from ._deal import batches, evened
from ._hdf5 import HDF5
from ._loader import Loader
from ._npy import Npy
from ._order import Order
from ._reading import LoadingError

__all__ = [
    "HDF5",
    "Arrays",
    "Loader",
    "LoadingError",
    "Npy",
    "Order",
    "Source",
    "batches",
    "evened",
]
