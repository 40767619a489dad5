"""mpi4jax's allreduce on a device's buffer, with two ranks; see `_mpi4jax`."""

import os
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.gpu import _part
from benchmarks.lib import harness

SIZES, QUICK_SIZES = (1000, 1_000_000, 25_600_000), (1000, 100_000)
REPEATS = 10
DIFFERENT = 1000
"""Numbers that differ: small ones, so that their sums are exact."""


def wait_for(function, x):
    function(x).block_until_ready()


def main():
    options = _part.options()
    import mpi4jax
    from mpi4py import MPI

    comm = MPI.COMM_WORLD
    rows, rank, ranks = _part.Rows(comm.Get_rank()), comm.Get_rank(), comm.Get_size()
    device = _part.require(options)
    reduce = jax.jit(lambda x: mpi4jax.allreduce(x, op=MPI.SUM, comm=comm))
    for size in options.pick(SIZES, SIZES, QUICK_SIZES):
        numbers = np.arange(size, dtype=np.int32) % DIFFERENT
        x = jnp.asarray(numbers, jnp.float32) + rank
        expected = (ranks * numbers + sum(range(ranks))).astype(np.float32)
        right = np.array_equal(reduce(x), expected)
        again = partial(wait_for, reduce, x)
        seconds = harness.interleaved([again], REPEATS, comm.Barrier)
        rows.add(
            transport=os.environ["JDASO_GPU_TRANSPORT"],
            device=device.device_kind,
            MB=4 * size / 1e6,
            right="yes" if right else "no",
            ms=1e3 * harness.median(seconds[0]),
        )


if __name__ == "__main__":
    main()
