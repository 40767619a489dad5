"""The supervisor finds the rank that failed first, from the ranks' and the launcher's messages."""

import contextlib
import gc
import io
import os
import resource
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from jdaso._launch import reports
from jdaso._launch.first_failure import Deaths
from jdaso._launch.guard import LAUNCH, Job
from jdaso._launch.reports import PATH, RANK_MARK

WITHOUT_JAX = f"""
import sys, types
sys.modules["jdaso"] = types.ModuleType("jdaso")
sys.modules["jdaso"].__path__ = [{str(Path(reports.__file__).parent)!r}]
from jdaso import reports
"""

RANK = f"""
{WITHOUT_JAX}
import os
again = {WITHOUT_JAX!r} + "reports.say_rank(0, 'here'); reports.say_saved()"
reports.say_rank(int(sys.argv[1]), "here")
print("ready", flush=True)
for word in sys.stdin:
    word = word.strip()
    if word == "raise":
        reports.say_failed()
    elif word == "raise as others may have died":
        reports._PEER_SECONDS = 3.0
        print("begun", flush=True)
        reports.say_failed(peers=True)
    elif word == "close":
        reports.say_through()
    elif word == "open":
        reports.say_rank(int(sys.argv[1]), "here")
    elif word == "take signals":
        reports.say_saves([10, 12])
    elif word == "have saved":
        reports.say_saved()
    elif word == "end":
        break
    elif word == "end as far as MPI_Finalize":
        reports._to_supervisor.pop().close()  # as Python does, before it calls MPI
    elif word == "end by os._exit":
        os._exit(0)
    elif word == "fork and be killed":
        if os.fork() == 0:
            os.execvp("sleep", ["sleep", "60"])
        os.kill(os.getpid(), 9)
    elif word == "start another session":
        import subprocess
        subprocess.run([sys.executable, "-c", again], check=True)
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
        if word in ("end", "end by os._exit"):
            self.process.wait()
        else:
            assert self.process.stdout.readline() == "done\n"

    def dies(self):
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()


@pytest.fixture
def job(tmp_path):
    """The supervisor's socket and three connected ranks."""
    path = tmp_path / "socket"
    deaths = Deaths(str(path), Job("x"))
    ranks = [Rank(path, node) for node in range(3)]
    end = time.monotonic() + 10
    while len(deaths._known.processes) < 3 and time.monotonic() < end:
        time.sleep(0.01)
    yield deaths, ranks
    for rank in ranks:
        rank.dies()
        for pipe in (rank.process.stdin, rank.process.stdout, rank.process.stderr):
            pipe.close()
    until(lambda: deaths._ends or not deaths.connected)  # no descriptor is freed in another test


def launcher_says(deaths, rank):
    """Passes on the line that Hydra prints about a process that failed."""
    return deaths.look()(f"=   PID {rank.pid} RUNNING AT here\n".encode())


def until(condition):
    end = time.monotonic() + 10
    while not condition() and time.monotonic() < end:
        time.sleep(0.01)
    assert condition()


def test_the_first_of_several(job):
    deaths, ranks = job
    for node in (1, 0, 2):
        ranks[node].dies()
    assert deaths.first() == f"node 1 ended first (process {ranks[1].pid} on host here)"


def test_the_launcher_may_name_another(job):
    deaths, ranks = job
    ranks[2].dies()
    ranks[0].dies()
    assert launcher_says(deaths, ranks[0])  # the user sees its words
    assert deaths.first().startswith("node 2 ended first")


def test_one_that_raises_failed_before_it_died(job):
    deaths, ranks = job
    ranks[1].does("raise")
    ranks[0].dies()
    assert deaths.first().startswith("node 1 failed first")


def test_one_that_raises_since_a_peer_died_is_not_the_first(job):
    """The kernel may report first the error, or the end of the process that caused it."""
    deaths, ranks = job
    ranks[1].process.stdin.write("raise as others may have died\n")
    ranks[1].process.stdin.flush()
    assert ranks[1].process.stdout.readline() == "begun\n"
    ranks[2].dies()
    assert ranks[1].process.stdout.readline() == "done\n"
    assert deaths.first().startswith("node 2 ended first")


