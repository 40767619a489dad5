"""Functions by name: the same names in each start, and errors instead of crashes."""

import ctypes
import functools
import weakref
from collections import Counter

import numpy as np
import pytest

from jdaso._jax.ffi import functions
from jdaso._jax.ffi.functions import ArrayType, add, entry, forget, name_of

INT = ArrayType((), np.dtype(np.int32))


@pytest.fixture(autouse=True)
def registry(monkeypatch):
    """Removes all functions, as in a new process."""
    for name, value in {"_functions": {}, "_used": Counter(), "_held": {}}.items():
        monkeypatch.setattr(functions, name, value)


def call(name, *arrays, sizes=None, room=4096):
    """Calls a function as `call.cc` does; returns the status and the text of an error."""
    sizes = [x.nbytes for x in arrays] if sizes is None else sizes
    about = [n for x, size in zip(arrays, sizes, strict=True) for n in (x.ctypes.data, size)]
    numbers = (ctypes.c_int64 * max(len(about), 1))(*about)
    text = ctypes.create_string_buffer(room)
    status = entry(name.encode(), len(about), ctypes.addressof(numbers), text, room)
    return status, text.value.decode()


def test_results_go_to_the_memory_of_the_step():
    name = add("double", lambda x: [2 * x, x.sum()], [ArrayType((3,), INT.dtype)], [INT, INT][:0])
    status, text = call(name, np.arange(3, dtype=np.int32))
    assert status == 0 and "returned 2 arrays, not 0" in text
    name = add("double", lambda x: [2 * x], [INT], [INT])
    place = np.zeros((), np.int32)
    assert call(name, np.array(4, np.int32), place) == (1, "")
    assert place == 8


def test_names_count_functions_of_one_label():
    names = [add(label, list, [], []) for label in ("a", "b", "a")]
    assert names == ["a #0", "b #0", "a #1"]


def test_a_name_without_a_function_is_an_error_that_says_so():
    status, text = call("step #7")
    assert status == 0 and "no function 'step #7'" in text and "compiled by another" in text


def test_what_a_holder_has_is_dropped_and_an_error_stands_for_it():
    class Big:
        pass

    one, other, big = object(), object(), Big()
    gone = weakref.ref(big)
    names = [add("f", lambda big=big: [], [], [], one)]
    del big
    names += [add("f", lambda: [], [], [], holder) for holder in (other, None)]
    for _ in range(2):
        forget(one, RuntimeError("it is closed"))
    assert [call(name)[0] for name in names] == [0, 1, 1]
    assert "RuntimeError: it is closed" in call(names[0])[1]
    assert gone() is None


def test_buffers_of_other_sizes_are_an_error():
    name, x = add("f", lambda x: [x], [INT], [INT]), np.zeros((), np.int32)
    for given, sizes in [((x,), [4]), ((x, x), [4, 8]), ((x, x, x), [4, 4, 4])]:
        status, text = call(name, *given, sizes=sizes)
        assert status == 0 and "expected [4, 4]" in text


def test_an_exception_is_the_text_of_the_error_and_its_end_is_kept():
    def fail():
        raise KeyError("x" * 500 + " the end")

    name = add("fail", fail, [], [])
    status, text = call(name)
    assert status == 0 and text.startswith("Traceback") and "the end" in text
    status, text = call(name, room=64)
    assert status == 0 and len(text) == 63 and "the end" in text


def test_the_name_of_a_function_below_what_wraps_it():
    class Callable:
        def __call__(self):
            pass

        def method(self):
            pass

    @functools.wraps(Callable.method)
    def wrapped():
        pass

    for call_, end in [
        (functools.partial(functools.partial(Callable.method, 1), 2), "Callable.method"),
        (functools.partial(wrapped), "Callable.method"),
        (Callable(), "Callable"),
    ]:
        assert name_of(call_).endswith(end)
