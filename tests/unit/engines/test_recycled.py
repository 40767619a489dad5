"""Memory of arrays that are dropped goes to the next ones of their size, and to no one earlier."""

import threading
import weakref

import jax
import numpy as np
import pytest

from jdaso._engines import recycled
from jdaso._engines.recycled import _CALLS, Recycled
from jdaso._jax.ffi import aligned


def test_memory_is_used_again_once_the_last_view_is_gone(monkeypatch):
    made, memory = [], Recycled()
    empty = aligned.empty
    monkeypatch.setattr(aligned, "empty", lambda *about: made.append(about) or empty(*about))
    first = memory.empty((3, 100), np.float32)
    address, view = first.ctypes.data, first[1][:10].reshape(2, 5)
    del first
    other = memory.empty((3, 100), np.float32)
    assert other.ctypes.data != address
    view[:] = 7
    del view
    again = memory.empty(1200, np.uint8)  # as many bytes
    assert again.ctypes.data == address
    assert other.ctypes.data != again.ctypes.data
    assert len(made) == 2


def test_an_array_that_jax_has_keeps_its_memory():
    memory = Recycled()
    numbers = memory.empty(1000, np.float32)
    numbers[:] = np.arange(1000)
    address = numbers.ctypes.data
    kept = jax.device_put(numbers, jax.devices("cpu")[0])
    del numbers
    if kept.unsafe_buffer_pointer() != address:
        pytest.skip("JAX has copied it")
    assert memory.empty(1000, np.float32).ctypes.data != address
    np.testing.assert_array_equal(kept, np.arange(1000, dtype=np.float32))


@pytest.mark.parametrize("shape", [0, (3, 0), 5, (2, 3)])
def test_shapes_and_addresses(shape):
    array = Recycled().empty(shape, np.float32)
    assert array.shape == np.empty(shape).shape and array.dtype == np.float32
    assert array.flags.c_contiguous and array.flags.writeable
    assert not array.size or array.ctypes.data % aligned.ALIGNMENT == 0


def test_memory_that_nothing_needs_for_long_goes_back():
    memory = Recycled()

    def block():
        array = memory.empty(1000, np.uint8)
        return array.ctypes.data

    address, kept = block(), weakref.ref(memory._idle[1000][0])
    for _ in range(_CALLS):
        assert block() == address  # needed again and again
    for _ in range(2 * _CALLS):
        memory.empty(10, np.uint8)
    assert kept() is None


@pytest.mark.parametrize("keeps", [True, False])
def test_malloc_keeps_memory_if_it_is_set_to(monkeypatch, keeps):
    monkeypatch.setattr(recycled, "keeps_freed_memory", lambda: keeps)
    monkeypatch.setattr(recycled, "_recycled", own := Recycled())
    array = recycled.empty((3, 50), np.float32)
    assert array.shape == (3, 50) and array.ctypes.data % aligned.ALIGNMENT == 0
    del array
    assert sum(map(len, own._idle.values())) == (0 if keeps else 1)


def test_threads_never_share_memory():
    memory, wrong = Recycled(), []

    def take(number):
        for _ in range(300):
            array = memory.empty(64, np.int64)
            array[:] = number
            if (array != number).any():
                wrong.append(number)

    threads = [threading.Thread(target=take, args=(k,)) for k in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert not wrong
