"""The outcome of a launch: its result, or its status and last words."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from .chosen import ChosenFabric
from .processes import Ended
from .rows import FAILED, MISSING, OK, OTHER_FABRIC, OUT_OF_MEMORY, TIMED_OUT, Outcome

RESULT = "jdaso-study "
"""Start of the line on standard output that holds the result, as JSON."""

_LINES, _CHARACTERS = 12, 2000
_NO_MEMORY = ("MemoryError", "std::bad_alloc", "RESOURCE_EXHAUSTED", "Out of memory")
_NO_MEMORY += ("Cannot allocate memory", "oom-kill", "CUDA_ERROR_OUT_OF_MEMORY")
_COUNTERS = (Path("/proc/vmstat"), Path("/sys/fs/cgroup/memory.events"))
_OPTIONAL = ("compute_seconds", "communication_seconds")
_LISTS = ("seconds", "warmup_seconds", *_OPTIONAL)


def memory_kills() -> int:
    """Returns the number of processes that the kernel has killed so far for want of memory."""
    total = 0
    for path in _COUNTERS:
        try:
            lines = path.read_text().splitlines()
        except OSError:
            continue
        found = (line.split() for line in lines if line.startswith("oom_kill "))
        total += sum(int(words[1]) for words in found)
    return total


def outcome_of(
    ended: Ended, fabric: ChosenFabric, limit_seconds: float, *, memory_killed: bool
) -> Outcome:
    """Returns the outcome of a launch that has ended.

    Args:
        ended: its end.
        fabric: the fabric that its bytes should have crossed.
        limit_seconds: its limit.
        memory_killed: whether the kernel has killed processes for want of memory meanwhile.
    """
    words = last_words(ended)
    if ended.timed_out:
        return Outcome(TIMED_OUT, f"Ended after {limit_seconds:g} s, the limit.\n{words}".strip())
    if ended.status != 0:
        short = memory_killed or any(sign in ended.errors + ended.output for sign in _NO_MEMORY)
        status = OUT_OF_MEMORY if short else FAILED
        return Outcome(status, f"Ended with status {ended.status}.\n{words}".strip())
    try:
        return with_proof(fabric, _result(ended.output))
    except ValueError as error:
        return Outcome(FAILED, f"It printed no result ({error}).\n{words}".strip())


def last_words(ended: Ended) -> str:
    """Returns the end of the output: of standard error, and of standard output before it."""
    lines = ended.output.splitlines() + ended.errors.splitlines()
    kept = [line.rstrip() for line in lines if line.strip() and not line.startswith(RESULT)]
    return "\n".join(kept[-_LINES:])[-_CHARACTERS:]


def missing(reason: str) -> Outcome:
    """Returns the outcome of a cell whose library is not here."""
    return Outcome(MISSING, reason)


def failed(reason: object) -> Outcome:
    """Returns the outcome of a cell that could not be launched."""
    return Outcome(FAILED, str(reason))


def _result(output: str) -> Outcome:
    lines = [line for line in output.splitlines() if line.startswith(RESULT)]
    if len(lines) != 1:
        raise ValueError(f"{len(lines)} lines start with {RESULT.strip()!r}")
    table = json.loads(lines[0][len(RESULT) :])
    if not isinstance(table, dict):
        raise ValueError("it is no table")
    json.dumps(table, allow_nan=False)  # a row cannot hold what JSON cannot
    try:
        outcome = Outcome(OK, **table)
    except TypeError as error:
        raise ValueError(error) from None
    _check(outcome)
    return outcome


def _check(outcome: Outcome) -> None:
    """Raises ValueError unless the result has numbers where a row has them."""
    for name in _LISTS:
        numbers = getattr(outcome, name)
        if numbers is None and name in _OPTIONAL:
            continue
        right = isinstance(numbers, list | tuple) and all(
            isinstance(x, int | float) and x >= 0 for x in numbers
        )
        if not right or (name == "seconds" and not numbers):
            raise ValueError(f"{name} is no list of seconds: {str(numbers)[:60]}")
    if type(outcome.expected_bytes) is not int or outcome.expected_bytes < 0:
        raise ValueError(f"expected_bytes is no count: {outcome.expected_bytes!r}")
    for name, kind in (("words", str), ("chosen", dict), ("bytes_at_interfaces", dict)):
        if not isinstance(getattr(outcome, name), kind):
            raise ValueError(f"{name} is of a wrong type: {str(getattr(outcome, name))[:60]}")
    for name, counts in outcome.bytes_at_interfaces.items():
        if not isinstance(counts, list) or list(map(type, counts)) != [int, int]:
            raise ValueError(f"bytes_at_interfaces.{name} is no pair of counts: {counts!r}")


def with_proof(fabric: ChosenFabric, outcome: Outcome) -> Outcome:
    """Returns the outcome; as "other fabric" if fewer bytes crossed the fabric than had to.

    A fabric without a named interface proves nothing, and is taken at its word.
    """
    counted = outcome.bytes_at_interfaces
    crossed = sum(sum(counted.get(name, (0, 0))) for name in fabric.interface)
    if not fabric.interface or crossed >= outcome.expected_bytes:
        return outcome
    words = (
        f"{', '.join(fabric.interface)} carried {crossed} bytes, where {outcome.expected_bytes} "
        f"or more had to cross it. Others: {_others(fabric, counted)}."
    )
    return replace(outcome, status=OTHER_FABRIC, words=words)


def _others(fabric: ChosenFabric, counted: Mapping[str, Any]) -> str:
    rest = {name: sum(pair) for name, pair in counted.items() if name not in fabric.interface}
    return ", ".join(f"{name} {count}" for name, count in rest.items() if count) or "none"
