"""Modules import one way only: each from layers above its own in this list, or beside it."""

import ast
from pathlib import Path

PACKAGE = Path(__file__).parents[3] / "jdaso"
LAYERS = [
    [
        "_types",
        "_paths",
        "_signals",
        "_compat",
        "_explicit",
        "_stretches",
        "_timeline",
        "_chrome",
        "_launch",
        "_host",
        "_deaths",
        "_guard",
        "_relay",
        "_environment",
        "_poll",
        "_witness",
        "_witness_process",
    ],
    ["_supervise"],
    ["_phases", "_schedule", "_packing", "_header", "_common", "_wire", "_merge"]
    + ["_learning_rate"],
    [
        "_batches",
        "_exit",
        "_start",
        "_topology",
        "_lookout",
        "_messages",
        "_heartbeat",
        "_stopping",
        "_watchdog",
        "_control",
        "_drift",
        "_group",
    ]
    + ["_clock", "_recorder", "_engine", "_session"],
    ["_agreement", "_local", "_marks", "_inner", "_copies", "_inline", "_exchange", "_blocking"],
    ["_averaging", "_synchronous", "_daso", "_collectives"],
    ["checkpoint", "data", "doctor", "fabric", "faults", "flax", "metrics", "pipeline", "plots"]
    + ["report", "traces", "array"],
    ["cli", "__main__"],
]
LEVEL = {name: level for level, names in enumerate(LAYERS) for name in names}


def imports(path):
    """Top modules of jdaso that a file imports, but for what it imports inside `__init__`."""
    inside = path.relative_to(PACKAGE).parts[:-1]
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.level:
            parts = [*inside[: len(inside) - node.level + 1], *(node.module or "").split(".")]
            parts = [part for part in parts if part]
            yield from [parts[0]] if parts else [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("jdaso."):
            yield node.module.split(".")[1]


FILES = [path for path in PACKAGE.rglob("*.py") if path != PACKAGE / "__init__.py"]


def test_imports_go_one_way():
    """A test for all files, which lists all that are wrong."""
    wrong = []
    for path in FILES:
        own = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
        below = [x for x in imports(path) if x in LEVEL and LEVEL[x] > LEVEL[own]]
        wrong += [f"{path.relative_to(PACKAGE)} imports {x}, of a layer below it" for x in below]
    assert not wrong, "\n".join(wrong)


def test_every_module_has_a_layer():
    modules = {path.relative_to(PACKAGE).parts[0].removesuffix(".py") for path in FILES}
    assert modules <= set(LEVEL)


def test_the_reader_sees_imports():
    assert {"_averaging", "_session", "_local"} <= set(imports(PACKAGE / "_daso.py"))
    assert {"_wire", "_types"} <= set(imports(PACKAGE / "_engine" / "_mpi4py.py"))
