"""Processes that fail, stop or hang: nothing hangs, nothing is left over, and nothing is lost."""

import os
import random
import re
import signal
import subprocess
import sys
import threading
import time
from itertools import product

import compiling
import pytest
from launcher import (
    ENVIRONMENTS,
    OPTIONS,
    PROGRAMS,
    TAG,
    end,
    environment_of_a_user,
    members,
    mpirun,
)
from nights import rows

from jdaso._launch.mpiexec import with_files_in

PROGRAM = PROGRAMS / "resumable.py"


def ends(text):
    """Returns ``{node: (step, digest)}`` of the nodes that completed the run."""
    found = re.findall(r"(\d+) end (\d+) \S+ ([0-9a-f]{64})", text)
    return {int(node): (int(step), digest) for node, step, digest in found}


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """Final states of undisturbed runs, by the number of nodes."""
    known = {}

    def ask(nodes):
        if nodes not in known:
            folder = tmp_path_factory.mktemp("undisturbed")
            done = mpirun(nodes, [PROGRAM, folder], quick_compiling=True)
            assert done.returncode == 0, done.stdout
            known[nodes] = ends(done.stdout)
            assert len(known[nodes]) == nodes and len(set(known[nodes].values())) == 1
        return known[nodes]

    return ask


class Job:
    """The program under ``jdaso run``, with its output."""

    def __init__(
        self,
        folder,
        nodes,
        *flags,
        mpi="mpich",
        faults="",
        restarts=0,
        program=PROGRAM,
        **options,
    ):
        folder_of_mpi = ENVIRONMENTS[mpi] / "bin"
        self.launch = f"recovery-{os.getpid()}-{time.monotonic_ns()}"
        words = [f"--{name.replace('_', '-')}={value}" for name, value in options.items()]
        command = [folder_of_mpi / "python", "-m", "jdaso", "run", *flags]
        command += [f"--max-restarts={restarts}", "--", folder_of_mpi / "mpiexec", "-n", nodes]
        command += [*OPTIONS[mpi], folder_of_mpi / "python", program, folder, *words]
        environment = environment_of_a_user() | {
            "JAX_PLATFORMS": "cpu",
            "OMP_NUM_THREADS": "1",
            "XLA_FLAGS": compiling.QUICKLY,
            "JDASO_FAULTS": faults,
            "OMPI_ALLOW_RUN_AS_ROOT": "1",
            "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
            "PATH": f"{folder_of_mpi}:{os.environ['PATH']}",
            TAG: self.launch,
        }
        self.process = subprocess.Popen(
            [str(word) for word in command],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        self.text, self._news = "", threading.Condition()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self):
        for line in self.process.stdout:
            with self._news:
                self.text += line
                self._news.notify_all()

    def until(self, pattern, seconds=60):
        """Waits until the output has this text."""
        with self._news:
            assert self._news.wait_for(lambda: re.search(pattern, self.text), seconds), self.text

    def wait(self, seconds=240):
        """Returns the exit status and all output; checks that no process is left."""
        try:
            status = self.process.wait(seconds)
            self._reader.join(5)
            limit = time.monotonic() + 5
            while (left := list(members(self.launch))) and time.monotonic() < limit:
                time.sleep(0.1)
            assert not left, self.text
            return status, self.text
        finally:
            end(self.process, self.launch)


def test_a_node_that_fails_while_it_makes_its_session_is_named(tmp_path):
    status, text = Job(tmp_path, 2, program=PROGRAMS / "fails_to_start.py").wait()
    assert status == 1
    assert re.search(r"jdaso run: node 1 failed first \(process \d+ on host", text), text


def until(come_so_far, job, seconds=60):
    """Waits until the program has ended."""
    deadline = time.monotonic() + seconds
    while not come_so_far():
        assert job.process.poll() is None and time.monotonic() < deadline, job.text
        time.sleep(0.1)


def until_exists(path, job):
    until(path.exists, job)


