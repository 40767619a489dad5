"""Ranks that want the same program at the same time: one compiles, the others wait and load."""

import threading

import compiled_once
import pytest
from compiled_once import Shared


def second(folder, begin):
    """The thread of another rank that asks for the key "step", and a list of what it gets."""
    got = []
    cache = Shared(folder)

    def ask():
        begin.set()
        got.append(cache.get("step"))
        cache.release()

    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    assert begin.wait(10)
    return thread, got


@pytest.mark.parametrize("made", [b"program", None], ids=["compiles", "fails"])
def test_the_others_wait_for_the_one_that_compiles(tmp_path, made):
    first = Shared(tmp_path)
    assert first.get("step") is None  # and holds the lock
    thread, got = second(tmp_path, threading.Event())
    thread.join(0.05)
    assert thread.is_alive() and not got
    if made:
        first.put("step", made)
    first.release()
    thread.join(10)
    assert got == [made]


def test_one_that_was_stopped_is_not_waited_for_without_end(tmp_path, monkeypatch):
    monkeypatch.setattr(compiled_once, "LIMIT_SECONDS", 0.05)
    stopped = Shared(tmp_path)
    assert stopped.get("step") is None
    thread, got = second(tmp_path, threading.Event())
    thread.join(10)
    assert got == [None]
    stopped.release()
