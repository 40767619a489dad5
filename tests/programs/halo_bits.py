"""Ranks of a stencil with halos against one process: prints whether all bits are the same."""

import sys

import numpy as np
from mpi4py import MPI

from jdaso.fabric._study.workloads._blocks import block_of
from jdaso.fabric._study.workloads._mpi import Mpi
from jdaso.fabric._study.workloads.halo import Stencil

points, steps = (7, 6, 11), int(sys.argv[1])
transport = Mpi()
block = block_of(transport.rank, transport.size, points)
stencil = Stencil(block, transport.swap)
for _ in range(steps):
    stencil()
found = MPI.COMM_WORLD.gather((block.begin, np.asarray(stencil.u)))
if transport.rank == 0:
    whole = Stencil(block_of(0, 1, points), lambda faces: None)
    for _ in range(steps):
        whole()
    expected = np.asarray(whole.u)
    for begin, part in found:
        place = tuple(slice(b, b + n) for b, n in zip(begin, part.shape, strict=True))
        assert np.array_equal(part.view(np.uint32), expected[place].view(np.uint32)), begin
    print(f"the bits of {len(found)} blocks are the same", flush=True)
