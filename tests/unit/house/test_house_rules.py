"""Each rule of the house on little sources: it sees what it refuses, and allows the rest."""

import house as rules
import pytest
from house import House

# Files that the snippets import.
AROUND = {
    "__init__.py": "",
    "_base/__init__.py": "",
    "_base/errors.py": "",
    "_launch/paths.py": "",
    "_mpi/requests.py": "import time\ntime.sleep(1)",
    "_rules/decide.py": "",
    "_session/__init__.py": "from .session import Session as Session",
    "_session/session.py": "",
    "checkpoint/__init__.py": "",
    "checkpoint/_cutting.py": "",
    "checkpoint/_files.py": "",
    "fabric/__init__.py": "",
    "fabric/_study/curves.py": "",
    "fabric/_study/shown.py": "",
    "plots/__init__.py": "",
    "plots/_plan.py": "",
}


def seen(rule, path, source, **others):
    """Offenders of a rule in a file with this source."""
    found = getattr(rules, rule)(House(AROUND | others | {path: source}))
    return [text for text in found if text.startswith(path)]


UP = [
    "import jdaso._session.session",
    "import jdaso._session.session as s",
    "import jdaso._session",
    "from jdaso._session import session",
    "from jdaso import _session",
    "from .. import _session",
    "from .._session import Session",
    "from .._session.session import Session",
    "import importlib\nimportlib.import_module('jdaso._session.session')",
    "from importlib import import_module\nimport_module('.._session.session', __package__)",
    "__import__('jdaso._session.session')",
    "import sys\nsys.modules['jdaso._session.session']",
    "from sys import modules\nmodules.get('jdaso._session.session')",
    "def f():\n    from .._session import session",
    "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from .._session import Session",
]


@pytest.mark.parametrize("source", UP)
def test_an_import_goes_up(source):
    assert seen("wrong_way", "_rules/decide.py", source)


@pytest.mark.parametrize(
    "source",
    [
        "from .._base.errors import NodeError",
        "import jdaso._base.errors",
        "from . import loss",
        "import sessions._session.session",
        "'import jdaso._session.session'",
    ],
)
def test_an_import_goes_down_or_stays(source):
    assert not seen("wrong_way", "_rules/decide.py", source, **{"_rules/loss.py": ""})


def test_a_part_of_a_package_that_is_reached_by_its_dots_is_seen():
    source = "import jdaso.checkpoint as c\nc._files.Manifest"
    assert seen("beside_the_door", "pipeline/_parts.py", source)
    source = "from .. import checkpoint\ncheckpoint._files.Manifest"
    assert seen("beside_the_door", "pipeline/_parts.py", source)


@pytest.mark.parametrize(
    "source", ["import jdaso", "from jdaso import x", "import jdaso._base.errors"]
)
def test_the_face_is_for_users(source):
    assert seen("imports_of_the_face", "_session/session.py", source)
    assert not seen("imports_of_the_face", "cli/__init__.py", source)
    assert not seen("imports_of_the_face", "_session/session.py", "from .._base import errors")


PAIR = {"data/_a.py": "from ._b import x", "data/_b.py": "from ._a import y"}
LAZY = {
    "fabric/__init__.py": "",
    "fabric/__init__.pyi": "from ._model import play as play",
    "fabric/_model.py": "from .. import fabric",
}
PACKAGE_FACE = {
    "fabric/__init__.py": "from ._model import play",
    "fabric/_model.py": "from . import play",
}


BEFORE = {
    "data/_a/__init__.py": "from ..b import x",
    "data/_a/_c.py": "",
    "data/b.py": "from ._a._c import x",
}


@pytest.mark.parametrize("files", [PAIR, LAZY, PACKAGE_FACE, BEFORE])
def test_a_circle_is_seen(files):
    assert list(rules.circles(House(files)))


def test_no_circle_is_seen_where_there_is_none():
    line = {"data/_a.py": "from ._b import x", "data/_b.py": "from ._c import x", "data/_c.py": ""}
    assert not list(rules.circles(House(line | {"data/_d.py": "from ._b import x\nimport jax"})))


@pytest.mark.parametrize(
    ("path", "source"),
    [
        ("pipeline/_parts.py", "from ..checkpoint._files import Manifest"),
        ("pipeline/_plan/plan.py", "from ...checkpoint import _files"),
        ("pipeline/_plan/plan.py", "def draw():\n    from ...plots import draw_plan"),
        ("report/_page.py", "from ..fabric._study.curves import Chart"),
        ("plots/_study.py", "from ..fabric._study import curves"),
        ("plots/_plan.py", "from .. import checkpoint"),
    ],
)
def test_an_import_beside_the_door_is_seen(path, source):
    assert seen("beside_the_door", path, source)


