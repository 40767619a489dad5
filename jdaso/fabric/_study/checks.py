"""Reads tables of a declaration: unknown keys, wrong types and wrong names are refused.

Every error states the place of the mistake, the value given, and the remedy.
"""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Collection, Mapping
from typing import Any

_UNITS = {"b": 1, "kib": 2**10, "mib": 2**20, "gib": 2**30}
_UNITS |= {"kb": 10**3, "mb": 10**6, "gb": 10**9}
_KINDS = {
    str: "a text",
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    dict: "a table",
    list: "a list",
}


class StudyError(ValueError):
    """A declaration, a folder of a study, or a row is not as it must be."""


def one_of(where: str, given: object, known: Collection[str]) -> str:
    """Returns a name if it is known; otherwise the error names the nearest one.

    Raises:
        StudyError: the name is not known.
    """
    if isinstance(given, str) and given in known:
        return given
    raise StudyError(f"{where}: {given!r} is not known. {_nearest(given, known)}")


def refuse_unknown(where: str, table: Mapping[str, Any], known: Collection[str]) -> None:
    """Raises if a table has a key that nothing reads.

    Raises:
        StudyError: there is such a key.
    """
    for key in table:
        if key not in known:
            raise StudyError(f"{where}: unknown key {key!r}. {_nearest(key, known)}")


def _nearest(given: object, known: Collection[str]) -> str:
    near = difflib.get_close_matches(str(given), list(known), n=1, cutoff=0.5)
    if near:
        return f"Did you mean {near[0]!r}?"
    return f"Give one of: {', '.join(sorted(known)) or 'nothing, for there is none'}."


def typed(where: str, given: Any, kind: type) -> Any:
    """Returns a value of that type; a whole number will do where a number is asked for.

    Raises:
        StudyError: the value has another type, or is not finite.
    """
    right = isinstance(given, (int, float) if kind is float else kind)
    if not right or isinstance(given, bool) != (kind is bool):
        raise StudyError(f"{where} must be {_KINDS[kind]}, got {given!r}. Correct it.")
    if kind is float and not math.isfinite(given):
        raise StudyError(f"{where} must be finite, got {given!r}. Give a number.")
    return kind(given)


def at_least(where: str, given: Any, least: float) -> Any:
    """Returns a number that is not below a limit.

    Raises:
        StudyError: the number is below.
    """
    if given < least:
        raise StudyError(f"{where} must be at least {least:g}, got {given!r}. Raise it.")
    return given


def at_most(where: str, given: Any, most: float) -> Any:
    """Returns a number that is not above a limit.

    Raises:
        StudyError: the number is above.
    """
    if given > most:
        raise StudyError(f"{where} must be at most {most:g}, got {given!r}. Lower it.")
    return given


def texts(where: str, given: Any) -> tuple[str, ...]:
    """Returns one text or a list of texts as a tuple.

    Raises:
        StudyError: the value has anything else.
    """
    given = [given] if isinstance(given, str) else typed(where, given, list)
    return tuple(typed(where, text, str) for text in given)


def environment(where: str, given: Any) -> dict[str, str]:
    """Returns environment variables; numbers become texts.

    Raises:
        StudyError: a value is neither a text nor a number.
    """
    table = typed(where, given, dict)
    for name, value in table.items():
        if not name or "=" in name or "\0" in name:
            raise StudyError(f"{where} has {name!r}, which is no name of a variable.")
        if "\0" in str(value):
            raise StudyError(f"{where}.{name} has a zero byte, which no variable can hold.")
        if not isinstance(value, str | int | float):
            raise StudyError(f"{where}.{name} must be a text, got {value!r}. Put it into quotes.")
    return {name: str(value) for name, value in sorted(table.items())}


def count_of_bytes(where: str, given: Any) -> int:
    """Returns bytes, given as a number or as a text such as ``"64 KiB"`` or ``"1MB"``.

    Raises:
        StudyError: the value is neither, or not positive.
    """
    found = re.fullmatch(r"(\d+) *([a-z]+)", given.strip().lower()) if type(given) is str else None
    if found and found[2] in _UNITS:
        given = int(found[1]) * _UNITS[found[2]]
    if type(given) is not int or given < 1:
        raise StudyError(
            f"{where} must be a positive number of bytes, or a text such as '64KiB', got {given!r}."
            " Give one of these."
        )
    return given
