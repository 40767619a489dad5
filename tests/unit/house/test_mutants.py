"""The mutants of `tools/mutants.py`: their places, their witnesses, and the table of these."""

import ast
import functools
import re
import runpy
from pathlib import Path

import pytest

import jdaso

PACKAGE = Path(jdaso.__file__).parent
ROOT = PACKAGE.parent
TOOL = runpy.run_path(str(ROOT / "tools" / "mutants.py"))
MUTANTS = TOOL["MUTANTS"]
WITNESSES = sorted({witness for mutant in MUTANTS for witness in mutant.witnesses.split()})


def test_every_place_is_there_once():
    assert len(MUTANTS) > 25
    gone = [
        f"{mutant.mechanism}: {mutant.file}"
        for mutant in MUTANTS
        if (PACKAGE / mutant.file).read_text().count(mutant.old) != 1
    ]
    assert not gone


def test_every_mechanism_has_a_name_of_its_own():
    names = [mutant.mechanism for mutant in MUTANTS]
    assert sorted(set(names)) == sorted(names)


@functools.cache
def by_night(path):
    """The tests of a file by their names, each with whether it runs at night only."""
    statements = ast.parse(path.read_text()).body
    marks = [x.value for x in statements if isinstance(x, ast.Assign) and "pytestmark" in names(x)]
    whole_file = "nightly" in path.parts or any(map(is_nightly, marks))
    return {
        x.name: whole_file or any(map(is_nightly, x.decorator_list))
        for x in statements
        if isinstance(x, ast.FunctionDef) and x.name.startswith("test_")
    }


def names(assignment):
    return [x.id for x in assignment.targets if isinstance(x, ast.Name)]


def is_nightly(mark):
    """A decorator or value of `pytestmark` has the mark, itself or in a list; rows may differ."""
    if isinstance(mark, ast.List | ast.Tuple):
        return any(map(is_nightly, mark.elts))
    return ast.unparse(mark) in ("nightly", "nights.nightly", "pytest.mark.nightly")


def wrong_with(witness, root=ROOT):
    """Returns the reason why ``make test`` cannot run a witness; None if it can."""
    file, _, name = witness.partition("::")
    if not (root / file).exists():
        return f"{witness}: no such file"
    if (root / file).is_dir():
        return None if not name else f"{witness}: a folder has no tests"
    tests, name = by_night(root / file), name.partition("[")[0]
    if name and name not in tests:
        return f"{witness}: no such test"
    if tests[name] if name else all(tests.values()):
        return f"{witness}: it runs at night only"
    return None


def test_every_witness_is_a_test_of_the_day():
    assert [why for witness in WITNESSES if (why := wrong_with(witness))] == []


NIGHTS = """
import pytest
from nights import nightly

@nightly
def test_night(): ...

@pytest.mark.nightly
@pytest.mark.parametrize("x", [1])
def test_marked(x): ...

@pytest.mark.parametrize("x", [1, pytest.param(2, marks=nightly)])
def test_rows(x): ...

def helper(): ...
"""


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("", None),
        ("::test_rows", None),
        ("::test_rows[1]", None),
        ("::test_night", "at night only"),
        ("::test_marked[1]", "at night only"),
        ("::helper", "no such test"),
        ("::test_gone", "no such test"),
        (".gone", "no such file"),
    ],
)
def test_a_witness_that_is_none_is_named(name, why, tmp_path):
    (tmp_path / "test_it.py").write_text(NIGHTS)
    said = wrong_with(f"test_it.py{name}", tmp_path)
    assert said is None if why is None else why in said


def test_a_file_of_the_night_is_no_witness(tmp_path):
    (tmp_path / "test_it.py").write_text(f"{NIGHTS}\npytestmark = [pytest.mark.nightly]\n")
    assert "at night only" in wrong_with("test_it.py", tmp_path)
    assert "at night only" in wrong_with("test_it.py::test_rows", tmp_path)


@pytest.mark.parametrize(
    ("unbroken", "broken", "outcome", "why"),
    [
        (0, 1, "red", ""),
        (0, 0, "GREEN", "no witness fails"),
        (0, 5, "GREEN", "pytest's status is 5"),
        (1, 1, "ERROR", "does not pass unbroken"),
        (5, 1, "ERROR", "does not pass unbroken"),
        (None, 1, "ERROR", "longer than"),
    ],
)
def test_a_mutant_is_found_by_a_witness_that_passes_unbroken(
    unbroken, broken, outcome, why, tmp_path, monkeypatch
):
    file = tmp_path / "jdaso" / "it.py"
    file.parent.mkdir()
    file.write_text("right")
    judged, asked = TOOL["judged"], []

    def status_of(witness):
        asked.append(file.read_text())
        return {"right": unbroken, "wrong": broken}[asked[-1]]

    monkeypatch.setitem(judged.__globals__, "ROOT", tmp_path)
    monkeypatch.setitem(judged.__globals__, "status_of", status_of)
    judged.__globals__["why_useless"].cache_clear()
    for _ in range(2):
        found, said = judged(TOOL["Mutant"]("it", "it.py", "right", "wrong", "tests/test_it.py"))
        assert found == outcome and why in said
    assert file.read_text() == "right" and asked.count("right") == 1
    judged.__globals__["why_useless"].cache_clear()


def table():
    """The witnesses of each row of CONTRIBUTING's table, as paths; a bare name has the last's."""
    lines = (ROOT / "CONTRIBUTING.md").read_text().partition("| mechanism | witness |")[2]
    rows = {}
    for line in lines.strip().splitlines()[1:]:
        if not line.strip().startswith("|"):
            break
        mechanism, witnesses = line.strip().strip("|").split("|")
        folder, rows[mechanism.strip()] = None, []
        for path in map(Path, re.findall(r"`([^`]+)`", witnesses)):
            if len(path.parts) > 1:
                folder = path.parent
            rows[mechanism.strip()].append(Path("tests", folder, path.name))
    return rows


def holds(paths, witness):
    file = Path(witness.partition("::")[0])
    return any(path in (file, *file.parents) for path in paths)


def test_every_witness_is_in_a_row_of_the_table():
    paths = [path for paths in table().values() for path in paths]
    assert len(table()) > 25 and [path for path in paths if not (ROOT / path).exists()] == []
    assert [witness for witness in WITNESSES if not holds(paths, witness)] == []


def test_every_row_of_the_table_has_a_mutant():
    without = [row for row, paths in table().items() if not any(holds(paths, w) for w in WITNESSES)]
    assert without == []