@pytest.mark.parametrize(
    ("path", "source"),
    [
        ("pipeline/_parts.py", "from ..checkpoint import CheckpointError"),
        ("pipeline/_parts.py", "from ..checkpoint._cutting import Manifest"),
        ("report/_page.py", "from ..fabric._study.shown import Chart"),
        ("plots/_plan.py", "from ..fabric import Fabric"),
        ("cli/study.py", "from ..fabric._study import curves"),
    ],
)
def test_the_door_is_open(path, source):
    assert not seen("beside_the_door", path, source)


@pytest.mark.parametrize(
    "name", ["jax", "jaxlib", "optax", "flax", "chex", "orbax", "mpi4jax", "torch", "mpi4py"]
)
def test_the_lower_packages_reach_no_other_third_party_package(name):
    assert seen("foreign", "_launch/paths.py", f"import {name}")
    assert seen("foreign", "_base/errors.py", f"from {name}.x import y")
    assert not seen("foreign", "_session/session.py", f"import {name}")


def test_what_another_file_imports_is_reached_too():
    others = {"_launch/paths.py": "import optax"}
    found = seen("foreign", "_mpi/start.py", "from .._launch import paths", **others)
    assert found == ["_mpi/start.py reaches optax by _launch/paths.py"]


def test_the_lower_packages_reach_what_they_need():
    assert not seen("foreign", "_launch/paths.py", "import os, json\nfrom pathlib import Path")
    assert not seen("foreign", "_mpi/start.py", "import numpy\nfrom mpi4py import MPI")


@pytest.mark.parametrize(
    "source",
    [
        "import mpi4py",
        "from mpi4py import MPI",
        "import mpi4py.MPI",
        "import importlib\nimportlib.import_module('mpi4py.MPI')",
        "import importlib\nimportlib.import_module('mpi4py')",
        "import sys\nsys.modules['mpi4py.MPI']",
        "import sys\nsys.modules.get('mpi4py.MPI')",
        "name = 'mpi4py.MPI'",
        "program = 'import sys\\nfrom mpi4py import MPI'",
        "f'mpi4py.MPI{1}'",
    ],
)
def test_mpi4py_is_seen(source):
    assert seen("mpi4py", "_launch/early_failure.py", source)
    assert not seen("mpi4py", "_mpi/abort.py", source)


@pytest.mark.parametrize(
    "source",
    ['"""Uses mpi4py.MPI."""', "engine = 'mpi4py'", "text = 'It needs mpi4py. Install it.'"],
)
def test_the_name_of_an_engine_is_no_use_of_mpi4py(source):
    assert not seen("mpi4py", "_session/session.py", source)


def test_a_computed_import_is_seen():
    source = "import importlib\nimportlib.import_module(name)"
    assert seen("computed_imports", "_launch/paths.py", source)
    assert not seen("computed_imports", "_base/extras.py", source)
    assert seen("computed_imports", "_base/extras.py", "")


@pytest.mark.parametrize(
    "source",
    [
        "a.b.c = 1",
        "a.b.c += 1",
        "a.b.c: int = 1",
        "a.b.c['x'] = 1",
        "a.b.c['x'].d = 1",
        "a.b.c[0][1] += 1",
        "a.b.c, x = 1, 2",
        "[x, *a.b.c] = y",
        "(x, (y, a.b.c)) = z",
        "for a.b.c in x: pass",
        "for k, a.b.c[k] in x: pass",
        "[1 for a.b.c in x]",
        "with x as a.b.c: pass",
        "with x as (y, a.b.c): pass",
        "del a.b.c",
        "del a.b.c[0]",
        "del x, a.b.c[0]",
        "a.b.c.append(1)",
        "a.b.c.update(x=1)",
        "a.b.c.pop(1)",
        "a.b.c.add(1)",
        "a.b.c.clear()",
        "a.b.c.setdefault(1, 2)",
        "a.b.c[0].append(1)",
        "a.b.c.setdefault(1, []).append(2)",
        "a.b.c.get(1).append(2)",
        "a.b().c.discard(1)",
        "a.b().c = 1",
        "timeline.copy_to(a.b.c.append)",
        "list.append(a.b.c, 1)",
        "heapq.heappush(a.b.c, 1)",
        "setattr(a.b, 'c', 1)",
        "delattr(a.b, 'c')",
        "object.__setattr__(a.b, 'c', 1)",
        "vars(a.b)['c'] = 1",
        "a.b.__dict__['c'] = 1",
    ],
)
def test_a_deep_write_is_seen(source):
    assert seen("deep_writes", "data/_loader.py", source)


