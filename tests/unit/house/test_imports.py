"""Imports go one way: each package only from those before it in the order below.

Also refused: circles of files (imports for types count), mpi4py and JAX where they do not belong,
and assignments that reach into another object's parts.
"""

import ast
import subprocess
import sys
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[3]
PACKAGE = ROOT / "jdaso"

# Groups from the ground up. A package imports from earlier groups, never from its own or a later.
ORDER = [
    ["_base"],
    ["_jax"],
    ["_rules", "_payload", "_launch"],
    ["_mpi"],
    ["_nodes"],
    ["traces"],
    ["_engines"],
    ["_session"],
    ["_exchange"],
    ["_optimizers"],
    ["array", "checkpoint", "data", "fabric", "faults", "metrics", "plots", "report"],
    ["pipeline"],
    ["doctor", "cli", "__main__"],
]
LEVEL = {name: level for level, names in enumerate(ORDER) for name in names}

# Beside the order: a package -> what else it may import.
ALSO = {
    "plots": {"fabric"},
    "report": {"fabric"},
    "cli": {"doctor"},
    "__main__": {"cli"},
}
# Packages that import neither JAX nor what imports it.
WITHOUT_JAX = {"_base", "_launch", "_mpi", "_nodes"}
WITH_MPI4PY = {"_mpi", "_engines", "doctor"}
# It measures the library itself, which a session would hide; it runs in processes of its own.
FILE_WITH_MPI4PY = PACKAGE / "fabric" / "_study" / "workloads" / "_mpi.py"
DEEP = 2
"""Dots in an assignment's target: ``a.b = x`` has one, ``a.b.c = x`` is refused."""


def files():
    return sorted(path for path in PACKAGE.rglob("*.py") if path != PACKAGE / "__init__.py")


def place(path):
    """The package of a file: the first name below jdaso."""
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imported(path):
    """Files that a file imports, also inside functions and for types only, and foreign names."""
    inside = path.relative_to(ROOT).parts[:-1]
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name.split(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and not node.level:
            parts = node.module.split(".")
            yield from list(modules(parts, node.names)) or parts[:1]
        elif isinstance(node, ast.ImportFrom):
            parts = inside[: len(inside) - node.level + 1]
            yield from modules([*parts, *(node.module or "").split(".")], node.names)


def modules(parts, names):
    """Files of jdaso behind ``from parts import names``."""
    base = ROOT.joinpath(*[part for part in parts if part])
    if not base.is_relative_to(PACKAGE):
        return
    for alias in names:
        inner = base / alias.name
        found = [inner / "__init__.py", inner.with_suffix(".py")]
        found += [base / "__init__.py", base.with_suffix(".py")]
        yield next(path for path in found if path.exists())


@cache
def graph():
    """File -> files and foreign packages that it imports."""
    return {path: set(imported(path)) for path in files()}


def short(path):
    return str(path.relative_to(PACKAGE))


def test_packages_import_one_way():
    wrong = []
    for path, found in graph().items():
        own = place(path)
        for other in found - {PACKAGE / "__init__.py"}:
            if not isinstance(other, Path) or place(other) in {own, *ALSO.get(own, ())}:
                continue
            if LEVEL[place(other)] >= LEVEL[own]:
                wrong.append(f"{short(path)} imports {short(other)}")
    assert not wrong, "\n".join(sorted(wrong))


def test_nobody_imports_the_face_of_the_package():
    """But for programs on top, ``import jdaso`` is for users."""
    top = {"doctor", "cli", "__main__"}
    wrong = [short(p) for p, found in graph().items() if PACKAGE / "__init__.py" in found]
    wrong = [name for name in wrong if name.split("/")[0].removesuffix(".py") not in top]
    assert not wrong, wrong


def test_no_files_import_each_other_in_a_circle():
    circles = []
    done = set()

    def visit(path, way):
        if path in way:
            circles.append(" -> ".join(map(short, [*way[way.index(path) :], path])))
        elif path not in done:
            for other in sorted(x for x in graph().get(path, ()) if isinstance(x, Path)):
                visit(other, [*way, path])
            done.add(path)

    for path in graph():
        visit(path, [])
    assert not circles, "\n".join(circles)


def test_mpi_and_jax_stay_where_they_belong():
    wrong = []
    for path, found in graph().items():
        allowed = place(path) in WITH_MPI4PY or path == FILE_WITH_MPI4PY
        if "mpi4py" in found and not allowed:
            wrong.append(f"{short(path)} imports mpi4py")
        if place(path) in WITHOUT_JAX:
            wrong += [f"{short(path)} reaches {name}" for name in sorted(reached(path) & {"jax"})]
    assert not wrong, "\n".join(wrong)


def test_the_internals_of_jax_stay_in_one_package():
    named = {path: ast.unparse(ast.parse(path.read_text())) for path in graph()}
    wrong = [short(path) for path, text in named.items() if "jax._src" in text]
    assert wrong and all(name.startswith("_jax/") for name in wrong), wrong


def test_a_study_runs_without_jax_and_mpi():
    """Its process lives on when a cell dies, and starts at once."""
    runner = reached(PACKAGE / "fabric" / "_study" / "runner.py")
    assert {"fcntl", "tomllib"} <= runner, "the reader sees the files behind it"
    assert not runner & {"jax", "mpi4py", "numpy", "scipy"}


def test_one_place_waits_for_mpi():
    """All else polls by `requests.poll`; engine mpi4py waits for its helpers between its polls."""
    packages = {"_mpi", "_nodes", "traces", "_engines", "_session", "_exchange", "pipeline"}
    asleep = {short(path) for path in files() if place(path) in packages and sleeps(path)}
    assert asleep == {"_mpi/requests.py"}


def sleeps(path):
    calls = (node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call))
    return any(ast.unparse(node.func) in ("time.sleep", "sleep") for node in calls)


def reached(path):
    """Foreign packages that a file imports, itself or by the files that it imports."""
    seen, names, todo = set(), set(), [path]
    while todo:
        one = todo.pop()
        if isinstance(one, str):
            names.add(one)
        elif one not in seen and one != PACKAGE / "__init__.py":
            seen.add(one)
            todo += graph().get(one, ())
    return names


def test_no_assignment_reaches_into_the_parts_of_another_object():
    wrong = []
    for path in files():
        for node in ast.walk(ast.parse(path.read_text())):
            targets = getattr(node, "targets", None) or [getattr(node, "target", None)]
            if not isinstance(node, ast.Assign | ast.AugAssign | ast.AnnAssign):
                continue
            for target in targets:
                depth = ast.unparse(target).count(".") if isinstance(target, ast.Attribute) else 0
                if depth >= DEEP:
                    wrong.append(f"{short(path)}:{node.lineno}: {ast.unparse(target)}")
    assert not wrong, "\n".join(wrong)


def test_every_package_has_its_place():
    assert {place(path) for path in files()} == set(LEVEL)


def test_the_reader_sees_imports():
    seen = graph()[PACKAGE / "_optimizers" / "between.py"]
    assert {PACKAGE / "_optimizers" / "state.py", "jax", "optax"} <= seen
    assert "mpi4py" in graph()[PACKAGE / "_engines" / "mpi4py.py"]


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
