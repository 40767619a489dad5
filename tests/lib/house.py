"""The rules of the package's imports, as checks of source texts; each yields its offenders.

`tests/unit/house/test_imports.py` applies them to jdaso, `test_house_rules.py` to little snippets.
"""

import ast
import dataclasses
import re
import sys
from collections.abc import Iterator, Mapping
from functools import cached_property
from pathlib import Path

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
SIDE_BY_SIDE, TOP = set(ORDER[-3]), set(ORDER[-1])

# Beside the order: a package -> what else it may import.
ALSO = {
    "plots": {"fabric"},
    "report": {"fabric"},
    "cli": {"doctor"},
    "__main__": {"cli"},
}
# (user, used) among packages side by side -> the module that the user may import beside the face.
DOORS = {
    ("pipeline", "checkpoint"): "checkpoint/_cutting.py",
    ("plots", "fabric"): "fabric/_study/shown.py",
    ("report", "fabric"): "fabric/_study/shown.py",
}
# Third-party packages that these may reach: neither JAX nor what imports it is among them.
THIRD_PARTY = {
    "_base": set(),
    "_launch": set(),
    "_mpi": {"mpi4py", "numpy"},
    "_nodes": {"mpi4py", "numpy"},
}
WITH_MPI4PY = {"_mpi", "_engines", "doctor"}
# A study's workload measures the library itself, which a session would hide, and the program that
# looks for versions runs in a process of its own.
FILES_WITH_MPI4PY = {"fabric/_study/workloads/_mpi.py", "fabric/_study/libraries.py"}
# Files that import a module by a computed name: faces, extras, verbs of the command line.
COMPUTED_IMPORTS = {
    "__init__.py",
    "_base/extras.py",
    "array/_array.py",
    "cli/__init__.py",
    "doctor/_parts.py",
    "fabric/__init__.py",
}
# Files with a loop that asks MPI for the end of a request. All others call the first one.
WAIT_FOR_MPI = {
    "_mpi/requests.py": "for everybody",
    "_engines/mpi4py.py": "waits for its helpers between its polls",
    "doctor/_talk.py": "measures links, and so polls without a pause at first",
}
# Files that call MPI's blocking calls.
BLOCKING = {
    "_mpi/messages.py": "takes a message that has come",
    "_mpi/start.py": "takes a message that has come",
    "doctor/_parts.py": "sends to itself",
    "fabric/_study/workloads/_mpi.py": "measures these calls",
}
# Files that sleep for something else than MPI.
SLEEPERS = {
    "_launch/early_failure.py": "until other ranks have failed in the same way",
    "_launch/guard.py": "until processes have ended",
    "_launch/last_words.py": "until output was read",
    "_launch/reports.py": "until the supervisor has noticed another rank's death",
    "_launch/witness_process.py": "until output was read",
    "checkpoint/_folder.py": "until a file system shows a file",
    "checkpoint/_lock.py": "until a file server has released a lock",
    "checkpoint/_reader.py": "until there is a new checkpoint",
    "cli/_fashion_mnist.py": "until another process has downloaded",
    "cli/doctor.py": "until other ranks have written",
    "doctor/_probe.py": "until a process has ended",
    "fabric/_emulate/cleanup.py": "until processes have ended",
    "fabric/_study/memory.py": "until processes have ended",
    "fabric/_study/workloads/_torch_training.py": "stands for the time of a computation",
    "fabric/_study/workloads/_work.py": "stands for the time of a computation",
    "faults.py": "a delay is the fault",
}
DEEP = 2
"""Dots of a written object: ``a.b = x`` has one, ``a.b.c = x`` is refused."""

CONTAINER_VERBS = set(
    "add append appendleft clear discard extend extendleft insert pop popitem popleft remove "
    "reverse rotate setdefault sort update difference_update intersection_update "
    "symmetric_difference_update __delitem__ __setitem__ __setattr__ __delattr__".split()
)
ITEM_VERBS = set("get reshape ravel setdefault view".split())
"""Verbs that give a part of the object itself, or the object in another form."""

UNBOUND = {
    f"{kind}.{verb}" for kind in ("dict", "list", "set", "deque") for verb in CONTAINER_VERBS
}
UNBOUND |= set("heapq.heappush heapq.heappop bisect.insort random.shuffle np.copyto".split())
UNBOUND |= set("operator.setitem operator.delitem operator.ior operator.iadd".split())
"""Functions that change their first argument."""

