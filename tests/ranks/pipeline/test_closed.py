"""A pipeline's threads and communicators end with it, in the middle of a session."""

import threading

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from mpi4py import MPI

import jdaso
from jdaso import pipeline
from jdaso._jax.ffi import functions
from jdaso._jax.host_call import STEP_ERRORS, host_call
from jdaso.pipeline import _abandoned
from jdaso.pipeline._run.grid import Grid

SIZE = MPI.COMM_WORLD.size
pytestmark = [
    pytest.mark.two_nodes,
    pytest.mark.skipif(SIZE not in (2, 3), reason="2 or 3 partitions"),
]
PARAMS = {"w": [np.eye(4, dtype=np.float32)] * 4}
BATCH = np.ones((4, 4), np.float32)


def loss_fn(params, batch):
    for w in params["w"]:
        batch = jnp.tanh(batch @ w)
    return jnp.mean(batch**2)


@pytest.fixture
def session():
    with jdaso.Session(timeout_seconds=60) as session:
        Grid.of(session, SIZE).replicas()  # the session of a partition's replicas stays for others
        yield session


def made(session):
    plan = pipeline.partition(loss_fn, PARAMS, BATCH, num_partitions=SIZE, num_microbatches=2)
    # The optimizer's norm is of all partitions: the compiled step calls the host.
    tx = optax.chain(optax.clip_by_global_norm(0.1), optax.sgd(0.1))
    return pipeline.Pipeline(plan, tx, session=session)


def held(session):
    """Counts a process's threads, communicators, calls at the end, and functions for steps."""
    threads = [x.name for x in threading.enumerate()].count("jdaso-mail")
    calls = sum(not isinstance(x, Exception) for x in functions._functions.values())
    return threads, len(session.control._copies), len(session.hooks.closers), calls


def test_a_closed_pipeline_leaves_nothing(session):
    before = held(session)
    for _ in range(3):
        with made(session) as pipe:
            start = pipe.init(PARAMS)
            pipe.step(start, BATCH)  # may still run
        assert held(session) == before
    with pytest.raises(RuntimeError, match="This pipeline was closed"):
        pipe.step(start, BATCH)
    pipe.close()


def test_a_result_that_failed_before_is_nothing_to_a_pipeline_that_closes(session, caplog):
    """Another optimizer's, whose error the program has caught, and which is still held."""

    def fail(x):
        raise ValueError("an old error")

    @jax.jit
    def step(x):
        return host_call(fail, jax.ShapeDtypeStruct((), np.int32), jnp.sum(x @ x))

    result = step(np.ones((100, 100), np.float32))  # JAX runs a small step before it returns
    with pytest.raises(STEP_ERRORS, match="an old error"):
        result.block_until_ready()
    before = held(session)
    with made(session) as pipe:
        pipe.step(pipe.init(PARAMS), BATCH)
    assert held(session) == before
    assert "A step failed" not in caplog.text, "the program has seen the error"


def test_fit_closes_its_pipeline(session):
    settings = dict(session=session, strategy="model", num_microbatches=2)
    before, pipes = held(session), []
    for _ in range(2):
        result = jdaso.fit(
            loss_fn,
            PARAMS,
            optax.sgd(0.1),
            [BATCH],
            on_step=lambda number, result, pipe, state: pipes.append((pipe, state)),
            **settings,
        )
        assert held(session) == before
    assert jax.tree.all(jax.tree.map(np.isfinite, result.history))
    with pytest.raises(RuntimeError, match="This pipeline was closed"):
        pipes[0][0].evaluate(pipes[0][1], BATCH)


def fit_once(session, on_step):
    data = [BATCH] * 3
    return jdaso.fit(
        loss_fn,
        PARAMS,
        optax.sgd(0.1),
        data,
        session=session,
        strategy="model",
        num_microbatches=2,
        on_step=on_step,
    )


def test_a_fit_that_ends_with_an_error_is_closed_by_the_next_one(session):
    """Pruning in a search for hyperparameters: each trial would keep a thread and communicators."""

    class PrunedError(Exception):
        pass

    def prune(number, *_):
        if number == 1:
            raise PrunedError

    before, open_ones = held(session), []
    for _ in range(3):
        with pytest.raises(PrunedError):
            fit_once(session, prune)
        open_ones.append(held(session))
    assert open_ones[1:] == open_ones[:1] * 2 and open_ones[0] > before
    assert len(fit_once(session, None).history) == 3
    assert held(session) == before
    with pytest.raises(PrunedError):
        fit_once(session, prune)
    session.close()
    assert not _abandoned._abandoned  # it would keep the session
