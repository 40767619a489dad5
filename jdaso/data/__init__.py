"""Data: each node's share of samples, read from sources larger than memory ahead of time."""

from ._arrays import Arrays, Source
from ._deal import batches, evened
from ._fashion_mnist import CHECKSUMS, DEBIAN_FOLDER, ImageData, fashion_mnist, parse_idx
from ._hdf5 import HDF5
from ._images import ImageFolder
from ._loader import Loader
from ._npy import Npy
from ._order import Order
from ._reading import LoadingError

__all__ = [
    "CHECKSUMS",
    "DEBIAN_FOLDER",
    "HDF5",
    "Arrays",
    "ImageData",
    "ImageFolder",
    "Loader",
    "LoadingError",
    "Npy",
    "Order",
    "Source",
    "batches",
    "evened",
    "fashion_mnist",
    "parse_idx",
]
