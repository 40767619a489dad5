"""Two nodes of two devices each, under `shard_map` and `pmap`."""

import pytest
from launcher import PROGRAMS, mpirun
from nights import at_night

SCRIPT = PROGRAMS / "devices.py"


def check(*args, nodes=2):
    done = mpirun(nodes, [SCRIPT, *args], devices=2, quick_compiling=True)
    assert done.returncode == 0 and done.stdout.count(": end") == nodes, done.stdout


@pytest.mark.parametrize(
    ("engine", "setting"),
    [
        at_night(("mpi4jax", ["paper"])),
        ("mpi4jax", ["outer"]),
        at_night(("mpi4py", ["corrected"])),
        ("mpi4py", ["paper", "int8"]),
    ],
    ids=str,
)
def test_every_update_matches_the_reference(engine, setting):
    """Eight chunks, so that the sending device goes round; through all three phases."""
    merge, *wire = setting
    check(merge, engine, *wire)


def test_pmap():
    check("pmap", "mpi4jax")


@pytest.mark.parametrize("engine", [at_night("mpi4jax"), "mpi4py"])
def test_finalize_loses_nothing_that_the_devices_did_apart(engine):
    """`local_every=3`, stopped after each of twelve updates."""
    check("local_every", engine)


def test_a_bit_that_flips_on_one_device_is_found():
    check("drift", "mpi4py", nodes=3)


def test_the_sending_device_goes_round():
    check("senders", "mpi4py")
