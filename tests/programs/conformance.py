"""Runs the public conformance suite of the Python array API standard on `jdaso.array`, over ranks.

    git clone --recursive https://github.com/data-apis/array-api-tests SUITE
    pip install ndindex pytest-json-report  # which the suite needs
    JDASO_ARRAY_SPLIT=0 mpiexec -n 2 python tests/programs/conformance.py SUITE

Arguments after SUITE go to pytest (`-k`, file names, ...). All ranks test the same examples at a
time: hypothesis is derandomized, and after each example the ranks exchange outcomes, so that an
example that fails on one rank fails on all. Node 0 prints.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import os
import sys
import traceback
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "lib"))

import compiled_once
import jax
import pytest
from hypothesis import HealthCheck, settings

import jdaso
import jdaso.array as ja

compiled_once.share()
jax.config.update("jax_enable_x64", True)  # the standard's default types have 64 bits

LIMIT_SECONDS = 60.0
"""A rank that does not come to the end of an example in this time ends the run."""


class Failed(AssertionError):
    """An example failed on at least one rank."""


class Together:
    """A plugin of pytest: the ranks end each example alike.

    Args:
        session: of the ranks.
    """

    def __init__(self, session: jdaso.Session):
        self._session, self._file = session, ""

    @pytest.hookimpl(trylast=True)
    def pytest_configure(self) -> None:
        """Lets no clock decide about an example: ranks differ in time."""
        known = settings.get_profile("array-api-tests")
        settings.register_profile(
            "ranks", known, suppress_health_check=list(HealthCheck), database=None
        )
        settings.load_profile("ranks")

    def pytest_collection_modifyitems(self, items: list[Any]) -> None:
        """Wraps what hypothesis calls with an example; other tests as a whole."""
        for item in items:
            given = getattr(getattr(item.obj, "__func__", item.obj), "hypothesis", None)
            if given is None:
                item.obj = self._joined(item.obj)
            elif not hasattr(given.inner_test, "joined"):
                given.inner_test = self._joined(given.inner_test)

    def pytest_runtest_setup(self, item: Any) -> None:
        """Lets go of a file's compiled programs at its end."""
        if item.path.name != self._file:
            jax.clear_caches()
            self._file = item.path.name

    def _joined(self, test: Any) -> Any:
        @functools.wraps(test)
        def joined(*args: Any, **kwargs: Any) -> Any:
            found = error = None
            try:
                found = test(*args, **kwargs)
            except Exception as raised:
                error = raised
            ends = self._session.control.everyone("end an example", _told(error))
            failures = [f"node {k}: {end}" for k, end in enumerate(ends) if "Traceback" in end]
            if failures or len(set(ends)) > 1:
                raise Failed(failures[0] if failures else f"nodes end otherwise: {ends}")
            if error is not None:
                raise error
            return found

        joined.joined = True
        return joined


def _told(error: Exception | None) -> str:
    """Describes the end of an example: a failure, or one of hypothesis's signals."""
    if error is None or type(error).__module__.startswith("hypothesis"):
        return type(error).__name__
    return "".join(traceback.format_exception(error))


def _arguments() -> tuple[argparse.Namespace, list[str]]:
    parser = argparse.ArgumentParser(description="Runs array-api-tests; see the top of this file.")
    parser.add_argument("suite", type=Path, help="a checkout of data-apis/array-api-tests")
    parser.add_argument("--examples", type=int, default=5, help="of each test (default: 5)")
    return parser.parse_known_args()


def main() -> int:
    """Runs the suite; returns pytest's exit status."""
    given, rest = _arguments()
    suite = given.suite.resolve()
    if not (suite / "array_api_tests").is_dir():
        raise SystemExit(f"{suite} has no folder array_api_tests: give a checkout of the suite.")
    os.environ["ARRAY_API_TESTS_MODULE"] = ja.__name__
    os.chdir(suite)
    sys.path.insert(0, str(suite))
    options = ["--max-examples", str(given.examples), "--derandomize", "--disable-deadline"]
    options += ["-p", "no:cacheprovider", "-p", "no:xdist", "--tb=short", "-rfs", "-q"]
    tests = [one for one in rest if one.startswith("array_api_tests")] or ["array_api_tests"]
    options += [one for one in rest if one not in tests]
    with jdaso.Session(timeout_seconds=LIMIT_SECONDS) as session, contextlib.ExitStack() as stack:
        if session.node:
            stack.enter_context(
                contextlib.redirect_stdout(stack.enter_context(open(os.devnull, "w")))
            )
        return int(pytest.main([*options, *tests], plugins=[Together(session)]))


if __name__ == "__main__":
    sys.exit(main())
