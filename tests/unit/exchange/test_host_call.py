"""Host functions in compiled steps: each call happens, once, and only where its branch is taken.

All of it by both ways: the handler of `jdaso/_jax/ffi`, and JAX's Python callback.
"""

import re
import threading
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import io_callback
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxlib import xla_client

from jdaso._jax import host_call as host_calls
from jdaso._jax.ffi import library
from jdaso._jax.host_call import STEP_ERRORS, host_call, steps_called

SHAPE = jax.ShapeDtypeStruct((), jnp.int32)
DEVICES = 4


@pytest.fixture(autouse=True, params=["auto", "off"])
def way(request, monkeypatch):
    """Chooses the way of the calls by its environment variable."""
    monkeypatch.setenv("JDASO_FFI", request.param)
    if request.param == "auto" and library.target(("cpu",), 1) is None:
        pytest.skip("there is no C++ compiler")
    return request.param


@pytest.fixture(scope="module")
def mesh():
    """Several devices of a client of their own: JAX has made its one device already."""
    made = xla_client.make_cpu_client(num_devices=DEVICES)
    return Mesh(np.asarray(made.local_devices()), "d")


@pytest.fixture
def calls():
    """The arguments of all calls of `record`."""
    return []


@pytest.fixture
def record(calls):
    def call(x):
        calls.append(int(x))
        return np.int32(0)

    return lambda x: host_call(call, SHAPE, x)


def test_the_variable_chooses_the_way(record, way):
    text = jax.jit(record).lower(jnp.int32(1)).as_text()
    assert (library.TARGET in text) == (way == "auto")
    assert ("xla_ffi_python" in text) == (way == "off")


def test_a_function_has_the_same_name_in_all_programs_that_it_is_compiled_to(record, way):
    both = jax.jit(lambda x: record(x) + record(x))
    names = [
        re.findall(r"call #\d+", jax.jit(outer).lower(jnp.int32(1)).as_text())
        for outer in (lambda x: both(x) + 1, lambda x: both(x) * 2)
    ]
    assert names[0] == names[1] and len(set(names[0])) == (2 if way == "auto" else 0)


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


@pytest.mark.parametrize("kept", [True, False])
def test_a_call_whose_result_is_unused_is_made_only_if_it_is_kept(calls, kept):
    def call(x):
        calls.append(int(x))
        return np.int32(0)

    @jax.jit
    def step(x):
        host_call(call, SHAPE, x, kept=kept)
        return x + 1

    step(jnp.int32(3)).block_until_ready()
    jax.effects_barrier()
    assert calls == [3] * kept


DTYPES = ["float32", "bfloat16", "int8", "uint32", "bool", "complex64"]


@pytest.mark.parametrize("shape", [(), (3,), (2, 3), (0,), (4, 0)])
@pytest.mark.parametrize("dtype", DTYPES)
def test_arrays_of_any_shape_and_dtype(shape, dtype):
    given = jnp.asarray(np.random.default_rng(0).normal(size=shape) > 0).astype(dtype)
    about = jax.ShapeDtypeStruct(shape, given.dtype)
    out = jax.jit(lambda x: host_call(lambda x: x, about, x))(given)
    assert out.dtype == given.dtype
    np.testing.assert_array_equal(out, given)


def test_a_matrix_arrives_row_by_row_whatever_its_layout():
    given = jnp.arange(6.0).reshape(2, 3)
    about = jax.ShapeDtypeStruct((3, 2), given.dtype)
    out = jax.jit(lambda x: host_call(np.array, about, x.T * 2))(given)
    np.testing.assert_array_equal(out, 2 * given.T)


def test_the_arguments_cannot_be_written():
    def write(x):
        x[:] = 0
        return np.int32(0)

    with pytest.raises(STEP_ERRORS, match="read-only"):
        jax.jit(lambda x: host_call(write, SHAPE, x))(jnp.ones(3)).block_until_ready()


def test_a_number_of_python_is_as_wide_as_jax_makes_it():
    assert int(jax.jit(lambda x: host_call(lambda _: 5, SHAPE, x))(jnp.int32(1))) == 5


@pytest.mark.parametrize("wrong", [np.zeros(2, np.int32), np.float32(1), np.zeros((1,), np.int32)])
def test_a_result_of_another_shape_or_dtype_is_an_error(wrong):
    with pytest.raises(STEP_ERRORS, match="result 0|value #0"):
        jax.jit(lambda x: host_call(lambda _: wrong, SHAPE, x))(jnp.int32(1)).block_until_ready()


def test_too_few_results_are_an_error():
    with pytest.raises(STEP_ERRORS, match="returned 1 arrays, not 2|Expected: 2"):
        step = jax.jit(lambda x: host_call(lambda _: np.int32(1), (SHAPE, SHAPE), x))
        jax.block_until_ready(step(jnp.int32(1)))


def test_compiled_ahead_of_time_and_donated(calls, record):
    step = jax.jit(lambda x: (x + record(x[0].astype(jnp.int32)), x[1]), donate_argnums=0)
    compiled = step.lower(jnp.ones(2)).compile()
    x, one = compiled(jnp.ones(2))
    x, one = compiled(x)
    assert float(one) == 1 and calls == [1, 1]


def test_each_device_of_a_shard_map_calls_at_the_same_time_as_the_others(mesh):
    met, seen = threading.Barrier(DEVICES), []

    def call(x):
        met.wait(20)
        seen.append(x.tolist())
        return np.int32(x.sum())

    def each(x):
        return jax.lax.psum(host_call(call, SHAPE, x), "d")

    spec = PartitionSpec("d")
    step = jax.jit(jax.shard_map(each, mesh=mesh, in_specs=spec, out_specs=PartitionSpec()))
    x = jax.device_put(np.arange(2 * DEVICES, dtype=np.int32), NamedSharding(mesh, spec))
    for _ in range(3):
        assert int(step(x)) == sum(range(2 * DEVICES))
    assert sorted(seen) == sorted([[k, k + 1] for k in range(0, 2 * DEVICES, 2)] * 3)


def test_one_branch_of_each_device_of_a_shard_map(mesh, calls, record):
    def each(x):
        here = jax.lax.axis_index("d") == 2
        return jax.lax.psum(jax.lax.cond(here, lambda: record(x[0]), lambda: jnp.int32(0)), "d")

    spec = PartitionSpec("d")
    step = jax.jit(jax.shard_map(each, mesh=mesh, in_specs=spec, out_specs=PartitionSpec()))
    x = jax.device_put(np.arange(DEVICES, dtype=np.int32), NamedSharding(mesh, spec))
    step(x).block_until_ready()
    assert calls == [2]


@pytest.mark.parametrize("kept", [True, False])
def test_a_step_of_several_devices_calls_once_with_the_whole_array(mesh, kept):
    seen = []

    def call(x):
        seen.append(x.tolist())
        return x * 2

    about = jax.ShapeDtypeStruct((DEVICES,), jnp.float32)
    step = jax.jit(lambda x: 1 + host_call(call, about, x + 1, kept=kept))
    x = jax.device_put(
        np.arange(DEVICES, dtype=np.float32), NamedSharding(mesh, PartitionSpec("d"))
    )
    np.testing.assert_array_equal(step(x), 2 * np.arange(1, DEVICES + 1) + 1)
    assert seen == [list(range(1, DEVICES + 1))]


def test_it_cannot_be_mapped(record):
    with pytest.raises(NotImplementedError, match="Simulated"):
        jax.jit(jax.vmap(record))(jnp.arange(3))


def test_an_exception_reaches_the_reader_of_the_result():
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
    tokens = host_calls._dispatch.runtime_tokens
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
