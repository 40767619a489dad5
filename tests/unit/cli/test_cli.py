import importlib
import json
import os
import signal
import subprocess
import sys
import threading
import time

import pytest
from nights import rows

from jdaso._launch import mpiexec as _mpiexec
from jdaso._launch.mpiexec import LaunchError, find_mpiexec, mpi_command, run_ranks
from jdaso.cli import VERBS, main


def python(code, **settings):
    run_ranks([sys.executable, "-c", code], os.environ, **({"timeout_seconds": 30} | settings))


@pytest.mark.parametrize("verb", VERBS)
def test_a_verb_is_a_module_with_two_functions_and_has_help(verb, capsys):
    module = importlib.import_module(f"jdaso.cli.{verb}")
    assert callable(module.add_arguments) and callable(module.run)
    with pytest.raises(SystemExit) as stopped:
        main([verb, "--help"])
    assert stopped.value.code == 0
    assert VERBS[verb].split()[0] in capsys.readouterr().out.lower()


def test_unknown_verb_lists_the_known_ones(capsys):
    with pytest.raises(SystemExit) as stopped:
        main(["fly"])
    assert stopped.value.code == 2
    assert "fly" in capsys.readouterr().err


@pytest.mark.parametrize("option", ["--epochs", "--nodes", "--devices", "--delay", "--limit"])
def test_demo_refuses_zero(option, capsys):
    assert main(["demo", option, "0"]) == 2
    assert f"{option} must be at least 1, got 0" in capsys.readouterr().err


def test_demo_refuses_a_delay_above_sync_every(capsys):
    assert main(["demo", "--delay", "5"]) == 2
    assert "--delay must be at most --sync-every" in capsys.readouterr().err


def test_demo_records_into_a_folder_of_a_file_system(capsys):
    assert main(["demo", "--record", "s3://bucket/run"]) == 2
    assert "'s3://bucket/run' is an address" in capsys.readouterr().err


def test_nobody_reads_the_output():
    """``| head``: nothing is printed about it, and the status is as if SIGPIPE had ended it."""
    text = (
        "from jdaso.cli import main; import sys; sys.exit(main(['trace', '.', '--steps', '1:2']))"
    )
    text = f"from jdaso.cli import trace; trace.run = lambda _: print('x' * 10**6) or 0; {text}"
    process = subprocess.Popen([sys.executable, "-c", text], stdout=subprocess.PIPE, stderr=-1)
    process.stdout.close()
    assert process.stderr.read() == b"" and process.wait(60) == 141


def test_output_that_cannot_be_written_is_an_error():
    code = "import sys; from jdaso.cli import main, trace; "
    code += "trace.run = lambda _: print('few') or 0; sys.exit(main(['trace', '.']))"
    buffered = {name: x for name, x in os.environ.items() if name != "PYTHONUNBUFFERED"}
    with open("/dev/full", "w") as full:
        about = {"stdout": full, "stderr": subprocess.PIPE, "text": True, "env": buffered}
        done = subprocess.run([sys.executable, "-c", code], check=False, **about)
    assert done.returncode == 1 and "the output could not be written" in done.stderr
    assert done.stderr.count("\n") == 1


def test_demo_names_a_missing_folder(capsys, tmp_path):
    assert main(["demo", "--data", str(tmp_path)]) == 2
    assert f"{tmp_path} has no file train-images" in capsys.readouterr().err


def test_lines_come_as_they_are_printed():
    lines = []
    python("for n in range(3): print('line', n, flush=True)", on_line=lines.append)
    assert lines == ["line 0", "line 1", "line 2"]


def test_a_failure_shows_the_end_of_the_output():
    with pytest.raises(LaunchError, match=r"status 3(.|\n)*no more numbers"):
        python("import sys; print('no more numbers', file=sys.stderr); sys.exit(3)")


def test_output_is_read_to_its_end_though_the_ranks_end_first(monkeypatch):
    class Late(threading.Thread):
        def start(self):
            time.sleep(0.3)  # a busy machine; the process has ended
            super().start()

        def run(self):
            time.sleep(1)
            super().run()

    monkeypatch.setattr(_mpiexec.threading, "Thread", Late)
    lines = []
    code = "import sys; print('a line'); print('the cause', file=sys.stderr); sys.exit(3)"
    with pytest.raises(LaunchError, match=r"status 3(.|\n)*the cause"):
        python(code, on_line=lines.append)
    assert lines == ["a line"]


def test_a_timeout_ends_the_ranks_and_what_they_started(tmp_path):
    """The ranks would run for minutes; a busy machine can start them within the limit."""
    code = f"""
import subprocess, sys, time, pathlib
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(200)"])
pathlib.Path({str(tmp_path / "pid")!r}).write_text(str(child.pid))
time.sleep(200)
"""
    begin = time.monotonic()
    with pytest.raises(LaunchError, match="did not finish within 5 s"):
        python(code, timeout_seconds=5)
    assert time.monotonic() - begin < 100
    assert_ended(int((tmp_path / "pid").read_text()))


class Undying(subprocess.Popen):
    """A launcher that waits in the kernel and cannot be killed."""

    def poll(self):
        return None

    def wait(self, timeout=None):
        assert timeout is not None, "a wait without a limit"
        raise subprocess.TimeoutExpired("undying", timeout)


