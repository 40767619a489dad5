"""An emulated cluster is what it says, ends with all that runs in it, and leaves nothing behind."""

import os
import shutil
import signal
import subprocess
import sys
import time

import pytest
from _launcher import ROOT

from jdaso.fabric import ClusterError, _emulated, emulated_cluster

pytestmark = pytest.mark.skipif(
    os.geteuid() != 0 or not shutil.which("ip") or not shutil.which("tc"),
    reason="network namespaces need root and iproute2",
)
RUN = [sys.executable, "-m", "jdaso", "cluster", "run"]


def namespaces():
    return {line.split()[0] for line in subprocess.getoutput("ip netns list").splitlines() if line}


def runs(marker):
    """Processes with that word in their command line."""
    done = subprocess.run(["pgrep", "-f", marker], capture_output=True, text=True, timeout=10)
    return done.stdout.split()


def wait_for(condition, seconds=20.0):
    limit = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < limit, "it did not come"
        time.sleep(0.05)


@pytest.fixture(autouse=True)
def _nothing_is_left():
    before = namespaces()
    yield
    assert namespaces() == before
    left = _emulated._SETTINGS
    assert not left.exists() or not [p for p in left.iterdir() if p.name.startswith("jdaso")]


def run(*arguments, **options):
    options = {"capture_output": True, "text": True, "timeout": 90, "cwd": ROOT, **options}
    return subprocess.run([*RUN, *map(str, arguments)], **options)


def test_a_command_runs_on_each_host_under_its_name():
    done = run("--hosts", 3, "--rate", "100mbit", "--", "hostname")
    assert done.returncode == 0, done.stderr
    names = sorted(done.stdout.split())
    assert len(set(names)) == 3 and all(name.startswith("jdaso") for name in names)
    assert "3 hosts, 0.1 Gbit/s links (measured 0.09" in done.stderr


def test_nodes_average_over_the_links_and_the_bytes_are_counted():
    code = (
        "import jax.numpy as jnp, jdaso\n"
        "with jdaso.Session() as s:\n"
        "    tree = jdaso.mean({'w': jnp.full(500_000, float(s.node))}, s)\n"
        "    print(s.topology.host, float(tree['w'][0]), flush=True)\n"
    )
    with emulated_cluster(2, "200mbit") as cluster:
        before = cluster.bytes_sent()
        command = cluster.mpiexec([sys.executable, "-c", code])
        environment = {**cluster.environment, "JAX_PLATFORMS": "cpu", "OMP_NUM_THREADS": "1"}
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=90, cwd=ROOT
        )
        sent = [after - old for old, after in zip(before, cluster.bytes_sent(), strict=True)]
    assert done.returncode == 0, done.stdout + done.stderr
    assert sorted(done.stdout.split("\n")[:2]) == [f"{host} 0.5" for host in cluster.hosts]
    # Each of two nodes sends half of 2 MB to be summed, and its own half of the sum.
    for count in sent:
        assert 2e6 <= count < 2.2e6


def test_the_commands_status_is_passed_on():
    assert run("--", "sh", "-c", "exit 3").returncode == 3


@pytest.mark.parametrize("factor", [0.8, 1.3])
def test_a_link_that_is_off_is_refused(monkeypatch, factor):
    shape = _emulated._shape
    monkeypatch.setattr(_emulated, "_shape", lambda n, d, bits: shape(n, d, bits * factor))
    with (
        pytest.raises(ClusterError, match=r"instead of 0\.1 \([-+][0-9]+%; at most 10% is taken"),
        emulated_cluster(2, "100mbit"),
    ):
        pytest.fail("it was taken")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_all_of_it(number):
    marker = f"sleep 30{os.getpid()}"
    process = subprocess.Popen([*RUN, "--", *marker.split()], cwd=ROOT, stderr=subprocess.PIPE)
    try:
        wait_for(lambda: len(runs(f"^{marker}")) == 2)
        process.send_signal(number)
        assert process.wait(timeout=20) != 0
        assert not runs(f"^{marker}")
    finally:
        process.kill()


def test_what_a_killed_one_left_goes_with_the_next_and_living_ones_stay():
    marker = f"sleep 31{os.getpid()}"
    with emulated_cluster(2, "1gbit", check=False) as living:
        process = subprocess.Popen([*RUN, "--", *marker.split()], cwd=ROOT, stderr=subprocess.PIPE)
        wait_for(lambda: len(runs(f"^{marker}")) == 2)
        process.kill()
        process.wait(timeout=10)
        left = namespaces() - set(living.hosts) - {living.switch}
        assert len(left) == 3 and runs(f"^{marker}")
        with emulated_cluster(2, "1gbit", check=False) as fresh:
            assert not runs(f"^{marker}")
            assert namespaces() == {*living.hosts, living.switch, *fresh.hosts, fresh.switch}


def test_an_error_in_the_body_takes_it_down():
    with pytest.raises(KeyError), emulated_cluster(2, check=False) as cluster:
        assert set(cluster.hosts) <= namespaces()
        raise KeyError("mine")


def test_the_machines_own_network_is_not_touched():
    def state():
        return subprocess.getoutput("ip -br link; ip route")

    before = state()
    with emulated_cluster(4, check=False):
        assert state() == before


def test_without_root_or_iproute2_it_says_so_in_a_sentence():
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = run("--", "true", env={**environment, "PATH": "/nowhere"})
    assert done.returncode == 2 and "Install iproute2" in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
    code = (
        "import os; from jdaso.fabric import *; os.setuid(65534)\n"
        "try:\n    emulated_cluster().__enter__()\nexcept ClusterError as error: print(error)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, cwd=ROOT
    )
    assert "which only root may make" in done.stdout, done.stderr


@pytest.mark.parametrize(
    "arguments", [(1,), (65,), (2, "1 pound"), (2, "-1"), (2, "nan"), (2, "1bit")]
)
def test_arguments_out_of_range_are_named(arguments):
    with pytest.raises(ValueError, match="must be .*got"), emulated_cluster(*arguments):
        pass