KILLS = {
    "in the warm-up": "1@4:kill",
    "with an exchange in flight": "1@flight:kill",
    "node 0": "0@23:kill",
    "two at once": "1@23:kill;2@23:kill",
    "while it saves": "1@save:kill",
    "while it restores": "2@30:kill;1@restore:kill",
    "by a segmentation fault": "2@31:segfault",
    "by leaving": "1@37:exit",
}


@pytest.mark.parametrize("when", rows(KILLS, ["with an exchange in flight", "while it saves"]))
def test_a_job_goes_on_from_its_last_checkpoint(when, tmp_path, undisturbed):
    status, text = Job(tmp_path, 3, faults=KILLS[when], restarts=2).wait()
    assert status == 0, text
    assert ends(text) == undisturbed(3), text
    assert "restart 1 of 2" in text
    if "leaving" not in when:
        nodes = "".join(re.findall(r"(\d)@", KILLS[when]))
        assert re.search(rf"node [{nodes}] ended first \(process \d+ on host", text), text


@pytest.mark.parametrize("mpi", rows(["mpich", "openmpi"], ["mpich"]))
def test_a_death_ends_the_job_and_is_named(mpi, tmp_path):
    job = Job(tmp_path, 2, mpi=mpi, faults="1@20:kill")
    job.until("fault: kill")
    begin = time.monotonic()
    status, text = job.wait()
    assert time.monotonic() - begin < 10
    assert status != 0
    assert "node 1 ended first" in text and "the job failed" in text


@pytest.mark.parametrize(
    ("mpi", "number"),
    rows(
        product(["mpich", "openmpi"], [signal.SIGTERM, signal.SIGUSR1]),
        day=[("mpich", signal.SIGTERM)],
    ),
)
def test_a_job_that_is_told_to_stop_saves_and_goes_on_later(mpi, number, tmp_path, undisturbed):
    job = Job(tmp_path, 2, mpi=mpi, every_steps=1000, step_ms=250)
    until_exists(tmp_path / "at" / "0", job)
    # Of 60: the nodes need a few to agree where to stop.
    step = random.Random(f"{mpi} {number}").randint(1, 30)
    until(lambda: int((tmp_path / "at" / "0").read_text() or 0) >= step, job)
    job.process.send_signal(number)
    status, text = job.wait()
    assert status == 75, text
    assert re.search(r"asked to stop\. It is saved at step (\d+)", text), text
    assert len(list(tmp_path.glob("step_*"))) == 1
    assert "never merged" not in text
    done = mpirun(2, [PROGRAM, tmp_path], mpi=mpi, quick_compiling=True)
    assert done.returncode == 0, done.stdout
    assert ends(done.stdout) == undisturbed(2)


KILLED_LAUNCHER_OF_THE_SAME_ID = """
env -u PRTE_MCA_prte_local_tmpdir_base mpiexec --oversubscribe -n 1 sleep 5 >/dev/null 2>&1 &
until [ -e $TMPDIR/ompi.$!/1/0 ]; do sleep 0.1; done
kill -9 $!
mv $TMPDIR/ompi.$! $TMPDIR/ompi.$$
exec "$@"
"""


@pytest.mark.parametrize("ours", rows([False, True], [True]))
def test_files_of_a_killed_launcher_do_not_hinder_another(ours, tmp_path):
    """Open MPI's launcher names its files by its process id, which is reused some day."""
    programs = ENVIRONMENTS["openmpi"] / "bin"
    command = ["mpiexec", "--oversubscribe", "-n", "1", "hostname"]
    environment = environment_of_a_user() | {
        "OMPI_ALLOW_RUN_AS_ROOT": "1",
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
        "PATH": f"{programs}:{os.environ['PATH']}",
        "TMPDIR": str(tmp_path),
    }
    if ours:
        (tmp_path / "own").mkdir()
        environment = with_files_in(str(tmp_path / "own"), command, environment)

    done = subprocess.run(
        ["bash", "-c", KILLED_LAUNCHER_OF_THE_SAME_ID, "bash", *command],
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=200,
    )
    assert (done.returncode == 0) == ours, done.stdout
    assert ours or "listener thread failed to start" in done.stdout


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_a_supervisor_that_is_ended_leaves_a_saved_job(number, tmp_path):
    """Ends the supervisor by Ctrl-C, or so that it cannot send anything any more."""
    job = Job(tmp_path, 2, every_steps=1000, steps=10_000)
    until(lambda: len(list((tmp_path / "at").glob("*"))) == 2, job)
    job.process.send_signal(number)
    job.process.wait(60)
    limit = time.monotonic() + 60
    while left := list(members(job.launch)):
        assert time.monotonic() < limit, left
        time.sleep(0.1)
    status, text = job.wait(60)
    assert status == (75 if number == signal.SIGINT else -9), text
    assert len(list(tmp_path.glob("step_*"))) == 1, text