def test_a_launcher_that_cannot_be_killed_is_left(monkeypatch, caplog):
    monkeypatch.setattr(_mpiexec.subprocess, "Popen", Undying)
    with _mpiexec._children(["true"], os.environ):
        pass
    assert "could not be ended and is still running" in caplog.text


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_parent_ends_its_ranks(number):
    code = f"""
import os, sys
from jdaso._launch.mpiexec import run_ranks
child = "import os, time; print(os.getpid(), flush=True); time.sleep(200)"
run_ranks([{sys.executable!r}, "-c", child], os.environ, timeout_seconds=200)
"""
    begin = time.monotonic()
    with subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as parent:
        try:
            assert parent.stdout is not None
            child = int(parent.stdout.readline())
            parent.send_signal(number)
            assert parent.wait(timeout=20) != 0
        finally:
            parent.kill()
    assert time.monotonic() - begin < 100  # it was the signal
    assert_ended(child)


@pytest.mark.parametrize(
    "again", rows([signal.SIGINT, signal.SIGTERM, signal.SIGHUP], day=[signal.SIGINT])
)
def test_a_second_signal_does_not_cut_the_clean_up_short(again, tmp_path):
    """The launcher notes SIGTERM and goes on, so that it is ended after some seconds."""
    code = f"""
import os, sys
from jdaso._launch.mpiexec import run_ranks
child = "import os, signal, time; signal.signal(15, lambda *_: open('told', 'w'))\\n"
child += "print(os.getpid(), flush=True); time.sleep(200)"
run_ranks([{sys.executable!r}, "-c", child], os.environ, timeout_seconds=200)
"""
    environment = os.environ | {"TMPDIR": str(tmp_path)}
    command = [sys.executable, "-c", code]
    with subprocess.Popen(
        command,
        cwd=tmp_path,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as parent:
        try:
            assert parent.stdout is not None
            child = int(parent.stdout.readline())
            parent.send_signal(signal.SIGTERM)
            limit = time.monotonic() + 20
            while not (tmp_path / "told").exists():
                assert time.monotonic() < limit
                time.sleep(0.01)
            parent.send_signal(again)
            assert parent.wait(timeout=20) == 143
        finally:
            parent.kill()
    assert_ended(child)
    assert list(tmp_path.glob("jdaso-launch-*")) == []


def test_no_mpiexec_says_what_to_install(monkeypatch):
    monkeypatch.setattr(_mpiexec.shutil, "which", lambda name, path=None: None)
    with pytest.raises(LaunchError, match="Install an MPI"):
        find_mpiexec()


@pytest.mark.parametrize("version", ["mpiexec (Open MPI) 5.0.10", "HYDRA build details:"])
def test_open_mpi_gets_its_options(version, tmp_path, monkeypatch):
    mpiexec = tmp_path / "mpiexec"
    mpiexec.write_text(f"#!/bin/sh\n[ -n \"$HOME\" ] && echo '{version}'\n")
    monkeypatch.delenv("HOME", raising=False)
    mpiexec.chmod(0o755)
    monkeypatch.setattr(_mpiexec, "find_mpiexec", lambda: str(mpiexec))
    monkeypatch.setattr(_mpiexec.os, "geteuid", lambda: 0)
    command, environment = mpi_command(3, ["prog"], {"A": "b"})
    assert command[:3] == [str(mpiexec), "-n", "3"] and command[-1] == "prog"
    assert environment["A"] == "b"
    assert ("HOME" in environment) == ("Open MPI" in version)  # without it, it does not start
    assert ("--oversubscribe" in command) == ("Open MPI" in version)
    assert ("OMPI_ALLOW_RUN_AS_ROOT" in environment) == ("Open MPI" in version)


def test_display_without_a_terminal_prints_plain_lines():
    rich = pytest.importorskip("rich.console")
    import io

    from jdaso.cli._demo_display import DemoDisplay, result_table

    report = {
        "method": "daso",
        "step": 3,
        "total_steps": 10,
        "phase": "cycling",
        "sync_every": 4,
        "delay": 2,
        "loss": 0.5,
        "images_per_second": 1234.5,
        "hidden_share": 0.75,
    }
    for terminal in (False, True):
        out = io.StringIO()
        console = rich.Console(file=out, width=120, force_terminal=terminal)
        with DemoDisplay(console) as display:
            display.note("hello")
            display.show(report)
        for word in ("hello", "3", "cycling", "4", "2", "0.500", "75%"):
            assert word in out.getvalue()
    result = {
        "method": "daso",
        "test_accuracy": 0.9,
        "seconds": 1.0,
        "images_per_second": 5.0,
        "bytes_per_step": 1e6,
        "hidden_share": 0.5,
        "nodes_equal": False,
    }
    console.print(result_table([result, result | {"method": "synchronous"}]))
    assert "90.00%" in out.getvalue() and "1,000,000" in out.getvalue() and "NO" in out.getvalue()
    assert json.dumps(result)


def assert_ended(pid):
    for _ in range(200):
        try:
            with open(f"/proc/{pid}/stat") as stat:
                if stat.read().rsplit(")", 1)[1].split()[0] == "Z":
                    return  # ended, not yet collected by its new parent
        except (FileNotFoundError, ProcessLookupError):
            return
        time.sleep(0.1)
    raise AssertionError(f"process {pid} is still running")
