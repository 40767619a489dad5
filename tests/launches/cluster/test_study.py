"""A study with ranks: emulated links, all libraries, and bytes that cross another interface."""

import contextlib
import dataclasses
import os
import random
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import jsonschema
import pytest
from launcher import ENVIRONMENTS, PROGRAMS, ROOT, mpirun
from nights import nightly, rows
from studies import lines

from jdaso.cli import main
from jdaso.fabric._emulate import cleanup
from jdaso.fabric._study import memory
from jdaso.fabric._study.checks import StudyError
from jdaso.fabric._study.declaration import read_study, study_of
from jdaso.fabric._study.rows import schema
from jdaso.fabric._study.runner import run_study

emulates = pytest.mark.skipif(
    os.geteuid() != 0 or not shutil.which("ip") or not shutil.which("tc"),
    reason="network namespaces need root and iproute2",
)
RATE = 100e6 / 8
PEERS = ROOT / ".venv-peers" / "bin" / "python"
PYTHONS = {mpi: ENVIRONMENTS[mpi] / "bin" / "python" for mpi in ("mpich", "openmpi")}
PYTHONS |= {"gloo": PYTHONS["mpich"], "mpi4jax": PYTHONS["mpich"], "torch": PEERS}
STUDIES = sorted((ROOT / "examples" / "studies").glob("*.toml"))
EMULATED_STUDIES = [path for path in STUDIES if path.stem != "cluster"]
"""The study of a real cluster runs in a job: test_study_in_a_job.py."""


def study(fabric, **factors):
    return study_of(
        {
            "name": "with ranks",
            "replicates": 1,
            "limit_seconds": 40,
            "factors": {"fabric": "net", "library": "mpich", "nodes": 2, **factors},
            "fabrics": {"net": fabric},
            "libraries": {name: {"python": str(python)} for name, python in PYTHONS.items()},
            "workloads": {
                "allreduce": {"warmup": 2, "iterations": 4},
                "latency": {"warmup": 2, "iterations": 10},
                "bandwidth": {"warmup": 1, "iterations": 4, "window": 4},
                "training": {"warmup": 1, "iterations": 3, "sync_every": 2, "image": 32},
            },
        }
    )


def found(declared, folder):
    assert run_study(declared, folder) == len(declared.cells)
    for row in lines(folder):
        jsonschema.validate(row, schema())
    return lines(folder)


EMULATED = {"rate": "100mbit", "check": False}
BYTES = 2**20


@emulates
@pytest.mark.parametrize(
    ("library", "workload", "nodes"),
    rows(
        [
            (library, workload, nodes)
            for library in PYTHONS
            for workload, nodes in (
                ("allreduce", 2),
                ("latency", 2),
                ("bandwidth", 2),
                ("allgather", 3),
                ("reduce_scatter", 3),
                ("alltoall", 3),
            )
        ],
        day=[("mpich", "allreduce", 2)],
    ),
)
def test_a_cell_crosses_the_link_that_it_names(tmp_path, library, workload, nodes):
    if library == "torch" and not PEERS.exists():
        pytest.skip("make setup-peers installs PyTorch")
    declared = study(EMULATED, library=library, workload=workload, nodes=nodes, bytes=BYTES)
    before = cleanup.namespaces()
    (row,) = found(declared, tmp_path)
    assert cleanup.namespaces() == before
    if (library, workload) == ("mpi4jax", "reduce_scatter"):
        assert row["status"] == "missing" and row["words"].endswith("not one of its operations.")
        return
    assert row["status"] == "ok", row["words"]
    least = row["expected_bytes"]
    crossed = sum(row["bytes_at_interfaces"]["eth0"])
    assert 0 < least <= crossed and sum(row["bytes_at_interfaces"]["lo"]) < least / 10
    settings = declared.workloads[workload].settings
    assert len(row["seconds"]) == settings["iterations"]
    assert len(row["warmup_seconds"]) == settings["warmup"]
    # No faster than the link, but for the burst that a bucket holds; not ten times as slow.
    way = {"reduce_scatter": 2 / 3, "allgather": 2 / 3, "alltoall": 2 / 3}
    alone = way.get(workload, 1) * BYTES / RATE
    assert 0.6 * alone < min(row["seconds"]) < 10 * alone


def test_bytes_that_cross_another_interface_are_caught(tmp_path):
    """Runs both ranks on this host: its memory or loopback carries what eth0 should."""
    declared = study({"interface": "eth0"}, workload="allreduce", bytes=BYTES)
    (row,) = found(declared, tmp_path)
    assert row["status"] == "other fabric"
    assert row["words"].startswith("eth0 carried ") and len(row["seconds"]) == 4


