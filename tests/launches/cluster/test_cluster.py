"""An emulated cluster is what it says, ends with all that runs in it, and leaves nothing behind."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time

import pytest
from launcher import ROOT
from nights import nightly

from jdaso._nodes import links
from jdaso.fabric import Cluster, ClusterError, emulated_cluster
from jdaso.fabric._emulate import cleanup
from jdaso.fabric._emulate import cluster as _cluster

pytestmark = pytest.mark.skipif(
    os.geteuid() != 0 or not shutil.which("ip") or not shutil.which("tc"),
    reason="network namespaces need root and iproute2",
)
RUN = [sys.executable, "-m", "jdaso", "cluster", "run"]
UNMEASURED = [*RUN, "--no-check"]  # other tests may hold up a link just then


def namespaces():
    names = {line.split()[0] for line in subprocess.getoutput("ip netns list").splitlines() if line}
    return {name for name in names if name.startswith("jdaso")}


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
    cleanup.remove_leftovers()  # of a run of these tests that was killed
    before = namespaces()
    yield
    assert namespaces() == before
    assert not list(cleanup.SETTINGS.glob("jdaso*"))
    assert not [path for path in cleanup.STATE.glob("cluster-*") if path.is_dir()]


def run(*arguments, command=UNMEASURED, **options):
    options = {"capture_output": True, "text": True, "timeout": 90, "cwd": ROOT, **options}
    return subprocess.run([*command, *map(str, arguments)], **options)


def test_a_command_runs_on_each_host_under_its_name():
    done = run("--hosts", 3, "--rate", "20mbit", "--", "hostname", command=RUN)
    assert done.returncode == 0, done.stderr
    names = sorted(done.stdout.split())
    assert len(set(names)) == 3 and all(name.startswith("jdaso") for name in names)
    assert "3 hosts, 0.02 Gbit/s links (measured 0.01" in done.stderr


def test_nodes_average_over_the_links_and_the_bytes_are_counted():
    code = (
        "import os, jax.numpy as jnp, jdaso\n"
        "with jdaso.Session() as s:\n"
        "    tree = jdaso.mean({'w': jnp.full(500_000, float(s.node))}, s)\n"
        "    os.write(1, f'{s.topology.host} {float(tree[\"w\"][0])}\\n'.encode())\n"
    )
    with emulated_cluster(2, "200mbit", check=False) as cluster:
        before = cluster.bytes_sent()
        command = cluster.mpiexec([sys.executable, "-c", code])
        environment = {**cluster.environment, "JAX_PLATFORMS": "cpu", "OMP_NUM_THREADS": "1"}
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=90, cwd=ROOT
        )
        sent = [after - old for old, after in zip(before, cluster.bytes_sent(), strict=True)]
    assert done.returncode == 0, done.stdout + done.stderr
    assert sorted(done.stdout.split("\n")[:2]) == [f"{host} 0.5" for host in cluster.hosts]
    # Each of two nodes measures its link, sends half of 2 MB to be summed, and its half of the sum.
    least = links._TRIALS * links._TRIAL_BYTES + 2e6
    for count in sent:
        assert least <= count < 1.1 * least


def test_the_commands_status_is_passed_on():
    assert run("--", "sh", "-c", "exit 3").returncode == 3


@pytest.mark.parametrize("factor", [0.8, 2.0])
def test_a_link_that_is_off_is_refused(monkeypatch, factor):
    shape = _cluster._shape
    monkeypatch.setattr(_cluster, "_shape", lambda n, d, bits: shape(n, d, bits * factor))
    with (
        pytest.raises(ClusterError, match=r"instead of 0\.1 \([-+][0-9]+%; at most 10% is taken"),
        emulated_cluster(2, "100mbit"),
    ):
        pytest.fail("it was taken")


@pytest.mark.parametrize(
    ("speeds", "taken"),
    [([0.95], True), ([0.5, 0.7, 0.95], True), ([0.5, 0.7, 0.89, 0.95], False), ([1.2], False)],
)
def test_a_link_that_seems_slow_is_measured_again(monkeypatch, speeds, taken):
    found = iter([1e9 * speed for speed in speeds] + [0.95e9])
    monkeypatch.setattr(_cluster, "_measure_link", lambda *_: next(found))
    cluster = Cluster(("a", "b"), ("10.0.0.1", "10.0.0.2"), 1e9, ROOT, "switch")
    if taken:
        assert _cluster._measure(cluster) == (0.95e9, 0.95e9)
    else:
        with pytest.raises(ClusterError, match=r"from a to b carries .* instead of 1 \("):
            _cluster._measure(cluster)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_all_of_it(number):
    marker = f"sleep 30{os.getpid()}"
    process = subprocess.Popen(
        [*UNMEASURED, "--", *marker.split()], cwd=ROOT, stderr=subprocess.PIPE
    )
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
        process = subprocess.Popen(
            [*UNMEASURED, "--", *marker.split()], cwd=ROOT, stderr=subprocess.PIPE
        )
        wait_for(lambda: len(runs(f"^{marker}")) == 2)
        process.kill()
        process.wait(timeout=10)
        left = namespaces() - set(living.hosts) - {living.switch}
        assert len(left) == 3 and runs(f"^{marker}")
        with emulated_cluster(2, "1gbit", check=False) as fresh:
            assert not runs(f"^{marker}")
            assert namespaces() == {*living.hosts, living.switch, *fresh.hosts, fresh.switch}


def test_a_child_of_a_killed_one_does_not_keep_it():
    """Fork hands descriptors on, and with them a lock."""
    code = (
        "import os, time; from jdaso.fabric import emulated_cluster\n"
        "with emulated_cluster(2, check=False):\n"
        "    child = os.fork()\n"
        "    if child: print(child, flush=True)\n"
        "    time.sleep(60)\n"
    )
    command = [sys.executable, "-W", "ignore", "-c", code]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT)
    child = int(process.stdout.readline())
    try:
        process.kill()
        process.wait(timeout=10)
        assert len(namespaces()) == 3
        assert cleanup.remove_leftovers() == 1
    finally:
        os.kill(child, signal.SIGKILL)


def test_a_signal_while_it_is_taken_down_waits(monkeypatch):
    ip = cleanup.ip

    def interrupted(*words):
        if words[:2] == ("netns", "delete"):
            signal.raise_signal(signal.SIGINT)
        return ip(*words)

    with pytest.raises(KeyboardInterrupt), emulated_cluster(3, check=False):
        monkeypatch.setattr(cleanup, "ip", interrupted)


def test_namespaces_of_others_stay():
    theirs = ["jdaso99-switch", "jdaso0-h1"]
    for name in theirs:
        if name in namespaces():  # of a run of this test that was killed
            subprocess.run(["ip", "netns", "delete", name], check=True, timeout=10)
        subprocess.run(["ip", "netns", "add", name], check=True, timeout=10)
    try:
        sleeper = subprocess.Popen(["ip", "netns", "exec", theirs[0], "sleep", "60"])
        with (
            pytest.raises(ClusterError, match="Network namespaces named jdaso0-h1 already exist"),
            emulated_cluster(2, check=False),
        ):
            pass
        assert cleanup.remove_leftovers() == 0
        assert sleeper.poll() is None and set(theirs) <= namespaces()
        sleeper.kill()
        sleeper.wait(timeout=10)
    finally:
        for name in theirs:
            subprocess.run(["ip", "netns", "delete", name], check=True, timeout=10)


def test_a_leftover_that_stays_stops_nobody(monkeypatch, caplog):
    (cleanup.STATE / "cluster-0").mkdir(parents=True)
    remove = cleanup.remove

    def stuck(number):
        if number == 0:
            raise ClusterError("Processes 1 in jdaso0-h0 do not end.")
        remove(number)

    monkeypatch.setattr(cleanup, "remove", stuck)
    try:
        with emulated_cluster(2, check=False) as cluster:
            assert cluster.switch == "jdaso1-switch"
    finally:
        (cleanup.STATE / "cluster-0").rmdir()
    assert "do not end" in caplog.text


def test_a_process_on_a_host_is_the_command_itself():
    with emulated_cluster(2, check=False) as cluster:
        marker = f"32{os.getpid()}"
        process = subprocess.Popen(cluster.on_host(1, ["sleep", marker]))
        wait_for(lambda: runs(f"^sleep {marker}"))
        process.terminate()
        process.wait(timeout=10)
        assert not runs(f"^sleep {marker}")


def test_what_mpiexec_would_misread_is_refused():
    with emulated_cluster(2, check=False) as cluster:
        with pytest.raises(ValueError, match="lone ':'"):
            cluster.mpiexec(["echo", "a", ":", "b"])
        with pytest.raises(ValueError, match="ranks_per_host must be"):
            cluster.mpiexec(["true"], ranks_per_host=0)


def test_words_arrive_as_they_are():
    words = ["a b", "$HOME", "'", '"', "`x`", "\n", "*", "", "-n", "\\"]
    code = "import sys; sys.stdout.write(f'{sys.argv[1:]}\\n')"  # print writes in two pieces
    done = run("--", sys.executable, "-c", code, *words)
    assert done.stdout.splitlines() == [str(words)] * 2, done.stderr


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


def quick_benchmark(folder, name, *flags, table=None):
    """Runs a benchmark; returns its rows by method."""
    (script,) = (ROOT / "benchmarks").glob(f"*/{name}.py")
    done = subprocess.run(
        [sys.executable, script, "--quick", *flags],
        env={**os.environ, "JDASO_BENCHMARK_OUT": str(folder), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=200,
        cwd=ROOT,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    rows = json.loads((folder / f"{table or name}.json").read_text())["rows"]
    return {row.get("method"): row for row in rows}


def test_methods_are_compared_on_it(tmp_path):
    methods = ["bare", "daso bfloat16 corrected", "synchronous", "jax gloo"]
    flags = ["--gigabits", "0.2", "--methods", *methods]
    rows = quick_benchmark(tmp_path, "throughput", *flags)
    assert rows["jax gloo"]["MB a step"] == pytest.approx(4.0, rel=0.1)
    # Of a million parameters two nodes send a half to be summed, and half of the sum.
    assert rows["bare"]["MB a step"] < 0.01
    assert rows["synchronous"]["MB a step"] == pytest.approx(4.0, rel=0.1)
    assert rows["daso bfloat16 corrected"]["MB a step"] == pytest.approx(2.0 / 4, rel=0.25)
    assert 20 <= rows["bare"]["ms"] < 1.2 * rows["synchronous"]["ms"]


@nightly
def test_two_ranks_of_a_node_share_what_it_sends(tmp_path):
    """Two hosts of two ranks with two devices each: a rank sends half of the model."""
    flags = ["--ranks", "2", "--gigabits", "0.2", "--cycles", "8"]
    rows = quick_benchmark(tmp_path, "ranks_per_node", *flags)
    jdaso = rows["daso bfloat16 corrected"]
    assert jdaso["of model"] == pytest.approx(0.5, rel=0.15)  # of one more exchange, or less
    assert jdaso["MB a step"] == pytest.approx(2 * jdaso["MB of a rank"], rel=0.25)
    assert rows["bare"]["MB a step"] < 0.01 and rows["instant"]["MB a step"] < 0.01


@nightly
def test_exchanges_alone_are_measured_on_it(tmp_path):
    (row,) = quick_benchmark(tmp_path, "links", "--gigabits", "0.5", "--megabytes", "2").values()
    for wire in ("float32", "bfloat16", "int8", "int4"):
        assert 0.1 < row[f"{wire} of link"] < 1.3  # what a burst lets through comes on top


@nightly
def test_arrays_are_scaled_on_it(tmp_path):
    """Arrays send the bytes that the prediction for more nodes counts with."""
    quick_benchmark(tmp_path, "arrays_at_scale")
    rows = json.loads((tmp_path / "arrays_at_scale.json").read_text())["rows"]
    measured = [row for row in rows if "ms" in row]
    assert len(measured) == 2 * 8 and max(row["nodes"] for row in rows) == 1024
    for row in measured:
        assert row["bytes / predicted"] == pytest.approx(1, rel=0.02), row
        assert 0 <= row["between"] < row["ms"] and row["predicted"] > 0, row


@nightly
def test_a_study_finds_a_link_that_is_slower(tmp_path):
    """Both of two runs find the link: a fifth off the rate is over a quarter of the time."""
    flags = ["--parts", "slower", "--replicates", "4"]
    (row,) = quick_benchmark(tmp_path, "fabrics", *flags, table="fabrics slower").values()
    assert row["same"] and row["first"].startswith("slower by"), row


@nightly
def test_the_claims_of_a_shipped_study_are_answered_on_it(tmp_path):
    quick_benchmark(tmp_path, "shipped")
    claims, cells = (
        json.loads((tmp_path / f"{name}.json").read_text())["rows"]
        for name in ("shipped", "shipped_cells")
    )
    assert [claim["study"] for claim in claims] == ["links"]
    assert claims[0]["answer"].startswith("holds: faster"), claims
    assert len(cells) == 8 and all(cell["n"] == 2 for cell in cells), cells
    assert all(0 < cell["low ms"] <= cell["median ms"] <= cell["high ms"] for cell in cells)


@nightly
def test_pipelines_are_compared_on_it(tmp_path):
    flags = ["--methods", "data synchronous", "hybrid daso"]
    rows = quick_benchmark(tmp_path, "pipelines", *flags, table="pipelines_hybrid")
    # Of a million parameters a replica's half goes to the other in every fourth step, rounded.
    assert rows["hybrid daso"]["MB a step"] < rows["data synchronous"]["MB a step"]
    assert set(rows) == {"data synchronous", "hybrid daso", "jax gloo"}


@nightly
def test_the_time_to_an_accuracy_is_measured_on_it(tmp_path):
    rows = quick_benchmark(tmp_path, "time_to_accuracy")
    assert rows["synchronous"]["times shorter"] == 1
    assert rows["daso"]["final"] > 40  # of ten classes, after thirty steps
    assert 0 < rows["daso"]["to 90%"] <= rows["daso"]["seconds"]
