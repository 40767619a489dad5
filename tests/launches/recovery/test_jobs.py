"""The job files of Slurm and PBS, run with this machine as all of theirs."""

import os
import subprocess
import sys

import pytest
from launcher import ENVIRONMENTS, ROOT, environment_of_a_user

BIN = ENVIRONMENTS["mpich"] / "bin"
COMMAND = "python -c print('<%d>'%__import__('mpi4py.MPI').MPI.COMM_WORLD.allreduce(1))"
SRUN = """#!/bin/bash
# As srun with MPICH: a rank for each task; of its own options it knows those of the job file.
echo "srun ${*:1:2}" >&2
while [[ $1 == --* ]]; do shift; done
exec mpiexec -n "$RANKS" "$@"
"""
ALONE = """#!/bin/bash
# The launcher of another MPI: each rank alone in its world.
[[ $1 == --version ]] && echo "Another MPI" && exit
while [[ $1 == -* ]]; do [[ $1 == --* ]] && shift || shift 2; done
for ((n = 0; n < 2; n++)); do "$@" || status=$?; done
exit "${status:-0}"
"""


def job(name, tmp_path, stubs=None, ranks=2, **more):
    """Runs a job file as its batch system would, on two ranks of this machine."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for command, text in (stubs or {}).items():
        (folder / command).write_text(text)
        (folder / command).chmod(0o755)
    # Stands for `activate`, with the stubs before it.
    activate = tmp_path / "venv" / "bin"
    activate.mkdir(parents=True)
    (activate / "activate").write_text(f'PATH="{folder}:{BIN}:$PATH"\n')
    (tmp_path / "machines").write_text("localhost\n" * 2)
    environment = environment_of_a_user() | {
        "JAX_PLATFORMS": "cpu",
        "VENV": str(tmp_path / "venv"),
        "RANKS": str(ranks),
        "SLURM_SUBMIT_DIR": str(ROOT),
        "SLURM_CPUS_PER_TASK": "1",
        "SLURM_JOB_NODELIST": "localhost",
        "SLURM_NTASKS": "2",
        "PBS_O_WORKDIR": str(ROOT),
        "PBS_NODEFILE": str(tmp_path / "machines"),
        **more,
    }
    arguments = COMMAND.split() if name == "slurm.sbatch" else []
    return subprocess.run(
        ["bash", ROOT / "examples" / name, *arguments],
        env=environment, cwd=tmp_path, text=True, timeout=100,
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip


def test_slurm_starts_what_it_is_given(tmp_path):
    done = job("slurm.sbatch", tmp_path, {"srun": SRUN})
    assert done.returncode == 0, done.stdout
    assert "launcher: srun --mpi=pmi2; command: python -c" in done.stdout
    assert "srun --mpi=pmi2 --kill-on-bad-exit=1" in done.stdout
    assert done.stdout.count("<2>") == 2, done.stdout


def test_pbs_starts_what_it_is_given(tmp_path):
    done = job("pbs.sh", tmp_path, TRAIN=COMMAND)
    assert done.returncode == 0, done.stdout
    assert f"machines: localhost; launcher: mpiexec -n 2 -f {tmp_path}/machines" in done.stdout
    assert done.stdout.count("<2>") == 2, done.stdout


def test_pbs_with_open_mpi_binds_nothing(tmp_path):
    stub = """#!/bin/bash
[[ $1 == --version ]] && echo "mpiexec (Open MPI) 5.0.8" || echo "$*"
"""
    done = job("pbs.sh", tmp_path, {"mpiexec": stub}, TRAIN="python train.py")
    launch = f"-n 2 --hostfile {tmp_path}/machines --map-by ppr:1:node --bind-to none"
    launch += " -x PATH -x VIRTUAL_ENV"
    assert done.returncode == 0 and f"{launch} python train.py" in done.stdout, done.stdout


@pytest.mark.parametrize("name, launcher", [("slurm.sbatch", "srun"), ("pbs.sh", "mpiexec")])
def test_ranks_that_start_alone_end_the_job(name, launcher, tmp_path):
    done = job(name, tmp_path, {launcher: ALONE}, TRAIN="echo training")
    assert done.returncode != 0, done.stdout
    assert "MPI sees 1 ranks" in done.stdout and "training" not in done.stdout.splitlines()


@pytest.mark.parametrize(
    "name", ["slurm.sbatch", "pbs.sh", "studies/study.sbatch", "studies/study_pbs.sh"]
)
def test_shellcheck_has_nothing_to_say(name):
    shellcheck = [f"{os.path.dirname(sys.executable)}/shellcheck", "--exclude=SC1091"]
    run = subprocess.run(
        [*shellcheck, ROOT / "examples" / name], text=True, capture_output=True, timeout=60
    )
    assert run.returncode == 0, run.stdout
