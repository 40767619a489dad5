"""`jdaso run` with commands that are not MPI's: their output, input, signals and failures.

Ranks are played by programs that speak to the supervisor as ranks do, without JAX.
"""

import os
import pty
import re
import select
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from pathlib import Path

import pytest
from nights import at_night

from jdaso._launch import guard
from jdaso._launch.hosts import placed

TAG = "JDASO_TEST_LAUNCH"
WITHOUT_JAX = """
import fcntl, os, signal, sys, termios, time, types
from jdaso._launch import reports as _deaths

def until_read():
    # The supervisor has taken all reports of this rank from its connection.
    (connection,) = _deaths._to_supervisor
    while int.from_bytes(fcntl.ioctl(connection, termios.TIOCOUTQ, bytes(4)), sys.byteorder):
        time.sleep(0.01)
"""

SAVER = f"""{WITHOUT_JAX}
stopped = []
for number in (10, 12):
    signal.signal(number, lambda *_: stopped.append(1))
_deaths.say_rank(0, "here")
_deaths.say_saves([10, 12])
until_read()
print("ready", flush=True)
while not stopped:
    time.sleep(0.02)
for k in range(20):
    print("x" * 10_000, flush=True)  # nobody may read it any more
open("saved", "a").write("s")
_deaths.say_saved()
sys.exit(75)
"""

ORPHANING = f"""{WITHOUT_JAX}
_deaths.say_rank(0, "here")
if sys.argv[1] == "after its session":
    _deaths.say_through()
if os.fork() == 0:
    time.sleep(100)
os.kill(os.getpid(), 9)
"""

WAITS_FOR_PIPES = f"""
import subprocess, sys
command = [sys.executable, "-c", {ORPHANING!r}, sys.argv[1]]
rank = subprocess.Popen(command, stdout=-1, process_group=0)
rank.stdout.read()
sys.exit(9)
"""

SURVIVED = f"""
import subprocess, sys
lives = {WITHOUT_JAX!r} + "_deaths.say_rank(1, 'here'); print(flush=True); time.sleep(100)"
dies = {WITHOUT_JAX!r} + "_deaths.say_rank(0, 'here'); os.kill(os.getpid(), 9)"
first = subprocess.Popen([sys.executable, "-c", lives], stdout=-1)
first.stdout.readline()
subprocess.run([sys.executable, "-c", dies])
first.wait()
"""

LEAVES_FILES = f"""{WITHOUT_JAX}
import mmap
name = sys.argv[1]
for path in (f"/dev/shm/mpich_shm_{{name}}_0", f"/dev/shm/{{name}}-of-the-user"):
    with open(path, "w+b") as file:
        file.truncate(4096)
        kept = [mmap.mmap(file.fileno(), 4096) for _ in range(2)]
        os.kept = [*getattr(os, "kept", []), *kept]
_deaths.say_rank(0, "here")
_deaths.say_saves([])  # read after the supervisor has looked at what the rank has mapped
until_read()
print("noted", flush=True)
time.sleep(float(sys.argv[2]))
open(f"/dev/shm/mpich_shm_{{name}}_1", "w").close()
os.kill(os.getpid(), 9)
"""


FILLS = """
import os, sys, time
os.set_blocking(1, False)
count, last = 0, time.monotonic()
while time.monotonic() < last + 2.0:
    try:
        count += os.write(1, b"x" * 4096)
        last = time.monotonic()
    except BlockingIOError:
        time.sleep(0.01)
open("new", "w").write(str(count))
os.rename("new", "count")
sys.exit(3)
"""

GUARD_SECONDS = 2.0
"""A supervisor's news reach its guard within this time; nothing shows that they have."""

SAVING = (sys.executable, "-c", SAVER)

NO_ROOM = """
import tempfile
def mkdtemp(*about, whole=tempfile.mkdtemp, **more):
    tempfile.mkdtemp = whole
    raise OSError(28, "full")
tempfile.mkdtemp = mkdtemp
"""
"""The first folder for temporary files cannot be made."""


