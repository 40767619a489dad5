"""A pytest plugin: distributes tests to two workers by scopes, the longest scope first.

A scope goes as a whole to one worker of pytest-xdist. A file of unit tests is a scope, since its
tests share compiled programs; a launch is one; tests with network namespaces take turns.
`seconds.json` holds the CPU seconds of each scope, as recorded by ``--record-seconds``: of the
process and of all processes it started, so that a busy machine changes little.
"""

import json
import os
from collections import Counter
from pathlib import Path

import pytest

RECORDED = Path(__file__).with_name("seconds.json")
IN_TURN = ("launches/cluster/", "launches/doctor/")
LEAST_SECONDS = 1.0
"""Shorter scopes are not recorded."""


def scope_of(nodeid: str) -> str:
    file = nodeid.split("::")[0]
    if any(folder in file for folder in IN_TURN):
        return "emulated hosts"
    return file if "tests/unit/" in file else nodeid


def pytest_addoption(parser):
    parser.addoption(
        "--record-seconds", action="store_true", help="record the seconds of scopes in tests/lib"
    )


def pytest_configure(config):
    config.pluginmanager.register(Recorder(config), "recorder-of-seconds")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config, items):
    if hasattr(config, "workerinput"):
        seconds = json.loads(RECORDED.read_text()) if RECORDED.exists() else {}
        items.sort(key=lambda item: -seconds.get(scope_of(item.nodeid), 0.0))


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
    """Records the CPU seconds of each test, child processes included, and their sums by scope."""

    def __init__(self, config):
        self.config = config
        self.seconds = Counter()
        self._begin = 0.0

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_logstart(self, nodeid, location):
        self._begin = sum(os.times()[:4])

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_makereport(self, item, call):
        if call.when == "teardown":
            item.user_properties.append(("cpu_seconds", sum(os.times()[:4]) - self._begin))

    def pytest_runtest_logreport(self, report):
        if report.when == "teardown":
            self.seconds[report.nodeid] += dict(report.user_properties).get("cpu_seconds", 0.0)

    def pytest_sessionfinish(self):
        if self.config.option.record_seconds and not hasattr(self.config, "workerinput"):
            scopes = json.loads(RECORDED.read_text()) if RECORDED.exists() else {}
            fresh = Counter()
            for nodeid, seconds in self.seconds.items():
                fresh[scope_of(nodeid)] += seconds
            scopes |= {k: round(v, 1) for k, v in fresh.items()}
            scopes = {k: v for k, v in sorted(scopes.items()) if v >= LEAST_SECONDS}
            RECORDED.write_text(json.dumps(scopes, indent=0) + "\n")
            each = os.environ.get("JDASO_TEST_SECONDS")
            if each:
                Path(each).write_text(json.dumps(self.seconds))
