"""The hosts of an allocation, the hosts of a cell, and studies that do not fit them."""

import os

import pytest
from studies import small

from jdaso.fabric._study.allocation import allocated_hosts, hosts_of, require_hosts
from jdaso.fabric._study.checks import StudyError
from jdaso.fabric._study.chosen import ChosenFabric, ChosenLibrary
from jdaso.fabric._study.launch import launch_of
from jdaso.fabric._study.runner import run_study

SCONTROL = """#!/bin/sh
[ "$1 $2 $3" = "show hostnames n[02-03,07]" ] && printf "n02\\nn03\\nn07\\n"
"""


@pytest.fixture(autouse=True)
def _in_no_allocation(monkeypatch):
    for name in ("SLURM_JOB_NODELIST", "PBS_NODEFILE"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def slurm(tmp_path, monkeypatch):
    (tmp_path / "scontrol").write_text(SCONTROL)
    (tmp_path / "scontrol").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setenv("SLURM_JOB_NODELIST", "n[02-03,07]")


def of_nodes(nodes, **changes):
    factors = {"fabric": "net", "library": "one", "workload": "mine", "nodes": nodes, "bytes": 1}
    return small(factors=factors, **changes)


def test_hosts_are_those_of_the_allocation_in_its_order(tmp_path, monkeypatch):
    assert allocated_hosts() == ()
    (tmp_path / "nodes").write_text("n9\nn9\nn10\nn2\nn10\n")  # a line a rank
    monkeypatch.setenv("PBS_NODEFILE", str(tmp_path / "nodes"))
    assert allocated_hosts() == ("n9", "n10", "n2")
    monkeypatch.setenv("PBS_NODEFILE", str(tmp_path / "gone"))
    assert allocated_hosts() == ()


def test_slurm_itself_reads_its_list(slurm, monkeypatch):
    assert allocated_hosts() == ("n02", "n03", "n07")
    monkeypatch.setenv("SLURM_JOB_NODELIST", "m[1-2]")
    with pytest.raises(StudyError, match=r"is m\[1-2\], but scontrol show hostnames does not give"):
        allocated_hosts()


def test_a_cell_takes_the_first_hosts():
    (cell,) = of_nodes(2).cells
    named = ChosenFabric("net", hosts=("a", "b", "c"))
    assert hosts_of(cell, named, None, ("n1", "n2", "n3")) == ("a", "b")
    assert hosts_of(cell, ChosenFabric("net"), None, ("n1", "n2", "n3")) == ("n1", "n2")
    assert hosts_of(cell, ChosenFabric("net"), None, ()) == ()


def test_a_study_that_needs_more_nodes_runs_nothing(slurm, tmp_path):
    need = r"needs 4 nodes, the allocation has 3: n02, n03, n07. Ask the scheduler for 4, or excl"
    with pytest.raises(StudyError, match=need):
        run_study(of_nodes([1, 4]), tmp_path / "out")
    assert not (tmp_path / "out").exists()
    require_hosts(of_nodes(3), allocated_hosts())
    require_hosts(of_nodes(4, fabrics={"net": {"hosts": list("abcd")}}), allocated_hosts())
    require_hosts(of_nodes(4, fabrics={"net": {"rate": "1gbit"}}), allocated_hosts())
    require_hosts(of_nodes(4), ())


def test_a_limit_that_other_hosts_would_not_know_is_refused():
    limited = of_nodes(2, limit_bytes="1GiB")
    require_hosts(limited, ())
    with pytest.raises(StudyError, match="got 1073741824 for ranks on n1, n2. Leave it out, and"):
        require_hosts(limited, ("n1", "n2"))


@pytest.mark.parametrize("nodes", [1, 2])
def test_variables_of_an_allocation_are_kept_and_one_rank_goes_to_each_host(
    monkeypatch, tmp_path, nodes
):
    """mpiexec asks the scheduler by them; without hosts they would make a rank of the process."""
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    monkeypatch.setattr("jdaso.fabric._study.launch.mpiexec_of", lambda _: "/opt/mpiexec")
    monkeypatch.setattr("jdaso.fabric._study.launch._is_open_mpi", lambda _: False)
    study, net, one = of_nodes(nodes), ChosenFabric("net"), ChosenLibrary("one")
    about = study.cells[0], net, one, study.workloads["mine"], None
    there = launch_of(*about, ("n2", "n1")[:nodes])
    hosts = ["-hosts", "n2,n1"[: 3 * nodes - 1], "-ppn", "1"]
    assert there.command[:7] == ["/opt/mpiexec", "-n", str(nodes), *hosts]
    assert there.environment["SLURM_JOB_ID"] == "7"
    assert there.environment["JDASO_STUDY_COORDINATOR"].startswith("n2:")
    here = launch_of(*about, (), tmp_path)
    assert "SLURM_JOB_ID" not in here.environment and "-hosts" not in here.command
    assert here.environment["JAX_COMPILATION_CACHE_DIR"] == str(tmp_path)
    assert "JAX_COMPILATION_CACHE_DIR" not in launch_of(*about, ("n2",), tmp_path).environment
    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", "/mine")
    assert launch_of(*about, (), tmp_path).environment["JAX_COMPILATION_CACHE_DIR"] == "/mine"
