"""Formats of files, one per module; `io` chooses by a file's ending.

Each node reads its own part and writes its own part, at the same time as the others.

May live here: what a format's file looks like. May not: what moves between nodes besides counts.
"""

from __future__ import annotations

from pathlib import Path

from ._base import Format as Format
from ._csv import Csv
from ._hdf5 import Hdf5
from ._netcdf import NetCDF
from ._npy import NpyFile
from ._zarr import Zarr

FORMATS: dict[str, Format] = {
    ".npy": NpyFile(),
    **dict.fromkeys((".h5", ".hdf5", ".he5"), Hdf5()),
    **dict.fromkeys((".nc", ".nc4", ".cdf"), NetCDF()),
    ".zarr": Zarr(),
    ".csv": Csv(),
}
"""Formats, by the endings of files."""


def format_of(path: Path) -> Format:
    """Returns the format of a file.

    Raises:
        ValueError: the ending is not known.
    """
    if path.suffix not in FORMATS:
        raise ValueError(f"{path} has no known ending. Give one of {', '.join(FORMATS)}.")
    return FORMATS[path.suffix]
