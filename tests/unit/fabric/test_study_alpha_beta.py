"""Fits against data made with a known latency and bandwidth."""

import numpy as np
import pytest
from study_rows import row

import jdaso.fabric._model.settings
from jdaso.fabric._study.alpha_beta import Cells, chosen, fits_of
from jdaso.fabric._study.collectives import ALGORITHMS, BUS, bandwidths
from jdaso.fabric._study.estimate import WIRE_BYTES
from jdaso.fabric._study.measured import RowsError, launches_of

SIZES = [4**k for k in range(4, 13)]
ALPHA, BETA = 40e-6, 8 / 2.5e9


def rounds_and_bytes(name, nodes, size):
    """Counted by hand: each step's messages, one after another."""
    if name == "ring":
        steps = [size / nodes for _ in range(2 * (nodes - 1))]
    elif name == "recursive doubling":
        steps = [size] * int(np.log2(nodes))
    else:
        halves = [size / 2**k for k in range(1, int(np.log2(nodes)) + 1)]
        steps = [*halves, *halves[::-1]]
    return len(steps), sum(steps)


def rows(name="ring", nodes=(2, 4, 8), sizes=SIZES, noise=0.0, seed=0, **factors):
    random, found = np.random.default_rng(seed), []
    for p in nodes:
        for size in sizes:
            rounds, moved = rounds_and_bytes(name, p, size)
            for replicate in range(3):
                seconds = (ALPHA * rounds + BETA * moved) * np.exp(random.normal(0, noise, 5))
                found.append(row("a", replicate, seconds, nodes=p, bytes=size, **factors))
    return found


def only_fit(some):
    found = fits_of(launches_of(some))
    assert len(found.fits) == 1 and not found.left_out
    return found.fits[0]


@pytest.mark.parametrize("name", ["ring", "recursive doubling", "reduce-scatter"])
def test_alpha_beta_and_the_algorithm_are_found(name):
    found = only_fit(rows(name))
    assert found.algorithm.name.startswith(name)
    assert found.alpha_seconds == pytest.approx(ALPHA, rel=1e-4)
    assert found.beta_seconds == pytest.approx(BETA, rel=1e-4)
    assert found.bytes_per_second * 8 == pytest.approx(2.5e9, rel=1e-4)
    assert found.worst_error < 1e-4
    for size in (1, 10**9):
        rounds, moved = rounds_and_bytes(name, 64, size)
        truth = ALPHA * rounds + BETA * moved
        assert found.seconds(64, size) == pytest.approx(truth, rel=1e-4)
    assert found.seconds(1, 10**9) == 0


def test_noise_stays_noise():
    """Medians of 15 iterations within 5 %: the fit is nearer than its cells."""
    found = only_fit(rows(noise=0.05, seed=4))
    assert found.alpha_seconds == pytest.approx(ALPHA, rel=0.03)
    assert found.beta_seconds == pytest.approx(BETA, rel=0.03)
    assert 0 < found.median_error < 0.03 and found.worst_error < 0.1


def test_half_of_the_cells_is_held_out():
    """Cells that the fit does not see change its error, and nothing else."""
    some = rows()
    cells = sorted({(r["factors"]["nodes"], r["factors"]["bytes"]) for r in some})
    slow = set(cells[1::2])
    changed = [
        one | {"seconds": [2 * x for x in one["seconds"]]}
        if (one["factors"]["nodes"], one["factors"]["bytes"]) in slow else one
        for one in some
    ]  # fmt: skip
    found, other = only_fit(some), only_fit(changed)
    assert (found.fitted, found.held_out) == (14, 13)
    assert other.alpha_seconds == pytest.approx(found.alpha_seconds)
    assert other.beta_seconds == pytest.approx(found.beta_seconds)
    assert other.median_error == pytest.approx(0.5, abs=1e-3)


@pytest.mark.parametrize("nodes", [(2, 4), (2, 4, 8)])
@pytest.mark.parametrize("sizes", [SIZES[1::6], SIZES[:4]])
def test_an_even_number_of_sizes_is_fitted_at_all_of_them(nodes, sizes):
    """Neither the small nor the large cells are all held out."""
    found = only_fit(rows(nodes=nodes, sizes=sizes))
    assert found.alpha_seconds == pytest.approx(ALPHA, rel=1e-3)
    assert found.beta_seconds == pytest.approx(BETA, rel=1e-3)
    assert found.fitted + found.held_out == len(nodes) * len(sizes)
    assert found.worst_error < 1e-3
    cells = Cells(*np.array([(p, s, 1.0) for p in nodes for s in sizes]).T)
    for half in cells.halves():
        assert set(half.sizes) == set(sizes) and set(half.nodes) == set(nodes)


