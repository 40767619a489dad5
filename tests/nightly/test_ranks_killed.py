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
from launcher import ENVIRONMENTS, FOREIGN, OPTIONS, PROGRAMS, TAG, end, members

KILLS, RANKS, STEPS = 25, 4, 20
END_SECONDS = 60
"""The longest that a job may go on once a rank is dead; with the start of its programs."""


class Jobs:
    """Launches of `joined.py` with one MPI; compiles each program once."""

    def __init__(self, mpi, folder):
        self._mpi, self._folder = mpi, folder
        (folder / "compiled").mkdir()

    def run(self, name, *words):
        """Runs a job in a folder of its own.

        Returns its status, its output, the seconds that it took, and the processes left of it.
        """
        bin_folder, launch = ENVIRONMENTS[self._mpi] / "bin", uuid.uuid4().hex
        command = [bin_folder / "mpiexec", "-n", RANKS, *OPTIONS[self._mpi], bin_folder / "python"]
        command += [PROGRAMS / "joined.py", self._folder / name, STEPS, *words]
        environment = {k: v for k, v in os.environ.items() if not k.startswith(FOREIGN)} | {
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
@pytest.mark.parametrize("mpi", ["mpich", "openmpi"])
def test_one_rank_is_killed_at_a_random_moment(mpi, tmp_path):
    """The job ends soon and leaves nothing; started again it ends with the bits of the whole run.

    Where the ranks were in their sessions, the words of the job name the rank that died.
    """
    jobs, random = Jobs(mpi, tmp_path), np.random.default_rng(len(mpi))
    jobs.run("first")  # compiles
    status, text, whole_seconds, left = jobs.run("whole")
    whole = bits_of(text)
    assert status == 0 and len(whole) == RANKS and not left
    for kill in range(KILLS):
        rank = int(random.integers(RANKS))
        seconds = round(float(random.uniform(0.01, whole_seconds)), 3)
        about = f"{mpi}, kill {kill}: rank {rank} after {seconds} s of {whole_seconds:.1f}"
        status, text, took, left = jobs.run(f"{kill}", f"dies={rank},{seconds}")
        assert not left, about
        assert took < seconds + END_SECONDS, (about, took)
        lived = status == 0 and bits_of(text) == whole  # dead or not, it had done its work
        if not lived:
            assert status != 0, about
            if all(f"rank {k}: begins" in text for k in range(RANKS)):
                assert f"node {rank // 2} (rank {rank}" in text, about
        status, text, _, left = jobs.run(f"{kill}")
        assert status == 0 and bits_of(text) == whole and not left, about
        begun = re.findall(r"begins at (\d+)", text)[0]
        print(f"{about}: {'ended' if lived else 'died'} within {took:.1f} s, goes on at {begun}")
