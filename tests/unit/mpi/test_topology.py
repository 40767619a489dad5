"""GPUs of a host among its nodes, without GPUs; and the facts that a single node gets."""

import logging
import os

import jax
import jax.numpy as jnp
import pytest

import jdaso
from jdaso import NodeError
from jdaso._launch import gpus as _gpus
from jdaso._mpi import gpus as shared_gpus
from jdaso._mpi.gpus import claim_gpus, share_out
from jdaso._mpi.topology import Topology
from jdaso._session.devices import check_devices
from jdaso._session.start import say_alone

ENVIRONMENT = ("CUDA_VISIBLE_DEVICES", "XLA_PYTHON_CLIENT_PREALLOCATE")


@pytest.mark.parametrize("ranks", range(1, 9))
@pytest.mark.parametrize("gpus", range(1, 9))
def test_every_gpu_has_one_rank_and_ranks_have_equally_many(gpus, ranks):
    names = [f"GPU-{n}" for n in range(gpus)]
    if gpus < ranks:
        with pytest.raises(ValueError, match=rf"{ranks} nodes share this host but it has {gpus} "):
            share_out(names, 0, ranks)
        shared = [share_out(names, rank, ranks, share=True) for rank in range(ranks)]
        assert all(len(mine) == 1 for mine in shared)
        assert {name for mine in shared for name in mine} == set(names)
        return
    shared = [share_out(names, rank, ranks) for rank in range(ranks)]
    assert [name for mine in shared for name in mine] == names
    assert max(map(len, shared)) - min(map(len, shared)) <= 1


@pytest.fixture
def claim(monkeypatch):
    """Calls `claim_gpus` for the last rank; returns the variables that it sets."""

    def call(gpus, *, share=False, started=False, chosen=(None, None), ranks=2, cpus=False):
        monkeypatch.setenv("JAX_PLATFORMS", "")
        for name in ENVIRONMENT:
            monkeypatch.setenv(name, "before")
        monkeypatch.delenv(ENVIRONMENT[1])
        monkeypatch.setattr(shared_gpus, "visible_gpus", lambda: gpus)
        topology = Topology(1, ranks, "there", ranks - 1, ranks, chosen)
        claim_gpus(topology, share=share, on_cpus=cpus, started=started)
        return [os.environ.get(name) for name in ENVIRONMENT]

    return call


def test_a_rank_sees_only_its_own_gpus(claim):
    assert claim(["0", "1", "2", "3"]) == ["2,3", None]


def test_ranks_that_share_a_gpu_do_not_take_all_of_its_memory(claim):
    assert claim(["0"], share=True) == ["0", "false"]
    assert claim(["0", "1"], share=True) == ["1", None]  # nothing is shared


def test_a_process_that_shares_a_gpu_can_make_another_session(claim):
    """The GPUs look as they did at first, and JAX has started in the first session."""
    assert claim(["0"], share=True, started=True) == ["before", None]
    with pytest.raises(NodeError, match="2 nodes share this host"):
        claim(["0"], started=True)


def test_where_jax_computes_on_cpus_the_gpus_of_the_host_do_not_matter(claim):
    """JAX without its CUDA plugin, say, on a machine with one GPU: that is no error."""
    assert claim(["0"], cpus=True) == ["before", None]
    assert claim(["0"], cpus=True, started=True) == ["before", None]


def test_what_the_launcher_gave_stays(claim):
    assert claim(["1"], chosen=(("GPU-a",), ("GPU-b",))) == ["before", None]
    # Both ranks call theirs 0 and 1: four GPUs in the first line, two in the second.
    assert claim(["0", "1"], chosen=(("GPU-a", "GPU-b"), ("GPU-c", "GPU-d"))) == ["before", None]
    assert claim(["0", "1"], chosen=(("GPU-a", "GPU-b"), ("GPU-a", "GPU-b"))) == ["1", None]


def test_a_rank_without_gpus_leaves_them_to_the_others(claim):
    """Rank 0 evaluates on the CPU, say, and has an empty CUDA_VISIBLE_DEVICES."""
    assert claim(["4"], chosen=((), ("GPU-a",), ("GPU-b",)), ranks=3) == ["before", None]
    assert claim(["0", "1"], chosen=((), ("a", "b"), ("a", "b")), ranks=3) == ["1", None]
    assert claim(["0", "1"], chosen=((), None, None), ranks=3) == ["1", None]


def test_ranks_that_see_the_same_gpus_in_another_order_take_different_ones(claim):
    """Rank 1 calls GPU-b 0 and GPU-a 1; rank 0 takes GPU-a, its first."""
    assert claim(["0", "1"], chosen=(("GPU-a", "GPU-b"), ("GPU-b", "GPU-a"))) == ["0", None]