@pytest.fixture
def run(tmp_path):
    """Starts ``jdaso run``; what is left of it at the end is an error, and is killed."""
    started, tag = [], uuid.uuid4().hex

    def start(*words, **options):
        command = [sys.executable, "-m", "jdaso", "run", *map(str, words)]
        environment = os.environ | {TAG: tag, "JAX_PLATFORMS": "cpu"}
        for name in (guard.LAUNCH, "JDASO_SUPERVISOR"):
            environment.pop(name, None)
        options = {"stdin": subprocess.DEVNULL, "cwd": tmp_path, **options}
        process = subprocess.Popen(command, env=environment, **options)
        started.append(process)
        return process

    yield start
    for process in started:
        if process.poll() is None:
            process.kill()
        process.wait(30)
    limit, left = time.monotonic() + 15, members(tag)
    while (left := members(tag)) and time.monotonic() < limit:
        time.sleep(0.1)
    for pid in left:
        os.kill(pid, signal.SIGKILL)
    assert not left


def members(tag):
    found = []
    for folder in Path("/proc").iterdir():
        try:
            if folder.name.isdigit() and f"{TAG}={tag}".encode() in (
                (folder / "environ").read_bytes().split(b"\0")
            ):
                found.append(int(folder.name))
        except OSError:
            pass
    return found


def state(pid):
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def until(condition, seconds=30):
    limit = time.monotonic() + seconds
    while not condition() and time.monotonic() < limit:
        time.sleep(0.02)
    assert condition()


def starts(tmp_path):
    return len((tmp_path / "starts").read_text())


PIPED = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
COUNTED = "printf s >> starts; "


def test_bytes_arrive_as_they_are(run, tmp_path):
    data = os.urandom(3_000_000) + b"\x1ejdaso-rank \r50 %\r" + b"x" * 300_000
    (tmp_path / "data").write_bytes(data)
    out, err = run("--", "sh", "-c", "cat data; cat data >&2", **PIPED).communicate(timeout=60)
    assert out == data and err == data


