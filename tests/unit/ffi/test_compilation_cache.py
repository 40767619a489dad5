"""Steps that call the host come from JAX's compilation cache at a second start."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from second_start import starts

from jdaso._jax.ffi import library
from jdaso._jax.host_call import host_call

SHAPE = jax.ShapeDtypeStruct((), jnp.int32)


@pytest.fixture
def start(tmp_path, monkeypatch):
    with starts(tmp_path, monkeypatch) as begin:
        yield begin


@pytest.fixture(autouse=True)
def handler(monkeypatch):
    monkeypatch.setenv("JDASO_FFI", "auto")
    if library.target(("cpu",), 1) is None:
        pytest.skip("there is no C++ compiler")


def step_of(calls, number):
    def call(x):
        calls.append((number, int(x)))
        return np.int32(number)

    return jax.jit(lambda x: x + host_call(call, SHAPE, x))


def test_a_second_start_loads_the_program_and_calls_its_own_function(start):
    x, calls, seen = jnp.int32(5), [], []
    for number in (1, 2):
        events = start()
        assert int(step_of(calls, number)(x)) == 5 + number
        seen.append(events[:])
    assert calls == [(1, 5), (2, 5)]
    assert seen == [["misses"], ["hits"]]


def test_another_order_of_two_functions_of_one_name_compiles_and_calls_the_right_ones(start):
    """The names differ then, and so do the programs: none is mistaken for the other."""
    x, calls = jnp.int32(0), []
    for order in ((1, 2), (2, 1), (2,)):
        start()
        steps = {number: step_of(calls, number).lower(x).compile() for number in order}
        for number, step in steps.items():
            assert int(step(x)) == number
    assert [number for number, _ in calls] == [1, 2, 2, 1, 2]


def test_a_program_loaded_without_being_traced_is_an_error_not_a_crash(start):
    step = step_of([], 1).lower(jnp.int32(0)).compile()
    start()
    with pytest.raises(jax.errors.JaxRuntimeError, match="compiled by another process"):
        step(jnp.int32(0)).block_until_ready()
