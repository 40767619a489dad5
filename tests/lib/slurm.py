"""A Slurm of its own on the hosts of an emulated cluster: one controller, one slurmd a host."""

import contextlib
import getpass
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from jdaso.fabric import Cluster

DAEMONS = ("munged", "slurmctld", "slurmd")
CONFIGURATION = """
ClusterName=emulated
SlurmctldHost={here}({controller})
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
CryptoType=crypto/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
ReturnToService=2
KillWait=2
CompleteWait=0
SlurmdTimeout=60
JobRequeue=1
{nodes}
PartitionName=emulated Nodes={names} Default=YES MaxTime=INFINITE State=UP
"""


def missing() -> str:
    """The reason why there can be no Slurm here; empty if there can."""
    found = [name for name in DAEMONS if shutil.which(name, path=_PATH) is None]
    return f"no {', '.join(found)} (Debian: apt install slurm-wlm munge)" if found else ""


_PATH = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"


@dataclass(frozen=True)
class Slurm:
    """A running Slurm.

    Attributes:
        cluster: its hosts.
        folder: of its files and logs.
        environment: with which its commands find it.
    """

    cluster: Cluster
    folder: Path
    environment: dict[str, str]

    def ask(self, *command: str | Path, seconds: float = 30) -> str:
        """Runs one of Slurm's commands; returns what it prints."""
        done = subprocess.run(
            ["ip", "netns", "exec", self.cluster.switch, *map(str, command)],
            env=self.environment, text=True, capture_output=True, timeout=seconds,
        )  # fmt: skip
        assert done.returncode == 0, f"{command}: {done.stderr}"
        return done.stdout

    def state(self, job: str) -> str:
        """The state of a job, such as RUNNING."""
        shown = self.ask("scontrol", "show", "--oneliner", "job", job)
        return shown.split("JobState=")[1].split()[0]

    def wait(self, job: str, *states: str, seconds: float) -> str:
        """Waits until a job has one of these states; returns it."""
        limit = time.monotonic() + seconds
        while (state := self.state(job)) not in states:
            assert time.monotonic() < limit, f"job {job} is {state} after {seconds} s"
            time.sleep(0.2)
        return state


@contextlib.contextmanager
def slurm_on(cluster: Cluster, folder: Path) -> Iterator[Slurm]:
    """Starts Slurm on the hosts of a cluster; ends its processes at the end."""
    folder.mkdir()
    (folder / "state").mkdir()
    conf = _configure(cluster, folder)
    environment = os.environ | {"SLURM_CONF": str(conf), "PATH": _PATH}
    switch = ["ip", "netns", "exec", cluster.switch]
    munge = ["munged", "--foreground", "--force", f"--socket={folder}/munge.socket"]
    munge += [f"--key-file={folder}/munge.key", f"--pid-file={folder}/munge.pid"]
    munge += [f"--log-file={folder}/munge.log", f"--seed-file={folder}/munge.seed"]
    commands = [munge, [*switch, "slurmctld", "-D", "-f", str(conf)]]
    for k, host in enumerate(cluster.hosts):
        commands.append(cluster.on_host(k, ["slurmd", "-D", "-N", host, "-f", str(conf)]))
    with contextlib.ExitStack() as stack:
        for command in commands:
            stack.callback(_end, _start(command, environment, folder))
            time.sleep(0.3)
        slurm = Slurm(cluster, folder, environment)
        _await_nodes(slurm)
        yield slurm


def _configure(cluster: Cluster, folder: Path) -> Path:
    key = folder / "munge.key"
    key.write_bytes(os.urandom(1024))
    key.chmod(0o400)
    lines = [
        f"NodeName={host} NodeAddr={address} CPUs=1 State=UNKNOWN"
        for host, address in zip(cluster.hosts, cluster.addresses, strict=True)
    ]
    for host in cluster.hosts:
        (folder / host).mkdir()
    (folder / "cgroup.conf").write_text("CgroupPlugin=cgroup/v1\n")  # the other one needs systemd
    conf = folder / "slurm.conf"
    conf.write_text(
        CONFIGURATION.format(
            controller=cluster.addresses[0].rpartition(".")[0] + ".254",
            here=socket.gethostname(),
            user=getpass.getuser(),
            folder=folder,
            nodes="\n".join(lines),
            names=",".join(cluster.hosts),
        )
    )
    return conf


def _start(command: list[str], environment: dict[str, str], folder: Path) -> subprocess.Popen:
    with (folder / "daemons.log").open("ab") as log:
        return subprocess.Popen(
            command, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log
        )


def _end(process: subprocess.Popen) -> None:
    process.terminate()
    try:
        process.wait(10)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait(10)


def _await_nodes(slurm: Slurm, seconds: float = 30) -> None:
    limit, states = time.monotonic() + seconds, ""
    while time.monotonic() < limit:
        with contextlib.suppress(AssertionError, subprocess.TimeoutExpired):
            states = slurm.ask("sinfo", "--noheader", "--Node", "--format=%T")
            if set(states.split()) == {"idle"}:
                return
        time.sleep(0.3)
    raise AssertionError(f"Slurm did not come up: {states} {slurm.folder}/daemons.log")
