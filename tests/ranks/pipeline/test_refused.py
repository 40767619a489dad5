"""Settings of `jdaso.fit` that cannot be: an error on every node, before anything is sent."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from mpi4py import MPI

import jdaso

pytestmark = [pytest.mark.any_mpi, pytest.mark.several, pytest.mark.two_nodes]

SIZE = MPI.COMM_WORLD.size
WIDTH, SAMPLES = 8, 12


@pytest.fixture(scope="module")
def session():
    with jdaso.Session(timeout_seconds=120) as session:
        yield session


def loss_fn(params, batch):
    x, y = batch
    for w in params["w"]:
        x = jnp.tanh(x @ w)
    return jnp.mean((x - y) ** 2)


def vector(params, batch):
    return ((batch[0] @ params["w"][0] - batch[1]) ** 2).mean(-1)


def integer(params, batch):
    return (batch[0] @ params["w"][0] > batch[1]).sum()


def side_effects(params, batch):
    jax.debug.print("{}", batch[0].sum())
    return loss_fn(params, batch)


def parameters():
    return {"w": [np.eye(WIDTH, dtype=np.float32)] * 6}


def batches(lengths=(SAMPLES, SAMPLES)):
    random = np.random.default_rng(0)
    yield tuple(random.standard_normal((n, WIDTH)).astype(np.float32) for n in lengths)


def fit(session, loss=loss_fn, optimizer=None, params=None, data=None, **settings):
    settings = {"strategy": "model", "num_microbatches": 4} | settings
    params, data = params or parameters(), data or batches()
    return jdaso.fit(loss, params, optimizer or optax.sgd(0.1), data, session=session, **settings)


MORE = SIZE + 1
SETTINGS = [
    ({"schedule": "interleaved", "chunks": 40}, r"The loss cannot be cut into \d+ stages"),
    (
        {"strategy": "hybrid", "num_partitions": MORE, "num_replicas": 1},
        rf"num_partitions times num_replicas .* got {MORE} times 1 for {SIZE} nodes",
    ),
    ({"strategy": "hybird"}, "strategy must be one of data, model, hybrid, got 'hybird'"),
    (
        {"strategy": "data", "num_partitions": 2},
        'strategy="data" holds the whole model .* got num_partitions=2',
    ),
    (
        {"num_partitions": MORE},
        rf"got num_partitions={MORE} for {SIZE} nodes(?s:.*)mpiexec -n {MORE}",
    ),
    ({"schedule": "zigzag"}, "schedule must be one of gpipe, 1f1b, interleaved, got 'zigzag'"),
    ({"schedule": "interleaved"}, "chunks of 2 or more"),
    ({"wire": "int4"}, "wire must be one of float32, bfloat16, got 'int4'"),
    (
        {"num_microbatches": SAMPLES + 1},
        "A batch of 12 samples cannot be cut into num_microbatches=13",
    ),
    (
        {"boundaries": [99] * (SIZE - 1)},
        r"boundaries must be \d rising places within 1\.\.\d+ .*99",
    ),
    ({"boundaries": ["decoder"] * (SIZE - 1)}, "Nothing in the loss is named 'decoder'"),
    ({"num_partitions": 0}, 'num_partitions must be a number, at least 1, or "auto", got 0'),
    (
        {"num_partitions": "auto", "strategy": "data"},
        "num_partitions=.auto. leaves .* got strategy='data'",
    ),
    (
        {"num_partitions": "auto", "strategy": "hybrid", "num_replicas": 1},
        'num_partitions="auto" leaves .* num_replicas=1',
    ),
]


@pytest.mark.parametrize(("settings", "said"), SETTINGS, ids=[str(x) for x, _ in SETTINGS])
def test_settings(session, settings, said):
    with pytest.raises(ValueError, match=said):
        fit(session, **settings)


@pytest.mark.parametrize(
    ("loss", "error", "said"),
    [
        (vector, TypeError, r"loss_fn must return a scalar.*\(3,\)"),
        (integer, TypeError, "The loss must be a floating-point number, got int32"),
        (side_effects, ValueError, "loss_fn has side effects"),
    ],
)
def test_losses(session, loss, error, said):
    with pytest.raises(error, match=said):
        fit(session, loss)


def test_integers_among_the_parameters(session):
    params = parameters()
    params["w"][3] = params["w"][3].astype(np.int32)
    with pytest.raises(TypeError, match=r"must be floating-point.*int32 at \['w'\]\[3\]"):
        fit(session, params=params)


def test_inputs_of_unequal_lengths(session):
    with pytest.raises(ValueError, match=r"equally long.*\[0\] \(12, 8\), \[1\] \(11, 8\)"):
        fit(session, data=batches((SAMPLES, SAMPLES - 1)))


def test_an_optimizer_that_joins_arrays(session):
    with pytest.raises(NotImplementedError, match="The optimizer joins arrays"):
        fit(session, optimizer=optax.flatten(optax.adam(0.1)))


def test_a_model_that_fits_no_number_of_partitions(session, monkeypatch):
    monkeypatch.setattr("jdaso.pipeline._plan.partition.available_bytes", lambda devices: 1)
    said = f"With num_partitions={SIZE} the largest stage still needs"
    with pytest.raises(ValueError, match=said):
        fit(session, num_partitions="auto", strategy="hybrid")


def test_plans_that_differ(session):
    places = [4 + 2 * (session.node == 1)] + [7 + n for n in range(SIZE - 2)]
    with pytest.raises(jdaso.NodeError, match="The nodes disagree on the plan"):
        fit(session, boundaries=places)


def test_parameters_that_differ(session):
    params = parameters()
    if session.node == 1:
        params["w"][0] = params["w"][0] * 2
    with pytest.raises(jdaso.NodeError, match=r"bits of leaf \['w'\]\[0\]: node 1"):
        fit(session, params=params, strategy="data")


def test_the_session_is_as_good_as_before(session):
    assert float(jdaso.mean(float(session.node), session)) == np.mean(range(SIZE))