FATES = """
import json, mmap, os, sys, time
from mpi4py import MPI
fate, comm = json.loads(sys.argv[1])["factors"]["bytes"], MPI.COMM_WORLD
if comm.rank == 1:
    print("node 1 goes to its fate", flush=True)
    if fate == 2: time.sleep(600)
    if fate == 3: os.kill(os.getpid(), 9)
    if fate == 4:
        memory = mmap.mmap(-1, 2**30)
        for page in range(0, 2**30, 4096): memory[page] = 1
met = comm.Ibarrier()
while not met.Test(): time.sleep(0.01)
if comm.rank == 0: print("jdaso-study " + json.dumps({"seconds": [0.5]}))
"""


DECLARED = """
name = "fates"
replicates = 1
limit_seconds = 25
{more}
[factors]
fabric = "net"
library = "{mpi}"
workload = "fates"
nodes = 2
bytes = {fates}
[[cells]]
fabric = "elsewhere"
library = "{mpi}"
workload = "allreduce"
nodes = 2
bytes = {bytes}
[fabrics.net]
rate = "100mbit"
check = false
[fabrics.elsewhere]
interface = "eth0"
[libraries.{mpi}]
python = "{python}"
[workloads.fates]
program = "{program}"
reads = ["bytes"]
"""


def run_fates(folder, mpi, fates, more=""):
    """Runs a study as users do; returns its exit status, and its rows by fate.

    Its program is fine (1), hangs (2), is killed (3), or takes 1 GiB of memory (4).
    """
    (folder / "fates.py").write_text(FATES)
    about = {"python": ENVIRONMENTS[mpi] / "bin/python", "program": folder / "fates.py"}
    declared = DECLARED.format(mpi=mpi, fates=fates, bytes=BYTES, more=more, **about)
    (folder / "study.toml").write_text(declared)
    before = cleanup.namespaces()
    status = main(["study", str(folder / "study.toml"), "--out", str(folder / "out")])
    assert set(cleanup.namespaces()) <= set(before)
    for row in lines(folder / "out"):
        jsonschema.validate(row, schema())
    return status, {row["factors"]["bytes"]: row for row in lines(folder / "out")}


MPIS = rows(list(ENVIRONMENTS), day=["mpich"])


@emulates
@pytest.mark.parametrize("mpi", MPIS)
def test_cells_that_hang_are_killed_or_cross_another_fabric_are_rows(tmp_path, mpi):
    status, by_fate = run_fates(tmp_path, mpi, [1, 2, 3])
    assert status == 1
    expected = {1: "ok", 2: "timed out", 3: "failed", BYTES: "other fabric"}
    assert {fate: row["status"] for fate, row in by_fate.items()} == expected
    assert by_fate[2]["words"].startswith("Ended after 25 s, the limit.")
    for fate in (2, 3):
        assert "node 1 goes to its fate" in by_fate[fate]["words"]
    assert by_fate[BYTES]["words"].startswith("eth0 carried ")


@emulates
@pytest.mark.parametrize("mpi", MPIS)
def test_a_cell_that_takes_more_memory_than_its_limit(tmp_path, mpi):
    """The kernel itself kills the rank, and nothing else on the machine."""
    limit = 512 * 2**20
    try:
        memory.require(limit)
    except StudyError as error:
        pytest.skip(str(error))
    status, by_fate = run_fates(tmp_path, mpi, [1, 4], 'limit_bytes = "512MiB"')
    assert status == 1
    found = {fate: row["status"] for fate, row in by_fate.items()}
    assert found == {1: "ok", 4: "out of memory", BYTES: "other fabric"}
    assert f" All its processes may take {limit} bytes, the limit.\n" in by_fate[4]["words"]
    assert by_fate[1]["limit_bytes"] == by_fate[4]["limit_bytes"] == limit
    assert not [path for group in memory._groups_of_this_process() for path in left(group)]


def left(group):
    return list(group.glob(f"jdaso-study-{os.getpid()}-*"))


