"""The journal of a study: rows that are appended one by one and survive any end of the process.

A row is on the disk before the next cell starts. A line that a kill cut short is dropped when the
journal is opened again, and its cell runs again. A folder belongs to one declaration, and at any
time to one process.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import logging
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from .checks import StudyError
from .declaration import Study
from .rows import FORMAT, OK, Row

log = logging.getLogger("jdaso")

ROWS, DECLARED, LOCK = "rows.jsonl", "declaration.json", ".lock"


class Journal:
    """Rows of a study in a folder, made by `open_journal`.

    Args:
        folder: the folder.
        file: its ``rows.jsonl``, open for appending.
        rows: all rows of this file.
    """

    def __init__(self, folder: Path, file: int, rows: list[dict[str, Any]]):
        self.folder, self._file = folder, file
        self._last = {_launch(row): (_attempt(row), str(row["status"])) for row in rows}

    def __contains__(self, launch: tuple[str, int]) -> bool:
        return launch in self._last

    def __len__(self) -> int:
        return len(self._last)

    def next_attempt(self, launch: tuple[str, int]) -> int:
        """Returns the number of the next attempt at a launch, as (cell, replicate); from 1."""
        return self._last.get(launch, (0, ""))[0] + 1

    def is_ok(self, launch: tuple[str, int]) -> bool:
        """Returns whether the last attempt at a launch went well."""
        return self._last.get(launch, (0, ""))[1] == OK

    def append(self, row: Row) -> None:
        """Writes a row to the disk; returns once the row is there.

        Raises:
            StudyError: the row is not the next attempt at its launch, or cannot be written.
        """
        key = row.cell, row.replicate
        if row.attempt != self.next_attempt(key):
            raise StudyError(
                f"{self.folder / ROWS} has a row of {key[0]}, replicate {key[1]}, attempt "
                f"{self.next_attempt(key) - 1}; the next one is not {row.attempt}. Run it once."
            )
        line = memoryview(row.as_line().encode() + b"\n")
        with _writing(self.folder / ROWS):
            while line:
                line = line[os.write(self._file, line) :]
            os.fsync(self._file)
        self._last[key] = row.attempt, row.outcome.status


@contextlib.contextmanager
def _writing(path: Path) -> Iterator[None]:
    """Raises a `StudyError` with the remedy if the disk is full or read-only."""
    try:
        yield
    except OSError as error:
        raise StudyError(
            f"{path} cannot be written: {error.strerror or error}. Free space or choose another "
            "folder with --out; the same command goes on where it stopped."
        ) from error


@contextlib.contextmanager
def open_journal(folder: str | Path, study: Study) -> Iterator[Journal]:
    """Opens the journal of a study, or makes it; closes it at the end.

    Raises:
        StudyError: the folder belongs to another declaration or is in use, a row is damaged, or
            the journal cannot be written.
    """
    folder = Path(folder)
    with _writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
    with _locked(folder):
        _declare(folder, study)
        with _writing(folder / ROWS):
            rows = _rows_on_disk(folder / ROWS, study.declaration)
            file = os.open(folder / ROWS, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
        try:
            _sync_folder(folder)
            yield Journal(folder, file, rows)
        finally:
            os.close(file)


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    with _writing(folder / LOCK):
        file = os.open(folder / LOCK, os.O_CREAT | os.O_RDWR, 0o666)
    try:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise StudyError(
                f"Another process runs the study in {folder}. Wait for its end, or give another "
                "folder."
            ) from None
        except OSError as error:
            log.warning(
                "%s does not support locks (%s); make sure that no other process runs this study.",
                folder,
                error.strerror or error,
            )
        yield
    finally:
        os.close(file)


def _declare(folder: Path, study: Study) -> None:
    """Writes the declaration; raises if the folder has one that measures something else.

    So the folder has the newest replicates, margin and claims.
    """
    path = folder / DECLARED
    if path.exists():
        found = read_declaration(folder)["declaration"]
        if found != study.declaration:
            raise StudyError(
                f"{folder} belongs to another declaration ({found[:12]}, this one is "
                f"{study.declaration[:12]}): old and new rows must not mix. Give another --out, "
                f"or undo the change ({path} has the old declaration)."
            )
    elif (folder / ROWS).exists():
        raise StudyError(f"{folder} has {ROWS} without {DECLARED}. Give another --out.")
    text = json.dumps({"declaration": study.declaration, "study": study.normal_form()}, indent=1)
    fresh = folder / f"{DECLARED}.new"
    with _writing(path):
        with fresh.open("w", encoding="utf-8") as file:
            file.write(text + "\n")
            file.flush()
            os.fsync(file.fileno())
        fresh.rename(path)
        _sync_folder(folder)


def _rows_on_disk(path: Path, declaration: str) -> list[dict[str, Any]]:
    """The rows of a journal; cuts off a last line that was not written to its end."""
    if not path.exists():
        return []
    content = path.read_bytes()
    whole = content[: content.rfind(b"\n") + 1]
    if len(whole) < len(content):
        os.truncate(path, len(whole))
    return [_read(path, k, line, declaration) for k, line in enumerate(whole.splitlines(), 1)]


def _read(path: Path, number: int, line: bytes, declaration: str) -> dict[str, Any]:
    try:
        row = json.loads(line)
        right = row["declaration"] == declaration
        right = right and {"format", "study", "cell", "replicate", "status"} <= row.keys()
    except (ValueError, KeyError, TypeError):
        right = False
    if not right:
        raise StudyError(
            f"{path}, line {number}, is not a row of this study: {line[:60]!r}. Restore the file, "
            "or give another --out."
        )
    if row["format"] != FORMAT:
        raise StudyError(
            f"{path}, line {number}, has format {row['format']!r}, known is {FORMAT}. Read it with "
            "the version of jdaso that wrote it, or give another --out."
        )
    return row


def _launch(row: Mapping[str, Any]) -> tuple[str, int]:
    return row["cell"], row["replicate"]


def _attempt(row: Mapping[str, Any]) -> int:
    return row.get("attempt", 1)


def _sync_folder(folder: Path) -> None:
    """Writes a folder's names to disk (fsync)."""
    file = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(file)
    finally:
        os.close(file)


def read_declaration(folder: str | Path) -> dict[str, Any]:
    """Returns ``declaration.json``: the hash "declaration" and the "study" in its normal form.

    Raises:
        StudyError: the declaration is missing or damaged.
    """
    path = Path(folder) / DECLARED
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        if {"declaration", "study"} <= found.keys():
            return found
        reason = f"{path} is damaged"
    except (OSError, ValueError, AttributeError) as error:
        reason = str(error)
    raise StudyError(
        f"{folder} holds no study: {reason}. Give the folder of a study that has run, "
        "which was its --out."
    )


def read_rows(folder: str | Path) -> list[dict[str, Any]]:
    """Returns the rows of the last attempts at all launches of a study.

    A line that is still being written is left out.

    Raises:
        StudyError: the folder holds no study, or a damaged row.
    """
    declaration, path = read_declaration(folder)["declaration"], Path(folder) / ROWS
    content = path.read_bytes() if path.exists() else b""
    lines = content[: content.rfind(b"\n") + 1].splitlines()
    rows = [_read(path, k, one, declaration) for k, one in enumerate(lines, 1)]
    last = {_launch(row): _attempt(row) for row in sorted(rows, key=_attempt)}
    return [row for row in rows if _attempt(row) == last[_launch(row)]]
