"""Polls of requests: they end once, in one of three ways, and MPI keeps what it may still write."""

import itertools
import os
import time

import numpy as np
import pytest

from jdaso._mpi import requests
from jdaso._mpi.requests import finish, poll


class Request:
    """Is done at its nth test, never without n; fails at the test `fails`."""

    def __init__(self, n=0, fails=0):
        self.tests, self._n, self._fails = 0, n, fails

    def Test(self):
        self.tests += 1
        if self.tests == self._fails:
            raise KeyError("MPI's")
        return self.tests == self._n


@pytest.fixture
def kept(monkeypatch):
    monkeypatch.setattr(requests, "_unfinished", [])
    return requests._unfinished


@pytest.fixture
def pauses(monkeypatch):
    """Pauses take no time but that of the clock."""
    taken = []
    monkeypatch.setattr(time, "sleep", taken.append)
    monkeypatch.setattr(time, "perf_counter", lambda: sum(taken))
    return taken


def test_a_poll_gives_the_first_true_value():
    values, checks = iter([None, "", [], "here", "later"]), []
    assert poll(lambda: next(values), lambda: checks.append(1)) == "here"
    assert len(checks) == 3


def test_pauses_double_up_to_the_longest(pauses):
    assert poll(Request(6).Test, most_pause=5e-5)
    assert pauses == [1e-5, 2e-5, 4e-5, 5e-5, 5e-5]


def test_a_poll_without_pauses_lets_others_run(pauses, monkeypatch):
    """It offers the core at first, and sleeps and checks once milliseconds have passed."""
    yields, checks = [], []
    monkeypatch.setattr(os, "sched_yield", lambda: yields.append(1))
    assert poll(Request(3).Test, lambda: checks.append(1), most_pause=0.0)
    assert (len(yields), checks, pauses) == (2, [], [])
    monkeypatch.setattr(requests, "_SPIN_SECONDS", 0.0)
    assert poll(Request(3).Test, lambda: checks.append(1), most_pause=0.0)
    assert (len(yields), checks, pauses) == (2, [1, 1], [0.0, 0.0])


def test_a_poll_ends_at_its_limit(pauses):
    assert poll(Request().Test, limit_seconds=1.0) is None
    assert 1.0 < sum(pauses) < 1.01


def test_a_request_that_is_done_is_released(kept):
    assert finish(Request(3), lambda: None, np.zeros(3))
    assert kept == []


@pytest.mark.parametrize("ends", ["limit", "check", "MPI"])
def test_what_mpi_may_still_write_to_is_kept(kept, ends):
    request, data = Request(fails=2 * (ends == "MPI")), np.zeros(3)
    counts = itertools.count()

    def check():
        if ends == "check" and next(counts) == 2:
            raise KeyError("a node failed")

    if ends == "limit":
        assert not finish(request, check, data, limit_seconds=0.0)
    else:
        with pytest.raises(KeyError):
            finish(request, check, data)
    [(of, (array,))] = kept
    assert of is request and array is data
