"""Hosts of a job: those that answer, and their places in the command that starts the ranks."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial

_PROBE_SECONDS, _LOOK_SECONDS = 15.0, 0.1
_PLACE = re.compile(r"(?P<open>\{?)(?P<whole>\{(?P<name>hosts|count)\})(?P<close>\}?)")


def answering(
    hosts: Sequence[str],
    probe: Sequence[str],
    say: Callable[[str], None],
    stops: Callable[[], bool],
) -> list[str]:
    """Returns the hosts that answer `probe`, a command with ``{host}``; reports the others.

    As soon as `stops` returns True all probes are ended, and no host is returned.

    Raises:
        OSError, ValueError: the probe cannot be started.
    """
    if not hosts:
        return []
    with ThreadPoolExecutor(min(len(hosts), 64)) as pool:
        answers = list(pool.map(partial(_answers, probe, stops), hosts))
    if stops():
        return []
    silent = [host for host, here in zip(hosts, answers, strict=True) if not here]
    if silent:
        say(f"left out because they do not answer: {', '.join(silent)}.")
    return [host for host, here in zip(hosts, answers, strict=True) if here]


def _answers(probe: Sequence[str], stops: Callable[[], bool], host: str) -> bool:
    limit = time.monotonic() + _PROBE_SECONDS
    process = subprocess.Popen(
        [part.replace("{host}", host) for part in probe],
        stdin=subprocess.DEVNULL,  # standard input belongs to the job
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,  # Ctrl-C reaches this process only, and `stops` returns True
    )
    while time.monotonic() < limit and not stops():
        with contextlib.suppress(subprocess.TimeoutExpired):
            return process.wait(_LOOK_SECONDS) == 0
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    return False


def placed(part: str, values: Mapping[str, str]) -> str:
    """Puts the hosts and their number into an argument.

    ``{hosts}`` and ``{count}`` are replaced if they are an argument, or a word or a value in one
    (``--host={hosts}``, ``ppr:{count}:node``, ``-n{count}``). In other text (``run_{count}.npz``,
    ``${count}``) they are left to the program, and doubled braces become single ones.

    Example:
        >>> [placed(x, {"count": "2"}) for x in ("-n{count}", "run_{count}.npz", "{{count}}")]
        ['-n2', 'run_{count}.npz', '{count}']
    """

    def fill(found: re.Match[str]) -> str:
        before, behind = part[: found.start()], part[found.end() :]
        alone = re.search(r"(^|[\s=:,]|^-\w)$", before) and re.match(r"$|[\s:,]", behind)
        if not alone:
            return found[0]
        if found["open"] and found["close"]:
            return found["whole"]
        return found[0] if found["open"] or found["close"] else values.get(found["name"], found[0])

    return _PLACE.sub(fill, part)
