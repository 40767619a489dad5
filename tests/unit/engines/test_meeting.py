"""Calls that all devices of a node make together, played by threads."""

import threading
import time
import weakref

import numpy as np
import pytest

from jdaso._engines.meeting import Meeting

LIMIT_SECONDS = 30.0


def played(devices, program):
    """Runs ``program(device)`` for all devices at once; returns results or errors by device."""
    found = {}

    def run(device):
        try:
            found[device] = program(device)
        except Exception as error:
            found[device] = error

    threads = [threading.Thread(target=run, args=(d,), daemon=True) for d in range(devices)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LIMIT_SECONDS)
    assert len(found) == devices
    return [found[device] for device in range(devices)]


def test_one_device_calls_for_all_each_time():
    meeting, calls = Meeting(range(4), LIMIT_SECONDS), []

    def double(given):
        calls.append(given)
        return [2 * sum(x) for x in given]

    def program(device):
        return [meeting.call(device, (device, n), double) for n in range(200)]

    found = played(4, program)
    assert found == [[2 * (device + n) for n in range(200)] for device in range(4)]
    assert calls == [[(device, n) for device in range(4)] for n in range(200)]


def test_results_are_dropped_once_all_devices_have_theirs():
    meeting, made = Meeting(range(3), LIMIT_SECONDS), []

    def numbers(given):
        found = [np.zeros(2) for _ in given]
        made.extend(map(weakref.ref, found))
        return found

    assert played(3, lambda device: meeting.call(device, (), numbers).size) == [2, 2, 2]
    assert [kept() for kept in made] == [None] * 3


def test_an_error_reaches_all_devices_and_the_next_call_is_made():
    meeting = Meeting(range(3), LIMIT_SECONDS)

    def program(device):
        with pytest.raises(OSError, match="gone"):
            meeting.call(device, (), fails)
        return meeting.call(device, (device,), lambda given: [x for (x,) in given])

    def fails(given):
        raise OSError("gone")

    assert played(3, program) == [0, 1, 2]


def test_a_device_that_does_not_come_is_named():
    meeting = Meeting(range(3), 0.05)
    found = played(2, lambda device: meeting.call(device, (), list))
    assert all(isinstance(error, RuntimeError) for error in found)
    assert all("did not make it" in str(error) and "2]" in str(error) for error in found)


def test_a_device_that_comes_twice_is_named():
    meeting = Meeting(range(2), LIMIT_SECONDS)
    came, done = threading.Event(), threading.Event()

    def first():
        came.set()
        assert meeting.call(0, (), lambda given: given) == ()
        done.set()

    threading.Thread(target=first, daemon=True).start()
    assert came.wait(LIMIT_SECONDS)
    stop = time.monotonic() + LIMIT_SECONDS
    while 0 not in meeting._given:
        assert time.monotonic() < stop
    with pytest.raises(RuntimeError, match=r"Device 0 of this node calls the host again.*\[1\]"):
        meeting.call(0, (), list)
    assert meeting.call(1, (), lambda given: given) == ()
    assert done.wait(LIMIT_SECONDS)


def test_the_devices_of_a_rank_are_some_of_those_of_its_node():
    meeting = Meeting((2, 5), LIMIT_SECONDS)

    def program(number):
        tenfold = lambda given: [10 * x for (x,) in given]  # noqa: E731
        return meeting.call((2, 5)[number], (number,), tenfold)

    assert played(2, program) == [0, 10]
    with pytest.raises(RuntimeError, match=r"Device 3 .* drives devices \[2, 5\]"):
        meeting.call(3, (), list)
