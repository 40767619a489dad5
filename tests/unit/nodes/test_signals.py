"""Signals are taken beside the program's own handlers, given back, and left to forked processes."""

import ctypes
import faulthandler
import itertools
import os
import signal
import subprocess
import sys
import threading
import time

import pytest

from jdaso._launch import signals
from jdaso._nodes.stopping import Stopping

NUMBER = signal.SIGUSR2
CALLED: list[int] = []

pytestmark = pytest.mark.filterwarnings("ignore:.*fork.*")


def handler(number, frame):
    CALLED.append(number)


@pytest.fixture(autouse=True)
def users_handler():
    CALLED.clear()
    before = signal.signal(NUMBER, handler)
    yield
    signal.signal(NUMBER, before)
    signals.note_unmet(None)


def taking():
    part = Stopping(0, 1, lambda *_: None)
    part.on_signals([NUMBER])
    return part


def wanted(part):
    return part.stops_at(1, lambda: None)


def test_the_programs_own_handler_is_called_and_put_back():
    part = taking()
    signal.raise_signal(NUMBER)
    assert wanted(part) and CALLED == [NUMBER]
    part.close()
    assert signal.getsignal(NUMBER) is handler
    signal.raise_signal(NUMBER)
    assert CALLED == [NUMBER] * 2


def test_a_request_that_no_step_has_met_is_left_to_the_next_session():
    """Schedulers send a signal once; it may come while a session evaluates or finalizes."""
    first = taking()
    signal.raise_signal(NUMBER)
    first.close()
    other = Stopping(0, 1, lambda *_: None)
    other.on_signals([signal.SIGUSR1])  # not the signal that came
    assert not wanted(other)
    other.close()
    second = taking()
    assert wanted(second)
    second.close()
    third = taking()
    assert not wanted(third)
    third.close()


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
def test_sessions_close_in_any_order(order):
    parts = [taking() for _ in order]
    for closed, number in enumerate(order):
        parts[number].close()
        parts[number].on_signals([])
        open_ones = [parts[k] for k in order[closed + 1 :]]
        signal.raise_signal(NUMBER)
        assert all(map(wanted, open_ones))
        assert len(CALLED) == closed + 1
    assert signal.getsignal(NUMBER) is handler


def test_a_session_opened_between_others_gets_the_signal():
    first, second = taking(), taking()
    first.close()
    third = taking()
    second.close()
    signal.raise_signal(NUMBER)
    assert wanted(third) and CALLED == [NUMBER]
    third.close()
    assert signal.getsignal(NUMBER) is handler


@pytest.mark.parametrize("error", [SystemExit(3), RuntimeError("requeued"), KeyboardInterrupt()])
def test_what_the_own_handler_raises_waits_for_the_save(error):
    def raises(number, frame):
        raise error

    signal.signal(NUMBER, raises)
    part = taking()
    signal.raise_signal(NUMBER)
    assert wanted(part) and part.held is error
    part.close()


def test_a_handler_in_c_is_called_and_put_back(tmp_path):
    with open(tmp_path / "dump", "w") as file:
        faulthandler.register(NUMBER, file=file)
        try:
            part = taking()
            signal.raise_signal(NUMBER)
            assert wanted(part)
            part.close()
            signal.raise_signal(NUMBER)
        finally:
            faulthandler.unregister(NUMBER)
    assert (tmp_path / "dump").read_text().count("Current thread") == 2
    assert CALLED == []


def test_a_handler_in_c_chains_to_the_programs_own(tmp_path):
    with open(tmp_path / "dump", "w") as file:
        faulthandler.register(NUMBER, file=file, chain=True)
        try:
            part = taking()
            for count in (1, 2):
                signal.raise_signal(NUMBER)
                assert wanted(part) and CALLED == [NUMBER] * count
            part.close()
            signal.raise_signal(NUMBER)
        finally:
            faulthandler.unregister(NUMBER)
    assert (tmp_path / "dump").read_text().count("Current thread") == 3
    assert CALLED == [NUMBER] * 3


def put_c_handler():
    """A handler in C that neither does anything nor calls the one before, as an MPI may set one."""
    library = ctypes.CDLL(None)
    library.signal.restype = library.signal.argtypes = None
    library.signal(ctypes.c_int(NUMBER), ctypes.cast(library.abs, ctypes.c_void_p))


def test_a_handler_in_c_that_comes_later_and_chains_stays(tmp_path):
    put_c_handler()
    part = taking()
    with open(tmp_path / "dump", "w") as file:
        faulthandler.register(NUMBER, file=file, chain=True)
        try:
            for _ in range(3):
                signal.raise_signal(NUMBER)
                assert wanted(part)
        finally:
            faulthandler.unregister(NUMBER)
    assert (tmp_path / "dump").read_text().count("Current thread") == 3
    part.close()


def test_a_handler_in_c_that_is_set_anew_is_called_once(tmp_path):
    with open(tmp_path / "dump", "w") as file:
        faulthandler.register(NUMBER, file=file)
        try:
            part = taking()
            faulthandler.unregister(NUMBER)
            faulthandler.register(NUMBER, file=file, chain=True)
            signal.raise_signal(NUMBER)
            assert wanted(part)
            part.close()
            signal.raise_signal(NUMBER)
        finally:
            faulthandler.unregister(NUMBER)
    assert (tmp_path / "dump").read_text().count("Current thread") == 2
    assert CALLED == [NUMBER] * 2