BLOCKING_VERBS = set(
    "Wait Waitall Waitany Waitsome Barrier Recv Send Ssend Sendrecv Bcast Allreduce Allgather "
    "Allgatherv Alltoall Alltoallv Reduce Gather Scatter Probe Mprobe".split()
)


@dataclasses.dataclass(frozen=True)
class House:
    """Source texts by their path below jdaso, such as ``_rules/decide.py``."""

    texts: Mapping[str, str]

    @classmethod
    def read(cls, package: Path) -> "House":
        paths = sorted([*package.rglob("*.py"), *package.rglob("*.pyi")])
        return cls({path.relative_to(package).as_posix(): path.read_text() for path in paths})

    @cached_property
    def trees(self) -> dict[str, ast.Module]:
        return {path: ast.parse(text) for path, text in self.texts.items()}

    @cached_property
    def sources(self) -> dict[str, ast.Module]:
        """Trees of programs; what a stub names belongs to its program."""
        return {path: tree for path, tree in self.trees.items() if path.endswith(".py")}

    @cached_property
    def imports(self) -> dict[str, dict[str, int]]:
        """File -> files, and top names of other packages, that it imports, and in which line."""
        return {path: dict(reversed(list(self._imports(path)))) for path in self.sources}

    def inner(self, path: str) -> dict[str, int]:
        """Files of jdaso that a file imports."""
        return {x: line for x, line in self.imports[path].items() if x in self.texts}

    def loaded(self, path: str) -> set[str]:
        """The same, with the packages that Python loads before a module of theirs."""
        found = set(self.inner(path))
        own = path.split("/")[:-1]
        for other in list(found):
            parts = other.split("/")[:-1]
            for end in range(1, len(parts) + 1):
                if parts[:end] != own[:end]:
                    found.add("/".join([*parts[:end], "__init__.py"]))
        return found & set(self.texts) - {path}

    def reached(self, path: str) -> dict[str, str]:
        """Other packages that a file imports, itself or by files that it imports; with the file."""
        seen, found, todo = set(), {}, [path]
        while todo:
            one = todo.pop()
            if one in seen or one == "__init__.py":
                continue
            seen.add(one)
            for other in self.imports.get(one, ()):
                if other in self.texts:
                    todo.append(other)
                else:
                    found.setdefault(other, one)
        return found

    def file_of(self, dotted: str) -> str | None:
        """The file of a module of jdaso, or of the package nearest to it."""
        top, *parts = dotted.split(".")
        if top != "jdaso":
            return None
        for end in range(len(parts), -1, -1):
            base = "/".join(parts[:end])
            for path in (f"{base}/__init__.py".lstrip("/"), f"{base}.py"):
                if path in self.texts:
                    return path
        return None

    def _found(self, dotted: str) -> str:
        return self.file_of(dotted) or dotted.split(".")[0]

    def _imports(self, path: str) -> Iterator[tuple[str, int]]:
        yield from self._imports_of(path, path)
        stub = path + "i"
        if stub in self.texts:  # names that are loaded when they are first asked for
            yield from self._imports_of(path, stub)

    def _imports_of(self, path: str, source: str) -> Iterator[tuple[str, int]]:
        """Imports inside functions and for types only count as well."""
        package = ["jdaso", *path.split("/")[:-1]]
        bound: dict[str, str] = {}
        for node in ast.walk(self.trees[source]):
            if isinstance(node, ast.Import):
                for alias in node.names:
                    if alias.asname is None:  # binds the first name
                        first = alias.name.split(".")[0]
                        bound[first] = first
                        yield self._found(first), node.lineno
                    else:
                        bound[alias.asname] = alias.name
                    yield self._found(alias.name), node.lineno
            elif isinstance(node, ast.ImportFrom):
                above = package[: len(package) - node.level + 1] if node.level else []
                base = ".".join([*above, *(node.module or "").split(".")]).rstrip(".")
                for alias in node.names:
                    bound[alias.asname or alias.name] = f"{base}.{alias.name}"
                    yield self._found(f"{base}.{alias.name}"), node.lineno
            elif (name := _dynamic(node)) is not None:
                if name.startswith("."):
                    dots = len(name) - len(name.lstrip("."))
                    name = ".".join([*package[: len(package) - dots + 1], name.lstrip(".")])
                yield self._found(name), node.lineno
        for node in ast.walk(self.trees[source]):  # a module as an attribute of its package
            if not isinstance(node, ast.Attribute):
                continue
            first, *rest = _names(node) or [""]
            if first in bound and bound[first].split(".")[0] == "jdaso":
                whole = ".".join([bound[first], *rest])
                base, inner = self.file_of(bound[first]), self.file_of(whole)
                if inner is not None and base is not None and inner != base and inner != path:
                    yield inner, node.lineno