@pytest.mark.parametrize(
    "source",
    [
        "a.b = 1",
        "a.b['x'] = 1",
        "a.b.append(1)",
        "a.b, c = 1, 2",
        "x = a.b.c['x']",
        "a.b.c(1)",
        "a.b.register(1)",
        "a.b.get('x')",
        "for x in a.b.c: pass",
        "setattr(a, 'b', 1)",
        "self._found.setdefault(a.b.c, []).append(1)",
        "x.reshape(-1).view(int)[0] = 1",
        "y = a.b.at[0].add(1)",
        "found[a.b.c] = 1",
        "a.b[c.d].append(1)",
    ],
)
def test_a_shallow_write_is_allowed(source):
    assert not seen("deep_writes", "data/_loader.py", source)


@pytest.mark.parametrize(
    "source",
    [
        "session.closing.append(f)",
        "self._session.facts[1] = 2",
        "session.reach = f",
        "grid.session.of_replicas[1] = 2",
        "del session.facts[1]",
        "setattr(session.hooks, 'x', 1)",
    ],
)
def test_a_write_to_a_session_is_seen(source):
    assert seen("writes_to_sessions", "data/_loader.py", source)
    assert not seen("writes_to_sessions", "_session/session.py", source)


def test_a_session_is_called_and_kept():
    source = "self._session = session\nsession.hooks.on_close(f)\nsessions.append(session)"
    assert not seen("writes_to_sessions", "data/_loader.py", source)


@pytest.mark.parametrize(
    "source",
    [
        "import time\nwhile True: time.sleep(1)",
        "import time as t\nt.sleep(1)",
        "from time import sleep\nsleep(1)",
        "from time import sleep as nap\nnap(1)",
        "while not request.Test(): pass",
        "while not all(x.Test() for x in requests): pause()",
        "while left: left = [x for x in left if not x.Test()]",
        "for _ in range(9):\n    if request.Test(): break",
        "while not MPI.Request.Testall(requests): pass",
        "request.Wait()",
        "MPI.Request.Waitall(requests)",
        "comm.Barrier()",
        "comm.Recv(x)",
    ],
)
def test_a_wait_of_its_own_is_seen(source):
    for path in ("array/_connected.py", "checkpoint/_saver.py", "_session/session.py"):
        assert seen("waits", path, source)


@pytest.mark.parametrize(
    "source",
    ["poll(request.Test)", "finish(request, check)", "done = request.Test()", "x.wait(1)"],
)
def test_a_wait_by_the_one_place_is_allowed(source):
    assert not seen("waits", "array/_connected.py", source)


def test_an_exception_that_is_not_needed_any_more_is_seen():
    assert seen("waits", "faults.py", "x = 1")
    assert not seen("waits", "faults.py", "import time\ntime.sleep(1)")
    assert seen("waits", "faults.py", "import time\ntime.sleep(1)\nrequest.Wait()")


def test_other_rules_see_their_offenders():
    assert seen("internals_of_jax", "data/_loader.py", "from jax._src import core")
    assert not seen("internals_of_jax", "_jax/world.py", "from jax._src import core")
    assert list(rules.without_place(House({"fresh/_a.py": ""})))
    assert not list(rules.without_place(House({"data/_a.py": "", "__init__.py": ""})))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "Data.",
        "Data.\\n\\nMay live here: sources.",
        "Data.\\n\\nMay not: sources.",
        "Data.\\n\\nRule 1: it is fine.",
    ],
)
def test_a_package_without_a_rule_is_seen(text):
    assert seen("silent_packages", "data/__init__.py", f'"{text}"')


@pytest.mark.parametrize(
    "text",
    [
        "Data.\\n\\nMay live here: sources. May\\nnot: MPI.",
        "Data.\\n\\nRule: no MPI.",
        "Data.\\n\\nRule 1: it is fine.\\nRule 2: nothing else.",
    ],
)
def test_a_package_with_a_rule_is_allowed(text):
    assert not seen("silent_packages", "data/__init__.py", f'"{text}"')
    assert not seen("silent_packages", "data/_loader.py", '"No rule."')


def test_all_rules_list_their_offenders_together():
    sources = {"_rules/decide.py": "import jdaso._session.session\na.b.c = 1"}
    found = rules.offenders(House(AROUND | sources))
    assert {text.split(":")[0] for text in found} >= {"wrong_way", "deep_writes"}
