"""A bit that flips in what nodes hold alike is found at the next exchange, and can be mended."""

import dataclasses
import time

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from mpi4py import MPI
from nights import rows

import jdaso

pytestmark = [pytest.mark.any_mpi, pytest.mark.several, pytest.mark.three_nodes]

COMM = MPI.COMM_WORLD
ODD = 1
STEPS, PHASES = 24, jdaso.Phases(24, 6, 8, 4, 2)  # cycling: 6 .. 15

# The flipped value, the update before which it flips; the error's text; settings.
IN_TWO = dataclasses.replace(PHASES, fragments=2)
CASES = {
    "warm-up": ("params", 3, "params['w']", {}),
    "warm-up, parameters": ("params", 3, "params['w']", {"blocking": "parameters"}),
    "inner state": ("inner", 3, "params['w']", {}),
    "common point": ("anchor", 10, "anchor['w'][0:20]", {"wire": "int8", "phases": IN_TWO}),
    "delay": ("delay", 10, "phase.delay", {}),
    "outer optimizer's": ("anchor", 10, "anchor['w']", {"merge": jdaso.outer(optax.sgd(0.7))}),
    "phase": ("phase", 10, "phase.bad_windows", {}),
    "cool-down": ("params", 20, "params['w']", {"wire": "bfloat16"}),
}


@pytest.fixture
def session():
    with jdaso.Session() as session:
        yield session


def flip(tree, bit, element=5):
    """One bit of one number of the leaf "w": 21 is of the mantissa, 30 makes 1.0 infinite."""
    word = np.array(tree["w"])
    word.reshape(-1).view(np.uint32)[element] ^= np.uint32(1 << bit)
    return tree | {"w": jnp.asarray(word)}


def flip_anchor(session, bit):
    """One bit of the common point that the host holds of the first fragment with a part of "w"."""
    (completion,) = session.optimizers.completions.values()
    for versions, _ in completion.held():
        for leaf, begin in zip(versions.layout.exchanged, versions.layout.offsets, strict=False):
            if leaf.path.startswith("['w']"):
                ((*_, version),) = versions._known.values()
                chunks = [np.array(x) for x in version.anchor]
                chunks[0].reshape(-1).view(np.uint32)[begin + 5] ^= np.uint32(1 << bit)
                version.anchor = tuple(chunks)
                return
    raise AssertionError("no fragment has it")


def disturb(session, what, params, state, bit, element):
    if callable(what):
        return params, what(state)
    if what == "params":
        return flip(params, bit, element), state
    if what == "anchor":
        flip_anchor(session, bit)
        return params, state
    if what == "delay":  # longer than there is time: it must not keep the node from merging
        return params, state._replace(phase=state.phase._replace(delay=jnp.int32(9)))
    if what == "phase":
        return params, state._replace(phase=state.phase._replace(bad_windows=jnp.int32(3)))
    momentum, *rest = state.inner
    momentum = momentum._replace(trace=flip(momentum.trace, bit))
    return params, state._replace(inner=(momentum, *rest))


def train(session, tx, what=None, at=None, bit=21, element=5):
    params = {"b": jnp.linspace(0, 1, 70), "n": jnp.int32(session.node), "w": jnp.ones((64, 3))}
    state = tx.init({**params, "n": jnp.int32(0)})

    @jax.jit
    def step(params, state, x):
        def loss(floats):
            return jnp.mean((floats["b"] * x - 1) ** 2) + jnp.mean((floats["w"] - x[:3]) ** 2)

        floats = {k: v for k, v in params.items() if k != "n"}
        value, grads = jax.value_and_grad(loss)(floats)
        grads["n"] = jnp.int32(0)
        updates, state = tx.update(grads, state, params, value=value)
        return optax.apply_updates(params, updates), state

    random = np.random.default_rng(session.node)
    for n in range(STEPS):
        if n == at and session.node == ODD:
            params, state = disturb(session, what, params, state, bit, element)
        with session.told():
            x = jnp.asarray(random.normal(size=70), jnp.float32)
            params, state = jax.block_until_ready(step(params, state, x))
    return params


def everyones(params):
    return COMM.allgather([np.asarray(params[name]).tobytes() for name in ("b", "w")])