def place(path: str) -> str:
    """The package of a file: the first name below jdaso."""
    return path.split("/")[0].removesuffix(".py")


def _names(node: ast.expr) -> list[str] | None:
    """The names of ``a.b.c``; None for anything else."""
    if isinstance(node, ast.Name):
        return [node.id]
    if isinstance(node, ast.Attribute):
        before = _names(node.value)
        return None if before is None else [*before, node.attr]
    return None


def _last(node: ast.expr) -> str:
    """The last name of a called function."""
    return node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")


def _text(node: ast.expr | None) -> str | None:
    is_text = isinstance(node, ast.Constant) and isinstance(node.value, str)
    return node.value if is_text else None


def _is_modules(node: ast.expr) -> bool:
    return _last(node) == "modules"


def _dynamic_name(node: ast.AST) -> ast.expr | None:
    """The expression that names a module to import or to take from those that are loaded."""
    if isinstance(node, ast.Call) and node.args:
        if _last(node.func) in ("import_module", "__import__"):
            return node.args[0]
        taken = isinstance(node.func, ast.Attribute) and node.func.attr in ("get", "pop")
        if taken and _is_modules(node.func.value):
            return node.args[0]
    if isinstance(node, ast.Subscript) and _is_modules(node.value):
        return node.slice
    return None


def _dynamic(node: ast.AST) -> str | None:
    """A module named by a text, for ``importlib.import_module`` and ``sys.modules``."""
    return _text(_dynamic_name(node))


def wrong_way(house: House) -> Iterator[str]:
    """Imports that do not go down."""
    for path in house.sources:
        own = place(path)
        for other, line in house.inner(path).items():
            if other == "__init__.py" or path == "__init__.py":
                continue
            if place(other) in {own, *ALSO.get(own, ())}:
                continue
            if LEVEL[place(other)] >= LEVEL[own]:
                yield f"{path}:{line} imports {other}"


def imports_of_the_face(house: House) -> Iterator[str]:
    """Imports of ``jdaso`` itself, which is for users and for programs on top."""
    for path in house.sources:
        line = house.imports[path].get("__init__.py")
        if line is not None and place(path) not in TOP:
            yield f"{path}:{line} imports jdaso"


def circles(house: House) -> Iterator[str]:
    """Files that import each other, also by names that are loaded later."""
    done: set[str] = set()
    found: list[str] = []

    def visit(path: str, way: list[str]) -> None:
        if path in way:
            found.append(" -> ".join([*way[way.index(path) :], path]))
        elif path not in done:
            for other in sorted(house.loaded(path)):
                visit(other, [*way, path])
            done.add(path)

    for path in house.sources:
        visit(path, [])
    yield from found


def beside_the_door(house: House) -> Iterator[str]:
    """Imports of another package's insides, among packages side by side and pipelines."""
    for path in house.sources:
        own = place(path)
        for other, line in house.inner(path).items():
            its = place(other)
            if own in TOP or path == "__init__.py" or its == own or its not in SIDE_BY_SIDE:
                continue
            door = DOORS.get((own, its))
            if door is None:
                yield f"{path}:{line} imports {other}: {own} does not use {its}"
            elif other not in (door, f"{its}/__init__.py", f"{its}.py"):
                yield f"{path}:{line} imports {other}, not {door}"


def foreign(house: House) -> Iterator[str]:
    """Third-party packages that a package below JAX may not reach."""
    for path in house.sources:
        allowed = THIRD_PARTY.get(place(path))
        if allowed is None:
            continue
        for name, by in sorted(house.reached(path).items()):
            if name not in allowed | set(sys.stdlib_module_names) | {"jdaso"}:
                yield f"{path} reaches {name}" + (f" by {by}" if by != path else "")


_NAMES_MPI4PY = re.compile(r"\bmpi4py\.[A-Za-z]|\b(import|from) mpi4py\b")


