"""Local work that can fail on one node, and must then end on all."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from ._world import World


@contextlib.contextmanager
def together(at: World, what: str) -> Iterator[None]:
    """Raises an error of one node on every node: the others must not go on without its rows."""
    error: Exception | None = None
    try:
        yield
    except Exception as raised:
        error = raised
    texts = at.texts(what, "" if error is None else f"{type(error).__name__}: {error}")
    if error is not None:
        raise error
    for node, text in enumerate(texts):
        if text:
            raise OSError(f"Node {node} could not {what}: {text}")
