"""Nodes that do not agree at `init`: an error on all of them that names node, leaf and values."""

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from mpi4py import MPI

import jdaso
from jdaso.data import Loader

pytestmark = [pytest.mark.any_mpi, pytest.mark.several, pytest.mark.three_nodes]

SIZE = MPI.COMM_WORLD.size
ODD = MPI.COMM_WORLD.rank == 1
STEPS = 20


@pytest.fixture(scope="module")
def session():
    with jdaso.Session(timeout_seconds=120) as session:
        yield session


def parameters(**odd):
    params = {"b": jnp.zeros(3), "w": jnp.arange(5.0)}
    return params | odd if ODD else params


def make(session, inner=None, wire="float32", warmup=3, delay=2):
    phases = jdaso.Phases(STEPS, warmup, 4, 4, delay=delay)
    return jdaso.daso(inner or optax.adam(1e-2), phases=phases, session=session, wire=wire)


class Best(NamedTuple):
    best: jax.Array


def best(value):
    """Keeps a number in its state, which differs between nodes."""
    init = lambda params: Best(jnp.float32(value))  # noqa: E731
    return optax.GradientTransformation(init, lambda updates, state, params=None: (updates, state))


SAID = {
    "shape": r"leaf \['b'\]: node 1 has float32\[4\], the others float32\[3\]",
    "dtype": r"leaf \['b'\]: node 1 has bfloat16\[3\]",
    "tree": r"leaf \['c'\]|the tree",
    "bits": r"bits of leaf \['b'\]: node 1 .*jdaso.broadcast",
    "phases": r"the setting phases: node 1 has .*delay=1",
    "wire": r"the setting wire: node 1 has bfloat16",
    "inner": r"the inner optimizer's state: node 1 has empty, the others \[0\]\.count int32",
    "rates": r"second moments that are shared: node 1 has 2 leaves b1 = 0.9 and b2 = 0.95, the oth",
    "infinity": r"inner optimizer's numbers: node 1 has \[1\]\.best, the others finite",
}


@pytest.mark.parametrize("case", SAID)
def test_init_names_what_differs(session, case):
    settings, odd = {}, {}
    if ODD and case == "phases":
        settings["delay"] = 1
    if ODD and case == "wire":
        settings["wire"] = "bfloat16"
    if ODD and case == "inner":
        settings["inner"] = optax.sgd(1e-2)
    if ODD and case == "rates":
        settings["inner"] = optax.adam(1e-2, b2=0.95)
    if case == "infinity":
        settings["inner"] = optax.chain(optax.adam(1e-2), best(float("inf") if ODD else 1.0))
    if case == "shape":
        odd = {"b": jnp.zeros(4)}
    if case == "dtype":
        odd = {"b": jnp.zeros(3, jnp.bfloat16)}
    if case == "tree":
        odd = {"c": jnp.zeros(3)}
    if case == "bits":
        odd = {"b": jnp.ones(3)}
    with pytest.raises(jdaso.NodeError, match=SAID[case]):
        make(session, **settings).init(parameters(**odd))


@pytest.mark.parametrize(
    ("warmup", "said"),
    [
        (3, r"Nodes differ at the first update: node 1 in params\[.b.\].*jdaso.broadcast"),
        (0, "Nodes differ at the first update: nodes 1"),
    ],
)
def test_where_init_is_traced_the_first_meeting_names_it(warmup, said):
    with jdaso.Session(timeout_seconds=120) as session:
        assert_first_meeting_raises(session, warmup, said)


def assert_first_meeting_raises(session, warmup, said):
    tx = make(session, warmup=warmup)
    params = parameters(b=jnp.ones(3))
    state = jax.jit(tx.init)(params)

    @jax.jit
    def step(params, state):
        updates, state = tx.update(jax.tree.map(jnp.ones_like, params), state, params)
        return optax.apply_updates(params, updates), state

    with pytest.raises(jdaso.NodeError, match=said), session.told():
        for _ in range(4):  # without a warm-up the first merge is the first to compare
            params, state = jax.block_until_ready(step(params, state))


@pytest.mark.parametrize("engine", ["mpi4py", "mpi4jax"])
def test_optimizers_of_equal_shapes_that_nodes_update_in_other_orders(engine):
    """Equal parameters give equal checksums, so gradients would be mixed."""
    if engine == "mpi4jax":
        pytest.importorskip("mpi4jax")
    params, said = jnp.zeros(3), "node 0 with number 1, node 1 with number 2"
    with jdaso.Session(timeout_seconds=120, engine=engine) as session:
        pair = [jdaso.synchronous(optax.sgd(1.0), session=session) for _ in "ab"]
        states = [tx.init(params) for tx in pair]
        which = int(ODD)
        step = jax.jit(pair[which].update)
        with pytest.raises(jdaso.NodeError, match=said), session.told():
            jax.block_until_ready(step(jnp.ones(3), states[which], params))


def test_the_session_is_as_good_as_before(session):
    """The errors leave no message behind that a later collective would receive."""
    assert float(jdaso.mean(float(session.node), session)) == np.mean(range(SIZE))


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class Dense:
    """A layer with a function that no other process has at the same place."""

    kernel: jax.Array
    act: Any = dataclasses.field(metadata={"static": True})


def test_functions_in_a_tree_are_compared_by_their_names(session):
    filler = [object() for _ in range(1000 * MPI.COMM_WORLD.rank)]  # other places in memory

    def act(x):
        return x + len(filler)

    params = Dense(jnp.zeros(3), act)
    tx = make(session)
    jdaso.finalize(params, tx.init(params), session)


def test_a_broadcast_of_other_bytes_is_refused(session):
    """NumPy's float64 is float32 to JAX."""
    value = np.zeros(3, np.float64 if ODD else np.float32)
    with pytest.raises(jdaso.NodeError, match=r"dtype of leaf .*node 1 has float64"):
        jdaso.broadcast({"w": value}, session)
    same = np.full(3, float(ODD), np.float32)
    found = jdaso.broadcast({"w": jnp.asarray(same) if ODD else same}, session)
    np.testing.assert_array_equal(found["w"], 0.0)


@pytest.mark.several
def test_a_loader_that_is_made_wrong_on_one_node_is_an_error_on_all():
    with jdaso.Session(timeout_seconds=120) as session:
        workers = 0 if session.node == 1 else 2
        with pytest.raises(ValueError, match="workers must be at least 1, got 0"):
            Loader(np.arange(12), session.num_nodes, session, workers=workers)