def mpi4py(house: House) -> Iterator[str]:
    """Imports of mpi4py, and texts that name its modules, where MPI does not belong."""
    for path, tree in house.sources.items():
        if place(path) in WITH_MPI4PY or path in FILES_WITH_MPI4PY:
            continue
        if "mpi4py" in house.imports[path]:
            yield f"{path}:{house.imports[path]['mpi4py']} imports mpi4py"
        docs = {id(text) for text in _docstrings(tree)}
        for node in ast.walk(tree):
            if (text := _text(node)) and id(node) not in docs and _NAMES_MPI4PY.search(text):
                yield f"{path}:{node.lineno} names {_NAMES_MPI4PY.search(text)[0]}..."


def _docstrings(tree: ast.Module) -> Iterator[ast.expr]:
    """Texts that stand alone: docstrings of all kinds."""
    return (node.value for node in ast.walk(tree) if isinstance(node, ast.Expr))


def internals_of_jax(house: House) -> Iterator[str]:
    """Uses of ``jax._src`` outside `_jax`."""
    for path, tree in house.sources.items():
        if place(path) != "_jax" and "jax._src" in ast.unparse(tree):
            yield f"{path} names jax._src"


def computed_imports(house: House) -> Iterator[str]:
    """Imports by a computed name, which no reader sees, beside `COMPUTED_IMPORTS`."""
    found = set()
    for path, tree in house.sources.items():
        for node in ast.walk(tree):
            name = _dynamic_name(node)
            if name is not None and _text(name) is None:
                found.add(path)
                if path not in COMPUTED_IMPORTS:
                    yield f"{path}:{node.lineno} imports {ast.unparse(name)}"
    yield from _gone(house, found, COMPUTED_IMPORTS, "COMPUTED_IMPORTS")


def _gone(house: House, found: set[str], listed, name: str) -> Iterator[str]:
    """Exceptions that no file of this house needs."""
    for path in sorted(set(listed) & set(house.texts) - found):
        yield f"{path} need not be in {name}"


def deep_writes(house: House) -> Iterator[str]:
    """Writes into the parts of another object's part: two dots and more."""
    for path, tree in house.sources.items():
        for node in ast.walk(tree):
            for written, dots in _written(node):
                if dots >= DEEP:
                    yield f"{path}:{written.lineno} writes {ast.unparse(written)}"


def writes_to_sessions(house: House) -> Iterator[str]:
    """Writes to a session's parts from outside: sessions have verbs for that."""
    for path, tree in house.sources.items():
        if place(path) == "_session":
            continue
        for node in ast.walk(tree):
            for written, dots in _written(node):
                if dots and _OF_SESSION.match(ast.unparse(written)):
                    yield f"{path}:{written.lineno} writes {ast.unparse(written)}"


_OF_SESSION = re.compile(r"(\w+\.)*_?session\.\w")


def _written(node: ast.AST) -> Iterator[tuple[ast.expr, int]]:
    """Objects that a statement or a call changes, with their number of dots."""
    for target in _targets(node):
        yield from _of_target(target)
    if isinstance(node, ast.Attribute) and node.attr in CONTAINER_VERBS:  # called, or handed on
        if not _is_at(node.value):
            yield node.value, _dots(node.value)
    if not isinstance(node, ast.Call):
        return
    if node.args and ast.unparse(node.func) in UNBOUND:
        yield node.args[0], _dots(node.args[0])
    setters = ("setattr", "delattr", "__setattr__", "__delattr__")
    if _last(node.func) in setters and node.args:
        yield node.args[0], _dots(node.args[0]) + 1


def _targets(node: ast.AST) -> list[ast.expr]:
    match node:
        case ast.Assign() | ast.Delete():
            return node.targets
        case ast.AugAssign() | ast.AnnAssign() | ast.For() | ast.AsyncFor() | ast.comprehension():
            return [node.target]
        case ast.withitem() if node.optional_vars is not None:
            return [node.optional_vars]
    return []


def _of_target(target: ast.expr) -> Iterator[tuple[ast.expr, int]]:
    match target:
        case ast.Tuple() | ast.List():
            for part in target.elts:
                yield from _of_target(part)
        case ast.Starred():
            yield from _of_target(target.value)
        case ast.Attribute() | ast.Subscript():
            yield target, _dots(target)


