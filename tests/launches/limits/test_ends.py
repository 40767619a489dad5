"""The end of a rank: those that are done do not end it, and its pending work does not keep it."""

import re
import time

import pytest
from launcher import ROOT, mpirun

BOTH = pytest.mark.parametrize("mpi", ["mpich", "openmpi"])


def run(code, nodes=2, **about):
    begin = time.monotonic()
    done = mpirun(nodes, ["-c", code], cwd=ROOT, timeout=250, **about)
    return done, time.monotonic() - begin


WORKS_ON = """
import time, jdaso
from jdaso._jax import world
world._PART_SECONDS = 1  # JAX ends its world so long after the first rank that has no work left
with jdaso.Session(ranks_per_node=2) as session:
    rank = session.topology.rank
if rank == 0:
    time.sleep(4)
print("rank", rank, "ends", flush=True)
"""


@BOTH
def test_a_rank_may_work_on_after_the_others_of_its_node(mpi):
    done, _ = run(WORKS_ON, mpi=mpi)
    assert done.returncode == 0 and done.stdout.count(" ends") == 2, done.stdout


UNCLOSED = """
import mpi4py
mpi4py.rc.initialize = False
import jdaso
session = jdaso.Session()
session.agree("meet", [])
{more}
"""


@BOTH
def test_a_session_is_closed_before_mpi_ends(mpi):
    """Also if the program leaves starting MPI to jdaso, which then ends it, too."""
    done, _ = run(UNCLOSED.format(more="print('end', flush=True)"), mpi=mpi)
    assert done.returncode == 0 and done.stdout.count("end\n") == 2, done.stdout


@BOTH
def test_a_failed_rank_does_not_wait_in_mpi_for_one_that_is_elsewhere(mpi):
    more = "import time\nif session.node == 1: raise KeyError('boom')\ntime.sleep(200)"
    done, seconds = run(UNCLOSED.format(more=more), mpi=mpi)
    assert done.returncode != 0 and "boom" in done.stdout, done.stdout
    assert seconds < 120, done.stdout


PENDING = """
import time
import jax, jax.numpy as jnp, optax, jdaso
with jdaso.Session() as session:
    tx = jdaso.daso(optax.sgd(0.1), phases=jdaso.Phases(9, 9), session=session)
    params = {"w": jnp.ones(8)}
    state = tx.init(params)

    @jax.jit
    def step(params, state, x):  # long enough for JAX to return before it has run
        for _ in range(3):
            x = jnp.tanh(x @ x)
        return tx.update({"w": params["w"] + x[0, 0]}, state, params)

    x = jnp.ones((500, 500))
    _, state = jax.block_until_ready(step(params, state, x))
    if session.node == 0:
        time.sleep(200)
    found = step(params, state, x)
    raise KeyError("boom")
"""


def test_a_failed_program_does_not_wait_for_its_last_step():
    """The step waits for node 0, which evaluates."""
    done, seconds = run(PENDING)
    assert done.returncode != 0 and "boom" in done.stdout, done.stdout
    assert seconds < 120, done.stdout


FAILS = """
import os, jdaso
if os.environ.get("PMI_RANK") == "1":
    os.environ.pop("WHERE")
with jdaso.Session(trace="$WHERE") as session:
    session.agree("meet", [])
"""


def test_a_rank_that_fails_in_its_start_is_named_on_the_others(tmp_path):
    done, _ = run(FAILS, env={"WHERE": str(tmp_path)})
    assert done.returncode != 0
    text = r"node 0 of 2.*node 1 on host \S+ failed: FolderError: '\$WHERE'"
    assert re.search(text, done.stdout), done.stdout


FORKED = """
import os, sys, time, jdaso
with jdaso.Session() as session:
    if session.node == 1 and os.fork() == 0:
        try:
            raise ValueError("in a worker")
        except ValueError:
            sys.excepthook(*sys.exc_info())  # mpi4py would wait in MPI_Finalize, so no further
            os._exit(1)
    if session.node == 1:
        os.wait()
    session.agree("meet", [])
with jdaso.Session() as session:
    session.agree("meet again", [])
print("end", flush=True)
"""


def test_a_forked_process_fails_alone():
    done, _ = run(FORKED)
    assert done.returncode == 0 and done.stdout.count("end\n") == 2, done.stdout
    assert "in a worker" in done.stdout and "could not start" not in done.stdout
