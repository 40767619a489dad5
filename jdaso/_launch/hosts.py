"""Hosts of a job: those that answer, and their places in the command that starts the ranks."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial

_PROBE_SECONDS = 15.0
_PLACE = re.compile(r"(?P<open>\{?)(?P<whole>\{(?P<name>hosts|count)\})(?P<close>\}?)")


def answering(hosts: Sequence[str], probe: Sequence[str], say: Callable[[str], None]) -> list[str]:
    """Returns the hosts that answer `probe`, a command with ``{host}``; reports the others."""
    if not hosts:
        return []
    with ThreadPoolExecutor(min(len(hosts), 64)) as pool:
        answers = list(pool.map(partial(_answers, probe), hosts))
    silent = [host for host, here in zip(hosts, answers, strict=True) if not here]
    if silent:
        say(f"left out because they do not answer: {', '.join(silent)}.")
    return [host for host, here in zip(hosts, answers, strict=True) if here]


def _answers(probe: Sequence[str], host: str) -> bool:
    try:
        done = subprocess.run(
            [part.replace("{host}", host) for part in probe],
            stdin=subprocess.DEVNULL,  # standard input belongs to the job
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=_PROBE_SECONDS,
            check=False,
        )
    except (OSError, ValueError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0


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