def test_a_loop_woken_by_signals_reads_each_once(tmp_path):
    """asyncio's handlers are called for what it reads."""
    read, write = os.pipe()
    os.set_blocking(write, False)
    with open(tmp_path / "dump", "w") as file:
        faulthandler.register(NUMBER, file=file, chain=True)
        before = signal.set_wakeup_fd(write)
        try:
            part = taking()
            for _ in range(2):
                signal.raise_signal(NUMBER)
            assert os.read(read, 10) == bytes([NUMBER] * 2) and wanted(part)
            part.close()
        finally:
            signal.set_wakeup_fd(before)
            faulthandler.unregister(NUMBER)
    assert CALLED == [NUMBER] * 2


def test_pythons_own_ctrl_c_is_no_handler_of_the_program():
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        part = Stopping(0, 1, lambda *_: None)
        part.on_signals([signal.SIGINT])
        signal.raise_signal(signal.SIGINT)
        assert wanted(part) and part.held is None
        part.close()
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    finally:
        signal.signal(signal.SIGINT, before)


def test_a_later_handler_stays_and_may_call_ours():
    part = taking()
    ours = signal.getsignal(NUMBER)
    later = []

    def chains(number, frame):
        later.append(number)
        assert callable(ours)
        ours(number, frame)

    signal.signal(NUMBER, chains)
    signal.raise_signal(NUMBER)
    assert wanted(part) and len(later) == len(CALLED) == 1
    part.close()
    assert signal.getsignal(NUMBER) is chains
    again = taking()
    signal.raise_signal(NUMBER)
    assert wanted(again) and len(later) == len(CALLED) == 2
    again.close()
    assert signal.getsignal(NUMBER) is chains


def test_ours_put_back_by_somebody_after_the_session_is_as_if_it_were_not_there():
    part = taking()
    ours = signal.getsignal(NUMBER)
    signal.signal(NUMBER, handler)
    part.close()
    signal.signal(NUMBER, ours)
    signal.raise_signal(NUMBER)
    assert CALLED == [NUMBER] and not wanted(part)


def test_in_another_thread_nothing_is_taken():
    thread = threading.Thread(target=taking)
    thread.start()
    thread.join(10)
    assert signal.getsignal(NUMBER) is handler


@pytest.mark.parametrize("wrong", [signal.SIGKILL, signal.SIGSTOP, 0, 4711, "SIGTERM", None])
def test_what_cannot_be_taken_is_refused(wrong):
    with pytest.raises(ValueError, match="stop_signals must be signals .* got"):
        signals.check([signal.SIGTERM, wrong])


def ends(child, limit_seconds=20):
    """The status of a child; one that does not end is killed."""
    end = time.monotonic() + limit_seconds
    while time.monotonic() < end:
        found, status = os.waitpid(child, os.WNOHANG)
        if found:
            return status
        time.sleep(0.005)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    raise AssertionError("the child does not end")


def forked(function):
    child = os.fork()
    if child == 0:
        try:
            function()
        finally:
            os._exit(0)
    return child


@pytest.mark.parametrize("before", [signal.SIG_DFL, signal.SIG_IGN, handler])
def test_a_forked_process_handles_signals_as_if_jdaso_were_not_there(before):
    signal.signal(NUMBER, before)
    part = taking()
    read, write = os.pipe()

    def child():
        signal.raise_signal(NUMBER)
        kept = signal.getsignal(NUMBER) == before
        os.write(write, bytes([len(CALLED), kept]))

    status = ends(forked(child))
    os.close(write)
    with open(read, "rb") as pipe:
        said = pipe.read()
    if before == signal.SIG_DFL:
        assert os.WTERMSIG(status) == NUMBER
    else:
        assert said == bytes([callable(before), True])
    assert not wanted(part)
    signal.raise_signal(NUMBER)
    assert wanted(part)
    part.close()


def test_a_process_that_is_forked_in_a_thread_and_ended_at_once_ends():
    """Signals that come before the child's handlers are in place are not lost."""
    signal.signal(NUMBER, signal.SIG_DFL)
    part = taking()

    def start_and_end(statuses):
        for _ in range(10):
            child = forked(lambda: time.sleep(60))
            os.kill(child, NUMBER)
            statuses.append(ends(child))

    statuses = []
    thread = threading.Thread(target=start_and_end, args=(statuses,))
    thread.start()
    start_and_end(statuses)
    thread.join(60)
    assert [os.WTERMSIG(status) for status in statuses] == [NUMBER] * 20
    assert not signal.pthread_sigmask(signal.SIG_BLOCK, ()) & {NUMBER}
    part.close()


def test_a_later_signal_ends_the_process_once_the_own_handler_was_called():
    read, write = os.pipe()

    def child():
        CALLED.clear()
        signal.signal(NUMBER, lambda *_: os.write(write, b"called "))
        part = taking()
        signal.raise_signal(NUMBER)
        signal.raise_signal(NUMBER)
        os.write(write, b"goes on ")
        part._signalled_at -= 11
        signal.raise_signal(NUMBER)
        os.write(write, b"never")

    status = ends(forked(child))
    os.close(write)
    with open(read, "rb") as pipe:
        assert pipe.read() == b"called called goes on called "
    assert os.WTERMSIG(status) == NUMBER


def test_a_node_that_takes_over_is_not_ended_by_its_first_signal():
    """The first signal came from the failed leader; see `Stopping.lost`."""
    part = Stopping(1, 3, lambda *_: None)
    part.on_signals([NUMBER])
    part.take(0, 1, 0)
    part.lost(0)
    assert not part.signalled(NUMBER)
    part.close()


EXECUTED = "import signal; print(signal.getsignal(signal.SIGUSR2) == signal.SIG_DFL)"


def test_a_program_that_is_started_has_no_handler():
    part = taking()
    found = subprocess.check_output([sys.executable, "-c", EXECUTED], text=True, timeout=60)
    assert found.strip() == "True"
    part.close()
