"""Signals while a command runs on this process's streams."""

import signal

import pytest

from jdaso._launch.mpiexec import termination_raises


@pytest.fixture
def hangup():
    before = signal.getsignal(signal.SIGHUP)
    yield lambda handler: signal.signal(signal.SIGHUP, handler)
    signal.signal(signal.SIGHUP, before)


def test_a_closed_terminal_ends_the_command(hangup):
    hangup(signal.SIG_DFL)
    with pytest.raises(SystemExit), termination_raises():
        signal.raise_signal(signal.SIGHUP)


def test_nohup_is_respected(hangup):
    hangup(signal.SIG_IGN)
    with termination_raises():
        signal.raise_signal(signal.SIGHUP)
    assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
