"""The public conformance suite of the array API standard, on real nodes.

`JDASO_ARRAY_API_TESTS` names a checkout of it; see docs/arrays.md. Only those below may fail.
"""

import importlib.util
import os
import re
from pathlib import Path

import pytest
from launcher import PROGRAMS, mpirun

SUITE = os.environ.get("JDASO_ARRAY_API_TESTS", "")
NEEDED = ("ndindex", "pytest_jsonreport")
IMMUTABLE = {"test_setitem", "test_setitem_masking"}
"""An `Array` is immutable; these assign to one."""

pytestmark = [
    pytest.mark.nightly,
    pytest.mark.skipif(
        not (Path(SUITE) / "array_api_tests").is_dir(),
        reason="JDASO_ARRAY_API_TESTS names no checkout of data-apis/array-api-tests",
    ),
    pytest.mark.skipif(
        not all(map(importlib.util.find_spec, NEEDED)), reason=f"the suite needs {NEEDED}"
    ),
]


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("split", [0, 1])
@pytest.mark.parametrize("nodes", [1, 2, 3, 4])
def test_nothing_fails_but_assignment(nodes, split):
    done = mpirun(
        nodes,
        [PROGRAMS / "conformance.py", SUITE],
        timeout=3500,
        quick_compiling=True,
        env={"JDASO_ARRAY_SPLIT": str(split), "PYTHONPATH": os.environ.get("PYTHONPATH", "")},
    )
    failed = set(re.findall(r"^FAILED \S+::(\w+)", done.stdout, re.MULTILINE))
    assert re.search(r"^\d+ failed, \d+ passed", done.stdout, re.MULTILINE), done.stdout
    assert failed == IMMUTABLE, done.stdout
