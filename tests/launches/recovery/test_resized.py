"""A run that continues on another number of nodes, with an outer step in flight."""

import shutil

import numpy as np
import pytest
from launcher import PROGRAMS, mpirun


def steps_of(nodes, folder, steps):
    """The parameter after each step of a run that goes on from a folder; equal on all nodes."""
    done = mpirun(nodes, [PROGRAMS / "resized.py", folder, steps], quick_compiling=True)
    assert done.returncode == 0, done.stdout
    lines = [line.split()[1:] for line in done.stdout.splitlines() if line[:1].isdigit()]
    assert len(lines) == nodes and lines == lines[:1] * nodes, done.stdout
    return np.array(lines[0][1:], float)


def test_an_outer_optimizer_goes_on_with_right_slopes(tmp_path):
    """The outer step in flight at the save is lost; the next one is that of the undisturbed run."""
    first, other = tmp_path / "first", tmp_path / "other"
    steps_of(2, first, 9)  # the exchange started at step 6 is in flight
    shutil.copytree(first, other)
    undisturbed, resized = steps_of(2, first, 21), steps_of(3, other, 21)
    moved, moved_resized = np.diff(undisturbed), np.diff(resized)
    assert moved[0] > 3 and moved_resized[0] == pytest.approx(1, abs=1e-3)  # of step 10
    np.testing.assert_allclose(moved_resized[1:], moved[1:], atol=1e-3)
    assert moved[6] > 6  # of step 16: one and an outer step