@pytest.mark.parametrize("factor", [0.1, 10.0])
def test_one_cell_that_is_far_off_does_not_bend_the_fit(factor):
    some = rows(noise=0.01)
    for one in some:
        if (one["factors"]["nodes"], one["factors"]["bytes"]) == (2, SIZES[4]):
            one["seconds"] = [factor * x for x in one["seconds"]]
    found = only_fit(some)
    assert found.alpha_seconds == pytest.approx(ALPHA, rel=0.05)
    assert found.beta_seconds == pytest.approx(BETA, rel=0.05)


def test_each_fabric_library_and_collective_has_its_fit():
    some = rows() + rows(library="gloo") + rows(workload="allgather")
    assert len(fits_of(launches_of(some)).fits) == 3


def test_two_nodes_cannot_decide_the_algorithm_and_the_words_state_it():
    found = only_fit(rows("recursive doubling", nodes=[2]))
    assert found.algorithm.name == "ring" and "2 nodes only" in found.words
    assert found.seconds(2, 10**6) == pytest.approx(ALPHA + BETA * 10**6, rel=1e-4)
    found = only_fit(rows())
    assert "40 us a round, 2.5 Gbit/s (ring; 14 cells; 13 others within 0.0%" in found.words


@pytest.mark.parametrize("sizes", [[1024], SIZES[:3]])
def test_too_few_cells_have_no_fit_but_a_reason(sizes):
    found = fits_of(launches_of(rows(nodes=[2], sizes=sizes)))
    assert not found.fits and "Declare more levels of bytes" in found.left_out[0]
    with pytest.raises(RowsError, match="declare more levels"):
        chosen(found.fits, {})


def test_failed_cells_and_training_are_no_part_of_a_fit():
    some = rows()
    for one in rows(sizes=[7]):
        some.append(one | {"status": "failed", "seconds": []})
    some.append(row("a", workload="training", bytes=None))
    assert only_fit(some).fitted == 14


def test_a_choice_among_fits():
    fits = fits_of(launches_of(rows() + rows(workload="allgather", library="x"))).fits
    assert dict(chosen(fits, {}, ["allreduce"]).factors)["workload"] == "allreduce"
    assert dict(chosen(fits, {"library": "x"}, ["allreduce"]).factors)["workload"] == "allgather"
    with pytest.raises(RowsError, match="2 fits .* library=x"):
        chosen(fits, {})
    with pytest.raises(RowsError, match="0 fits"):
        chosen(fits, {"fabric": "z"})


@pytest.mark.parametrize("nodes", [2, 3, 4, 16])
def test_bus_bandwidth_is_the_links_rate_of_a_perfect_ring(nodes):
    """The definition is that of nccl-tests: independent of P on a link that is always busy."""
    for workload in ("allreduce", "allgather", "reduce_scatter", "alltoall", "bandwidth"):
        size, rate = 10**6, 3e9
        seconds = ALGORITHMS[workload][0].share(nodes) * size / rate
        algorithm, bus = bandwidths(workload, nodes, size, seconds)
        assert bus == pytest.approx(3.0) and algorithm == pytest.approx(size / seconds / 1e9)
    assert BUS["allreduce"](nodes) == pytest.approx(2 * (nodes - 1) / nodes)
    assert BUS["alltoall"](nodes) == pytest.approx((nodes - 1) / nodes)


@pytest.mark.parametrize("wire", WIRE_BYTES)
def test_an_exchange_counts_the_bytes_on_its_wire(wire):
    """Studies declare float32 bytes; the link has one rate, whatever wire measured it."""
    assert WIRE_BYTES[wire] == jdaso.fabric._model.settings.WIRE_BYTES[wire]
    declared = [round(4 * size / WIRE_BYTES[wire]) for size in SIZES]
    some = rows(workload="exchange", wire=wire)
    size_of = dict(zip(SIZES, declared, strict=True))
    for one in some:
        one["factors"]["bytes"] = size_of[one["factors"]["bytes"]]
    found = only_fit(some)
    assert found.alpha_seconds == pytest.approx(ALPHA, rel=1e-3)
    assert found.beta_seconds == pytest.approx(BETA, rel=1e-3)
    rounds, moved = rounds_and_bytes("ring", 4, SIZES[-1])
    assert found.seconds(4, declared[-1]) == pytest.approx(ALPHA * rounds + BETA * moved, rel=1e-3)


def test_a_wire_of_a_program_of_ones_own_counts_the_bytes_as_declared():
    found = only_fit(rows(workload="exchange", wire="fp8"))
    assert found.beta_seconds == pytest.approx(BETA, rel=1e-3)
    rounds, moved = rounds_and_bytes("ring", 4, SIZES[-1])
    assert found.seconds(4, SIZES[-1]) == pytest.approx(ALPHA * rounds + BETA * moved, rel=1e-3)