def test_groups_of_ranks_divide_their_own_gpus(claim):
    """As Slurm's ``--gpu-bind=closest`` shows them."""
    pairs = (("GPU-a", "GPU-b"),) * 2 + (("GPU-c", "GPU-d"),) * 2
    assert claim(["0", "1"], chosen=pairs, ranks=4) == ["1", None]
    with pytest.raises(NodeError, match="3 nodes share this host but it has 2"):
        claim(["0", "1"], chosen=(("GPU-c", "GPU-d"), *pairs[1:]), ranks=4)
    shared = claim(["0", "1"], chosen=(("GPU-c", "GPU-d"), *pairs[1:]), ranks=4, share=True)
    assert shared == ["0", "false"]
    with pytest.raises(NodeError, match=r"some are the same: GPU-b, GPU-c here.*for each rank"):
        claim(["0", "1"], chosen=(("GPU-a", "GPU-b"), ("GPU-b", "GPU-c")))


def test_a_rank_whose_nvidia_smi_fails_takes_its_part_of_what_others_see(claim, monkeypatch):
    seen = (("GPU-a", "GPU-b"), None)
    assert claim([], chosen=seen) == ["before", None]  # it is to have none
    monkeypatch.setattr(shared_gpus.os, "environ", {})
    claim_gpus(Topology(1, 2, "there", 1, 2, seen), share=False, on_cpus=False, started=False)
    assert shared_gpus.os.environ == {"CUDA_VISIBLE_DEVICES": "1"}


LISTING = """GPU 0: NVIDIA H200 (UUID: GPU-11aa)
  MIG 1g.18gb     Device  0: (UUID: MIG-0001)
GPU 1: NVIDIA H200 (UUID: GPU-22bb)
"""


@pytest.mark.parametrize(
    "chosen, gpus, identities",
    [
        (None, ["0", "1"], ["GPU-11aa", "GPU-22bb"]),
        ("1", ["1"], ["GPU-22bb"]),
        ("GPU-2, 0", ["GPU-2", "0"], ["GPU-22bb", "GPU-11aa"]),
        ("MIG-0001", ["MIG-0001"], ["MIG-0001"]),
        ("7", ["7"], None),
        ("", [], []),
        ("NoDevFiles", [], []),  # Slurm, of a job without GPUs
        ("1,-1,0", ["1"], ["GPU-22bb"]),  # CUDA looks no further
    ],
)
def test_gpus_are_known_by_their_uuids(monkeypatch, tmp_path, chosen, gpus, identities):
    """A fake of NVIDIA's tool prints the UUIDs; without the tool, names count."""
    tool = tmp_path / "nvidia-smi"
    lines = "".join(f"echo '{line}'\n" for line in LISTING.splitlines())
    tool.write_text(f"#!/bin/sh\n{lines}")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("JAX_PLATFORMS", "")
    if chosen is None:
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    else:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", chosen)
    assert _gpus.visible_gpus() == gpus
    assert _gpus.gpu_identities() == identities
    tool.unlink()
    if chosen is not None:
        assert _gpus.gpu_identities() == gpus
    tool.write_text(f"#!/bin/sh\ntouch {tmp_path}/asked\n")
    tool.chmod(0o755)
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    assert _gpus.gpu_identities() == []
    assert not (tmp_path / "asked").exists()  # the driver may hang


def test_one_rank_of_a_host_keeps_all_gpus(claim):
    assert claim(["0", "1"], ranks=1) == ["before", None]


def test_too_few_gpus_and_a_jax_that_has_started_are_errors(claim):
    with pytest.raises(NodeError, match=r"node 1 of 2, host there.*2 nodes share.*share_gpus=True"):
        claim(["0"])
    with pytest.raises(NodeError, match=r"JAX has started before.*Make the Session before"):
        claim(["0", "1"], started=True)


def test_a_node_that_is_alone_says_so_once(caplog):
    say_alone.cache_clear()
    with caplog.at_level(logging.WARNING, "jdaso"):
        for _ in range(2):
            with jdaso.Session(engine="mpi4py") as session:
                assert float(jdaso.mean(jnp.float32(3), session)) == 3
        with jdaso.Session(engine=jdaso.Simulated(2)):
            pass
    [record] = caplog.records
    assert record.getMessage() == ("jdaso runs on one node: mpiexec -n N starts more.")


def test_jax_without_a_cpu_device_is_an_error(monkeypatch):
    """JAX_PLATFORMS=cuda leaves no CPU device; a callback would fail later, on one device."""

    def none(backend):
        raise RuntimeError(f"Unknown backend {backend}")

    with jdaso.Session() as session:
        check_devices(session.topology, session.devices, sends=False)
        monkeypatch.setattr(jax, "local_devices", none)
        with pytest.raises(RuntimeError, match=r"node 0 of 1.*JAX_PLATFORMS=cuda,cpu"):
            check_devices(session.topology, session.devices, sends=False)
        monkeypatch.undo()