def _dots(node: ast.expr) -> int:
    """The dots on the way from a name to an object; items of it add none."""
    match node:
        case ast.Attribute():
            return _dots(node.value) + 1
        case ast.Subscript() | ast.Starred():
            return _dots(node.value)
        case ast.Call() if _last(node.func) == "vars" and node.args:
            return _dots(node.args[0]) + 1
        case ast.Call() if _last(node.func) in ITEM_VERBS and isinstance(node.func, ast.Attribute):
            return _dots(node.func.value)
        case ast.Call():
            return _dots(node.func)
    return 0


def _is_at(node: ast.expr) -> bool:
    """True for ``x.at[k]`` of JAX, whose verbs return another array."""
    inner = node.value if isinstance(node, ast.Subscript) else None
    return isinstance(inner, ast.Attribute) and inner.attr == "at"


def waits(house: House) -> Iterator[str]:
    """Loops and calls that wait, beside those that are listed: `requests.poll` waits for MPI."""
    found: dict[str, set[str]] = {"WAIT_FOR_MPI": set(), "BLOCKING": set(), "SLEEPERS": set()}
    for path, tree in house.sources.items():
        naps = _names_of_sleep(tree)
        for node in ast.walk(tree):
            kind = _wait(node, naps)
            if kind == "SLEEPERS" and path in WAIT_FOR_MPI:
                kind = "WAIT_FOR_MPI"
            if kind is None:
                continue
            found[kind].add(path)
            if path not in _WAITS[kind]:
                yield f"{path}:{node.lineno} {_WAITING[kind]}"
    for kind, files in found.items():
        yield from _gone(house, files, _WAITS[kind], kind)


_WAITS = {"WAIT_FOR_MPI": WAIT_FOR_MPI, "BLOCKING": BLOCKING, "SLEEPERS": SLEEPERS}
_WAITING = {
    "WAIT_FOR_MPI": "waits for MPI by a loop of its own, not by requests.poll",
    "BLOCKING": "blocks in MPI",
    "SLEEPERS": "sleeps",
}
_TESTS = {"Test", "Testall", "Testany", "Testsome"}


def _names_of_sleep(tree: ast.Module) -> set[str]:
    """Names of `time.sleep` in a program."""
    taken = (node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom))
    names = [x for node in taken if node.module in ("time", "asyncio") for x in node.names]
    return {"sleep", "usleep"} | {x.asname or x.name for x in names if x.name == "sleep"}


def _wait(node: ast.AST, naps: set[str]) -> str | None:
    """The kind of wait that a loop or a call is, if any."""
    if isinstance(node, ast.While | ast.For):
        inside = [x.func for x in ast.walk(node) if isinstance(x, ast.Call)]
        return "WAIT_FOR_MPI" if _TESTS & {_last(x) for x in inside} else None
    if not isinstance(node, ast.Call):
        return None
    if _last(node.func) in BLOCKING_VERBS and isinstance(node.func, ast.Attribute):
        return "BLOCKING"
    return "SLEEPERS" if _last(node.func) in naps else None


def without_place(house: House) -> Iterator[str]:
    """Packages that the order does not have."""
    for name in sorted({place(path) for path in house.sources} - {"__init__", *LEVEL}):
        yield f"{name} is not in ORDER"


_MAY = re.compile(r"\bMay live here\b(?s:.*)\bMay\s+not:\s")
_RULE = re.compile(r"^Rule( \d)?: (?s:.*)\b([Nn]o|[Nn]ot|[Nn]othing|[Nn]ever|only)\b", re.MULTILINE)


def silent_packages(house: House) -> Iterator[str]:
    """Packages whose docstring does not state what may live there and what may not."""
    for path, tree in house.sources.items():
        if path.split("/")[-1] != "__init__.py":
            continue
        text = ast.get_docstring(tree) or ""
        if not _MAY.search(text) and not _RULE.search(text):
            yield f"{path} states no rule: 'May live here: ... May not: ...', or 'Rule: no ...'"


RULES = [
    without_place,
    wrong_way,
    imports_of_the_face,
    circles,
    beside_the_door,
    foreign,
    mpi4py,
    internals_of_jax,
    computed_imports,
    deep_writes,
    writes_to_sessions,
    waits,
    silent_packages,
]


def offenders(house: House) -> list[str]:
    """All offenders of all rules."""
    return [f"{rule.__name__}: {text}" for rule in RULES for text in rule(house)]
