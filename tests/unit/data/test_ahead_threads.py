"""Threads that read ahead, where the system allows no more of them."""

import threading

import pytest

from jdaso.data._ahead import Ahead


def test_threads_that_cannot_be_started_leave_none_behind(monkeypatch):
    start, started = threading.Thread.start, []

    def refuse(thread):
        if len(started) == 2:
            raise RuntimeError("can't start new thread")
        started.append(thread)
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", refuse)
    with pytest.raises(RuntimeError, match="can't start"):
        Ahead(lambda k: k, lambda batch: batch, 100, 4, 2)
    assert len(started) == 2
    for thread in started:
        thread.join(60)
        assert not thread.is_alive()
