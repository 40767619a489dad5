"""Hosts are probed: those that answer take part, and a signal ends all probes."""

import contextlib
import os
import time

import pytest

from jdaso._launch import hosts

SCRIPT = """
case $0 in a|c) exit 0;; b) exit 1;; esac
sleep 60 &
echo $$ > "$0.new"
mv "$0.new" "$0"
wait
"""


def probe(names, stops=lambda: False):
    """Returns the hosts that answer, and the reports."""
    said = []
    return hosts.answering(names, ["sh", "-c", SCRIPT, "{host}"], said.append, stops), said


def is_there(group):
    """Returns whether a process group has processes."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(group, 0)
        return True
    return False


def test_hosts_that_do_not_answer_are_left_out():
    assert probe(list("abc")) == (["a", "c"], ["left out because they do not answer: b."])


def test_a_host_that_takes_too_long_does_not_answer(tmp_path, monkeypatch):
    monkeypatch.setattr(hosts, "_PROBE_SECONDS", 3.0)
    slow = str(tmp_path / "slow")
    assert probe(["a", slow]) == (["a"], [f"left out because they do not answer: {slow}."])


def test_probes_end_as_soon_as_they_are_asked_to(tmp_path):
    """Their own processes too; nothing is reported of hosts that had no time to answer."""
    begin, slow = time.monotonic(), tmp_path / "slow"
    assert probe(["a", str(slow), "b"], slow.exists) == ([], [])
    assert time.monotonic() - begin < hosts._PROBE_SECONDS / 2
    while is_there(int(slow.read_text())):  # the system removes a killed process a little later
        assert time.monotonic() - begin < hosts._PROBE_SECONDS
        time.sleep(0.01)


def test_a_probe_that_cannot_be_started_is_an_error():
    with pytest.raises(FileNotFoundError):
        hosts.answering(["a"], ["/not/there", "{host}"], print, lambda: False)
