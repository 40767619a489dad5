"""Training of a study: pace, the check of averages, its cost, and cells that a library lacks."""

import time

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jdaso.fabric._study.chosen import ChosenFabric, ChosenLibrary, workloads
from jdaso.fabric._study.crossing import Cell
from jdaso.fabric._study.declaration import study_of
from jdaso.fabric._study.estimate import seconds_of
from jdaso.fabric._study.factors import METHODS, SETTINGS
from jdaso.fabric._study.lacks import LACKS, lack_of
from jdaso.fabric._study.models import MODELS
from jdaso.fabric._study.workloads import _training
from jdaso.fabric._study.workloads._averages import check, sums_of
from jdaso.fabric._study.workloads._given import Given
from jdaso.fabric._study.workloads._places import Own
from jdaso.fabric._study.workloads._work import Paced, shapes_of
from jdaso.fabric._study.workloads.training import JaxSteps, averaged

HERE, SHAPES = ChosenFabric("here"), [jax.ShapeDtypeStruct((7,), jnp.float32)] * 3


def given(transport="mpi", settings=(), **factors):
    factors = {"method": "bare", "model": "paced", **factors}
    return Given(factors, {**SETTINGS["training"], **dict(settings)}, transport)


def test_a_paced_step_takes_its_time_and_averages_show_every_node():
    steps = JaxSteps(Paced(SHAPES, 0.2, 4, in_step=True), Own(2), optax.sgd(1e-3, momentum=0.9))
    steps()  # compiles
    for k, gradient in enumerate(steps.gradients()):
        np.testing.assert_allclose(gradient, np.full(7, 3 / 4 * (0.5 + k)), rtol=1e-6)
    begin, used = time.perf_counter(), time.process_time()
    for _ in range(3):
        assert steps() == 0
    assert 0.6 <= time.perf_counter() - begin and time.process_time() - used < 0.5


def test_the_mean_of_a_library_comes_before_the_inner_optimizer():
    work = Paced(SHAPES, 0.0, 2, in_step=False)
    steps = JaxSteps(work, Own(0), averaged(lambda grads: jax.tree.map(lambda g: 1.5 * g, grads)))
    steps()
    np.testing.assert_allclose(steps.gradients()[1], np.full(7, 1.5 * 1.5 / 2), rtol=1e-6)


def test_paces_are_as_published_unless_they_are_set():
    assert given(model="resnet50", batch=64).step_seconds == pytest.approx(64 / 219)
    assert given(model="vgg16").step_seconds == pytest.approx(32 / 154)
    short = given(model="transformer", batch=2, settings={"tokens": 128})
    assert short.step_seconds == pytest.approx(256 / 231_000)
    assert given(model="inceptionv3", settings={"step_seconds": 0.5}).step_seconds == 0.5
    assert given().step_seconds == 0.02
    assert all(model.source for model in MODELS.values() if model.rate)


def test_the_paced_model_has_the_parameters_that_are_set():
    shapes = shapes_of(given(settings={"parameters": 1600}))
    assert [leaf.shape for leaf in shapes] == [(100,)] * 16


@pytest.mark.parametrize(
    ("transport", "method", "engine"),
    [
        ("mpi", "daso", "mpi4py"),
        ("mpi4jax", "daso", "mpi4jax"),
        ("mpi4jax", "instant", "instant"),
        ("mpi", "instant", "instant"),
    ],
)
def test_engines_of_methods(transport, method, engine):
    assert given(transport, method=method).engine == engine


class Nodes:
    """Two nodes, the other of which has sums of its own."""

    rank, size = 0, 2

    def __init__(self, other):
        self._other = other

    def allreduce(self, send):
        return lambda: send + self._other.astype(np.float32).ravel()


NUMBERS = np.random.default_rng(1)
GRADIENTS = [[NUMBERS.normal(size=n).astype(np.float32) for n in (50, 7, 0, 3)] for _ in range(2)]
MEAN = [(a + b) / 2 for a, b in zip(*GRADIENTS, strict=True)]


def checked(found, wire="float32", mean=True):
    own, other = map(sums_of, GRADIENTS)
    check(Nodes(other), own, sums_of(found), wire, mean=mean)


def test_right_averages_pass_the_check():
    checked(MEAN)
    checked(GRADIENTS[0], mean=False)
    for wire, step in (("bfloat16", 2**-9), ("int8", 1 / 254), ("int4", 1 / 14)):
        signs = [np.where(np.arange(g.size) % 2, -1, 1) for g in MEAN]
        rounded = [
            g + step * np.abs(g).max(initial=0) * sign for g, sign in zip(MEAN, signs, strict=True)
        ]
        checked(rounded, wire)
        with pytest.raises(RuntimeError, match="are not the mean of all nodes"):
            checked(rounded)


@pytest.mark.parametrize(
    ("name", "found"),
    {
        "own": GRADIENTS[0],
        "sum": [2 * g for g in MEAN],
        "one array left out": [*MEAN[:1], GRADIENTS[0][1], *MEAN[2:]],
        "shifted": [np.roll(MEAN[0], 1), *MEAN[1:]],
        "a number lost": [MEAN[0] * (np.arange(50) != 20), *MEAN[1:]],
        "not a number": [*MEAN[:3], np.full(3, np.nan)],
    }.items(),
)
def test_other_gradients_are_caught(name, found):
    with pytest.raises(RuntimeError, match="node 0 of 2: .* arrays of gradients are not the mean"):
        checked(found)
    if name == "own":
        return
    with pytest.raises(RuntimeError, match="are not the node's own"):
        checked(found, mean=False)


