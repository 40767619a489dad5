"""One node's mistake is a clear error on every node, in time, and nobody hangs."""

import re
from itertools import product

import pytest
from launcher import ENVIRONMENTS, PROGRAMS, mpirun
from nights import at_night, nightly, rows

SCRIPT = str(PROGRAMS / "faulty.py")
LIMIT_SECONDS = 10.0


def launch(case, engine="mpi4jax", nodes=2, devices=1, mpi="mpich", **env):
    about = dict(mpi=mpi, devices=devices, timeout=200, env=env)
    return mpirun(nodes, [SCRIPT, case, engine], quick_compiling=True, **about)


def errors(done):
    """Returns ``{node: (seconds, text)}`` of the nodes that printed an error."""
    found = re.findall(r"^.*?(\d) (\d+\.\d) (\w+ .*)$", done.stdout, re.MULTILINE)
    return {int(node): (float(seconds), text) for node, seconds, text in found}


AGREED = {
    "shape": r"leaf \['b'\]: node 1 has float32\[4\], the others float32\[3\]",
    "dtype": r"leaf \['b'\]: node 1 has bfloat16\[3\]",
    "tree": r"leaf \['c'\]|the tree",
    "bits": r"bits of leaf \['b'\]: node 1 .*jdaso.broadcast",
    "bits_traced": r"Nodes differ at the first update: node 1 in params\[.b.\].*jdaso.broadcast",
    "bits_traced_cycling": r"Nodes differ at the first update: nodes 1",
    "engine": r"the engine: node 1 has mpi4py, the others mpi4jax",
    "engine_simulated": r"the engine: node 1 has simulated, the others mpi4jax",
    "unknown_engine": r"carrier pigeon",
    "unlimited": r"timeout_seconds must be above 0 and at most .*got inf",
    "phases": r"the setting phases: node 1 has .*delay=1",
    "phases_invalid": r"delay must be within 1..sync_every, got delay=3",
    "phases_zero": r"sync_every must be at least 1, got 0",
    "phases_long": r"warmup_steps \+ cooldown_steps must not exceed total_steps, got 20 \+ 1",
    "wire": r"the setting wire: node 1 has bfloat16",
    "version": r"the jdaso version: node 1 has 0.0.1",
    "inner": r"the inner optimizer's state: node 1 has empty, the others \[0\]\.count int32",
    "params_none": r"needs the parameters, got params=None",
    "axis": r"local_axis='nowhere' is not bound here",
    "nan": r"not finite .*node 1, leaf \['b'\]",
    "nan_inf": r"not finite .*node 1, leaf \['b'\]",
}


ANYWHERE = AGREED | {"raise": "boom", "bits_traced": "Nodes differ at the first update"}
"""Returns the error text of each node, for any number of nodes."""


BY_MPI4PY = ("shape", "phases_zero", "phases_long", "params_none", "axis", "nan", "bits_traced")


@pytest.mark.parametrize(
    ("case", "engine"),
    rows(
        [(case, "mpi4jax") for case in AGREED] + [(case, "mpi4py") for case in BY_MPI4PY],
        day=[("bits_traced", "mpi4py")],
    ),
)
def test_every_node_says_what_is_wrong(case, engine):
    done = launch(case, engine)
    assert done.returncode != 0
    raised = errors(done)
    assert set(raised) == {0, 1}, done.stdout
    for seconds, text in raised.values():
        assert seconds < LIMIT_SECONDS
        assert re.search(AGREED[case], text), text


@pytest.mark.parametrize("case", rows(["nan", "raise", "bits_traced"], ["nan"]))
def test_with_two_local_devices(case):
    """An exception on one device must not leave the other in a collective."""
    raised = errors(launch(case, "mpi4py", devices=2))
    assert set(raised) == {0, 1}
    for seconds, text in raised.values():
        assert seconds < LIMIT_SECONDS
        assert re.search(ANYWHERE[case], text), text


@pytest.mark.parametrize("case", rows(["nan", "shape", "raise"], ["raise"]))
def test_under_open_mpi_and_three_nodes(case):
    done = launch(case, nodes=3, mpi="openmpi")
    assert done.returncode != 0
    raised = errors(done)
    assert set(raised) == {0, 1, 2}, done.stdout
    for seconds, text in raised.values():
        assert seconds < LIMIT_SECONDS
        assert re.search(ANYWHERE[case], text), text


@nightly
def test_skip_leaves_the_exchange_out_on_all_nodes():
    done = launch("nan_skip")
    assert done.returncode == 0
    assert done.stdout.count(" end\n") == 2


@pytest.mark.parametrize(
    ("case", "engine"),
    rows(
        product(["raise", "raise_warmup", "exit", "leave", "leave_warmup"], ["mpi4jax", "mpi4py"]),
        day=[("raise", "mpi4py"), ("exit", "mpi4jax")],
    ),
)
def test_a_node_that_ends_early_takes_the_job_with_it(case, engine):
    """Covers nodes whose threads are in an MPI call of mpi4jax, which cannot return."""
    done = launch(case, engine)
    assert done.returncode != 0
    assert re.search(r"node 0 of 2.*node 1 (on host|ended)", done.stdout), done.stdout


@nightly  # played in unit/nodes/test_ends_played.py
def test_the_job_ends_once_all_have_reported():
    """Node 1 ends the job by itself, but not while another one is about to print its error."""
    done = launch("uncaught", nodes=3)
    assert done.returncode != 0
    assert set(errors(done)) == {0, 2}, done.stdout
    assert "KeyError: 'boom'" in done.stdout


