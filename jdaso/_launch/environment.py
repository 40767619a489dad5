"""The environment of a rank, which shows whether a launcher started this process as one.

No MPI, no NumPy. The variables that launchers set outlive the launchers. A process that a rank
starts inherits them, and so does a shell whose environment was saved in a job. MPI would take such
a process for the rank, or wait for a launcher that is gone. So a process counts as a rank only if
its launcher still runs and no process above it is that rank already.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import re
import socket
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path

LAUNCHED = ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_STEP_NUM_TASKS")
"""Variables in which launchers give the number of ranks they started, the nearest launcher first:
srun sets its own in all processes it starts, and no other with PMIx; a shell that srun started
keeps PMI_SIZE; only Open MPI's mpirun sets the first."""

RANKS = ("OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID", "PMIX_RANK")
"""Variables that hold this rank's number, in the same order."""

RANK = "JDASO_RANK"
"""A variable that jdaso sets in a rank: its number, its process, and its launch."""

_PREFIXES = ("PMI", "OMPI_", "PRTE_", "HYD", "MPI_LOCAL", "MPIR_CVAR_CH3_INTERFACE", "SLURM_")
"""Prefixes of the variables that make an MPI library act as one of several ranks."""

_PMI_CONNECTIONS = ("PMI_FD", "PMI_PORT", "PMI_CONTROL", "PMI_SHARED", "PMIX_", "PALS_", "ALPS_")
"""Prefixes of the variables that lead to a PMI launcher; without them none can be reached."""

_OF_LAUNCH = ("PMIX_NAMESPACE", "PMIX_RANK", "SLURM_JOB_ID", "SLURM_STEP_ID", "PMI_JOBID")
_LISTENS = "0A"


def launched_ranks() -> int:
    """The number of ranks that the launcher of this process started; 1 without a launcher."""
    claim = _claim()
    return 1 if claim is None or rank_above() is not None else claim[1]


def launched_rank() -> int:
    """This rank's number as given by its launcher; 0 if unknown."""
    claim = _claim()  # variables of other launchers may be left over
    first = () if claim is None else (RANKS[LAUNCHED.index(claim[0])],)
    numbers = (os.environ.get(name, "") for name in (*first, *RANKS))
    return next((int(number) for number in numbers if number.isdecimal()), 0)


def local_ranks() -> int:
    """The number of ranks on this host, as far as the launcher gives it; at least 1."""
    names = ("OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS", "SLURM_NTASKS_PER_NODE")
    numbers = (os.environ.get(name, "") for name in names) if launched_ranks() > 1 else ()
    return next((int(number) for number in numbers if number.isdecimal()), 1) or 1


def all_on_this_host() -> bool:
    """Returns whether the launcher gives this host all ranks.

    SLURM_NTASKS_PER_NODE may be that of the job, whose steps have fewer tasks.
    """
    hosts = os.environ.get("SLURM_STEP_NUM_NODES", "1")
    return local_ranks() == launched_ranks() and hosts == "1"


def claimed_by() -> str:
    """The variable that announces several ranks, with its value; for messages."""
    claim = _claim()
    return "" if claim is None else f"{claim[0]}={claim[1]}"


def left_over() -> str:
    """A variable that announces several ranks although its launcher is gone; empty if none does."""
    for name in LAUNCHED:
        text = os.environ.get(name, "")
        if text and text != "1" and not (text.isdecimal() and _has_launcher(name)):
            return f"{name}={text}"
    return ""


def _claim() -> tuple[str, int] | None:
    """The variable of the nearest launcher that still runs, and the number of ranks it started."""
    for name in LAUNCHED:
        text = os.environ.get(name, "")
        if text.isdecimal() and _has_launcher(name):
            return name, int(text)
    return None


def _has_launcher(name: str) -> bool:
    """Returns whether the launcher behind a variable still runs; True if that is unknown."""
    if name == "OMPI_COMM_WORLD_SIZE":
        return "PMIX_NAMESPACE" in os.environ and _pmix_listens()
    if name == "PMI_SIZE":
        if "PMI_FD" in os.environ:
            return bool(_pmi_socket())
        return any(other.startswith(_PMI_CONNECTIONS) for other in os.environ)
    task = os.environ.get("SLURM_TASK_PID", "")
    if not task.isdecimal() or not Path("/proc/self").exists() or Path("/proc", task).exists():
        return True
    # A container may have its own process numbers, but shares the network with its host.
    uris = any(other.startswith("PMIX_SERVER_URI") for other in os.environ)
    return "PMIX_NAMESPACE" in os.environ and uris and _pmix_listens()


