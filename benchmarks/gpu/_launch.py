"""Runs a script of one part of `gpu.py` in processes of its own, whatever becomes of them."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.lib import harness
from jdaso._launch.mpiexec import mpi_command

FOLDER = Path(__file__).resolve().parent
TAIL_LINES = 15


class Outcome(NamedTuple):
    """The result of a script.

    Attributes:
        status: "ok"; "failed", by its exit status or a signal; "too slow", past its limit.
        seconds: how long it ran.
        result: its last result (`harness.give`), even if it failed afterwards; None if there is
            none.
        why: unless ok: the exit status or limit, and the last lines that it printed.
    """

    status: str
    seconds: float
    result: Any
    why: str


def run_script(
    script: str,
    arguments: Sequence[str],
    *,
    ranks: int,
    limit_seconds: float,
    environment: Mapping[str, str],
) -> Outcome:
    """Runs ``python script arguments``, under mpiexec where `ranks` is above 1. Never raises."""
    command = [sys.executable, str(FOLDER / script), *arguments]
    with tempfile.TemporaryDirectory() as folder:
        given = Path(folder) / "result.json"
        environment = {**os.environ, **environment, harness.RESULT: str(given)}
        if ranks > 1:
            command, environment = mpi_command(ranks, command, environment)
        return _run(command, environment, given, limit_seconds)


def run_command(
    command: Sequence[str], *, ranks: int, limit_seconds: float, environment: Mapping[str, str]
) -> Outcome:
    """The same for any command of this interpreter (``["-m", "pytest", ...]``)."""
    command, environment = [sys.executable, *command], {**os.environ, **environment}
    environment.pop(harness.RESULT, None)
    if ranks > 1:
        command, environment = mpi_command(ranks, command, environment)
    return _run(command, environment, None, limit_seconds)


def _run(
    command: Sequence[str], environment: Mapping[str, str], given: Path | None, limit: float
) -> Outcome:
    begin, late = time.perf_counter(), False
    # A file, not a pipe: a process that outlives mpiexec would keep a pipe open.
    with tempfile.TemporaryFile("w+", errors="replace") as output:
        process = subprocess.Popen(
            command,
            env=environment,
            cwd=FOLDER.parents[1],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            process.wait(limit)
        except subprocess.TimeoutExpired:
            late = True
        finally:  # also where this process is asked to end
            if process.poll() is None:
                _end(process)
        seconds = time.perf_counter() - begin
        output.seek(0)
        tail = "\n".join(output.read().splitlines()[-TAIL_LINES:])
    result = json.loads(given.read_text()) if given is not None and given.exists() else None
    if late:
        return Outcome("too slow", seconds, result, f"longer than {limit:g} s\n{tail}")
    if process.returncode:
        return Outcome("failed", seconds, result, f"{_cause(process.returncode)}\n{tail}")
    return Outcome("ok", seconds, result, "" if result is not None else tail)


def _end(process: subprocess.Popen) -> None:
    """Ends mpiexec, which ends its ranks."""
    process.send_signal(signal.SIGTERM)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(5)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _cause(status: int) -> str:
    with contextlib.suppress(ValueError):
        if status < 0 or status > 128:  # mpiexec says it as a shell does
            return f"killed by {signal.Signals(-status if status < 0 else status - 128).name}"
    return f"exit status {status}"
