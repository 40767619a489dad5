"""A pytest plugin: distributes tests to workers by scopes, long ones first.

A scope goes as a whole to one worker of pytest-xdist. A file of unit tests is a scope, since its
tests share compiled programs; a launch is one; tests with network namespaces take turns.
`seconds.json` holds the seconds of each scope, as recorded by ``--record-seconds``: those of the
processor, of the process and all that it started, and those of the clock. Most launches wait
longer than they compute. They run beside files that compute, so that the processor is in use to
the end.
"""

import json
import os
import time
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest

RECORDED = Path(__file__).with_name("seconds.json")
IN_TURN = ("launches/cluster/", "launches/doctor/")
LEAST_SECONDS = 1.0
"""Shorter scopes are not recorded."""
LEAST_SHARE = 0.6
"""A scope that uses the processor for less of its time mostly waits."""


def scope_of(nodeid: str) -> str:
    file = nodeid.split("::")[0]
    if any(folder in file for folder in IN_TURN):
        return "emulated hosts"
    return file if "tests/unit/" in file else nodeid


def recorded() -> dict[str, list[float]]:
    """The seconds of each scope in the file: of the processor, and of the clock."""
    return json.loads(RECORDED.read_text()) if RECORDED.exists() else {}


def now() -> np.ndarray:
    """Seconds of the processor, with those of processes that were started, and of the clock."""
    return np.array([sum(os.times()[:4]), time.monotonic()])


def turns_of(seconds: Mapping[str, tuple[float, float]]) -> dict[str, float]:
    """The place of each scope, from 0 to 1, given its seconds of the processor and of the clock.

    Scopes that compute are ordered by their length, and so are those that wait. Both orders are
    merged: a scope comes where that share of all the time of its kind lies before it.
    """
    turns = {}
    for waits in (False, True):
        kind = [k for k, (cpu, clock) in seconds.items() if (cpu < LEAST_SHARE * clock) == waits]
        total, before = sum(seconds[scope][1] for scope in kind), 0.0
        for scope in sorted(kind, key=lambda scope: -seconds[scope][1]):
            turns[scope] = before / total
            before += seconds[scope][1]
    return turns


def pytest_addoption(parser):
    parser.addoption(
        "--record-seconds", action="store_true", help="record the seconds of scopes in tests/lib"
    )


def pytest_configure(config):
    config.pluginmanager.register(Recorder(config), "recorder-of-seconds")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config, items):
    if hasattr(config, "workerinput"):
        turns = turns_of(recorded())
        items.sort(key=lambda item: turns.get(scope_of(item.nodeid), 1.0))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    """Schedules scopes in the order of the items.

    pytest-xdist's own groups (`--dist loadgroup`) have no effect with pytest 9.2 (its issue 1386).
    """
    from xdist.scheduler import LoadScopeScheduling

    class Scopes(LoadScopeScheduling):
        def _split_scope(self, nodeid):
            return scope_of(nodeid)

    config.option.loadscopereorder = False
    return Scopes(config, log)


class Recorder:
    """Records the seconds of each test, on the processor with child processes and by the clock."""

    def __init__(self, config):
        self.config = config
        self.seconds = defaultdict(lambda: np.zeros(2))
        self._begin = np.zeros(2)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_logstart(self, nodeid, location):
        self._begin = now()

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_makereport(self, item, call):
        if call.when == "teardown":
            item.user_properties.append(("seconds", (now() - self._begin).tolist()))

    def pytest_runtest_logreport(self, report):
        if report.when == "teardown":
            seconds = dict(report.user_properties).get("seconds", (0.0, 0.0))
            self.seconds[scope_of(report.nodeid)] += seconds

    def pytest_sessionfinish(self):
        if self.config.option.record_seconds and not hasattr(self.config, "workerinput"):
            fresh = {scope: x.round(1).tolist() for scope, x in self.seconds.items()}
            scopes = sorted((recorded() | fresh).items())
            lines = [f"{json.dumps(k)}: {v}" for k, v in scopes if max(v) >= LEAST_SECONDS]
            RECORDED.write_text("{\n" + ",\n".join(lines) + "\n}\n")
