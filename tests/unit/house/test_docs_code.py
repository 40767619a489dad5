"""The Python in README.md, docs/ and docstrings runs, the shell parses, the picture is up to date.

Every page is one program: its ``python`` blocks in order, in one namespace, on one node without a
launcher. Everything around the blocks becomes empty lines, so a traceback names the page's line.
Fragments that are not meant to run are ``diff``, ``console`` or ``text`` blocks.
"""

import doctest
import importlib
import os
import pathlib
import re
import subprocess
import sys

import compiling
import pytest

ROOT = pathlib.Path(__file__).resolve().parents[3]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
FENCE = re.compile(r"^(?P<mark>`{3,})(?P<language>[\w{}-]*)[^`]*$")


def code_of(text, languages):
    """Returns `text` with all lines blanked that are not in a block of one of `languages`."""
    lines, mark, keep = [], None, False
    for line in text.splitlines():
        fence = FENCE.match(line)
        if mark is None and fence:
            mark, keep = fence["mark"], fence["language"] in languages
            lines.append("")
        elif mark is not None and line.strip() == mark:
            mark, keep = None, False
            lines.append("")
        else:
            lines.append(line if keep else "")
    assert mark is None, "a code block is not closed"
    return "\n".join(lines) + "\n"


def test_extraction_keeps_line_numbers():
    page = "prose\n```python\nx = 1\n```\n```diff\n-x\n```\n```python\nassert x == 1\n```\n"
    expected = ["", "", "x = 1", "", "", "", "", "", "assert x == 1", ""]
    assert code_of(page, {"python"}).splitlines() == expected


def pages_with(languages):
    found = [page for page in PAGES if code_of(page.read_text(), languages).strip()]
    return [pytest.param(page, id=page.relative_to(ROOT).as_posix()) for page in found]


@pytest.mark.parametrize("page", pages_with({"python"}))
def test_python_blocks_run(page, tmp_path):
    program = tmp_path / page.with_suffix(".py").name
    program.write_text(code_of(page.read_text(), {"python"}))
    env = dict(
        os.environ,
        PYTHONPATH=os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")])),
        JAX_PLATFORMS="cpu",
        XLA_FLAGS=f"{compiling.QUICKLY} --xla_force_host_platform_device_count=2",
    )
    run = subprocess.run(
        [sys.executable, program], cwd=tmp_path, env=env, text=True, timeout=300,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    assert run.returncode == 0, f"the Python of {page.name} failed:\n{run.stdout}"


MODULES = [p for p in sorted((ROOT / "jdaso").rglob("*.py")) if ">>> " in p.read_text()]


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.stem)
def test_examples_of_docstrings_run(path):
    name = ".".join(path.relative_to(ROOT).with_suffix("").parts)
    done = doctest.testmod(importlib.import_module(name), optionflags=doctest.ELLIPSIS)
    assert done.attempted and not done.failed


@pytest.mark.parametrize("page", pages_with({"bash"}))
def test_shell_blocks_parse(page):
    program = code_of(page.read_text(), {"bash"})
    run = subprocess.run(["bash", "-n"], input=program, text=True, capture_output=True)
    assert run.returncode == 0, run.stderr


@pytest.mark.parametrize("name, mark", [("slurm.sbatch", "#SBATCH "), ("pbs.sh", "#PBS ")])
def test_job_files_parse_and_settings_come_first(name, mark):
    path = ROOT / "examples" / name
    run = subprocess.run(["bash", "-n", path], text=True, capture_output=True)
    assert run.returncode == 0, run.stderr
    lines = path.read_text().splitlines()
    settings = [n for n, line in enumerate(lines) if line.startswith(mark)]
    first_command = next(n for n, line in enumerate(lines) if line and not line.startswith("#"))
    assert settings and max(settings) < first_command, "ignored after a command"


def test_timeline_picture_is_up_to_date():
    drawing = subprocess.run(
        [sys.executable, ROOT / "docs" / "timeline.py", "--print"],
        text=True, capture_output=True, check=True,
    )  # fmt: skip
    assert drawing.stdout == (ROOT / "docs" / "_static" / "timeline.svg").read_text()


def test_the_tests_that_guard_against_defects_exist():
    page = (ROOT / "docs" / "heat_defects.md").read_text()
    rows = re.findall(r"^\| (\d+) \|.*\| ([^|]*) \|$", page, re.M)
    assert [int(number) for number, _ in rows] == list(range(1, 19))
    files = ("unit/optimizers/test_heat_defects.py", "ranks/optimizers/test_heat_defects.py")
    source = "\n".join((ROOT / "tests" / file).read_text() for file in files)
    existing = set(re.findall(r"^def (test_\w+)\(", source, re.M))
    for number, guards in rows:
        named = set(re.findall(r"`([^`]*)`", guards))
        assert named and named <= existing, f"defect {number}: no {named - existing or 'test'}"
        assert all(name.startswith(f"test_defect_{int(number):02d}_") for name in named)