def make(session, kind, on_drift, settings):
    inner = optax.sgd(1e-2, momentum=0.9)
    if kind == "synchronous":
        return jdaso.synchronous(inner, session=session, on_drift=on_drift, **settings)
    settings = {"phases": PHASES, "on_drift": on_drift, **settings}
    return jdaso.daso(inner, session=session, **settings)


@pytest.mark.parametrize(
    "case", rows(CASES, ["warm-up", "inner state", "common point", "phase", "cool-down"])
)
def test_all_nodes_name_leaf_and_node(session, case):
    what, at, said, settings = CASES[case]
    tx = make(session, "daso", "raise", settings)
    with pytest.raises(jdaso.NodeError) as raised:
        train(session, tx, what, at)
    text = str(raised.value)
    if session.num_nodes == 2:  # which of two is right, nobody knows
        assert f"in {said}" in text
    else:
        assert f"same: node {ODD} in {said}. " in text and "on_drift" in text
    found = at + (what == "inner")
    assert f"step {found}]" in text


def test_a_difference_before_the_first_start_of_any_fragment_is_named(session):
    """Element 130 of w is in the second fragment, whose first start comes two steps later."""
    settings = {"wire": "int8", "phases": IN_TWO}
    tx = make(session, "daso", "raise", settings)
    with pytest.raises(jdaso.NodeError, match=r"anchor\['w'\]"):
        train(session, tx, "params", PHASES.warmup_steps, element=130)


@pytest.mark.parametrize("sync_every", [3, 5])
def test_a_schedule_that_has_changed_is_named(session, sync_every):
    def change(state):
        return state._replace(phase=state.phase._replace(sync_every=jnp.int32(sync_every)))

    with pytest.raises(jdaso.NodeError, match=r"hold different bits .*in phase.sync_every"):
        train(session, make(session, "daso", "raise", {}), change, 8)


def test_a_flip_before_the_first_exchange_is_never_sent_on(session):
    with pytest.raises(jdaso.NodeError, match="hold different bits"):
        train(session, make(session, "daso", "raise", {}), "params", PHASES.warmup_steps, 30)


@pytest.mark.parametrize("blocking", ["gradients", "parameters"])
def test_synchronous_training_is_watched_too(session, blocking):
    tx = make(session, "synchronous", "raise", {"blocking": blocking})
    with pytest.raises(jdaso.NodeError, match=r"different bits .*in params\['w'\]"):
        train(session, tx, "params", 5)


def test_what_is_to_be_ignored_is(session):
    all_nodes = everyones(train(session, make(session, "daso", "ignore", {}), "params", 3))
    assert all(one == all_nodes[0] for one in all_nodes)  # the cool-down has averaged it


def test_a_setting_that_is_none_is_refused(session):
    with pytest.raises(ValueError, match='on_drift must be "raise" or "ignore"'):
        make(session, "daso", "pray", {})


def test_a_bit_is_found_while_the_program_is_in_a_call_of_its_own(session):
    """Node 0's program is there first, the others' steps are: the orders must not matter."""
    tx = jdaso.daso(optax.sgd(0.1), phases=PHASES, session=session)
    params = {"w": jnp.ones((64, 3))}
    state = tx.init(params)

    @jax.jit
    def step(params, state):
        x = jax.lax.fori_loop(0, 200, lambda _, x: jnp.tanh(x @ x), jnp.full((300, 300), 1e-3))
        grads = jax.tree.map(lambda p: 1e-3 * p + 0 * x.sum(), params)
        updates, state = tx.update(grads, state, params)
        return optax.apply_updates(params, updates), state

    params, state = jax.block_until_ready(step(params, state))
    params = flip(params, 21) if session.node == ODD else params
    with pytest.raises((jdaso.NodeError, ValueError, jax.errors.JaxRuntimeError)) as caught:
        params, state = step(params, state)
        if session.node != 0:
            time.sleep(1.5)  # the order is what is tested
        jdaso.mean(np.float32(1.0), session)
        jax.block_until_ready(params)
    text = str(caught.value)
    assert "params['w']" in text and (session.num_nodes == 2 or f"same: node {ODD} in " in text)
