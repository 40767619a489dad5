"""The command line and the environment of a cell's ranks."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from ..._launch.environment import alone, with_home
from .._emulate.cluster import Cluster
from .chosen import ChosenFabric, ChosenLibrary, ChosenWorkload
from .crossing import Cell

COORDINATOR = "JDASO_STUDY_COORDINATOR"
"""Variable of the ranks: host and port at which JAX's own processes meet."""

_WORKLOADS = f"{__package__}.workloads"
_VERSION_SECONDS = 30.0
_OPEN_MPI = ("Open MPI", "OpenRTE", "PRRTE")


@dataclass(frozen=True)
class Launch:
    """A launch, ready to start.

    Attributes:
        command: the command line.
        environment: all variables.
        chosen: those variables that the study has set.
        hosts: a host for each node; none: all are on this machine.
    """

    command: list[str]
    environment: dict[str, str]
    chosen: dict[str, str]
    hosts: tuple[str, ...] = ()


def python_of(library: ChosenLibrary) -> str:
    """Returns the interpreter of a library's environment; a bare name is looked up on PATH."""
    given = library.python or sys.executable
    named = None if os.sep in given else shutil.which(given)
    return named or os.path.abspath(given)


def mpiexec_of(python: str) -> str | None:
    """Returns the ``mpiexec`` beside an interpreter, else the first on PATH; None without one."""
    folders = (str(Path(python).parent), None)
    found = (shutil.which(name, path=f) for name in ("mpiexec", "mpirun") for f in folders)
    return next((path for path in found if path), None)


def launch_of(
    cell: Cell,
    fabric: ChosenFabric,
    library: ChosenLibrary,
    workload: ChosenWorkload,
    cluster: Cluster | None,
    hosts: tuple[str, ...],
    compiled: Path | None = None,
) -> Launch:
    """Returns the launch of a cell: one rank on each of `hosts`, or all on this machine.

    Args:
        cell: the cell.
        fabric: its fabric.
        library: its library.
        workload: its workload.
        cluster: its emulated hosts; None without.
        hosts: as in `Launch`.
        compiled: folder for the programs that ranks on this machine compile; None: ranks keep none.

    Raises:
        LookupError: there is no mpiexec for the library.
    """
    python = python_of(library)
    given = {"factors": cell.factors, "settings": workload.settings, "transport": library.transport}
    program = [workload.program] if workload.program else ["-m", f"{_WORKLOADS}.{workload.name}"]
    command = [python, *program, json.dumps(given, sort_keys=True)]
    emulated = _kept_on_links(cluster) if cluster else {}
    chosen = {**emulated, **fabric.environment, **library.environment}
    chosen.setdefault(COORDINATOR, _coordinator(hosts, cluster))
    base = with_home(os.environ) if hosts and not cluster else alone(os.environ)
    base |= {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    kept = _kept_programs(compiled) if compiled and (cluster or not hosts) else {}
    base, names = {**kept, **base}, [*chosen, *kept]
    command = _started(command, python, int(cell.factors["nodes"]), hosts, cluster, names)
    return Launch(command, {**base, **chosen}, chosen, hosts)


def _started(
    command: list[str],
    python: str,
    nodes: int,
    hosts: Sequence[str],
    cluster: Cluster | None,
    names: Sequence[str],
) -> list[str]:
    """The command line that starts a command on every node, with the variables of these names."""
    if nodes == 1 and cluster:
        return cluster.on_host(0, command)
    if nodes == 1 and not hosts:
        return command
    mpiexec = mpiexec_of(python)
    if mpiexec is None:
        raise LookupError(f"There is no mpiexec beside {python} or on PATH.")
    starts = _starts_open_mpi if _is_open_mpi(mpiexec) else _starts_hydra
    command = [*starts(mpiexec, nodes, hosts, cluster, names), *command]
    return ["ip", "netns", "exec", cluster.switch, *command] if cluster else command


def _kept_on_links(cluster: Cluster) -> dict[str, str]:
    """Variables that keep MPI and gloo on the links of emulated hosts."""
    found = cluster.environment
    kept = {name: found[name] for name in found if os.environ.get(name) != found[name]}
    return {"JAX_PLATFORMS": "cpu", **kept}


def _kept_programs(folder: Path) -> dict[str, str]:
    """Variables by which JAX keeps what takes long to compile, for later launches."""
    about = {"JAX_COMPILATION_CACHE_DIR": str(folder)}
    return {**about, "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0.5"}


def _coordinator(hosts: Sequence[str], cluster: Cluster | None) -> str:
    """Host and port of the first node; the port is free on this machine, if that is the host."""
    if first := cluster.addresses[0] if cluster else next(iter(hosts), ""):
        return f"{first}:{_PORT}"
    with socket.create_server(("127.0.0.1", 0)) as server:
        return f"127.0.0.1:{server.getsockname()[1]}"


_PORT = 23456


@cache
def _is_open_mpi(mpiexec: str) -> bool:
    done = subprocess.run(
        [mpiexec, "--version"],
        env=with_home(os.environ),
        capture_output=True,
        text=True,
        timeout=_VERSION_SECONDS,
        check=False,
    )
    return any(name in done.stdout for name in _OPEN_MPI)


def _starts_hydra(
    mpiexec: str, nodes: int, hosts: Sequence[str], cluster: Cluster | None, _: Sequence[str]
) -> list[str]:
    """MPICH's launcher and its relatives, which pass on all variables and support schedulers."""
    command = [mpiexec, "-n", str(nodes)]
    if cluster:
        launcher = str(cluster.folder / "launcher")
        command += ["-launcher", "ssh", "-launcher-exec", launcher, "-iface", "switch"]
    return [*command, "-hosts", ",".join(hosts), "-ppn", "1"] if hosts else command


def _starts_open_mpi(
    mpiexec: str,
    nodes: int,
    hosts: Sequence[str],
    cluster: Cluster | None,
    names: Sequence[str],
) -> list[str]:
    """Open MPI's launcher, which passes on the named variables to other hosts."""
    command = [mpiexec, "-n", str(nodes), "--bind-to", "none"]
    if cluster:
        command += ["--prtemca", "plm_ssh_agent", str(cluster.folder / "launcher")]
        command += ["--mca", "pml", "ob1", "--mca", "btl", "tcp,self"]
        command += ["--mca", "btl_tcp_if_include", "eth0"]
    if not hosts:
        return [*command, "--oversubscribe"]
    command += ["--host", ",".join(f"{host}:1" for host in hosts)]
    return [*command, *(word for name in names for word in ("-x", name))]
