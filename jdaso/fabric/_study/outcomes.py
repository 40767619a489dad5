"""The outcome of a launch: its result, or its status and last output."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from .chosen import ChosenFabric
from .processes import Ended
from .rows import FAILED, MISSING, OK, OTHER_FABRIC, OUT_OF_MEMORY, TIMED_OUT, Outcome

RESULT = "jdaso-study "
"""Start of the line on standard output that holds the result, as JSON."""

_LINES, _CHARACTERS = 12, 2000
_NO_MEMORY = ("MemoryError", "std::bad_alloc", "RESOURCE_EXHAUSTED", "Out of memory")
_NO_MEMORY += ("Cannot allocate memory", "oom-kill", "CUDA_ERROR_OUT_OF_MEMORY")
_OPTIONAL = ("compute_seconds", "communication_seconds")
_LISTS = ("seconds", "warmup_seconds", *_OPTIONAL)
_COUNTS = ("bytes_at_interfaces", "expected_bytes")
_OF_LAUNCHER = re.compile(
    r"^=+$|^=   (BAD TERM|CLEANING|YOU CAN)|^YOUR APPLICATION TERM|^This typically|^Please see the"
    r"|^\[(proxy|mpiexec).*(\(!closed\) failed|callback returned error status|demux engine error .*"
    r"|badly; aborting|launcher returned error .*|process manager error .*)$"
)


@dataclass(frozen=True)
class Limits:
    """The limits of a launch: its time, and its memory if that is limited."""

    seconds: float
    bytes: int | None = None


def outcome_of(
    ended: Ended, fabric: ChosenFabric, limits: Limits, *, memory_killed: bool
) -> Outcome:
    """Returns the outcome of a launch that has ended.

    Args:
        ended: its end.
        fabric: the fabric that its bytes should have crossed.
        limits: of the launch.
        memory_killed: whether the kernel has killed processes for lack of memory meanwhile.

    Ranks may hang once the kernel has killed one of them: with a limit on the memory of the launch,
    that kill is the reason.
    """
    words = last_words(ended)
    if ended.timed_out and not (memory_killed and limits.bytes):
        return Outcome(TIMED_OUT, f"Ended after {limits.seconds:g} s, the limit.\n{words}".strip())
    if ended.status != 0:
        short = memory_killed or any(sign in ended.errors + ended.output for sign in _NO_MEMORY)
        status, why = (OUT_OF_MEMORY, _memory_words(limits)) if short else (FAILED, "")
        return Outcome(status, f"Ended with status {ended.status}.{why}\n{words}".strip())
    try:
        return with_proof(fabric, _result(ended.output))
    except ValueError as error:
        return Outcome(FAILED, f"It printed no result ({error}).\n{words}".strip())


def _memory_words(limits: Limits) -> str:
    return f" All its processes may take {limits.bytes} bytes, the limit." if limits.bytes else ""


def last_words(ended: Ended) -> str:
    """Returns the end of the output: of standard error, and of standard output before it.

    Lines that MPICH's launcher adds to any end of a rank are left out, as they would fill the text.
    """
    output, errors = _of_ranks(ended.output), _of_ranks(ended.errors)
    return "\n".join(output[-_LINES:] + errors[-_LINES:])[-_CHARACTERS:]


def _of_ranks(text: str) -> list[str]:
    lines = (line.rstrip() for line in text.splitlines() if not line.startswith(RESULT))
    return [line for line in lines if line and not _OF_LAUNCHER.search(line)]


def missing(reason: str) -> Outcome:
    """Returns the outcome of a cell whose library is not here."""
    return Outcome(MISSING, reason)


def failed(reason: object) -> Outcome:
    """Returns the outcome of a cell that could not be launched."""
    return Outcome(FAILED, str(reason))


def _result(output: str) -> Outcome:
    lines = [line for line in output.splitlines() if line.startswith(RESULT)]
    if len(lines) > 1:
        raise ValueError(
            f"{len(lines)} ranks ran alone, each as node 0: the mpiexec that started them belongs "
            "to another MPI than that of the library's environment. Install one beside its python, "
            "or put the right one first on PATH"
        )
    if not lines:
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
        if not right or (name == "seconds" and not (numbers and min(numbers) > 0)):
            raise ValueError(f"{name} is not a list of seconds: {str(numbers)[:60]}")
    for name, kind in (("words", str), ("chosen", dict), ("other_nodes", list | tuple)):
        if not isinstance(getattr(outcome, name), kind):
            raise ValueError(f"{name} is of a wrong type: {str(getattr(outcome, name))[:60]}")
    for node in _nodes(outcome):
        _check_node(node)


def _check_node(node: Any) -> None:
    """Raises ValueError unless the counts of a node are valid."""
    if not isinstance(node, dict) or node.keys() != set(_COUNTS):
        raise ValueError(f"other_nodes has a node without its counts: {str(node)[:60]}")
    counted, expected = (node[name] for name in _COUNTS)
    if type(expected) is not int or expected < 0:
        raise ValueError(f"expected_bytes is no count: {expected!r}")
    if not isinstance(counted, dict):
        raise ValueError(f"bytes_at_interfaces is of a wrong type: {str(counted)[:60]}")
    for name, counts in counted.items():
        if not isinstance(counts, list) or list(map(type, counts)) != [int, int]:
            raise ValueError(f"bytes_at_interfaces.{name} is no pair of counts: {counts!r}")


def _nodes(outcome: Outcome) -> list[Any]:
    """The counts of all nodes that have counted, node 0 first."""
    return [{name: getattr(outcome, name) for name in _COUNTS}, *outcome.other_nodes]


def with_proof(fabric: ChosenFabric, outcome: Outcome) -> Outcome:
    """Returns the outcome; "other fabric" if fewer bytes crossed the fabric on a node than had to.

    A fabric without a named interface cannot be verified, and is accepted.
    """
    for number, node in enumerate(_nodes(outcome)):
        counted, expected = (node[name] for name in _COUNTS)
        crossed = sum(sum(counted.get(name, (0, 0))) for name in fabric.interface)
        if fabric.interface and crossed < expected:
            words = (
                f"{', '.join(fabric.interface)} carried {crossed} bytes on node {number}, where "
                f"{expected} or more had to cross it. Others: {_others(fabric, counted)}."
            )
            return replace(outcome, status=OTHER_FABRIC, words=words)
    return outcome


def _others(fabric: ChosenFabric, counted: Mapping[str, Any]) -> str:
    rest = {name: sum(pair) for name, pair in counted.items() if name not in fabric.interface}
    return ", ".join(f"{name} {count}" for name, count in rest.items() if count) or "none"