@emulates
@nightly
@pytest.mark.parametrize("mpi", list(ENVIRONMENTS))
def test_fifty_kills_over_emulated_links(tmp_path, mpi):
    """SIGKILL at random moments: no row is lost or doubled, nothing is left behind."""
    fates = list(range(5, 5 + 30))  # thirty sizes, all of them fine
    declared = DECLARED.format(
        mpi=mpi,
        fates=fates,
        bytes=BYTES,
        more="",
        python=ENVIRONMENTS[mpi] / "bin/python",
        program=tmp_path / "fates.py",
    )
    (tmp_path / "fates.py").write_text(FATES)
    (tmp_path / "study.toml").write_text(declared.replace("replicates = 1", "replicates = 3"))
    command = [sys.executable, "-m", "jdaso", "study", tmp_path / "study.toml", "--out"]
    choose, before, first = random.Random(mpi), [], cleanup.namespaces()
    for number in range(51):
        with (tmp_path / "said").open("wb") as said:
            process = subprocess.Popen(
                [*command, tmp_path / "out"], cwd=ROOT, stdout=said, stderr=said
            )
        try:
            process.wait(choose.uniform(0.5, 8) if number < 50 else 900)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(10)
        whole = (tmp_path / "out" / "rows.jsonl").read_bytes() if before else b""
        assert whole.startswith(b"".join(before))
        before = whole_lines(tmp_path / "out")
    assert process.returncode == 1, (tmp_path / "said").read_text()  # bytes pass by eth0
    rows = lines(tmp_path / "out")
    keys = {(row["cell"], row["replicate"], row["attempt"]) for row in rows}
    assert len(rows) == len(keys) == 3 * 31
    assert {row["status"] for row in rows if row["factors"]["bytes"] != BYTES} == {"ok"}
    assert set(cleanup.namespaces()) <= set(first)
    assert not [text for text in command_lines() if str(tmp_path) in text]


def whole_lines(folder):
    """The lines of the journal that are not torn."""
    path = folder / "rows.jsonl"
    found = path.read_bytes().splitlines(keepends=True) if path.exists() else []
    return [line for line in found if line.endswith(b"\n")]


def command_lines():
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            yield path.read_bytes().decode(errors="replace")


@emulates
@nightly
@pytest.mark.parametrize("path", EMULATED_STUDIES, ids=lambda path: path.stem)
def test_short_forms_of_the_shipped_studies(path, tmp_path, monkeypatch):
    monkeypatch.chdir(ROOT)
    declared = read_study(path, short=True)
    assert run_study(declared, tmp_path) == len(declared.cells) * declared.replicates
    wrong = [(row["factors"], row["words"]) for row in lines(tmp_path) if row["status"] != "ok"]
    assert not wrong


def test_the_shipped_studies_are_declared_in_both_forms():
    assert STUDIES
    for path in STUDIES:
        assert read_study(path).name == path.stem == read_study(path, short=True).name
        assert "short" in tomllib.loads(path.read_text())


@pytest.mark.parametrize(
    ("mpi", "nodes"),
    rows([(mpi, n) for mpi in ENVIRONMENTS for n in (2, 3, 4, 8)], day=[("mpich", 2)]),
)
def test_a_stencil_over_ranks_has_the_bits_of_one_process(mpi, nodes):
    done = mpirun(nodes, [PROGRAMS / "halo_bits.py", 5], mpi=mpi, timeout=120)
    assert done.returncode == 0 and f"the bits of {nodes} blocks are the same" in done.stdout


TRAINED = {"workload": "training", "model": "paced", "method": "synchronous"}
LEVELS = {
    "exchange": {"workload": "exchange", "bytes": BYTES, "wire": "int8"},
    "daso": {**TRAINED, "method": "daso", "wire": "bfloat16"},
    "instant": {**TRAINED, "method": "instant", "wire": "int4"},
    "synchronous": {**TRAINED, "wire": "float32"},
    "real": {**TRAINED, "model": "resnet50", "compute": "real", "batch": 2},
    "halo": {"workload": "halo", "grid": 24, "scaling": "weak"},
}
NEEDS_MPI = ("exchange", "daso", "instant", "halo")
LACKING = {
    **{(library, name): " needs MPI." for library in ("gloo", "torch") for name in NEEDS_MPI},
    ("mpi4jax", "halo"): "Take transport mpi.",
    ("torch", "real"): "Take paced.",
}
"""Library and work -> the end of the sentence with the reason for missing numbers."""


@emulates
@pytest.mark.parametrize(
    ("library", "name"),
    rows(
        [(library, name) for library in PYTHONS for name in LEVELS],
        day=[("mpi4jax", "synchronous")],
    ),
)
def test_workloads_in_jax_cross_the_link(tmp_path, library, name):
    """Steps that average otherwise than their method says would fail their own check."""
    if library == "torch" and not PEERS.exists():
        pytest.skip("make setup-peers installs PyTorch")
    link = {"rate": "1gbit", "check": False}
    declared = study(link, library=library, **LEVELS[name])
    (row,) = found(dataclasses.replace(declared, limit_seconds=200), tmp_path)
    if end := LACKING.get((library, name)):
        assert row["status"] == "missing" and row["words"].endswith(end)
        return
    assert row["status"] == "ok", row["words"]
    assert (row["expected_bytes"] > 0) == (name != "instant")
    assert (row["compute_seconds"] is not None) == (name != "exchange")
