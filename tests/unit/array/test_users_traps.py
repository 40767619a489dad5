"""Other traps of HeAT's users, by its issues: 789, 1389, 1643, 2491 (for the rest see the docs)."""

import os
import subprocess
import sys
import timeit

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from array_nodes import on_nodes
from nights import nightly

import jdaso.array as ja

LAUNCHERS = "PMI_", "PMIX_", "OMPI_", "SLURM_", "MPI_", "HYDI_"


def test_1643_a_plain_process_imports_and_computes():
    settings = {k: v for k, v in os.environ.items() if not k.startswith(LAUNCHERS)}
    program = "import jdaso.array as ja; print(ja.sum(ja.arange(5, split=0)).block)"
    done = subprocess.run(
        [sys.executable, "-c", program], env=settings, capture_output=True, text=True, timeout=120
    )
    assert done.stdout == "10\n", done.stderr


def test_2491_a_nodes_own_block_is_an_array_of_jax():
    """Reading `x.block` costs less than the 5 us that one element may take longer."""
    for kept, block in on_nodes(2, _blocks):
        assert kept and isinstance(block, jax.Array)
    x = ja.zeros((50, 6))
    assert min(timeit.repeat(lambda: x.block, number=1000, repeat=5)) / 1000 < 5e-6


def _blocks():
    x = ja.zeros((50, 6), split=0)
    return x.block is x.block, x.block


def test_1389_a_percentile_moves_two_rows_more_than_a_sort():
    numbers = np.random.default_rng(0).normal(size=30_000).astype(np.float32)

    def sent(function):
        with ja.counted() as count:
            function(ja.asarray(numbers, split=0))
        return count.bytes_sent

    def run():
        return sent(lambda x: ja.percentile(x, 30)), sent(ja.sort)

    percentile, sort = np.sum(on_nodes(3, run), 0)
    assert percentile <= sort + 100


@nightly
@pytest.mark.parametrize("name", ["sum", "exp", "mean", "std"])
def test_789_one_node_takes_about_the_time_of_jax(name):
    """A block of 4 MB: 1.0 to 1.2 times, measured beside other work."""
    block = jnp.ones((2048, 512))
    x = ja.asarray(block)

    def ours():
        return jax.block_until_ready(getattr(ja, name)(x))

    def theirs():
        return jax.block_until_ready(getattr(jnp, name)(block))

    ours(), theirs()
    taken = [(timeit.timeit(ours, number=5), timeit.timeit(theirs, number=5)) for _ in range(30)]
    assert min(own for own, _ in taken) < 1.5 * min(other for _, other in taken)
