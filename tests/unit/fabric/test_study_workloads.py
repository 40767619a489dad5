"""Workloads in one process: the stencil's bits, the division of its cube, rules of collectives."""

import math
import queue
import threading
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jdaso.fabric._study.factors import READS, SETTINGS
from jdaso.fabric._study.workloads import _collective, _interfaces, _timing
from jdaso.fabric._study.workloads._blocks import (
    block_of,
    bytes_of_faces,
    divided,
    points_of,
)
from jdaso.fabric._study.workloads._gathering import gathered
from jdaso.fabric._study.workloads.halo import Stencil, first_values

POINTS = (5, 4, 6)


def by_hand(points, steps):
    """The stencil in plain NumPy, over the whole cube."""
    u = np.asarray(first_values((0, 0, 0), points))
    for _ in range(steps):
        wide = np.pad(u, 1)
        inner = (slice(1, -1),) * 3
        total = np.zeros_like(u)
        for axis in range(3):
            for shift in (1, -1):
                total = total + np.roll(wide, shift, axis)[inner]
        u = np.float32(0.25) * u + np.float32(0.125) * total
    return u


def played(nodes, points, steps):
    """Plays nodes as threads that exchange faces through queues; returns all nodes' blocks."""
    mail, found = defaultdict(queue.Queue), {}

    def run(node):
        def swap(faces):
            for other, tag, _, ours, _ in faces:
                mail[node, other, tag].put(ours.copy())
            for other, _, tag, _, theirs in faces:
                theirs[...] = mail[other, node, tag].get(timeout=20)

        block = block_of(node, nodes, points)
        stencil = Stencil(block, swap)
        for _ in range(steps):
            stencil()
        found[node] = block, np.asarray(stencil.u)

    for key in ((a, b, t) for a in range(nodes) for b in range(nodes) for t in range(6)):
        mail[key]  # threads must not make queues at the same time
    threads = [threading.Thread(target=run, args=(node,)) for node in range(nodes)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    return [found[node] for node in range(nodes)]


@pytest.mark.parametrize("nodes", [1, 2, 4, 8])
def test_the_stencil_has_the_bits_of_one_process(nodes):
    expected, covered = by_hand(POINTS, 4), np.zeros(POINTS, int)
    for block, part in played(nodes, POINTS, 4):
        place = tuple(slice(b, b + n) for b, n in zip(block.begin, block.shape, strict=True))
        covered[place] += 1
        assert np.array_equal(part.view(np.uint32), expected[place].view(np.uint32))
    assert (covered == 1).all()


@given(st.integers(1, 200))
def test_a_cube_is_divided_as_evenly_as_it_can_be(nodes):
    counts = divided(nodes)
    assert math.prod(counts) == nodes and list(counts) == sorted(counts, reverse=True)
    better = [
        (a, b, nodes // (a * b))
        for a in range(1, nodes + 1)
        for b in range(1, nodes + 1)
        if nodes % (a * b) == 0
    ]
    assert sum(counts) == min(map(sum, better))


@given(st.integers(1, 24), st.tuples(*[st.integers(8, 40)] * 3))
@settings(max_examples=40)
def test_neighbours_agree_on_their_faces(nodes, points):
    if any(n < count for n, count in zip(points, divided(nodes), strict=True)):
        with pytest.raises(ValueError, match="too few points"):
            block_of(0, nodes, points)
        return
    blocks = [block_of(node, nodes, points) for node in range(nodes)]
    assert sum(math.prod(block.shape) for block in blocks) == math.prod(points)
    for node, block in enumerate(blocks):
        for face in block.faces:
            other = blocks[face.node]
            (back,) = [
                f for f in other.faces if (f.node, f.axis, f.side) == (node, face.axis, -face.side)
            ]
            assert back.receives == face.sends and back.sends == face.receives
            across = [n for k, n in enumerate(block.shape) if k != face.axis]
            assert across == [n for k, n in enumerate(other.shape) if k != face.axis]


def test_bytes_of_faces_and_scaling_by_hand():
    assert points_of(10, "strong", 8) == (10, 10, 10) and points_of(10, "weak", 4) == (20, 20, 10)
    assert bytes_of_faces(block_of(0, 2, (10, 10, 10))) == 4 * 100
    assert bytes_of_faces(block_of(0, 8, (10, 10, 10))) == 4 * 3 * 25
    assert bytes_of_faces(block_of(0, 1, (10, 10, 10))) == 0


@pytest.mark.parametrize("name", ["allreduce", "allgather", "reduce_scatter", "alltoall"])
def test_a_collective_with_wrong_numbers_is_not_timed(name):
    for rank in range(3):
        right = _collective.arrived(name, rank, 3, 6)
        _collective.check(name, right, rank, 3, 6)
        with pytest.raises(RuntimeError, match=f"node {rank} of 3: {name} brought wrong numbers"):
            _collective.check(name, right + 1, rank, 3, 6)


def test_collectives_by_hand():
    """Two nodes give (1, 2) and (2, 3)."""
    by_name = {
        "allreduce": ([3, 5], [3, 5]),
        "allgather": ([1, 2, 2, 3], [1, 2, 2, 3]),
        "reduce_scatter": ([3], [5]),
        "alltoall": ([1, 2], [2, 3]),
    }
    for name, expected in by_name.items():
        for rank in range(2):
            assert _collective.arrived(name, rank, 2, 2).tolist() == expected[rank]
    # In parts of n / P: node 0 sends and receives at the least.
    assert [_collective.least_parts(name, 4) for name in by_name] == [8, 4, 4, 6]
    assert [_collective.least_parts(name, 1) for name in by_name] == [0] * 4


HEAD = "Inter-|   Receive    |  Transmit\n face |bytes    packets\n"


def test_counters_of_interfaces_and_ports(tmp_path):
    network = tmp_path / "dev"
    line = "  eth0:  {} 2 0 0 0 0 0 0 {} 3 0 0 0 0 0 0\n    lo: 7 1 0 0 0 0 0 0 7 1 0 0 0 0 0 0\n"
    port = tmp_path / "mlx5_0" / "ports" / "1" / "counters"
    port.mkdir(parents=True)
    (port / "port_rcv_data").write_text("10\n")
    (port / "port_xmit_data").write_text("20\n")
    network.write_text(HEAD + line.format(100, 200))
    before = _interfaces.counts(network, tmp_path)
    assert before == {"eth0": [100, 200], "lo": [7, 7], "mlx5_0:1": [40, 80]}
    network.write_text(HEAD + line.format(150, 201))
    after = _interfaces.counts(network, tmp_path)
    assert _interfaces.between(before, after)["eth0"] == [50, 1]
    (port / "port_xmit_data").write_text("N/A (no PMA)\n")  # a virtual function, say
    assert _interfaces.counts(network, tmp_path) == {"eth0": [150, 201], "lo": [7, 7]}
    assert _interfaces.counts(tmp_path / "none", tmp_path / "none") == {}
    assert "lo" in _interfaces.counts()


class Alone:
    rank, size = 0, 1

    def __init__(self):
        self.calls, self.asked = [], []

    def barrier(self):
        self.calls.append("meet")

    def slowest(self, seconds):
        self.asked.append(seconds)
        return seconds

    def chosen(self):
        return {"library": "none"}


def test_every_iteration_is_kept_and_warm_up_is_apart(monkeypatch):
    meeting, now = Alone(), [0.0]
    monkeypatch.setattr(_timing.time, "perf_counter", lambda: now[0])
    looks = iter([{"eth0": [0, 0]}, {"eth0": [70, 30]}])
    monkeypatch.setattr(_interfaces, "counts", lambda: next(looks))

    def iteration():
        meeting.calls.append("run")
        now[0] += 10.0 if meeting.calls.count("run") <= 2 else 1.0

    settings = {"warmup": 2, "iterations": 3}
    sent = iter([1000, 1007])
    found = _timing.measure(meeting, iteration, 20, settings, parts=2, sent=lambda: next(sent))
    assert found["warmup_seconds"] == [5.0] * 2 and found["seconds"] == [0.5] * 3
    assert found["bytes_at_interfaces"] == {"eth0": [70, 30]}
    assert [10.0] * 2 in meeting.asked and [1.0] * 3 in meeting.asked
    assert found["expected_bytes"] == 107 and found["other_nodes"] == []
    assert found["compute_seconds"] is None
    assert meeting.calls == ["meet"] + ["meet", "run"] * 5 + ["meet"]


class Among:
    """A node of three: the largest numbers of all, once all have given theirs."""

    def __init__(self, rank, met):
        self.rank, self.size, self._met = rank, 3, met

    def slowest(self, seconds):
        given, meet = self._met
        given[self.rank] = seconds
        meet.wait(10)
        found = [max(each) for each in zip(*given, strict=True)]
        meet.wait(10)
        return found


def test_what_each_node_has_found_is_gathered():
    met = [None] * 3, threading.Barrier(3)
    found = [{"eth0": [1, 2**40]}, {}, {"eth0": [3, 4], "ib\u00e9": [5, 6]}]
    with ThreadPoolExecutor(3) as pool:
        each = pool.map(gathered, [Among(rank, met) for rank in range(3)], found)
    assert list(each) == [found] * 3


def test_every_workload_has_a_program_and_settings():
    assert set(READS) == set(SETTINGS)
    folder = _timing.__file__.rpartition("/")[0]
    for name in READS:
        with open(f"{folder}/{name}.py") as file:
            assert 'if __name__ == "__main__":' in file.read()


@pytest.mark.parametrize(
    ("seconds", "most", "warm", "timed"),
    [(1.0, None, 20, 200), (0.01, 10.0, 20, 200), (0.5, 10.0, 10, 20), (30.0, 10.0, 5, 5)],
)
def test_slow_iterations_are_fewer(monkeypatch, seconds, most, warm, timed):
    """Fits iterations into the time, but makes at least five; as many on all nodes."""
    clock = iter(range(10**6))
    monkeypatch.setattr(_timing.time, "perf_counter", lambda: next(clock) * seconds)
    settings = {"warmup": 20, "iterations": 200} | ({"most_seconds": most} if most else {})
    found = _timing.measure(Alone(), lambda: None, 0, settings)
    assert (len(found["warmup_seconds"]), len(found["seconds"])) == (warm, timed)
