"""Two nodes of four devices each, over which the parameters are divided."""

import compiling
import pytest
from launcher import PROGRAMS, mpirun
from nights import at_night

SCRIPT = PROGRAMS / "sharded.py"


def check(*args, timeout=400, **about):
    # Not compiled quickly where bits are compared: XLA would round by the shape of an array.
    about = about or {"flags": compiling.ALIKE}
    done = mpirun(2, [SCRIPT, *args], devices=4, timeout=timeout, **about)
    assert done.returncode == 0 and done.stdout.count(": end") == 2, done.stdout
    assert "full rematerialization" not in done.stdout


@pytest.mark.parametrize(
    "case", ["rows", "copies,shard_map", at_night("rows,jitted"), at_night("columns,explicit")]
)
def test_divided_parameters_go_the_way_of_undivided_ones(case):
    """The results are bitwise equal in float32; with narrow wires, as near as blocks allow."""
    check(case)


@pytest.mark.nightly
@pytest.mark.parametrize(
    "case",
    ["rows", "columns", "data_model", "data_model,explicit", "data_model,shard_map"],
)
def test_every_merge_and_wire(case):
    check(case, "night")


def test_the_number_of_fragments_is_that_of_whole_leaves():
    check("counts", timeout=400, quick_compiling=True)


def test_parameters_that_are_divided_in_less_usual_ways():
    """Fragments without divided leaves, stacked shards, optimizers made anew, losses of devices."""
    script = PROGRAMS / "sharded_edges.py"
    done = mpirun(2, [script], devices=4, quick_compiling=True, timeout=400)
    assert done.returncode == 0 and done.stdout.count(": end") == 2, done.stdout


def test_two_optimizers_of_one_step_do_not_wait_for_each_other():
    check("orders", timeout=400, quick_compiling=True)


def test_an_error_ends_the_step_on_every_device():
    """Every device raises: if only one did, the others would wait for it for ever."""
    check("fails", timeout=400, quick_compiling=True)


def test_nodes_that_divide_differently_are_refused():
    check("refuses", timeout=400, quick_compiling=True)


def test_a_bit_that_flips_in_one_copy_of_a_shard_is_found():
    check("drifts", timeout=400, quick_compiling=True)


def test_gradients_that_differ_between_copies_are_named():
    done = mpirun(2, [SCRIPT, "differ"], devices=4, quick_compiling=True, timeout=400)
    assert done.stdout.count(": end") == 2, done.stdout  # then the job ends: its session is broken


def test_the_compiled_step_gathers_nothing():
    check("compiles", flags="")  # as for users: it reads what XLA has made


@pytest.mark.nightly
def test_libraries_that_divide_models_themselves():
    check("libraries")


@pytest.mark.nightly
def test_a_run_goes_on_with_its_parameters_divided_otherwise(tmp_path):
    """Saves with an exchange in flight; the arrays are tested in tests/unit/checkpoint."""
    check("moves", tmp_path)


@pytest.mark.parametrize(
    ("nodes", "devices", "ranks", "how"),
    [
        (2, 2, 1, []),
        at_night((2, 4, 1, ["copies"])),
        at_night((2, 2, 2, [])),
        at_night((2, 2, 2, ["copies"])),
    ],
)
def test_pmap_and_finalize_with_shards_or_copies(nodes, devices, ranks, how):
    """The bits are those of undivided parameters, with an exchange in flight at the end."""
    script = PROGRAMS / "stacked.py"
    done = mpirun(nodes * ranks, [script, str(ranks), *how], devices=devices, timeout=400)
    assert done.returncode == 0 and done.stdout.count(": end") == nodes * ranks, done.stdout