def test_both_streams_of_one_file_keep_their_order(run):
    script = "for i in 1 2 3 4 5 6 7 8 9; do printf o$i; printf e$i >&2; done"
    process = run("--", "sh", "-c", script, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    expected = b"".join(b"o%d" % i + b"e%d" % i for i in range(1, 10))
    assert process.communicate(timeout=60)[0] == expected


def test_a_byte_arrives_at_once(run, tmp_path):
    script = "printf .; until [ -e seen ]; do sleep 0.05; done"
    process = run("--", "sh", "-c", script, **PIPED)
    assert select.select([process.stdout], [], [], 30)[0]
    assert os.read(process.stdout.fileno(), 10) == b"."
    (tmp_path / "seen").touch()
    assert process.wait(30) == 0


@pytest.mark.parametrize("how", ["gone", "/dev/full", "closed", "all closed"])
def test_a_job_goes_on_where_nobody_takes_its_output(how, run, tmp_path):
    script = COUNTED + "seq 1 50000; seq 1 50000 >&2; exit 3"
    words, options = ["--max-restarts", "1", "--", "bash", "-c", script], {}
    if how == "gone":
        read_end, write_end = os.pipe()
        os.close(read_end)
        process = run(*words, stdout=write_end, stderr=write_end)
        os.close(write_end)
    elif how == "/dev/full":
        with open(how, "w") as full:
            process = run(*words, stdout=full, stderr=full)
    else:
        closed = (1,) if how == "closed" else (0, 1, 2)
        options["preexec_fn"] = lambda: [os.close(number) for number in closed]
        process = run(*words, **options)
    assert process.wait(60) == 3
    assert starts(tmp_path) == 2


def test_lost_output_is_reported(run):
    with open("/dev/full", "w") as full:
        process = run("--", "seq", 1, 5, stdout=full, stderr=subprocess.PIPE)
        said = process.communicate(timeout=60)[1]
    assert process.returncode == 0
    assert b"10 bytes could not be written to standard output (No space left" in said


def test_a_reader_that_pauses_gets_all(run, tmp_path):
    """The job is started again meanwhile."""
    script = COUNTED + "head -c 50000 /dev/zero; exit 3"
    read_end, write_end = os.pipe()
    process = run("--max-restarts", 1, "--", "bash", "-c", script, stdout=write_end)
    os.close(write_end)
    until(lambda: (tmp_path / "starts").exists() and starts(tmp_path) == 2)
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(2)
    with os.fdopen(read_end, "rb") as output:
        assert len(output.read()) == 100_000
    assert process.wait(30) == 3


def test_all_output_of_a_job_arrives_before_the_supervisors_report(run, tmp_path):
    """The reader pauses until the job has filled all there is, and has ended."""
    read_end, write_end = os.pipe()
    command = ["--", sys.executable, "-c", FILLS]
    process = run(*command, stdout=write_end, stderr=write_end)
    os.close(write_end)
    until((tmp_path / "count").exists)
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(1)
    count = int((tmp_path / "count").read_text())
    with os.fdopen(read_end, "rb") as output:
        written, newline, said = output.read().partition(b"\n")
    assert count > 1_000_000 and written == b"x" * count
    assert said == b"jdaso run: the job failed (status 3).\n"
    assert process.wait(30) == 3


def test_a_signal_ends_the_wait_for_a_reader(run, tmp_path):
    read_end, write_end = os.pipe()
    script = "head -c 100000 /dev/zero; touch done"
    process = run("--", "bash", "-c", script, stdout=write_end, stderr=subprocess.DEVNULL)
    until((tmp_path / "done").exists)
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(2)
    process.send_signal(signal.SIGTERM)
    assert process.wait(20) == 0
    os.close(read_end)
    os.close(write_end)


def test_a_process_that_holds_or_fills_a_pipe_is_not_waited_for(run):
    """Processes that are not known as the job's: without its environment, in their own session."""
    script = "env -i setsid timeout 20 yes & sleep 0.2; echo $! ; exit 3"
    begin = time.monotonic()
    process = run("--", "bash", "-c", script, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    assert process.wait(15) == 3 and time.monotonic() - begin < 15


def test_input_reaches_the_job_and_nobody_else(run):
    words = ["--hosts", "a", "--probe", "sh -c 'cat >/dev/null'", "--", "cat"]
    process = run(*words, stdout=subprocess.PIPE, **{"stdin": subprocess.PIPE})
    assert process.communicate(b"first\nsecond\n", timeout=60)[0] == b"first\nsecond\n"


def test_a_status_of_75_that_nobody_saved_with_is_a_failure(run, tmp_path):
    assert run("--max-restarts", 1, "--", "sh", "-c", COUNTED + "exit 75").wait(60) == 75
    assert starts(tmp_path) == 2


def test_a_job_that_has_saved_is_started_again_uncounted(run, tmp_path):
    once = f"""{WITHOUT_JAX}
_deaths.say_rank(0, "here")
again = os.path.exists("saved")
if not again:
    open("saved", "w").close()
    _deaths.say_saved()
_deaths.say_through()
sys.exit(0 if again else 75)
"""
    process = run("--", sys.executable, "-c", once, stderr=subprocess.PIPE)
    said = process.communicate(timeout=60)[1]
    assert process.returncode == 0 and b"has saved; it is started again" in said


@pytest.mark.parametrize("last", ["saved", "complete"])
def test_a_job_that_saves_behind_a_pipe_is_not_complete(last, run, tmp_path):
    """Only ranks get the signal. A later launch of the same script may complete."""
    once = f"""{WITHOUT_JAX}
_deaths.say_rank(0, "here")
first = not os.path.exists("saved")
if first:
    open("saved", "w").close()
    _deaths.say_saved()
_deaths.say_through()
sys.exit(75 if first else 0)
"""
    (tmp_path / "once.py").write_text(once)
    twice = f"{sys.executable} once.py | cat; [ {last} = saved ] || {sys.executable} once.py"
    process = run("--", "bash", "-c", f"echo start >> starts; {twice}", stderr=subprocess.PIPE)
    said = process.communicate(timeout=60)[1]
    assert process.returncode == 0
    assert (b"has saved; it is started again" in said) == (last == "saved")
    assert len((tmp_path / "starts").read_text().split()) == (2 if last == "saved" else 1)


@pytest.mark.parametrize("name", ["TERM", "USR1", "USR2", "INT", "HUP", "QUIT", "XCPU", "KILL"])
def test_every_signal_saves_first(name, run, tmp_path):
    """Sends signals to a script that does not forward them, or KILL and closes the output."""
    script = [sys.executable, "-c", SAVER]
    if name != "KILL":
        script = ["bash", "-c", '"$@"; true', "bash", *script]
    process = run("--", *script, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout.readline() == b"ready\n"
    if name == "KILL":
        time.sleep(GUARD_SECONDS)
    process.send_signal(getattr(signal, f"SIG{name}"))
    if name == "TERM":  # `timeout` sends it to the process and to its group
        process.send_signal(signal.SIGTERM)
    if name == "KILL":
        process.wait(30)
        process.stdout.close()
    else:
        process.communicate(timeout=60)
        assert process.returncode == 75
    until((tmp_path / "saved").exists)


def test_a_job_that_does_not_heed_its_end_is_killed(run, tmp_path):
    script = "trap '' TERM USR1 USR2 INT HUP QUIT; touch ready; while :; do sleep 0.1; done"
    process = run("--grace-seconds", 0.5, "--", "bash", "-c", script, stderr=subprocess.PIPE)
    until((tmp_path / "ready").exists)
    process.send_signal(signal.SIGTERM)
    said = process.communicate(timeout=40)[1]
    assert process.returncode == 137 and b"not ended within 0.5 s" in said


def test_a_second_ctrl_c_waits_for_nothing(run, tmp_path):
    script = "trap '' TERM USR1 USR2 INT HUP QUIT; touch ready; while :; do sleep 0.1; done"
    process = run("--", "bash", "-c", script, stderr=subprocess.PIPE)
    until((tmp_path / "ready").exists)
    process.send_signal(signal.SIGINT)
    assert b"Ctrl-C (SIGINT) ends it at once" in process.stderr.readline()
    time.sleep(0.5)  # the time is what is tested: sooner it is the same signal
    process.send_signal(signal.SIGINT)
    begin = time.monotonic()
    assert process.wait(30) == 137 and time.monotonic() - begin < 5


def test_a_supervisor_that_was_stopped_takes_what_came_meanwhile(run, tmp_path):
    """A death (the rank reports itself while nobody listens), and a signal."""
    dies = (
        f"{WITHOUT_JAX}again = os.path.exists('ran'); open('ran', 'w').close(); "
        "again or print(os.getpid(), flush=True); sys.stdin.readline(); "
        "_deaths.say_rank(0, 'here')"
    )
    dies += "; os.kill(os.getpid(), 9)"
    command = [*("--max-restarts", 5, "--"), sys.executable, "-c", dies]
    process = run(*command, stdin=subprocess.PIPE, **PIPED)
    rank = int(process.stdout.readline())
    process.send_signal(signal.SIGSTOP)
    process.stdin.write(b"go on\n")
    process.stdin.flush()
    until(lambda: state(rank) == "Z")  # dead, which its parent has not yet noticed
    process.send_signal(signal.SIGCONT)
    assert b"node 0 ended first" in process.stderr.readline()
    process.send_signal(signal.SIGSTOP)
    process.send_signal(signal.SIGTERM)
    process.send_signal(signal.SIGCONT)
    process.communicate(timeout=30)
    assert process.returncode in (137, 143)


def test_a_job_whose_terminal_is_closed_saves(run, tmp_path):
    """The terminal sends SIGHUP, and then takes nothing more."""
    pid, terminal = pty.fork()
    if pid == 0:
        os.chdir(tmp_path)
        os.execv(sys.executable, [sys.executable, "-m", "jdaso", "run", "--", *SAVING])
    said = b""
    while b"ready" not in said and select.select([terminal], [], [], 30)[0]:
        said += os.read(terminal, 1000)
    os.close(terminal)
    limit, ended = time.monotonic() + 30, 0
    while not ended and time.monotonic() < limit:
        ended, status = os.waitpid(pid, os.WNOHANG)
        time.sleep(0.05)
    if not ended:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    assert ended and os.waitstatus_to_exitcode(status) == 75
    assert (tmp_path / "saved").exists()


@pytest.mark.parametrize("when", ["in its session", at_night("after its session")])
def test_what_a_killed_rank_has_forked_does_not_hide_its_death(when, run):
    process = run("--", sys.executable, "-c", WAITS_FOR_PIPES, when, stderr=subprocess.PIPE)
    said = process.communicate(timeout=60)[1]
    assert process.returncode == 9 and b"node 0 ended first" in said


def test_a_launcher_that_does_not_notice_a_death_is_ended(run):
    process = run("--", sys.executable, "-c", SURVIVED, stderr=subprocess.PIPE)
    said = process.communicate(timeout=60)[1]
    assert process.returncode != 0 and b"node 0 ended first" in said
    assert b"the launcher does not end the job" in said


@pytest.mark.parametrize("killed", [False, True])
def test_files_of_mpi_are_removed_and_no_others(killed, run):
    """The files are removed even if the supervisor is killed."""
    name = uuid.uuid4().hex
    kept = Path(f"/dev/shm/{name}-of-the-user")
    seconds = 100 if killed else 0
    process = run("--", sys.executable, "-c", LEAVES_FILES, name, seconds, **PIPED)
    assert process.stdout.readline() == b"noted\n"
    if killed:
        time.sleep(GUARD_SECONDS)
        process.kill()
    assert process.wait(60) == (-9 if killed else 137)
    until(lambda: not list(Path("/dev/shm").glob(f"mpich_shm_{name}_*")))
    assert kept.exists()
    kept.unlink()


def test_a_supervisor_under_a_supervisor(run, tmp_path):
    """A signal saves once; a death of the inner one leaves nothing."""
    inner = [sys.executable, "-m", "jdaso", "run", "--"]
    process = run("--", *inner, sys.executable, "-c", SAVER, **PIPED)
    assert process.stdout.readline() == b"ready\n"
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=60)
    assert process.returncode == 75 and (tmp_path / "saved").read_text() == "s"


def test_a_command_that_was_never_there_is_a_mistake(run, tmp_path):
    """One that was is awaited: its file system may be away."""
    process = run("--max-restarts", 3, "--", "./job", stderr=subprocess.PIPE)
    said = process.communicate(timeout=60)[1].decode()
    assert process.returncode == 127 and "restart" not in said
    (tmp_path / "job").write_text("#!/bin/sh\nrm job\nexit 3\n")
    (tmp_path / "job").chmod(0o700)
    process = run("--max-restarts", 2, "--", "./job", stderr=subprocess.PIPE)
    said = process.communicate(timeout=60)[1].decode()
    assert process.returncode == 127 and "(status 127); restart 2 of 2" in said


def test_no_room_for_temporary_files_is_a_failure_as_any_other(run, tmp_path):
    (tmp_path / "sitecustomize.py").write_text(NO_ROOM)
    environment = os.environ | {"PYTHONPATH": str(tmp_path)}
    command = [sys.executable, "-m", "jdaso", "run", "--max-restarts", "1", "--", "echo", "hello"]
    done = subprocess.run(command, env=environment, capture_output=True, timeout=60, check=False)
    assert done.returncode == 0 and done.stdout == b"hello\n"
    assert b"no folder for temporary files ([Errno 28] full). Free some space" in done.stderr


def test_a_long_name_of_the_folder_for_temporary_files_is_no_hindrance():
    """60 letters of two bytes each; a socket's path has at most 107 bytes."""
    with tempfile.TemporaryDirectory(suffix="\u00e9" * 60, dir="/tmp") as folder:
        environment = os.environ | {"TMPDIR": folder, "LC_ALL": "C.UTF-8"}
        command = [sys.executable, "-m", "jdaso", "run", "--", "echo", "hello"]
        done = subprocess.run(
            command, env=environment, capture_output=True, timeout=60, check=False
        )
    assert (done.returncode, done.stdout) == (0, b"hello\n"), done.stderr


@pytest.mark.parametrize("files", [12, 14, 17])
def test_too_few_open_files_are_said_in_a_sentence(files):
    command = f"ulimit -n {files}; {sys.executable} -m jdaso run -- echo hello"
    done = subprocess.run(["bash", "-c", command], capture_output=True, timeout=60, check=False)
    assert done.returncode == 1
    assert b"Too many open files" in done.stderr and b"ulimit -n" in done.stderr
    assert b"Traceback" not in done.stderr


def test_a_job_has_a_home(run, monkeypatch):
    """Open MPI's launcher does not start without; a service of systemd has none."""
    monkeypatch.delenv("HOME", raising=False)
    process = run("--", "sh", "-c", "echo $HOME", stdout=subprocess.PIPE)
    assert process.communicate(timeout=60)[0].startswith(b"/")


def test_a_signal_while_hosts_are_asked_is_no_silent_host(run, tmp_path):
    words = ["--max-restarts", 1, "--hosts", "a", "--probe", "sh -c 'touch asked; sleep 60'"]
    process = run(*words, "--", "true", stderr=subprocess.PIPE)
    until((tmp_path / "asked").exists)
    begin = time.monotonic()
    process.send_signal(signal.SIGTERM)
    said = process.communicate(timeout=30)[1]
    assert process.returncode == 143 and not said and time.monotonic() - begin < 10


def test_a_job_waits_for_as_many_hosts_as_it_needs(run, tmp_path):
    """Each host answers once its file is there; the wait counts as no restart."""
    (tmp_path / "a").touch()
    words = ["--hosts", "a,b,a", "--min-hosts", 2, "--probe", "test -e {host}"]
    process = run(*words, "--", "echo", "{hosts}", "{count}", **PIPED)
    assert b"left out because they do not answer: b" in process.stderr.readline()
    assert b"waits for 1 more of them (--min-hosts)" in process.stderr.readline()
    (tmp_path / "b").touch()
    assert process.communicate(timeout=60)[0] == b"a,b 2\n" and process.returncode == 0


def test_pauses_grow_until_a_start_has_saved_a_checkpoint(run, tmp_path):
    program = f"""{WITHOUT_JAX}
_deaths.say_rank(0, "here")
with open("starts", "a+") as file:
    file.write("x")
    file.seek(0)
    if len(file.read()) == 3:
        _deaths.say_progressed()
sys.exit(3)
"""
    command = ["--max-restarts", 4, "--", sys.executable, "-c", program]
    said = run(*command, stderr=subprocess.PIPE).communicate(timeout=60)[1].decode()
    pauses = re.findall(r"restart \d of 4 in (\S+) s", said)
    assert pauses == ["1", "2", "1", "2"]


def test_a_probe_that_is_not_there_is_a_mistake(run):
    words = ["--max-restarts", 3, "--hosts", "a,b", "--probe", "./probe {host}", "--", "true"]
    process = run(*words, stderr=subprocess.PIPE)
    said = process.communicate(timeout=30)[1].decode()
    assert process.returncode == 127 and said == (
        "jdaso run: the probe ./probe cannot be started ([Errno 2] No such file or directory: "
        "'./probe'). Install it, or give another one with --probe.\n"
        "jdaso run: the job failed (status 127).\n"
    )


def test_arguments_are_handed_on_as_they_are(run):
    words = ["", "a b", "{}", "{count}", "{hosts}", "--", "--max-restarts", "-h", "*", "$x", "é"]
    show = "import sys; print(sys.argv[1:])"
    process = run("--", sys.executable, "-c", show, *words, stdout=subprocess.PIPE)
    assert process.communicate(timeout=60)[0].decode() == f"{words}\n"


@pytest.mark.parametrize(
    "words",
    [[], ["--"], ["--max-restarts", "-1", "--", "true"], ["--grace-seconds", "nan", "--", "true"]]
    + [["--hosts", ",", "--", "true"], ["--probe", "'", "--", "true"]]
    + [["--hosts", "n[01-04,07]", "--", "true"], ["--min-hosts", "2", "--", "true"]]
    + [["--hosts", "a,b", "--min-hosts", "0", "--", "true"]],
)
def test_mistakes_in_the_options_are_one_sentence(words, run):
    process = run(*words, stderr=subprocess.PIPE)
    said = process.communicate(timeout=60)[1].decode()
    assert process.returncode == 2 and "jdaso run: error: " in said and "Traceback" not in said


PLACED = {
    "{hosts}": "a,b",
    "-n{count}": "-n2",
    "--host={hosts}": "--host=a,b",
    "ppr:{count}:node": "ppr:2:node",
    "{hosts}:{count}": "a,b:2",
    "echo {hosts} {count}": "echo a,b 2",
    "runs/{name}_{count}.npz": "runs/{name}_{count}.npz",
    "${count}": "${count}",
    "f'{count}'": "f'{count}'",
    "{{count}}": "{count}",
    "{{count}": "{{count}",
    "{count:3}": "{count:3}",
    "{}": "{}",
}


@pytest.mark.parametrize("part", PLACED)
def test_only_placeholders_that_stand_alone_are_filled(part):
    assert placed(part, {"hosts": "a,b", "count": "2"}) == PLACED[part]
