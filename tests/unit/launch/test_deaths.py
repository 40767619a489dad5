"""Who the supervisor says it was, by what ranks and the launcher tell it."""

import os
import signal
import subprocess
import sys
import time

import pytest

from jdaso import _deaths
from jdaso._deaths import LAUNCH, PATH, Deaths

RANK = """
import os, sys
from jdaso import _deaths
_deaths.say_rank(int(sys.argv[1]), "here")
print("ready", flush=True)
for word in sys.stdin:
    word = word.strip()
    if word == "raise":
        _deaths.say_failed()
    elif word == "close":
        _deaths.say_through()
    elif word == "open":
        _deaths.say_rank(int(sys.argv[1]), "here")
    elif word == "end":
        os._exit(0)
    print("done", flush=True)
"""


class Rank:
    def __init__(self, path, node):
        environment = os.environ | {LAUNCH: "x", PATH: str(path)}
        self.process = subprocess.Popen(
            [sys.executable, "-c", RANK, str(node)],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout.readline() == "ready\n", self.process.stderr.read()

    @property
    def pid(self):
        return self.process.pid

    def does(self, word):
        self.process.stdin.write(word + "\n")
        self.process.stdin.flush()
        if word == "end":
            self.process.wait()
        else:
            assert self.process.stdout.readline() == "done\n"

    def dies(self):
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()


@pytest.fixture
def job(tmp_path):
    """The supervisor's ear and three ranks that it has heard of."""
    path = tmp_path / "socket"
    deaths = Deaths(str(path))
    ranks = [Rank(path, node) for node in range(3)]
    end = time.monotonic() + 10
    while len(deaths._names) < 3 and time.monotonic() < end:
        time.sleep(0.01)
    yield deaths, ranks
    for rank in ranks:
        rank.dies()
        for pipe in (rank.process.stdin, rank.process.stdout, rank.process.stderr):
            pipe.close()


def launcher_says(deaths, rank):
    """What Hydra prints of a process that died."""
    return deaths.read(f"=   PID {rank.pid} RUNNING AT here\n")


def test_the_first_of_several(job):
    deaths, ranks = job
    for node in (1, 0, 2):
        ranks[node].dies()
    assert deaths.first() == f"node 1 died first (process {ranks[1].pid} on host here)"


def test_the_launcher_may_name_another(job):
    deaths, ranks = job
    ranks[2].dies()
    ranks[0].dies()
    assert launcher_says(deaths, ranks[0]) is False  # the user sees its words
    assert deaths.first().startswith("node 2 died first")


def test_one_that_raises_failed_before_it_died(job):
    deaths, ranks = job
    ranks[1].does("raise")
    ranks[0].dies()
    assert deaths.first().startswith("node 1 failed first")


def test_one_that_is_through_has_not_died(job):
    """Whatever the launcher says of it, which ends what is left."""
    deaths, ranks = job
    ranks[0].does("close")
    ranks[0].does("end")
    launcher_says(deaths, ranks[0])
    assert deaths.first() is None


def test_what_dies_after_one_that_is_through(job):
    deaths, ranks = job
    ranks[0].does("close")
    ranks[0].does("end")
    ranks[2].dies()
    assert deaths.first().startswith("node 2 died first")


def test_a_second_session_is_listened_to_again(job):
    deaths, ranks = job
    ranks[1].does("close")
    ranks[1].does("open")
    ranks[1].dies()
    assert deaths.first().startswith("node 1 died first")


def test_a_job_that_nobody_is_left_of(job):
    """Whatever the launcher's status is."""
    deaths, ranks = job
    for rank in ranks:
        rank.dies()
    deaths.first()
    assert deaths.began and not deaths.came_through


def test_one_that_comes_through_is_enough(job):
    deaths, ranks = job
    ranks[0].dies()
    ranks[2].does("close")
    ranks[1].dies()
    deaths.first()
    assert deaths.came_through


def test_ranks_of_other_hosts_say_who_they_are_in_their_output(tmp_path, monkeypatch, capfd):
    """And the launcher's words decide, here those of Open MPI's."""
    deaths = Deaths(str(tmp_path / "socket"))
    monkeypatch.setenv(LAUNCH, "x")
    monkeypatch.setenv(PATH, str(tmp_path / "not there"))
    monkeypatch.setattr(_deaths, "_to_supervisor", [])
    _deaths.say_rank(3, "far")
    line = capfd.readouterr().err
    assert deaths.read(line) is True  # not for the user
    assert deaths.read("step 3\n") is False
    assert deaths.began and not deaths.came_through
    _deaths.say_through()
    assert deaths.read(capfd.readouterr().err) is True
    assert deaths.came_through
    _deaths._to_supervisor[0].close()
    deaths._through.clear()
    deaths.read(f"prterun noticed that process rank 3 with PID {os.getpid()} on node far exited")
    assert deaths.first() == f"node 3 died first (process {os.getpid()} on host far)"


def test_who_never_had_a_session_is_not_named(tmp_path):
    deaths = Deaths(str(tmp_path / "socket"))
    deaths.read("=   PID 1 RUNNING AT here\n")
    assert deaths.first() is None
