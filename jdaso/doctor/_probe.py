"""Runs one part of the examination in a process of its own, which may crash, hang or be killed.

The part records the beginning and the end of each step, and so the step in which a process failed.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from .._launch.environment import alone, with_home
from ._connections import awaited, refused

_KILL_SECONDS = 5.0


class ProbeSteps:
    """The tested process's side: ``steps.take("name", function)``.

    Args:
        path: of the file to write to.
        done: steps that an earlier process has completed; they are not repeated.
        failed: steps in which that process raised or was killed; steps that need them are skipped.
    """

    def __init__(self, path: str, done: Sequence[str] = (), failed: Sequence[str] = ()):
        self._path, self._done, self._failed = path, set(done), set(failed)

    def take(self, name: str, step: Callable[[], Any], needs: Sequence[str] = ()) -> Any:
        """Runs a step; returns its value, or None if it raised or was skipped."""
        if name in self._done | self._failed:
            return None
        broken = [other for other in needs if other in self._failed]
        if broken:
            return self._fail(name, f"not tried, since {' and '.join(broken)} failed")
        self.note({"begin": name})
        try:
            value = step()
        except Exception as error:
            text = " ".join(str(error).split())
            return self._fail(name, f"{type(error).__name__}: {text}"[:600])
        self.note({"step": name, "value": value})
        return value

    def _fail(self, name: str, error: str) -> None:
        self._failed.add(name)
        self.note({"step": name, "error": error})

    def note(self, line: Mapping[str, Any]) -> None:
        """Writes a line at once."""
        with open(self._path, "a") as file:
            file.write(json.dumps(line) + "\n")


@dataclasses.dataclass(frozen=True)
class PartProgress:
    """The progress of a part.

    Attributes:
        values: of the steps that succeeded.
        errors: of those that raised.
        died: the step in which the process ended or was killed, and how; else empty.
        unreached: the addresses to which the process could not connect then.
    """

    values: Mapping[str, Any]
    errors: Mapping[str, str]
    died: Mapping[str, str]
    unreached: Sequence[str] = ()

    def error(self, step: str) -> str:
        """Returns the reason why a step has no value."""
        return self.errors.get(step) or self.died.get(step) or "not reached"


def _by_itself() -> dict[str, str]:
    """Returns an environment without a launcher, which leaves a GPU's memory to others."""
    return {**alone(os.environ), "XLA_PYTHON_CLIENT_PREALLOCATE": "false"}


def try_out(
    part: str, arguments: Sequence[str] = (), *, limit_seconds: float, as_rank: bool = False
) -> PartProgress:
    """Runs a part of the doctor in a process of its own.

    Args:
        part: its name, in `_parts.run_part`.
        arguments: for the part.
        limit_seconds: the longest time without a new step.
        as_rank: whether the process is this rank of the launch, or one without a launcher.

    *On failure* the outcome has the step in which the process ended, and its last output.
    """
    environment = with_home(os.environ) if as_rank else _by_itself()
    with tempfile.TemporaryDirectory(prefix="jdaso-doctor-") as folder:
        notes, words = Path(folder, "steps"), Path(folder, "words")
        notes.touch()
        command = [sys.executable, "-m", "jdaso", "doctor", "--part", part, str(notes), *arguments]
        with words.open("w") as output:
            process = subprocess.Popen(
                command,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                close_fds=not as_rank,  # launchers use descriptors to reach their ranks
                start_new_session=not as_rank,
            )
            end, unreached = _wait(process, notes, limit_seconds)
        outcome = _outcome(notes.read_text(), end, said := words.read_text(errors="replace"))
        return dataclasses.replace(outcome, unreached=unreached or refused(said))


def _wait(process: subprocess.Popen, notes: Path, limit_seconds: float) -> tuple[str, list[str]]:
    """Returns how the process ended, empty if normally, and the addresses it was waiting for.

    A process that waits in the kernel, for a file server or a driver, cannot be killed and is left.
    """
    seen, since, pause = -1, time.monotonic(), 0.005
    try:
        while process.poll() is None:
            size = notes.stat().st_size
            if size != seen:
                seen, since = size, time.monotonic()
            if time.monotonic() - since > limit_seconds:
                return f"no answer within {limit_seconds:g} s", awaited(process.pid)
            time.sleep(pause)
            pause = min(2 * pause, 0.05)
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_KILL_SECONDS)
    status = process.returncode
    if status < 0:
        return f"the process was killed by {signal.Signals(-status).name}", []
    return f"the process ended with status {status}" if status else "", []


def _outcome(notes: str, end: str, words: str) -> PartProgress:
    values, errors, begun = {}, {}, ""
    for text in notes.splitlines():
        line = json.loads(text)
        if "begin" in line:
            begun = line["begin"]
        elif "error" in line:
            errors[line["step"]], begun = line["error"], ""
        else:
            values[line["step"]], begun = line["value"], ""
    if not end and not begun:
        return PartProgress(values, errors, {})
    last = " ".join(words.split()[-25:])
    how = f"{end or 'it ended'}; last words: {last}" if last else end or "it ended"
    return PartProgress(values, errors, {begun or "end": how})
