"""A job's own processes are ended with it, and no others."""

import signal

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