def test_a_method_that_averages_nothing_is_not_timed(monkeypatch):
    settings = {"warmup": 1, "iterations": 2, "sync_every": 3}
    measured = {"seconds": [1.0]}
    monkeypatch.setattr(
        _training, "measure", lambda *given, **_: measured | {"expected_bytes": given[2]}
    )

    class Kept:
        def __init__(self, gradients):
            self._gradients = gradients

        def __call__(self):
            pass

        def gradients(self):
            return self._gradients

    def run(method, found):
        about = Given({"method": method}, settings)
        other = Nodes(sums_of(GRADIENTS[1]))
        own = GRADIENTS[0]
        return _training.train(about, other, lambda: Kept(own), lambda: Kept(found), 5)

    assert run("synchronous", MEAN)["expected_bytes"] == 3 * 5
    assert run("daso", GRADIENTS[0])["expected_bytes"] == 3 * 5
    for method, found in (("synchronous", GRADIENTS[0]), ("bare", MEAN)):
        with pytest.raises(RuntimeError, match="arrays of gradients are not"):
            run(method, found)


def cell(**factors):
    common = {"fabric": "here", "library": "x", "workload": "training", "nodes": 2}
    return Cell("c0", {**common, **factors})


def lacking(transport, fabric=HERE, versions=("flax",), **factors):
    found, library = dict.fromkeys(versions, "1"), ChosenLibrary("x", transport=transport)
    of = cell(**factors)
    return lack_of(library, found, fabric, workloads({})[str(of.factors["workload"])], of)


@pytest.mark.parametrize(
    ("transport", "factors", "words"),
    [
        ("gloo", {"workload": "halo"}, "x: the workload halo needs MPI."),
        ("torch", {"method": "instant"}, "x: the method instant needs MPI."),
        (
            "mpi4jax",
            {"method": "synchronous", "wire": "int8"},
            "x: the method synchronous with the wire int8 is not there: it averages gradients in "
            "float32. Take wire float32.",
        ),
        (
            "torch",
            {"method": "synchronous", "compute": "real"},
            "x: the compute real is not there: the networks are JAX's. Take paced.",
        ),
        (
            "mpi",
            {"method": "bare", "model": "paced", "compute": "real"},
            "x: the model paced with the compute real is no network. Exclude this combination: "
            "[[exclude]].",
        ),
    ],
)
def test_a_lack_is_reported(transport, factors, words):
    assert lacking(transport, **factors) == words


def test_whatever_a_library_can_do_lacks_nothing():
    assert not lacking("mpi", method="synchronous", wire="int8", compute="real")
    assert not lacking("mpi4jax", method="daso", wire="int8")
    assert not lacking("nccl", method="synchronous", compute="real", wire="float32")
    assert not lacking("torch", method="synchronous", compute="paced")
    for transport in ("mpi", "mpi4jax", "gloo", "nccl", "torch"):
        mine = [lack for lack in LACKS if transport in lack.transports]
        assert (transport == "mpi") == (len(mine) == 1)


def test_a_network_without_flax_and_gpus_on_emulated_hosts():
    assert lacking("mpi", versions=(), model="vgg16").startswith("x: the model vgg16 needs Flax")
    assert not lacking("mpi", versions=(), model="paced")
    emulated = ChosenFabric("link", rate="1gbit")
    assert lacking("nccl", emulated, method="bare").startswith("x: emulated hosts have no GPUs")


def estimated(settings=(), library="mpich", **factors):
    factors = {"method": "bare", "model": "resnet50", **factors}
    common = {"fabric": "link", "library": library, "workload": "training", "nodes": 2}
    study = study_of(
        {
            "name": "x",
            "limit_seconds": 10**6,
            "factors": {**common, **factors},
            "fabrics": {"link": {"rate": "1gbit"}},
            "workloads": {
                "training": {"warmup": 2, "iterations": 3, **dict(settings)}
            },  # 20 steps,
        }
    )
    return seconds_of(study, study.cells[0])


def test_an_estimate_counts_bytes_pace_and_operations():
    bare, synchronous = estimated(), estimated(method="synchronous")
    # 102 MB over 1 Gbit/s, once a step.
    assert synchronous - bare == pytest.approx(20 * 4 * 25_557_032 * 8 / 1e9)
    assert estimated(method="instant") == bare
    # Four exchanges' bytes in one, behind 146 ms of compute.
    narrow = estimated(method="daso", wire="int8")
    assert narrow == pytest.approx(bare)
    short = {"step_seconds": 0.01, "sync_every": 1}
    assert estimated(settings=short) < estimated(method="daso", settings=short)
    # Each step's compute is measured twice: alone, and with the method.
    slower = estimated(batch=64) - estimated(batch=32)
    assert slower == pytest.approx(20 * 2 * 32 / 219)
    real = [estimated(compute="real", batch=2, settings={"image": n}) for n in (64, 128, 224)]
    assert (real[2] - real[0]) / (real[1] - real[0]) == pytest.approx((224**2 - 64**2) / 12288)


@pytest.mark.parametrize("method", METHODS)
def test_every_method_has_an_estimate(method):
    assert 5 < estimated(method=method, model="paced") < 30
