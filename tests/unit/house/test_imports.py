"""Imports go one way, and each thing is in its place: the rules of `tests/lib/house.py`.

`test_house_rules.py` shows that each rule sees what it refuses.
"""

import subprocess
import sys
from pathlib import Path

import pytest
from house import LEVEL, House, offenders, place

PACKAGE = Path(__file__).parents[3] / "jdaso"


@pytest.fixture(scope="module")
def house():
    return House.read(PACKAGE)


def test_the_house_has_no_offenders(house):
    """Of any rule; all are listed at once."""
    found = offenders(house)
    assert not found, "\n".join(found)


def test_a_study_runs_without_jax_and_mpi(house):
    """Its process lives on when a cell dies, and starts at once."""
    runner = set(house.reached("fabric/_study/runner.py"))
    assert {"fcntl", "tomllib"} <= runner, "the reader sees the files behind it"
    assert not runner & {"jax", "mpi4py", "numpy", "scipy"}


def test_every_package_of_the_order_is_there(house):
    assert {place(path) for path in house.sources} - {"__init__"} == set(LEVEL)


def test_the_reader_sees_imports(house):
    seen = set(house.imports["_optimizers/state.py"])
    assert {"_optimizers/exchanges.py", "jax", "optax"} <= seen
    assert "mpi4py" in house.imports["_engines/mpi4py.py"]
    assert "fabric/_model/play.py" in house.inner("fabric/__init__.py"), "by a lazy face"
    assert "_jax/cpus.py" in house.inner("__init__.py"), "by import_module"


PUBLIC = """
import sys, jdaso
assert not {"jax", "numpy", "mpi4py"} & set(sys.modules), "import jdaso loads nothing"
import os
before = dict(os.environ)
assert jdaso.NodeError and "jax" not in sys.modules
assert jdaso.__version__ and dict(os.environ) == before
missing = [name for name in jdaso.__all__ if not hasattr(jdaso, name)]
assert not missing, missing
assert set(jdaso.__all__) <= set(dir(jdaso))
"""


def test_import_loads_nothing_and_each_name_when_it_is_asked_for():
    subprocess.run([sys.executable, "-c", PUBLIC], check=True, timeout=120)
