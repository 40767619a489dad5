"""Sessions of one process that are open at the same time."""

import pytest

import jdaso
from jdaso._session import session as _session


@pytest.fixture
def said(monkeypatch):
    """The reports to the supervisor that the process is through."""
    said = []
    monkeypatch.setattr(_session, "say_through", lambda: said.append("through"))
    return said


@pytest.mark.parametrize("first", [0, 1])
def test_a_process_is_through_once_its_last_session_is_closed(first, said):
    sessions = [jdaso.Session(engine=jdaso.Simulated(2)) for _ in range(2)]
    sessions[first].close()
    assert not said
    sessions[1 - first].close()
    assert said == ["through"]
