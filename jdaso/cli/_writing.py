"""Errors of files that commands write."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator


@contextlib.contextmanager
def writing(option: str, path: str) -> Iterator[None]:
    """Raises a `ValueError` with the remedy if a file of an option cannot be written."""
    try:
        yield
    except OSError as error:
        raise ValueError(
            f"{option} cannot write {error.filename or path}: {error.strerror or error}. Free "
            f"space, or choose another place with {option}."
        ) from error
