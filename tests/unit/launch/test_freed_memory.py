"""Freed memory stays with the process, as shown by the pages that the kernel provides anew."""

import os
import subprocess
import sys

import pytest
from nights import at_night

from jdaso._launch.memory import _MALLOC_SETTINGS

# Each round takes three blocks of 60 MiB and gives them back.
CODE = """
import resource
import numpy as np
from jdaso._launch.memory import keep_freed_memory

if {keep}:
    keep_freed_memory()

def a_round():
    blocks = [np.ones(15 * 2**20, np.float32) for _ in range(3)]

for _ in range(3):
    a_round()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(5):
    a_round()
print((resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before) // 5)
"""
PAGES = 3 * 60 * 2**20 // os.sysconf("SC_PAGE_SIZE")


def faults(keep, **environment):
    """Pages that the kernel provided in one round."""
    # Plain pages: NumPy asks for huge ones, of which few are enough.
    given = {name: value for name, value in os.environ.items() if name not in _MALLOC_SETTINGS}
    environment = {**given, "NUMPY_MADVISE_HUGEPAGE": "0", **environment}
    command = [sys.executable, "-c", CODE.format(keep=keep)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return int(done.stdout)


@pytest.fixture(scope="module")
def _glibc():
    if faults(False) < PAGES // 2:
        pytest.skip("this C library keeps freed memory by itself")


@pytest.mark.usefixtures("_glibc")
def test_freed_memory_is_used_again():
    assert faults(True) < PAGES // 50


@pytest.mark.usefixtures("_glibc")
@pytest.mark.parametrize(
    "setting",
    [
        "MALLOC_TRIM_THRESHOLD_=100000",
        "GLIBC_TUNABLES=glibc.malloc.arena_max=4",
        at_night("MALLOC_ARENA_MAX=4"),
        at_night("MALLOC_MMAP_MAX_=1000"),
        at_night("MALLOC_MMAP_THRESHOLD_=100000"),
        at_night("MALLOC_TOP_PAD_=0"),
    ],
)
def test_the_users_own_setting_stays(setting):
    name, value = setting.split("=", 1)
    assert faults(True, **{name: value}) > PAGES // 2
