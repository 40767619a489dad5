"""A study with ranks: emulated links, all libraries, and bytes that cross another interface."""

import dataclasses
import os
import shutil
import tomllib

import jsonschema
import pytest
from launcher import ENVIRONMENTS, PROGRAMS, ROOT, mpirun
from nights import nightly, rows
from studies import lines

from jdaso.fabric._emulate import kernel
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
                "training": {"warmup": 2, "iterations": 6, "image": 32},
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
    before = kernel.namespaces()
    (row,) = found(declared, tmp_path)
    assert kernel.namespaces() == before
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
    """Both ranks are on this host: its own memory or loopback carries what eth0 should."""
    declared = study({"interface": "eth0"}, workload="allreduce", bytes=BYTES)
    (row,) = found(declared, tmp_path)
    assert row["status"] == "other fabric"
    assert row["words"].startswith("eth0 carried ") and len(row["seconds"]) == 4


@emulates
@nightly
@pytest.mark.parametrize("path", STUDIES, ids=lambda path: path.stem)
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
"""Library and work -> the end of the sentence that tells why there are no numbers."""


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
