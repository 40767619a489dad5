"""The pace of a run, from a channel's times on a clock set by hand."""

import time

import pytest

from jdaso._engines.pace import Pace, Stopwatch


@pytest.fixture
def clock(monkeypatch):
    """A list whose only number is the time."""
    now = [100.0]
    monkeypatch.setattr(time, "perf_counter", lambda: now[0])
    return now


def exchange(clock, pace, link, rest=0.0):
    """An exchange that takes `link` seconds, and `rest` seconds after it."""
    pace.begin()
    clock[0] += link
    pace.end()
    clock[0] += rest


def run(clock, cycles, *, steps=4, step=0.1, link=0.05, copy=0.0, wait=0.0, fragments=1):
    """Cycles of so many steps, with fragments that start together and end one after the other."""
    pace = Pace()
    watches = [Stopwatch(pace) for _ in range(fragments)]
    number = 0
    for _ in range(cycles):
        for watch in watches:
            watch.start(number, blocking=False)
            pace.begin()
        begin = clock[0]
        for k, watch in enumerate(watches):
            clock[0] = begin + (k + 1) * link
            pace.end()
            watch.note_exchange((k + 1) * link)
        pace.copy(copy, working=copy)
        pace.wait(wait)
        clock[0] = begin + steps * step + copy + wait
        number += steps
    for watch in watches:
        watch.start(number, blocking=False)
    return [watch.measured for watch in watches]


def test_the_time_of_a_step_and_on_the_link(clock):
    (found,) = run(clock, 4)
    assert found.exchange_seconds == pytest.approx(0.05)
    assert found.step_seconds == pytest.approx(0.1)
    assert found.link_seconds == pytest.approx(0.05)


def test_a_step_does_not_count_the_time_in_which_it_stood_still(clock):
    """A link that is too slow would otherwise seem fast enough, since the steps wait for it."""
    (found,) = run(clock, 4, link=0.9, wait=0.5)
    assert found.step_seconds == pytest.approx(0.1)
    assert found.link_seconds == pytest.approx(0.9)


def test_fragments_that_share_the_link_are_counted_once(clock):
    """Four exchanges at once take as long as one after the other."""
    found = run(clock, 4, fragments=4, link=0.05)
    assert {round(x.link_seconds, 6) for x in found} == {0.2}


def test_a_merge_holds_a_step_up_as_long_as_a_start(clock):
    """Copies take 5 ms out and 5 ms back, of 100."""
    (found,) = run(clock, 4, link=0.01, copy=0.005)
    assert found.held_seconds == pytest.approx(0.01)


def test_a_copy_whose_thread_was_not_run_holds_up_no_more(clock):
    """Other programs on the same cores may hold steps up: a larger B would not help."""
    watch = Stopwatch(pace := Pace())
    for cycle in range(6):
        watch.start(4 * cycle, blocking=False)
        pace.begin()
        pace.end()
        pace.copy(0.3, working=0.002)
        pace.begin()
        clock[0] += 0.3 + 0.4
        pace.end()
    assert watch.measured.step_seconds == pytest.approx(0.1)
    assert watch.measured.held_seconds == pytest.approx(0.004)


def test_of_the_latest_exchanges_the_middle_one_counts(clock):
    watch = Stopwatch(Pace())
    watch.start(0, blocking=False)
    watch.note_exchange(60.0)  # it compiles
    watch.start(4, blocking=False)
    for seconds, middle in [(0.2, 0.2), (9.0, 0.2), (0.3, 0.3), (0.4, 0.3)]:
        watch.note_exchange(seconds)
        assert watch.measured.exchange_seconds == pytest.approx(middle)


def test_one_long_cycle_does_not_count(clock):
    """One cycle saves a checkpoint. Windows of two cycles end at the starts 3, 5 and 7."""
    watch = Stopwatch(pace := Pace())
    found = []
    for cycle in range(8):
        watch.start(4 * cycle, blocking=False)
        found.append(watch.measured.link_seconds)
        exchange(clock, pace, 0.05 if cycle != 4 else 30.0, 0.35)
    assert found == [0.0] * 3 + [pytest.approx(0.05)] * 5


def test_a_repeated_step_is_no_step(clock):
    """`optax.MultiSteps` computes the update in every step and discards it."""
    watch = Stopwatch(pace := Pace())
    for step in range(12):
        for _ in range(4):
            watch.start(step, blocking=False)
            exchange(clock, pace, 0.03, 0.02)
    assert watch.measured.step_seconds == pytest.approx(0.2)
    assert watch.measured.link_seconds == pytest.approx(0.12)


def test_a_run_that_goes_back_is_measured_anew(clock):
    """An earlier state is restored in the same session."""
    watch = Stopwatch(Pace())
    for step in (0, 4, 8, 2, 6, 10):
        watch.start(step, blocking=False)
        clock[0] += 0.4 if step != 8 else 100.0
    assert watch.measured.step_seconds == pytest.approx(0.1)


def test_the_first_exchange_does_not_count(clock):
    """The first exchange compiles its programs."""
    (found,) = run(clock, 1)
    assert (found.exchange_seconds, found.link_seconds) == (0.0, 0.0)


def test_blocking_means_are_in_no_window(clock):
    """The warm-up has nothing in flight, and a mean over the metrics is not a cycle's."""
    watch = Stopwatch(pace := Pace())
    for step in range(41):
        watch.start(step, blocking=step % 5 == 0)
        clock[0] += 0.1
    assert watch.measured.link_seconds == watch.measured.step_seconds == 0.0
    for step in range(41, 60):
        watch.start(step, blocking=False)
        exchange(clock, pace, 0.03, 0.07)
    assert watch.measured.step_seconds == pytest.approx(0.1)
    assert watch.measured.link_seconds == pytest.approx(0.03)