@pytest.mark.parametrize("mpi", rows(["mpich", "openmpi"], ["mpich"]))
def test_a_second_ctrl_c_ends_it_at_once(mpi, tmp_path):
    """The job ends even if a rank does not receive the first Ctrl-C."""
    job = Job(tmp_path, 2, mpi=mpi, faults="1@20:hang=60", every_steps=1000)
    job.until("fault: hang")
    job.process.send_signal(signal.SIGINT)
    time.sleep(0.5)
    begin = time.monotonic()
    if job.process.poll() is None:
        job.process.send_signal(signal.SIGINT)
    status, text = job.wait(30)
    assert status != 0 and time.monotonic() - begin < 5, text


def test_a_node_that_was_stopped_changes_nothing(tmp_path, undisturbed):
    """The stopped node is named in time."""
    faults = {"JDASO_FAULTS": "1@30:stop=6"}
    done = mpirun(3, [PROGRAM, tmp_path], env=faults, quick_compiling=True)
    assert done.returncode == 0, done.stdout
    assert ends(done.stdout) == undisturbed(3)
    said = re.findall(
        r"step (\d+)\].*?for (\d+\.\d) s now \(usual: (\d+\.\d) s.*Not arrived: ([^.]*)",
        done.stdout,
    )
    said = [found for found in said if int(found[0]) >= 30]  # an earlier one: a busy machine
    assert said, done.stdout
    for _, waited, usual, who in said[:1]:
        assert float(waited) < 2 * float(usual) + 4  # of the 6 seconds
        assert who.startswith("node 1 (host") and "node 0" not in who and "node 2" not in who


def test_a_stuck_program_is_shown(tmp_path, undisturbed):
    """The rank is alive; its detector reports its position."""
    faults = {"JDASO_FAULTS": "1@30:delay=6"}
    done = mpirun(2, [PROGRAM, tmp_path], env=faults, quick_compiling=True)
    assert done.returncode == 0, done.stdout
    assert ends(done.stdout) == undisturbed(2)
    assert re.search(r"node 1 \(host \S+\) is running, at \S*faults.py:\d+ in _act <", done.stdout)


def test_a_hang_with_the_lock_held_has_a_limit(tmp_path):
    faults = {"JDASO_FAULTS": "1@30:hang=60"}
    flags = ["--timeout-seconds=5"]
    done = mpirun(2, [PROGRAM, tmp_path, *flags], env=faults, quick_compiling=True, timeout=200)
    assert done.returncode != 0
    assert re.search(r"Not arrived: node 1 .* has been silent", done.stdout), done.stdout


def test_a_command_that_is_not_there_is_one_sentence():
    command = [sys.executable, "-m", "jdaso", "run", "--", "/no/such/mpiexec"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 127
    assert done.stderr.startswith("jdaso run: /no/such/mpiexec cannot be started")


def test_hosts_that_do_not_answer_are_left_out(tmp_path):
    hosts_file = tmp_path / "told"
    flags = ["--hosts", "a,b,c", "--probe", "test {host} != b", "--"]
    command = [
        sys.executable,
        "-m",
        "jdaso",
        "run",
        *flags,
        "sh",
        "-c",
        f"echo {{hosts}} {{count}} > {hosts_file}",
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stderr
    assert hosts_file.read_text() == "a,c 2\n"
    assert "left out because they do not answer: b." in done.stderr
