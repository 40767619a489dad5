"""Kills of one rank of a node of several, at random moments of a job that then goes on."""

import os
import re
import subprocess
import time
import uuid

import compiled_once
import compiling
import numpy as np
import pytest
from launcher import ENVIRONMENTS, OPTIONS, PROGRAMS, TAG, end, environment_of_a_user, members

KILLS, RANKS, STEPS = 25, 4, 20
END_SECONDS = 60
"""The longest that a job may go on once a rank is dead, beside the start of its programs."""


class Jobs:
    """Jobs of `joined.py` with one MPI under `jdaso run`; compiles each program once."""

    def __init__(self, mpi, folder):
        self._mpi, self._folder = mpi, folder
        (folder / "compiled").mkdir()

    def run(self, name, *words):
        """Runs a job in a folder of its own.

        Returns its status, its output, the seconds that it took, and the processes left of it.
        """
        bin_folder, launch = ENVIRONMENTS[self._mpi] / "bin", uuid.uuid4().hex
        command = [bin_folder / "python", "-m", "jdaso", "run", "--", bin_folder / "mpiexec"]
        command += ["-n", RANKS, *OPTIONS[self._mpi], bin_folder / "python"]
        command += [PROGRAMS / "joined.py", self._folder / name, STEPS, *words]
        environment = environment_of_a_user() | {
            "JAX_PLATFORMS": "cpu",
            "OMP_NUM_THREADS": "1",
            "OMPI_ALLOW_RUN_AS_ROOT": "1",
            "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
            "PATH": f"{bin_folder}:{os.environ['PATH']}",
            "XLA_FLAGS": f"{compiling.QUICKLY} --xla_force_host_platform_device_count=2",
            compiled_once.FOLDER: str(self._folder / "compiled"),
            TAG: launch,
        }
        begin = time.monotonic()
        with open(self._folder / "output", "w+", errors="replace") as output:
            job = subprocess.Popen(
                list(map(str, command)),
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            try:
                status = job.wait(4 * END_SECONDS)
                took = time.monotonic() - begin
                time.sleep(1)
                left = list(members(launch))
            finally:
                end(job, launch)
                output.seek(0)
                text = output.read()
        if status or left:
            print(name, *words, text)  # for a failed test
        return status, text, took, left


def bits_of(text):
    return dict(re.findall(r"rank (\d): bits (\w{8})\n", text))


@pytest.mark.nightly
@pytest.mark.timeout(2 * KILLS * END_SECONDS)
@pytest.mark.parametrize("mpi", ["mpich", "openmpi"])
def test_one_rank_is_killed_at_random_moments(mpi, tmp_path):
    """The job ends soon each time and leaves nothing; when started again it continues.

    The run ends with the bits of an undisturbed run. If all ranks were in their sessions, the job
    names the rank that failed.
    """
    jobs, random = Jobs(mpi, tmp_path), np.random.default_rng(len(mpi))
    jobs.run("first")  # compiles
    status, text, whole_seconds, left = jobs.run("whole")
    whole, number = bits_of(text), 0
    assert status == 0 and len(whole) == RANKS and not left
    for kill in range(KILLS):
        rank = int(random.integers(RANKS))
        seconds = round(float(random.uniform(0.01, whole_seconds)), 3)
        about = f"{mpi}, kill {kill}: rank {rank} after {seconds} s of {whole_seconds:.1f}"
        status, text, took, left = jobs.run(f"run{number}", f"dies={rank},{seconds}")
        begun = re.findall(r"begins at (\d+)\n", text)
        print(f"{about}, job {number}: status {status} after {took:.1f} s, began at {begun}")
        assert not left and took < seconds + whole_seconds + END_SECONDS, (about, left, took)
        assert len(set(begun)) <= 1, about
        if status == 0 or len(bits_of(text)) == RANKS:  # it was through
            assert bits_of(text) == whole, about
            number += 1
        elif len(begun) == RANKS:
            assert f"jdaso run: node {rank // 2} (rank {rank}) ended first" in text, about
    status, text, _, left = jobs.run(f"run{number}")
    assert status == 0 and bits_of(text) == whole and not left