def test_a_failed_node_whose_program_never_ends_takes_the_job_with_it():
    """MPI_Finalize would wait for it without a limit."""
    done = mpirun(2, [str(PROGRAMS / "unending.py")], mpi="mpich", timeout=200)
    assert done.returncode != 0
    assert "KeyError: 'boom'" in done.stdout and "its program does not end" in done.stdout


def test_a_killed_node_ends_the_job():
    assert launch("kill").returncode != 0


@pytest.mark.parametrize(
    "case, said",
    [
        ("stuck_before", r"Timeout \(0:00:06\)!(?s:.*) in start_mpi"),
        at_night(("stuck_before_session", r"node 0 of 2.*Waited 6 s to start a session")),
        at_night(("stuck_starting", r"node 0 of 2.*waits to open a communicator.*within 6 s")),
        at_night(("stuck_warmup", r"node 0 of 2.*within 6 s")),
        ("stuck", r"node 0 of 2.*within 6 s"),
        # Node 1 waits in finalize, node 0 for its exchange; the first limit ends both.
        at_night(("fewer", r"node 0 of 2.*within 6 s|node 1 of 2.*waits to finalize.*within 6 s")),
    ],
)
def test_every_wait_has_a_limit(case, said):
    done = launch(case)
    assert done.returncode != 0
    assert re.search(said, done.stdout), done.stdout


@pytest.mark.parametrize("engine", rows(["mpi4jax", "mpi4py"], ["mpi4jax"]))
def test_a_closed_session_is_an_error(engine):
    """Covers a step that was compiled before, and a communicator that was given back."""
    done = launch("closed", engine)
    assert done.returncode != 0
    raised = errors(done)
    assert set(raised) == {0, 1}, done.stdout
    assert "session was closed" in raised[1][1]
    assert re.search("node 1 .*(ended the session|failed)", raised[0][1])
    assert all(seconds < LIMIT_SECONDS for seconds, _ in raised.values())


@nightly
def test_all_say_that_a_node_did_not_come():
    """Node 0 meets the limit first; it ends the job only once the others have reported it."""
    done = launch("stuck_before_session", nodes=3)
    raised = errors(done)
    assert set(raised) == {0, 2}, done.stdout
    assert all("Waited 6 s to start a session" in text for _, text in raised.values())


@pytest.mark.parametrize("engine", rows(["mpi4jax", "mpi4py"], ["mpi4py"]))
def test_a_run_that_recovers_as_the_error_says_ends_as_any_other(engine):
    done = launch("stale", engine)
    assert done.returncode == 0, done.stdout
    assert done.stdout.count(" end\n") == 2, done.stdout


@pytest.mark.parametrize("engine", rows(["mpi4jax", "mpi4py"], ["mpi4py"]))
def test_an_exchange_that_nobody_waits_for_is_not_swallowed(engine):
    """Both nodes leave the session without `finalize`, node 0 with an exchange that cannot end."""
    done = launch("one_more", engine)
    assert done.returncode != 0
    [(node, (seconds, text))] = errors(done).items()
    assert node == 0 and seconds < LIMIT_SECONDS
    assert "node 1 ended the session while this node waits for the exchange started at" in text


def test_a_session_belongs_to_one_thread():
    raised = errors(launch("thread"))
    assert all(seconds < LIMIT_SECONDS for seconds, _ in raised.values())
    assert "A session belongs to the thread that made it" in raised[1][1]
    assert "node 1" in raised[0][1], "the other node gets the error too"


def test_last_words_outlive_a_launcher_without_a_core():
    """MPICH's discards what still lies in a rank's pipes when a rank ends the job."""
    for _ in range(3):
        raised = errors(launch("thread", LAUNCHER_SLEEPS="0"))
        assert "A session belongs to the thread that made it" in raised[1][1]
        assert "node 1" in raised[0][1]


@nightly
def test_mpi_must_allow_calls_from_threads():
    raised = errors(launch("level", MPI4PY_RC_THREAD_LEVEL="serialized"))
    assert set(raised) == {0, 1}
    for seconds, text in raised.values():
        assert seconds < LIMIT_SECONDS and "THREAD_MULTIPLE" in text


def test_one_nodes_thread_level_is_told_to_all():
    raised = errors(launch("level_on_one"))
    assert set(raised) == {0, 1}
    for seconds, text in raised.values():
        assert seconds < LIMIT_SECONDS
        assert re.search(r"THREAD_MULTIPLE.* nodes? 1 ", text), text


@pytest.mark.parametrize(
    ("case", "engine"),
    [("forgotten", "mpi4py"), at_night(("unclosed", "mpi4jax")), at_night(("unclosed", "mpi4py"))],
)
def test_what_is_in_flight_when_the_program_ends_is_completed(case, engine):
    """A session that nobody closes, left with an exchange in flight: said, and no failure."""
    done = launch(case, engine)
    assert done.returncode == 0, done.stdout
    assert done.stdout.count(" end\n") == 2, done.stdout
    for node in (0, 1):
        assert re.search(rf"log: \[node {node} of 2.*never merged", done.stdout), done.stdout


def test_mpi4jax_built_for_another_mpi(tmp_path):
    """The real thing: MPICH's ranks get the mpi4jax that was built against Open MPI."""
    [foreign] = ENVIRONMENTS["openmpi"].glob("lib/python*/site-packages/mpi4jax")
    (tmp_path / "mpi4jax").symlink_to(foreign)
    raised = errors(launch("foreign", PYTHONPATH=str(tmp_path)))
    assert set(raised) == {0, 1}
    for seconds, text in raised.values():
        assert seconds < LIMIT_SECONDS and "built for another MPI" in text


def test_nodes_of_different_numbers_of_devices_work_together():
    """Node 1 has two devices, and node 0 one."""
    done = launch("more_devices")
    assert done.returncode == 0 and done.stdout.count(" end\n") == 2, done.stdout
