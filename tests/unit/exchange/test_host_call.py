"""Host functions in compiled steps: each call happens, once, and only where its branch is taken."""

import threading
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import io_callback

from jdaso import _compat
from jdaso._compat import STEP_ERRORS, host_call, steps_called

SHAPE = jax.ShapeDtypeStruct((), jnp.int32)


@pytest.fixture
def calls():
    """What `record` was called with."""
    return []


@pytest.fixture
def record(calls):
    def call(x):
        calls.append(int(x))
        return np.int32(0)

    return lambda x: host_call(call, SHAPE, x)


def test_the_step_has_no_effect_that_slows_its_dispatch(record):
    assert not jax.make_jaxpr(record)(jnp.int32(1)).effects


def test_only_the_branch_that_is_taken(calls, record):
    """XLA calls a pure callback where it likes; this one is not pure."""

    @jax.jit
    def step(x):
        return x + 1 + jax.lax.cond(x % 3 == 0, lambda: record(x), lambda: jnp.int32(0))

    x = jnp.int32(0)
    for _ in range(10):
        x = step(x)
    assert int(x) == 10 and calls == [0, 3, 6, 9]


def test_equal_calls_are_not_made_one(calls, record):
    total = jax.jit(lambda x: record(x) + record(x))(jnp.int32(7))
    assert int(total) == 0 and calls == [7, 7]


def test_in_scan_and_without_jit(calls, record):
    _, out = jax.lax.scan(lambda c, x: (c + record(x), x), jnp.int32(0), jnp.arange(4))
    out.block_until_ready()
    assert calls == [0, 1, 2, 3]
    record(jnp.int32(9)).block_until_ready()
    assert calls[-1] == 9


def test_trees_of_arrays(calls):
    shapes = {"a": jax.ShapeDtypeStruct((2,), jnp.float32), "b": (SHAPE,)}
    out = jax.jit(
        lambda x: host_call(lambda x: {"a": np.asarray(x), "b": (np.int32(3),)}, shapes, x)
    )(jnp.ones(2))
    np.testing.assert_array_equal(out["a"], np.ones(2))
    assert int(out["b"][0]) == 3


def test_it_cannot_be_mapped(record):
    with pytest.raises(NotImplementedError, match="simulated"):
        jax.jit(jax.vmap(record))(jnp.arange(3))


def test_an_exception_reaches_who_asks_for_the_result():
    def fail(x):
        raise KeyError("boom")

    step = jax.jit(lambda x: host_call(fail, SHAPE, x))
    for _ in range(2):  # compiling, and by the fast dispatch
        with pytest.raises(STEP_ERRORS, match="boom"):
            step(jnp.int32(1)).block_until_ready()


def test_waiting_for_steps_whose_results_are_held():
    done = []

    def slow(x):
        time.sleep(0.3)
        done.append(int(x))
        return np.int32(0)

    step = jax.jit(lambda x: x + 1 + host_call(slow, SHAPE, x))
    x = step(step(jnp.int32(0)))
    steps_called(jax.local_devices())()
    assert done == [0, 1] and int(x) == 2


@pytest.mark.parametrize("ordered", [False, True])
def test_another_thread_waits_for_effects_of_steps_of_which_nothing_is_held(ordered, monkeypatch):
    """JAX keeps them by threads, and runs a small step on CPUs before it returns."""
    step = jax.jit(lambda x: io_callback(lambda x: None, None, x, ordered=ordered))
    step(jnp.int32(0))
    tokens = _compat._dispatch.runtime_tokens
    kept = tokens.current_tokens if ordered else tokens.output_runtime_tokens
    assert kept, "what JAX keeps of them"
    go, waited = threading.Event(), threading.Event()

    class Token:
        def block_until_ready(self):
            assert go.wait(20)

    monkeypatch.setitem(kept, next(iter(kept)), Token())
    wait = steps_called(jax.local_devices())
    thread = threading.Thread(target=lambda: (wait(), waited.set()), daemon=True)
    thread.start()
    assert not waited.wait(0.3)
    go.set()
    assert waited.wait(20)
