"""Results in pinned memory are read where they lie; that memory goes back once nothing uses it."""

import ctypes
import gc

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jdaso._jax.ffi import library, pinned
from jdaso._jax.ffi.functions import ArrayType, add, entry
from jdaso._jax.host_call import host_call

SIZE = 1000
FLOATS = ArrayType((SIZE,), np.dtype(np.float32))


class Allocator:
    """Stands for CUDA's driver: memory of the host, by address."""

    def __init__(self):
        self.out, self.back = {}, []

    def take(self, nbytes):
        memory = np.ones(nbytes, np.uint8)
        self.out[memory.ctypes.data] = memory
        return memory.ctypes.data

    def zeros(self, size=SIZE, dtype=np.float32):
        return pinned.zeros(size, dtype, self.take, self.back.append)


@pytest.fixture
def allocator():
    return Allocator()


def call(name, *arrays):
    """Calls a function as `call.cc` does; returns the status and each array's new place."""
    about = [n for x in arrays for n in (x.ctypes.data, x.nbytes)]
    numbers = (ctypes.c_int64 * len(about))(*about)
    text = ctypes.create_string_buffer(4096)
    status = entry(name.encode(), len(about), ctypes.addressof(numbers), text, 4096)
    return status, list(numbers[::2])


def test_it_is_zeros_and_goes_back_once_nothing_refers_to_it(allocator):
    array = allocator.zeros()
    assert array.dtype == np.float32 and not array.any() and pinned.holds(array)
    view, address = array[10:20], array.ctypes.data
    del array
    gc.collect()
    assert pinned.holds(view) and not allocator.back
    del view
    gc.collect()
    assert allocator.back == [address] and not pinned._ranges


def test_where_there_is_none_any_memory_serves(allocator):
    array = pinned.zeros(SIZE, np.float32, lambda nbytes: None, allocator.back.append)
    assert not array.any() and not pinned.holds(array)
    assert allocator.zeros(0).size == 0 and not allocator.out
    array = library.host_memory(SIZE, np.dtype(np.float32))
    assert not array.any() and pinned.holds(array) == (jax.default_backend() == "gpu")


def test_only_what_lies_in_it_in_one_piece_is_in_it(allocator):
    array = allocator.zeros()
    assert not pinned.holds(array[::2]) and not pinned.holds(np.zeros(SIZE, np.float32))


def test_a_result_in_it_is_not_copied_and_lives_until_the_next_call(allocator):
    given = [allocator.zeros()]
    given[0] += 3
    address = given[0].ctypes.data
    name = add("lend", lambda x: [given[0], 2 * x], [FLOATS], [FLOATS, FLOATS])
    taken, first, second = np.ones(SIZE, np.float32), *np.zeros((2, SIZE), np.float32)
    status, addresses = call(name, taken, first, second)
    assert status == 1
    assert addresses == [taken.ctypes.data, address, second.ctypes.data]
    assert not first.any() and (second == 2).all()
    given[0] = np.ones(SIZE, np.float32)
    gc.collect()
    assert not allocator.back
    call(name, taken, first, second)
    gc.collect()
    assert allocator.back == [address] and (first == 1).all()


def test_a_step_reads_it(allocator):
    """The step uses the handler of CPUs, which copies the result."""
    array = allocator.zeros()
    array[:] = np.arange(SIZE)

    @jax.jit
    def step(x):
        about = jax.ShapeDtypeStruct((SIZE,), np.float32)
        return host_call(lambda n: array, about, x) + 1

    np.testing.assert_array_equal(step(jnp.int32(1)), np.arange(SIZE) + 1)
    array *= 2
    np.testing.assert_array_equal(step(jnp.int32(1)), 2 * np.arange(SIZE) + 1)