def _pmi_socket() -> int:
    """The inode of the socket to a PMI launcher; 0 if this process has none."""
    try:
        descriptor = int(os.environ["PMI_FD"])
        about = os.fstat(descriptor)
        given = os.get_inheritable(descriptor)  # descriptors opened by Python are not
    except (KeyError, ValueError, OSError, OverflowError):
        return 0
    return about.st_ino if given and stat.S_ISSOCK(about.st_mode) else 0


def _pmix_listens() -> bool:
    """Returns whether the PMIx server, which is always on this host, listens."""
    uris = (text for name, text in os.environ.items() if name.startswith("PMIX_SERVER_URI"))
    found = (re.search(r";tcp[46]://.*:(\d+)$", uri) for uri in uris)
    ports = {int(match[1]) for match in found if match}
    listening: set[int] = set()
    try:
        for table in ("tcp", "tcp6"):
            for line in Path("/proc/self/net", table).read_text().splitlines()[1:]:
                fields = line.split()
                if fields[3] == _LISTENS:
                    listening.add(int(fields[1].rpartition(":")[2], 16))
    except (OSError, ValueError, IndexError):  # not available on this system
        return True
    return not ports or bool(ports & listening)


def mark_rank(rank: int) -> None:
    """Lets processes that this rank starts detect that they are not the rank."""
    os.environ[RANK] = f"{rank} {os.getpid()} {_pmi_socket()} {_launch()}"


def rank_above() -> tuple[int, int] | None:
    """The rank that started this process, and that rank's process; None if there is none.

    Nested launches are distinguished: their ranks belong to another launch and have their own
    connection to its launcher.
    """
    try:
        rank, process, inode, launch = os.environ[RANK].split(" ", 3)
        above = int(rank), int(process)
    except (KeyError, ValueError):
        return None
    if above[1] == os.getpid() or launch != _launch():
        return None
    mine = _pmi_socket()
    return above if not mine or mine == int(inode) else None


def _launch() -> str:
    return " ".join(os.environ.get(name, "") for name in _OF_LAUNCH)


def alone(environment: Mapping[str, str]) -> dict[str, str]:
    """The environment without the variables that make a process a rank, and with a HOME."""
    kept = {k: v for k, v in environment.items() if not k.startswith(_PREFIXES)}
    return with_home(kept)


def with_home(environment: Mapping[str, str]) -> dict[str, str]:
    """The environment with HOME, without which Open MPI does not start."""
    if environment.get("HOME"):
        return dict(environment)
    try:
        home = pwd.getpwuid(os.getuid()).pw_dir
    except (KeyError, OSError):  # the user of a container may have no name
        home = "/"
    return {**environment, "HOME": home}


@contextlib.contextmanager
def to_start_mpi() -> Iterator[None]:
    """The environment in which MPI is started; restored afterwards.

    It contains no variables of a launcher that is gone, or that started another process as this
    rank. PMI_FD of such a launcher is not restored: MPI opens descriptors, and one of them may get
    that number.
    """
    foreign = rank_above() is not None or (bool(left_over()) and _claim() is None)
    if foreign:
        os.environ.pop("PMI_FD", None)
    before = dict(os.environ)
    wanted = alone(before) if foreign else with_home(before)
    _become(wanted)
    try:
        yield
    finally:
        for name in wanted.keys() | before.keys():
            if os.environ.get(name) == wanted.get(name) != before.get(name):
                _become_one(name, before.get(name))


def _become(wanted: Mapping[str, str]) -> None:
    for name in os.environ.keys() | wanted.keys():
        _become_one(name, wanted.get(name))


def _become_one(name: str, value: str | None) -> None:
    if value is None:
        os.environ.pop(name, None)
    elif os.environ.get(name) != value:
        os.environ[name] = value


def survives_deaths() -> bool:
    """Returns whether the launcher lets a job survive failed processes (``--with-ft ulfm``)."""
    return os.environ.get("OMPI_MCA_mpi_ft_enable", "") in ("1", "true", "yes")


def machine() -> str:
    """A text that ranks on one machine share: kernel and host name (a container has its own)."""
    try:
        kernel = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        kernel = ""
    return f"{socket.gethostname()} {kernel}"