def test_one_that_is_through_has_not_died(job):
    """The launcher's report does not matter; it ends the ranks that are left."""
    deaths, ranks = job
    ranks[0].does("close")
    ranks[0].does("end")
    launcher_says(deaths, ranks[0])
    assert deaths.first() is None


def test_one_that_is_killed_after_its_session_has_died(job):
    """Its orphans are ended, but not the other ranks: they may not need it any more."""
    deaths, ranks = job
    ranks[1].does("close")
    ranks[1].dies()
    until(lambda: ranks[1].pid in deaths.dead)
    assert deaths.dead[ranks[1].pid][1] == set()
    ranks[0].does("close")
    ranks[0].does("end")
    assert deaths.first().startswith("node 1 ended first")
    assert deaths.dead.keys() == {ranks[1].pid}


def test_one_that_waits_for_the_others_in_its_end_has_not_ended(job):
    deaths, ranks = job
    ranks[1].does("raise")
    ranks[1].does("end as far as MPI_Finalize")
    deaths.catch_up()
    assert ranks[1].pid in deaths.connected and not deaths.dead


@pytest.mark.parametrize("how", ["end", "end by os._exit"])
def test_what_dies_after_one_that_is_through(how, job):
    deaths, ranks = job
    ranks[0].does("close")
    ranks[0].does(how)
    ranks[2].dies()
    assert deaths.first().startswith("node 2 ended first")


def test_a_second_session_is_listened_to_again(job):
    deaths, ranks = job
    ranks[1].does("close")
    ranks[1].does("open")
    ranks[1].dies()
    assert deaths.first().startswith("node 1 ended first")


def test_one_that_has_closed_one_of_its_sessions_is_not_through(job):
    """A session that fails reports it after another one of its process was closed."""
    deaths, ranks = job
    ranks[1].does("close")
    ranks[1].does("raise")
    ranks[1].does("end")
    assert deaths.first().startswith("node 1 failed first") and not deaths.came_through


def test_a_failure_that_is_followed_by_another_session_is_over(job):
    """The program has handled it. The next session has a first failure of its own."""
    deaths, ranks = job
    ranks[1].does("raise")
    ranks[1].does("open")
    ranks[2].dies()
    assert deaths.first().startswith("node 2 ended first")


def test_a_second_launch_of_a_job_has_its_own_failure_and_its_own_end(job, monkeypatch, capfd):
    """A script starts its launcher again. Ranks on another host took part in the first launch."""
    deaths, ranks = job
    look = deaths.look()
    elsewhere = comes_from("b", monkeypatch, capfd)
    for _ in range(2):
        look(next(elsewhere))
    look(f"=   PID {os.getpid()} RUNNING AT b\n".encode())
    ranks[0].does("close")
    for rank in ranks:
        rank.dies()
    until(lambda: not deaths.connected)
    again = [Rank(deaths._server.getsockname(), node) for node in range(3)]
    until(lambda: len(deaths.connected) == 3)
    again[2].dies()
    assert deaths.first() == f"node 2 ended first (process {again[2].pid} on host here)"
    assert not deaths.came_through
    ranks += again


def test_a_job_that_nobody_is_left_of(job):
    """The launcher's status does not matter."""
    deaths, ranks = job
    for rank in ranks:
        rank.dies()
    deaths.first()
    assert deaths._job.speaks and not deaths.came_through


def test_one_that_comes_through_is_enough(job):
    deaths, ranks = job
    ranks[0].dies()
    ranks[2].does("close")
    ranks[1].dies()
    deaths.first()
    assert deaths.came_through


def test_a_rank_dies_though_it_has_forked(job):
    """Forked processes hold what a rank had open, but not this."""
    deaths, ranks = job
    others = {rank.pid for rank in ranks[1:]}
    ranks[0].process.stdin.write("fork and be killed\n")
    ranks[0].process.stdin.flush()
    until(lambda: deaths.dead)
    assert deaths.dead.keys() == {ranks[0].pid}
    assert deaths.dead[ranks[0].pid][1] == others == deaths.connected
    for pid in Job("x").left():  # as all of this rank
        os.kill(pid, signal.SIGKILL)


