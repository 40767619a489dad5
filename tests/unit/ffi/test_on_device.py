"""Operands left on a GPU, played with memory of the host: a function copies them where it likes."""

import ctypes
import time

import jax.numpy as jnp
import numpy as np
import pytest

from jdaso._engines.staging import Leaves, Places
from jdaso._jax.ffi import on_device
from jdaso._jax.ffi.copying import copy_all
from jdaso._jax.ffi.functions import ArrayType, add, entry
from jdaso._jax.ffi.on_device import OnDevice, copy_out, waited_seconds
from jdaso._payload.layout import layout_of
from jdaso._payload.wire import WIRES

SIZE = 1000


class Driver:
    """Stands for `jdaso_copy_out`: copies memory of the host."""

    def __init__(self, fails=0):
        self.fails, self.calls = fails, []

    def __call__(self, count, address):
        numbers = list((ctypes.c_int64 * (3 * count)).from_address(address))
        self.calls.append(count)
        for target, source, nbytes in zip(numbers[::3], numbers[1::3], numbers[2::3], strict=True):
            if nbytes and not self.fails:
                ctypes.memmove(target, source, nbytes)
        return self.fails


@pytest.fixture
def driver(monkeypatch):
    monkeypatch.setattr(on_device, "_copier", [])
    made = Driver()
    on_device.copy_by(made)
    return made


def left(array):
    return OnDevice(array.shape, array.dtype, array.ctypes.data)


def test_a_function_gets_what_is_left_and_copies_it(driver):
    number, there = np.array(3, np.int32), np.arange(SIZE, dtype=np.float32)
    found = np.zeros(SIZE, np.float32)

    def function(number, operand):
        assert isinstance(operand, OnDevice) and operand.nbytes == there.nbytes
        copy_all([(found, operand)])
        return [number + 1]

    arrays = [ArrayType((), np.dtype(np.int32)), ArrayType((SIZE,), found.dtype)]
    name = add("f", function, arrays, arrays[:1])
    place = np.zeros((), np.int32)
    given = [number.ctypes.data, 4, there.ctypes.data, -there.nbytes, place.ctypes.data, 4]
    numbers, text = (ctypes.c_int64 * 6)(*given), ctypes.create_string_buffer(4096)
    status = entry(name.encode(), 6, ctypes.addressof(numbers), ctypes.addressof(text), 4096)
    assert (status, text.value, int(place)) == (1, b"", 4)
    np.testing.assert_array_equal(found, there)


def test_leaves_of_each_kind_arrive_as_those_of_the_host_do(driver):
    """Leaves cross the ends of chunks, and complex ones are two numbers each."""
    rng = np.random.default_rng(0)
    arrays = [rng.normal(size=(30, n)).astype(np.float32) for n in (1, 50, 170)]
    arrays += [(arrays[1] + 1j).astype(np.complex64), np.zeros((0, 3), np.float32)]
    arrays += [np.array(2, np.float32)]
    layout = layout_of([jnp.asarray(x) for x in arrays], 2, 8192)
    assert len(layout.widths) > 3
    exchanged = [x for x in arrays if x.size]
    of_host, of_gpu = (Places(layout, WIRES["float32"]).free() for _ in range(2))
    chunks = list(Leaves(layout).write(exchanged, of_host))
    assert list(Leaves(layout).write([left(x) for x in exchanged], of_gpu)) == chunks
    assert len(driver.calls) == len(chunks)  # each is waited for by itself
    np.testing.assert_array_equal(of_gpu.whole, of_host.whole)


def test_ranges():
    array = left(np.arange(SIZE, dtype=np.float32))
    part = array[10:20]
    assert (part.shape, part.address - array.address, array[20:10].size) == ((10,), 40, 0)
    with pytest.raises(IndexError, match="step 1"):
        array[::2]


def test_what_does_not_fit_is_refused_and_nothing_is_copied(driver):
    source = np.ones(SIZE, np.float32)
    wide = np.zeros((SIZE, 2), np.float32)
    for target in (np.zeros(SIZE - 1, np.float32), np.zeros(SIZE), wide[:, 0]):
        with pytest.raises(TypeError, match="on a GPU cannot be copied"):
            copy_out([(target, left(source))])
    assert not wide.any() and not driver.calls


def test_an_error_of_the_driver_is_an_error(monkeypatch):
    pair = np.zeros(2, np.float32), left(np.ones(2, np.float32))
    for status, text in {700: "error 700", -1: "only by the function that a step calls"}.items():
        monkeypatch.setattr(on_device, "_copier", [Driver(fails=status)])
        with pytest.raises(RuntimeError, match=text):
            copy_out([pair])


def test_a_wait_for_the_copy_is_counted_apart_from_work(monkeypatch):
    """A thread that waits for a GPU has no core; the copy is charged for that time too."""
    monkeypatch.setattr(on_device, "_copier", [lambda count, address: time.sleep(0.05)])
    before = waited_seconds()
    copy_out([(np.zeros(2, np.float32), left(np.ones(2, np.float32)))])
    assert 0.04 < waited_seconds() - before < 1
