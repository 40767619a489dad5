"""A job's own processes are ended with it, and no others."""

import json
import os
import signal
import sys
import threading
import time

import pytest

from jdaso._launch import guard
from jdaso._launch.guard import Job


@pytest.fixture
def sent(monkeypatch):
    """Signals that are sent, to whom; and a process of the job that ends by SIGKILL only."""
    sent = []
    monkeypatch.setattr(guard, "_send", lambda pid, number: sent.append((pid, number)))
    monkeypatch.setattr(guard, "_LOOK_SECONDS", 0.001)
    monkeypatch.setattr(Job, "left", lambda _: [] if (77, signal.SIGKILL) in sent else [77])
    return sent


@pytest.mark.parametrize("leader", [0, 55])
def test_a_launcher_that_is_not_known_or_has_ended_gets_no_signal(leader, sent):
    """Process 0 would be the guard's own group; one that has ended may have been replaced."""
    assert Job("tag", leader).end(lambda: False, 5.0, leave=0.0) == 1
    assert sent == [(77, signal.SIGKILL)]


def test_a_launcher_that_does_not_end_is_killed(sent):
    job = Job("tag", 55)
    assert job.end(lambda: (55, signal.SIGKILL) not in sent, 0.01, leave=0.0) == 1
    assert sent[0] == (55, signal.SIGTERM)
    assert {(55, signal.SIGKILL), (77, signal.SIGKILL)} <= {*sent[1:]}


@pytest.mark.parametrize("speaks", [False, True])
@pytest.mark.parametrize(
    ("given", "passed_on"), [("TERM", "TERM"), ("HUP", "TERM"), ("USR2", "USR2"), ("INT", "INT")]
)
def test_a_job_that_saves_nothing_gets_what_ends_it(given, passed_on, speaks, sent):
    """Before its first session too: a program without handlers does not end by SIGUSR1."""
    job = Job("tag", 55, speaks=speaks)
    for _ in range(2):
        job.tell(signal.Signals[f"SIG{given}"])
    assert sent == [(55, signal.Signals[f"SIG{passed_on}"])]


def test_ranks_elsewhere_that_save_get_a_signal_that_launchers_pass_on(sent):
    job = Job("tag", 55, speaks=True, saves_elsewhere=[signal.SIGTERM, signal.SIGUSR2])
    job.tell(signal.SIGTERM)
    assert sent == [(55, signal.SIGUSR2)]


def test_a_job_is_described_while_threads_note_its_ranks():
    job, ends = Job("tag"), threading.Event()

    def notes():
        for pid in range(10**9):
            if ends.is_set():
                return
            job.note_saver(pid % 500, [10] if pid % 1000 < 500 else [])

    threads = [threading.Thread(target=notes) for _ in range(2)]
    switches = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for thread in threads:
            thread.start()
        for _ in range(300):
            assert json.loads(guard.as_message(job))["tag"] == "tag"
    finally:
        ends.set()
        sys.setswitchinterval(switches)
        for thread in threads:
            thread.join()


def test_ranks_that_print_much_while_they_save_are_read(monkeypatch):
    """8 MB, where a pipe holds 64 KiB; the job saves once all of it has been read."""
    out, into = os.pipe()
    os.set_blocking(out, False)

    def saves():
        for _ in range(128):
            os.write(into, bytes(1 << 16))
        os.close(into)

    rank = threading.Thread(target=saves)
    monkeypatch.setattr(Job, "left", lambda _: [77] if rank.is_alive() else [])
    monkeypatch.setattr(guard, "_send", lambda pid, number: None)
    rank.start()
    begin = time.monotonic()
    guard._take_over(Job("tag", savers={77: [10]}), [out], 60.0)
    assert not rank.is_alive()
    assert time.monotonic() - begin < 30  # half of what it may take
    os.close(out)