def test_ranks_say_which_signals_they_take_and_that_they_have_saved(job):
    deaths, ranks = job
    ranks[1].does("take signals")
    until(lambda: deaths._job.savers == {ranks[1].pid: [10, 12]})
    assert not deaths.saved
    ranks[1].does("have saved")
    until(lambda: deaths.saved)
    ranks[1].dies()
    until(lambda: not deaths._job.savers)  # nobody else gets its signals


@pytest.fixture
def no_descriptor():
    """Returns a function after which this process can open no file; the test's end undoes it."""
    limits, taken = resource.getrlimit(resource.RLIMIT_NOFILE), []

    def take_all():
        gc.collect()
        highest = max(int(name) for name in os.listdir("/proc/self/fd"))
        resource.setrlimit(resource.RLIMIT_NOFILE, (highest + 1, limits[1]))
        with contextlib.suppress(OSError):
            while True:
                taken.append(os.open(os.devnull, os.O_RDONLY))

    yield take_all
    resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    for descriptor in taken:
        os.close(descriptor)


def test_a_rank_is_named_though_no_file_descriptor_is_free(job, no_descriptor):
    """Its connection is closed, so that its reports arrive in the output."""
    deaths, ranks = job
    look = deaths.look()
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
        no_descriptor()
        connection.connect(deaths._server.getsockname())
        connection.send(f"{RANK_MARK}7 123 here".encode())
        until(lambda: len(deaths._known.processes) == 4)
        connection.settimeout(10)
        assert connection.recv(1) == b""
    look(f"{RANK_MARK}process 123 here failed\n".encode())
    ranks[0].dies()
    assert deaths.first() == "node 7 failed first (process 123 on host here)"


def test_what_a_rank_starts_is_no_rank(job):
    deaths, ranks = job
    processes = list(deaths._known.processes)
    ranks[1].does("start another session")
    ranks[0].does("take signals")  # comes later
    until(lambda: deaths._job.savers)
    assert deaths._known.processes == processes and not deaths.saved and not deaths.dead


