"""Peak memory of `resplit` and of products of matrices: ``... arrays_peak.py``.

Each node prints a line of JSON: for each operation the megabytes at its peak beyond those of its
operands and of its result. Malloc must give freed memory back: ``MALLOC_MMAP_THRESHOLD_``.
"""

import gc
import itertools
import json
import re
from functools import partial
from pathlib import Path

import jax

import jdaso
import jdaso.array as ja

MEGABYTES = 64  # of a node's block of what is laid along another axis
FACTOR_MEGABYTES = 24  # of a node's block of a first factor; the product has four times as many


def memory_of_process(name):
    status = Path("/proc/self/status").read_text()
    return int(re.search(rf"{name}:\s+(\d+)", status)[1]) / 2**10


def beyond_result(function):
    """Megabytes at the peak of a call, less those before it and those of its result."""
    gc.collect()
    before = memory_of_process("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # the peak is now that of this moment
    result = jax.block_until_ready(function().block)
    return memory_of_process("VmHWM") - before - result.nbytes / 2**20


def main():
    with jdaso.Session() as session:
        rows = FACTOR_MEGABYTES * 2**10 * session.num_nodes
        a, b = ja.ones((rows, 256), split=0), ja.ones((256, 1024), split=0)
        x = ja.ones((MEGABYTES * 2**8 * session.num_nodes, 1024), split=0)
        cases = {f"to {to}": partial(ja.resplit, x, to) for to in (1, None)}
        cases["1 to None"] = partial(ja.resplit, x.resplit(1), None)
        for k, j in itertools.product((0, 1), (0, 1, None)):
            cases[f"{k} @ {j}"] = partial(ja.matmul, a.resplit(k), b.resplit(j))
        found = {}
        for name, function in cases.items():
            beyond_result(function)  # compiles
            found[name] = beyond_result(function)
    print(f"{json.dumps(found)}\n", end="", flush=True)


main()
