"""Memory of two nodes that exchange at every step: from one heap, nothing held in vain, no leak."""

import json
import sys

import pytest
from launcher import PROGRAMS, mpirun
from nights import at_night, rows


@pytest.mark.skipif(sys.platform != "linux", reason="asks glibc")
@pytest.mark.parametrize(
    ("engine", "merge", "wire", "most"),
    [
        at_night(("mpi4jax", "paper", "float32", 5.5)),
        at_night(("mpi4py", "paper", "float32", 4.5)),
        ("mpi4py", "corrected", "float32", 4.5),
        at_night(("mpi4py", "corrected", "bfloat16", 9.5)),
    ],
)
def test_memory_is_one_heap_and_does_not_grow(engine, merge, wire, most):
    done = mpirun(2, [PROGRAMS / "memory_held.py", engine, merge, wire], quick_compiling=True)
    assert done.returncode == 0, done.stdout
    nodes = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    assert len(nodes) == 2
    for node in nodes:
        assert sum(megabytes > 4 for megabytes in node["heaps"]) == 1
        assert node["growth"] < 3  # a program or two; one chunk is 16
        # Blocks of 24 MB that an exchange needed serve the next one. They do not fit each other
        # exactly: a block or two more. Each of the ten exchanges takes some.
        assert node["heap's growth"] < 5 * 24
        # In times of the parameters: they, the numbers of two versions (on narrow wires their
        # common points and errors too), and XLA's programs.
        assert node["held"] < most


@pytest.mark.skipif(sys.platform != "linux", reason="asks Linux for a process's memory")
@pytest.mark.parametrize("nodes", rows([2, 4], [2]))
def test_arrays_take_little_memory_beyond_operands_and_result(nodes):
    settings = {"MALLOC_MMAP_THRESHOLD_": "262144"}  # what is freed goes back to the system
    done = mpirun(nodes, [PROGRAMS / "arrays_peak.py"], env=settings)
    assert done.returncode == 0, done.stdout
    found = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    assert len(found) == nodes
    for node in found:
        assert len(node) == 9 and max(node.values()) < 64, node
