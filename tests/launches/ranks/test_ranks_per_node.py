"""Two nodes of two ranks with two devices each: one JAX world a node."""

import re
import shutil

import compiling
import pytest
from launcher import PROGRAMS, ROOT, mpirun

SHARDED, JOINED = PROGRAMS / "sharded.py", PROGRAMS / "joined.py"


def check(*args, timeout=400, ranks=4, devices=2, **about):
    """Runs a case of `sharded.py`; returns the bits that ranks have printed of wide wires.

    Narrow ones round by blocks, which ranks that share a leaf cut elsewhere; the program compares
    their numbers with those of undivided parameters, within the wire's tolerance.
    """
    about = about or {"flags": compiling.ALIKE}  # see test_sharded.py
    done = mpirun(ranks, [SHARDED, *args], devices=devices, timeout=timeout, **about)
    assert done.returncode == 0 and done.stdout.count(": end") == ranks, done.stdout
    found = re.findall(r"node 0: bits (\w{8}) of (\w+)", done.stdout)
    return [bits for bits, wire in found if wire in ("float32", "bfloat16")]


def test_the_devices_of_a_nodes_ranks_exchange_their_shards():
    """Divided and undivided parameters are bitwise the same after each update, on all ranks."""
    first, second = check("data_model,ranks")
    assert first == second


def test_numbers_that_are_not_finite_end_all_ranks():
    check("fails,ranks", timeout=400, quick_compiling=True)


@pytest.mark.nightly
@pytest.mark.parametrize(("ranks", "devices", "case"), [(2, 4, "partly"), (4, 2, "partly,ranks")])
def test_a_loss_may_map_some_axes_of_the_mesh_and_leave_the_others(ranks, devices, case):
    check(case, ranks=ranks, devices=devices, quick_compiling=True)


@pytest.mark.nightly
def test_copies_that_differ_between_ranks_are_found():
    """A bit that flips in one, and gradients that are not averaged inside `shard_map`."""
    check("drifts,ranks", timeout=400, quick_compiling=True)
    done = mpirun(4, [SHARDED, "differ,ranks"], devices=2, quick_compiling=True, timeout=400)
    assert done.stdout.count(": end") == 4, done.stdout


@pytest.mark.nightly
@pytest.mark.parametrize(
    "layout", ["rows", "data_model", "data_model,explicit", "copies,shard_map"]
)
def test_every_merge_and_wire_as_with_one_rank_a_node(layout):
    joined = check(f"{layout},ranks", "night", timeout=1200)
    alone = check(layout, "night", timeout=1200, ranks=2, devices=4)
    assert sorted(joined) == sorted(2 * alone) and len(alone) >= 4  # of two ranks each


def train(folder, *words, ranks=4, **about):
    """Runs `joined.py` to the end; returns where it has begun, and the bits of each rank."""
    args = [JOINED, folder, 20, *words]
    done = mpirun(ranks, args, devices=2, timeout=400, quick_compiling=True, **about)
    assert done.returncode == 0, done.stdout
    bits = sorted(re.findall(r"rank \d: bits \w{8}", done.stdout))
    assert len(bits) == ranks, done.stdout
    return done.stdout, re.findall(r"begins at (\d+)", done.stdout), bits


def test_a_run_goes_on_bit_for_bit_after_the_death_of_one_rank(tmp_path):
    """Restores a save with fragments of a narrow wire in flight; each sample is on one device.

    The run that is never stopped uses the other engine, which has the same bits.
    """
    text, _, whole = train(tmp_path / "whole", "engine=mpi4jax")
    samples = re.findall(r"rank \d: samples \[(.*?)\];", text)
    assert sorted(int(x) for row in samples for x in row.split(",")) == list(range(48))
    assert len(samples) == 4 and all(row.count(",") == 11 for row in samples)
    text, begun, bits = train(tmp_path / "killed", 3, 13, restarts=1)
    assert "dies at 13" in text and "node 1 (rank 3) ended first" in text, text
    assert begun[4:] in (["5"] * 4, ["10"] * 4), text  # a save may have been cut short
    assert bits == whole


@pytest.mark.nightly
@pytest.mark.parametrize("mpi", ["mpich", "openmpi"])
def test_a_run_goes_on_with_another_number_of_nodes(mpi, tmp_path):
    """The run continues from the mean over the saved nodes, as `Reader` finds it."""
    train(tmp_path, "wire=auto", mpi=mpi)
    for ranks in (6, 2):
        folder = tmp_path.with_name(f"{tmp_path.name}-{ranks}")
        shutil.copytree(tmp_path, folder)
        _, begun, bits = train(folder, "wire=auto", ranks=ranks, mpi=mpi)
        assert begun == ["15"] * ranks
        assert len({line.rpartition(" ")[2] for line in bits}) == 2  # of the ranks of one node


@pytest.mark.nightly
def test_a_run_goes_on_with_its_parameters_divided_otherwise(tmp_path):
    """Restores a save with an exchange in flight and an outer optimizer, bit for bit."""
    check("moves,ranks", tmp_path)


@pytest.mark.nightly
def test_a_checkpoint_is_restored_with_another_number_of_ranks_and_another_mesh(tmp_path):
    """Restores everything in flight, whichever ranks saved it."""
    for name, ranks, case in (("two", 4, "saves,ranks"), ("one", 2, "saves")):
        check(case, tmp_path / name, "rows", ranks=ranks, devices=8 // ranks)
    check("restores,ranks", tmp_path / "two", "rows", "same")
    check("restores,ranks", tmp_path / "two", "data_model", "other")
    for layout in ("rows", "data_model"):
        check("restores", tmp_path / "two", layout, "other", ranks=2, devices=4)
        check("restores,ranks", tmp_path / "one", layout, "other")


@pytest.mark.nightly
def test_the_example_of_a_divided_model():
    done = mpirun(4, [ROOT / "examples" / "fsdp.py", "2"], devices=2, timeout=300)
    found = re.findall(r"node (\d): loss (\S+) -> (\S+), .* parameters (\w{8})", done.stdout)
    assert len(found) == 4 and len({x[-1] for x in found}) == 1, done.stdout
    assert all(float(last) < 0.3 * float(first) for _, first, last, _ in found)


COPIES_DIFFER = """
import numpy as np, optax, jdaso
with jdaso.Session(ranks_per_node=2) as session:
    tx = jdaso.daso(optax.sgd(0.1), phases=jdaso.Phases(9, 1, 1), session=session)
    tx.init({"w": np.full(3, session.topology.rank, np.float32)})
"""


def test_the_ranks_of_a_single_node_compare_their_copies():
    """A program that would fail on several nodes fails on one."""
    done = mpirun(2, ["-c", COPIES_DIFFER], cwd=ROOT, quick_compiling=True, timeout=200)
    assert done.returncode != 0 and "bits of leaf ['w']" in done.stdout, done.stdout
