"""Bits that depend on how XLA compiles, with programs as it makes them for users."""

import os
import subprocess
import sys

import pytest
from launcher import ROOT, mpirun

SELECT = [
    "-m",
    "users_compiler and not nightly",
    "--color=no",
    "-p",
    "no:cacheprovider",
    "-p",
    "no:xdist",
]


@pytest.mark.nightly
def test_the_same_bits_as_users_compile():
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "tests/unit", *SELECT, "-k", "not contract or P1"],
        env=os.environ | {"XLA_FLAGS": ""},
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert done.returncode == 0, done.stdout
    assert " passed" in done.stdout, done.stdout


@pytest.mark.nightly
def test_the_same_numbers_on_two_ranks_as_users_compile():
    done = mpirun(2, ["-m", "pytest", "tests/ranks", *SELECT], timeout=280, cwd=ROOT)
    assert done.returncode == 0, f"\n{done.stdout}"
    assert " passed" in done.stdout, done.stdout