@pytest.mark.parametrize("pieces", [1, 2, 1000])
def test_ranks_of_other_hosts_are_named_from_their_output(pieces, tmp_path, monkeypatch, capfd):
    """Open MPI's message decides."""
    deaths = Deaths(str(tmp_path / "socket"), Job("x"))
    look = deaths.look()

    def comes(text):
        data = text.encode()
        size = -(-len(data) // min(pieces, len(data)))
        return b"".join(look(data[i : i + size]) for i in range(0, len(data), size))

    monkeypatch.setenv(LAUNCH, "x")
    monkeypatch.setenv(PATH, str(tmp_path / "not there"))
    monkeypatch.setattr(reports, "_to_supervisor", [])
    reports.say_rank(3, "far")
    assert comes(f"50 %{capfd.readouterr().err}") == b"50 %"  # the rest is not for the user
    assert comes("step 3\n") == b"step 3\n"
    assert deaths._job.speaks and not deaths.came_through
    reports.say_saves([12])
    assert comes(capfd.readouterr().err) == b""
    assert deaths._job.saves_elsewhere == [12] and deaths._job.saves
    reports.say_saved()
    reports.say_through()
    assert comes(capfd.readouterr().err) == b""
    assert deaths.saved and deaths.came_through
    reports._to_supervisor[0].close()
    comes(f"prterun noticed that process rank 3 with PID {os.getpid()} on node far exited\n")
    assert deaths.first() == f"node 3 ended first (process {os.getpid()} on host far)"


def comes_from(host, monkeypatch, capfd):
    """The reports of a rank on another host, whose process has the number of this one."""
    monkeypatch.setenv(LAUNCH, "x")
    monkeypatch.setenv(PATH, "/not there")
    monkeypatch.setattr(reports, "_to_supervisor", [])
    reports.say_rank({"a": 0, "b": 1}[host], host)
    yield capfd.readouterr().err.encode()
    reports.say_failed()
    yield capfd.readouterr().err.encode()


@pytest.mark.parametrize("fails", ["a", "b"])
def test_processes_of_two_hosts_may_have_one_number(fails, tmp_path, monkeypatch, capfd):
    deaths = Deaths(str(tmp_path / "socket"), Job("x"))
    look = deaths.look()
    for host in "ab":
        hello, failure = comes_from(host, monkeypatch, capfd)
        look(hello)
        if host == fails:
            failed = failure
    look(failed)
    node = {"a": 0, "b": 1}[fails]
    assert deaths.first() == f"node {node} failed first (process {os.getpid()} on host {fails})"


@pytest.mark.parametrize("dies", ["a", "b"])
def test_the_launcher_names_one_of_two_processes_with_one_number(
    dies, tmp_path, monkeypatch, capfd
):
    deaths = Deaths(str(tmp_path / "socket"), Job("x"))
    look = deaths.look()
    for host in "ab":
        look(next(comes_from(host, monkeypatch, capfd)))
    look(f"=   PID {os.getpid()} RUNNING AT {dies}\n".encode())
    node = {"a": 0, "b": 1}[dies]
    assert deaths.first() == f"node {node} ended first (process {os.getpid()} on host {dies})"


def test_a_host_may_have_another_name_for_the_launcher(tmp_path, monkeypatch, capfd):
    deaths = Deaths(str(tmp_path / "socket"), Job("x"))
    look = deaths.look()
    look(next(comes_from("b", monkeypatch, capfd)))
    look(f"=   PID {os.getpid()} RUNNING AT b.cluster.net\n".encode())
    assert deaths.first() == f"node 1 ended first (process {os.getpid()} on host b)"


def test_nothing_else_is_taken_out_of_the_output(tmp_path):
    deaths = Deaths(str(tmp_path / "socket"), Job("x"))
    look, mark = deaths.look(), RANK_MARK.encode()
    data = b"\x1e\x1ejdaso-run" + mark + b"x" * 1000 + mark[:5] + b"\0\xff\r" + mark
    assert b"".join([*(look(data[i : i + 7]) for i in range(0, len(data), 7)), look(b"")]) == data
    assert look(b"50 %") == b"50 %"  # at once
    deaths.first()


def test_no_words_of_a_job_can_stop_its_output(tmp_path):
    """Reports of a rank that were mixed with others' are ignored, and are no error."""
    deaths = Deaths(str(tmp_path / "socket"), Job("x"))
    look = deaths.look()
    mixed = ["", "process 1", "process 5  ", "process 1 a saves 99999 x", "1 2", "0 7 {host} x"]
    for words in mixed:
        assert look(f"{RANK_MARK}{words}\nstep 3\n".encode()) == b"step 3\n"
    assert not deaths._job.saves
    line = b"process rank 1 with PID 9 on node {0}{x}{} exited\n"
    assert look(line) == line
    assert deaths.first() == "node 1 ended first (process 9 on host {0}{x}{})"


def test_a_process_without_a_session_is_not_named(tmp_path):
    deaths = Deaths(str(tmp_path / "socket"), Job("x"))
    deaths.look()(b"=   PID 1 RUNNING AT here\n")
    assert deaths.first() is None


def test_a_rank_that_came_and_died_while_nobody_listened_is_named(tmp_path, monkeypatch):
    """A stopped supervisor learns of the rank, its failure and the end at once."""
    path = tmp_path / "socket"
    busy, asked = threading.Event(), threading.Event()

    def works_until_asked():
        busy.set()
        assert asked.wait(10)

    deaths = Deaths(str(path), Job("x"), works_until_asked)
    deaths._wake_thread()
    assert busy.wait(10)
    monkeypatch.setattr(deaths, "_end_thread", lambda end=deaths._end_thread: (end(), asked.set()))
    rank = Rank(path, 0)
    rank.dies()
    assert deaths.first() == f"node 0 ended first (process {rank.pid} on host here)"


def test_marks_reach_standard_error_wherever_the_program_writes(capfd, monkeypatch):
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    reports._print("mark")
    assert capfd.readouterr().err == "mark\n" and not sys.stderr.getvalue()
