"""Runs a program on ranks that may allocate a number of megabytes, all that they have included.

    mpiexec -n 3 python limited.py MEGABYTES FILE.h5 PROGRAM [ARGUMENT ...]

First each rank tries to read the data set "x" of the file whole, and prints that this failed.
"""

import resource
import runpy
import sys
from pathlib import Path

import h5py
import numpy as np

limit = int(sys.argv[1]) * 2**20
resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
assert Path(sys.argv[2]).stat().st_size > limit, "the file is smaller than the limit"
with h5py.File(sys.argv[2]) as file:
    try:
        np.asarray(file["x"])
        print("read whole", flush=True)
    except MemoryError as error:
        print(f"whole: {error}", flush=True)
sys.argv[:] = sys.argv[3:]
runpy.run_path(sys.argv[0], run_name="__main__")
