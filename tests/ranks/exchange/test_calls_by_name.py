"""Steps of several nodes come from JAX's compilation cache at a second start."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from second_start import starts

import jdaso
from jdaso._jax.ffi import functions, library
from jdaso._jax.host_call import STEP_ERRORS
from jdaso._session.channels import Channels

pytestmark = pytest.mark.two_nodes
STEPS = 8
PHASES = jdaso.Phases(STEPS, 2, 2, sync_every=2, delay=1)
MAKE = {
    "daso": lambda session: jdaso.daso(optax.adam(0.1), phases=PHASES, session=session),
    "int8": lambda session: jdaso.daso(
        optax.adam(0.1), phases=PHASES, session=session, wire="int8"
    ),
    "synchronous": lambda session: jdaso.synchronous(optax.adam(0.1), session=session),
}


@pytest.mark.several
@pytest.mark.any_mpi
@pytest.mark.parametrize("name", MAKE)
def test_a_second_start_compiles_nothing_and_gives_the_same_bits(name, tmp_path, monkeypatch):
    """Names come from the optimizer's number and the layout; nothing of a process is in them."""
    monkeypatch.setenv("JDASO_FFI", "auto")
    if library.target(("cpu",), 1) is None:
        pytest.skip("there is no C++ compiler")
    ends = []
    with starts(tmp_path, monkeypatch) as begin:
        for found in ("misses", "hits"):
            events = begin()
            with jdaso.Session(timeout_seconds=120) as session:
                tx = MAKE[name](session)

                @jax.jit
                def step(params, state, node, tx=tx):
                    grads = jax.tree.map(lambda x: x - node, params)
                    updates, state = tx.update(grads, state, params)
                    return optax.apply_updates(params, updates), state, jdaso.mean(node, session)

                params = {"a": jnp.ones(5), "b": jnp.zeros((2, 3))}
                state, node = tx.init(params), jnp.float32(session.node)
                for _ in range(STEPS):
                    params, state, mean = step(params, state, node)
                assert float(mean) == (session.num_nodes - 1) / 2
                ends.append(jax.device_get(params))
            assert set(events) == {found}
    jax.tree.map(np.testing.assert_array_equal, *ends)


@pytest.mark.several
@pytest.mark.any_mpi
@pytest.mark.parametrize("way", ["auto", "off"])
def test_a_step_of_a_closed_session_raises_and_holds_nothing_of_it(way, monkeypatch):
    monkeypatch.setenv("JDASO_FFI", way)
    with jdaso.Session(timeout_seconds=120) as session:
        mean = jax.jit(lambda x, session=session: jdaso.mean(x, session))
        assert float(mean(jnp.float32(session.node))) == (session.num_nodes - 1) / 2
        names = list(functions._held.get(id(session), ()))
        assert bool(names) == (way == "auto")
    with pytest.raises(STEP_ERRORS, match="This session was closed, and a compiled step"):
        mean(jnp.float32(0)).block_until_ready()
    assert all(isinstance(functions._functions[name], jdaso.NodeError) for name in names)


@pytest.fixture
def names(monkeypatch):
    """Names of the channels that are opened."""
    found, open_channel = set(), Channels.of

    def noted(self, layout, wire, name):
        found.add(name)
        return open_channel(self, layout, wire, name)

    monkeypatch.setattr(Channels, "of", noted)
    return found


def loop(x, turns):
    return jax.lax.fori_loop(0, turns, lambda _, y: jnp.tanh(y @ y * 1e-3 + x), x)


@pytest.mark.several
def test_means_of_one_shape_in_one_step_have_a_channel_each(names):
    """XLA orders the two on each node as it likes, so they must not meet in one channel."""
    with jdaso.Session(timeout_seconds=120) as session:

        @jax.jit
        def step(x, *turns):
            first, second = (jnp.sum(loop(x, n)) * 0 for n in turns)
            node = jnp.float32(session.node)
            return jdaso.mean(first + node, session), jdaso.mean(second - node, session)

        x, mean = jnp.full((100, 100), 0.01), (session.num_nodes - 1) / 2
        for number in range(3):
            turns = (200, 1) if (session.node + number) % 2 else (1, 200)
            assert [float(found) for found in step(x, *turns)] == [mean, -mean]
        assert float(jdaso.mean(mean, session)) == mean
    assert sorted(names) == ["mean 0", "mean 1"]


@pytest.mark.several
def test_means_in_branches_have_channels_of_their_own(names):
    """Each body is traced by itself. The nodes reach the calls in different orders."""
    with jdaso.Session(timeout_seconds=120) as session:
        mean_of = lambda x: jdaso.mean(x, session)  # noqa: E731

        @jax.jit
        def step(x, due, *turns):
            first, second = (jnp.sum(loop(x, n)) * 0 for n in turns)
            node = jnp.float32(session.node)
            inner = jax.lax.cond(due, lambda: mean_of(10 * node + first), lambda: first)
            again = jax.lax.cond(due, lambda: mean_of(20 * node + first), lambda: first)
            return inner, again, mean_of(second - node)

        x, mean = jnp.full((100, 100), 0.01), (session.num_nodes - 1) / 2
        for number in range(4):
            turns = (200, 1) if (session.node + number) % 2 else (1, 200)
            found = [float(x) for x in step(x, jnp.bool(True), *turns)]
            assert found == [10 * mean, 20 * mean, -mean]
    assert sorted(names) == ["mean 0.0", "mean 1.0", "mean 2"]
