"""Bits that depend on how XLA compiles, with programs as it makes them for users."""

import os
import subprocess
import sys

from _launcher import ROOT


def test_the_same_bits_as_users_compile():
    command = [sys.executable, "-m", "pytest", "tests/unit", "-m", "users_compiler"]
    done = subprocess.run(
        [*command, "--color=no", "-p", "no:cacheprovider", "-p", "no:xdist"],
        env=os.environ | {"XLA_FLAGS": ""},
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert done.returncode == 0, done.stdout
    assert " passed" in done.stdout, done.stdout
