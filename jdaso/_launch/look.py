"""A job's output on its way: marks of ranks are taken out, lines of launchers are read."""

from __future__ import annotations

from collections.abc import Callable

from .reports import RANK_MARK

_MARK, _LONGEST_MARK, _LONGEST_LINE = RANK_MARK.encode(), 400, 1000


class Look:
    """Takes marks out of a stream and reads its lines, without delaying the rest of it."""

    def __init__(self, on_mark: Callable[[bytes], None], on_line: Callable[[bytes], None]):
        self._on_mark, self._on_line = on_mark, on_line
        self._held = self._line = b""

    def __call__(self, data: bytes) -> bytes:
        """Returns the user's bytes; called with no bytes, returns all held bytes."""
        text, self._held = self._held + data, b""
        if not data:
            return text
        while (begin := text.find(_MARK)) >= 0 and (end := text.find(b"\n", begin)) >= 0:
            self._on_mark(text[begin:end])
            text = text[:begin] + text[end + 1 :]
        cut = begin if begin >= 0 and len(text) - begin < _LONGEST_MARK else len(text)
        if begin < 0:
            cut -= next((n for n in range(len(_MARK) - 1, 0, -1) if text.endswith(_MARK[:n])), 0)
        text, self._held = text[:cut], text[cut:]
        whole, newline, rest = (self._line + text).rpartition(b"\n")
        self._line = rest[-_LONGEST_LINE:]
        if newline and b"PID" in whole:
            for line in whole.split(b"\n"):
                self._on_line(line[-_LONGEST_LINE:])
        return text
