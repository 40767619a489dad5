"""A forked process is not a node: it neither uses the session of its parent nor closes it."""

import os
import sys

import pytest

import jdaso
from jdaso._nodes import exit as _exit


@pytest.mark.filterwarnings("ignore:.*fork.*")
def test_a_forked_process_leaves_the_session_to_its_parent():
    closed = []
    with jdaso.Session() as session:
        session.hooks.on_close(closed.append)
        read, write = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                with pytest.raises(RuntimeError, match="forked from the one .* is not a node"):
                    session.require_usable()
                with session:
                    session.fail("no message of a node")
                os.write(write, bytes([len(closed)]))
            finally:
                os._exit(0)
        os.close(write)
        with open(read, "rb") as pipe:
            assert pipe.read() == b"\0"
        os.waitpid(child, 0)
        session.require_usable()
    assert closed == [False]


@pytest.mark.filterwarnings("ignore:.*fork.*")
def test_an_error_of_a_forked_process_is_no_message_of_its_parents_rank(monkeypatch):
    with jdaso.Session():
        read, write = os.pipe()
        monkeypatch.setattr(_exit, "send_failure", lambda text: os.write(write, text.encode()))
        child = os.fork()
        if child == 0:
            try:
                raise ValueError("in a worker")
            except ValueError:
                sys.excepthook(*sys.exc_info())
            finally:
                os._exit(0)
        os.close(write)
        with open(read, "rb") as pipe:
            assert pipe.read() == b""
        os.waitpid(child, 0)
