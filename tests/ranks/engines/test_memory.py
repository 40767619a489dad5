"""A session's settings for the process."""

import os
import resource
from pathlib import Path

import jax
import pytest
from mpi4py import MPI

import jdaso
from jdaso._launch.memory import _MALLOC_SETTINGS

MEGABYTES, ROUNDS = 20, 5


def faults():
    """Pages that the kernel provided, on average, for three blocks taken and given back."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(ROUNDS):
        # NumPy would ask for huge pages, of which few are enough.
        _ = [b"x" * (MEGABYTES * 2**20) for _ in range(3)]
    return (resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before) / ROUNDS


HUGE = Path("/sys/kernel/mm/transparent_hugepage/enabled")


@pytest.mark.any_mpi
@pytest.mark.skipif(MPI.COMM_WORLD.Get_size() == 1, reason="needs several nodes")
@pytest.mark.skipif(HUGE.exists() and "[always]" in HUGE.read_text(), reason="pages are huge")
@pytest.mark.skipif(jax.default_backend() != "cpu", reason="JAX is not on CPUs")
@pytest.mark.skipif(any(name in os.environ for name in _MALLOC_SETTINGS), reason="malloc is set")
def test_nodes_on_cpus_keep_freed_memory():
    with jdaso.Session(engine="mpi4py"):
        faults()
        assert faults() < 3 * MEGABYTES * 2**20 / os.sysconf("SC_PAGE_SIZE") / 20
