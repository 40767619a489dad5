"""The model of pipelines' time: closed forms, laws, and by hand."""

import dataclasses

import jax.numpy as jnp
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jdaso.fabric import Fabric, Hybrid, play, predict, predict_hybrid, predict_synchronous
from jdaso.pipeline import make_schedule, partition
from jdaso.pipeline._schedule import check

WIDE = Fabric(1, 1e30, 0.0, efficiency=1.0, copy_bytes_per_second=1e30, accelerators=False)
"""A fabric on which messages take no time."""


def cluster(hybrid, fabric=WIDE, **changes):
    return dataclasses.replace(fabric, nodes=hybrid.nodes, **changes)


def even(name="1f1b", ranks=4, microbatches=8, chunks=1, **settings):
    order = make_schedule(name, ranks, microbatches, chunks).order
    given = {"step_seconds": 1.0, "activation_bytes": 0.0, "parameters": 1000} | settings
    return Hybrid.even(order, **given)


schedules = st.one_of(
    st.tuples(
        st.sampled_from(["gpipe", "1f1b"]), st.integers(1, 8), st.integers(1, 16), st.just(1)
    ),
    st.tuples(st.just("interleaved"), st.integers(1, 6), st.integers(1, 16), st.integers(2, 4)),
)
fabrics = st.builds(
    Fabric,
    nodes=st.just(1),
    bits_per_second=st.floats(1e8, 1e12),
    latency_seconds=st.floats(0, 1e-3),
    accelerators=st.booleans(),
)


@pytest.mark.parametrize("name", ["gpipe", "1f1b"])
@pytest.mark.parametrize(("ranks", "microbatches"), [(1, 1), (2, 1), (4, 4), (4, 16), (7, 3)])
@pytest.mark.parametrize("ratio", [1.0, 2.0, 3.0])
def test_the_bubble_is_the_closed_form(name, ranks, microbatches, ratio):
    hybrid = even(name, ranks, microbatches, backward_over_forward=ratio)
    found = predict_hybrid(cluster(hybrid), hybrid)
    share = microbatches / (microbatches + ranks - 1)
    assert 1 - found.bubble_share == pytest.approx(share)
    assert found.step_seconds == pytest.approx(1 / ranks / share)
    assert found.exposed_seconds == pytest.approx(0, abs=1e-12)
    assert found.one_node == pytest.approx(ranks * share)


@pytest.mark.parametrize(
    ("ranks", "groups", "chunks"), [(2, 1, 2), (4, 2, 2), (4, 4, 3), (3, 5, 4)]
)
def test_the_bubble_of_interleaved_stages_is_the_closed_form(ranks, groups, chunks):
    hybrid = even("interleaved", ranks, ranks * groups, chunks)
    found = predict_hybrid(cluster(hybrid), hybrid)
    share = ranks * groups / (ranks * groups + (ranks - 1) / chunks)
    assert 1 - found.bubble_share == pytest.approx(share)


@settings(max_examples=100, deadline=None)
@given(which=schedules, seed=st.randoms(use_true_random=False))
def test_without_messages_it_is_the_schedules_own_check(which, seed):
    name, ranks, microbatches, chunks = which
    schedule = make_schedule(name, ranks, microbatches, chunks)
    forward = [seed.uniform(1, 2) for _ in range(schedule.stages)]
    backward = [seed.uniform(1, 3) for _ in range(schedule.stages)]
    played = play(schedule.order, forward, backward)
    seconds = lambda a: (backward if a.backward else forward)[a.stage]  # noqa: E731
    ends = max(action.end_seconds for rank in played for action in rank)
    assert ends == pytest.approx(check(schedule, seconds=seconds))
    for actions, rank in zip(schedule.order, played, strict=True):
        assert [action[:3] for action in rank] == [tuple(action) for action in actions]


@settings(max_examples=100, deadline=None)
@given(
    which=schedules,
    fabric=fabrics,
    replicas=st.integers(1, 8),
    averaging=st.sampled_from(["daso", "synchronous"]),
    megabytes=st.floats(0, 20),
)
def test_laws(which, fabric, replicas, averaging, megabytes):
    name, ranks, microbatches, chunks = which
    hybrid = even(
        name,
        ranks,
        microbatches,
        chunks,
        activation_bytes=1e6 * megabytes,
        parameters=10**7,
        replicas=replicas,
        averaging=averaging,
        samples=64,
    )
    found = predict_hybrid(cluster(hybrid, fabric), hybrid)
    assert min(dataclasses.astuple(found)) >= 0
    parts = found.compute_seconds + found.bubble_seconds + found.exposed_seconds
    assert found.step_seconds == pytest.approx(parts)
    assert found.compute_seconds == pytest.approx(1 / ranks)
    assert found.one_node <= hybrid.nodes * (1 + 1e-9)
    assert found.samples_per_second == pytest.approx(64 * replicas / found.step_seconds)
    slower = cluster(hybrid, fabric, bits_per_second=fabric.bits_per_second / 2)
    assert predict_hybrid(slower, hybrid).step_seconds >= found.step_seconds * (1 - 1e-9)
    if replicas == 1:
        assert found.averaging_seconds == 0


@settings(max_examples=50, deadline=None)
@given(fabric=fabrics, replicas=st.integers(1, 64))
def test_one_partition_is_data_parallelism(fabric, replicas):
    hybrid = even("1f1b", 1, 3, parameters=10**7, replicas=replicas, wire="int8", delay=2)
    fabric = cluster(hybrid, fabric)
    waits = dataclasses.replace(hybrid, averaging="synchronous")
    training = hybrid.training(10**7, hybrid.work_seconds)
    expected = predict_synchronous(fabric, training).step_seconds
    assert predict_hybrid(fabric, waits).step_seconds == pytest.approx(expected)
    assert predict_hybrid(fabric, waits).data_parallel == pytest.approx(1)
    found = predict_hybrid(fabric, hybrid)
    assert found.step_seconds == pytest.approx(predict(fabric, training).step_seconds)
    assert found.bytes_per_step == predict(fabric, training).bytes_per_step


@pytest.mark.parametrize("chunks", [1, 2])
def test_a_plans_bubble_is_the_plans_own(chunks):
    def loss_fn(params, batch):
        first = x = jnp.tanh(batch @ params[0])
        for w in params[1:]:
            x = jnp.tanh(x @ w)
        return jnp.mean((x + first) ** 2)

    params = [jnp.ones((8, 8))] * 8
    plan = partition(
        loss_fn, params, jnp.ones((12, 8)), num_partitions=2, num_microbatches=6, chunks=chunks
    )
    schedule, costs = plan.schedule(), plan.costs
    hybrid = Hybrid(
        order=schedule.order,
        forward_seconds=tuple(cost.forward for cost in costs),
        backward_seconds=tuple(cost.backward for cost in costs),
        traffic=tuple(plan.traffic),
        parameters=tuple(sum(plan.parameters[rank::2]) for rank in range(2)),
    )
    found = predict_hybrid(cluster(hybrid), hybrid)
    assert found.bubble_share == pytest.approx(plan.bubble())
    assert sum(hybrid.parameters) == 8 * 64


def test_messages_by_hand():
    """2 ranks, 1 s forward and 2 s back, messages of 0.5 s and 0.1 s: 3 + 0.6 + 3 + 0.6."""
    hybrid = even("1f1b", 2, 1, step_seconds=6.0, activation_bytes=0.5e9)
    fabric = cluster(hybrid, bits_per_second=8e9, latency_seconds=0.1)
    found = predict_hybrid(fabric, hybrid)
    assert found.compute_seconds == 3.0 and found.bubble_seconds == pytest.approx(3.0)
    assert found.activations_seconds == pytest.approx(1.2)
    assert found.bytes_per_step == 0.5e9
    begins = [[action.begin_seconds for action in rank] for rank in hybrid.play(fabric)]
    assert begins[0] == pytest.approx([0.0, 5.2]) and begins[1] == pytest.approx([1.6, 2.6])
    staged = dataclasses.replace(fabric, accelerators=True, staging_bytes_per_second=5e9)
    assert predict_hybrid(staged, hybrid).activations_seconds == pytest.approx(1.2 + 4 * 0.1)


def test_a_link_carries_one_message_after_another():
    """A stage's two messages are ready at once; the second arrives a message's time later."""
    order = [[(False, 0, 0), (True, 0, 0)], [(False, 1, 0), (True, 1, 0)]]
    order.append([(False, 2, 0), (True, 2, 0)])
    traffic = [(0, 1, 1e9), (0, 2, 1e9), (1, 2, 0.0)]
    fabric = dataclasses.replace(WIDE, nodes=3, bits_per_second=8e9)
    played = play(order, [1.0] * 3, [1.0] * 3, traffic, fabric=fabric)
    assert played[1][0].begin_seconds == pytest.approx(2.0)
    assert played[2][0].begin_seconds == pytest.approx(3.0)
    beside = play(order, [1.0] * 3, [1.0] * 3, traffic, fabric=fabric, partitions_per_node=3)
    assert beside[2][0].begin_seconds == pytest.approx(2.0, abs=1e-5)  # in the node's memory


def test_synchronous_averages_of_late_ranks_lie_in_the_bubble():
    """Rank 0 alone is always busy, so a step waits for its average only, 0.6 s."""
    fabric = Fabric(8, 8e9, 0.0, efficiency=1.0, copy_bytes_per_second=1e30, accelerators=False)
    hybrid = even("1f1b", 2, 1, step_seconds=6.0, replicas=4, averaging="synchronous")
    last = dataclasses.replace(hybrid, parameters=(1, 10**8))
    assert predict_hybrid(fabric, last).averaging_seconds == pytest.approx(0, abs=1e-6)
    first = dataclasses.replace(hybrid, parameters=(10**8, 1))
    assert predict_hybrid(fabric, first).averaging_seconds == pytest.approx(0.6)
    daso = dataclasses.replace(first, averaging="daso")
    assert predict_hybrid(fabric, daso).averaging_seconds == pytest.approx(0, abs=1e-6)


def test_partitions_of_one_node_share_its_link():
    hybrid = even("gpipe", 4, 4, activation_bytes=1e6, parameters=10**8, replicas=8)
    hybrid = dataclasses.replace(hybrid, averaging="synchronous", partitions_per_node=4)
    assert hybrid.nodes == 8
    fabric = dataclasses.replace(WIDE, nodes=8, bits_per_second=8e9)
    found = predict_hybrid(fabric, hybrid)
    assert found.averaging_seconds == pytest.approx(2 * 7 / 8 * 4e8 / 1e9)
    assert found.bytes_per_step == pytest.approx(2 * 7 / 8 * 4e8)
    assert found.one_node == pytest.approx(8 * 0.25 / found.step_seconds)


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        (lambda: even(replicas=0), "replicas must be at least 1, got 0"),
        (lambda: even(averaging="sometimes"), "averaging must be one of .*'sometimes'"),
        (lambda: even(partitions_per_node=3), "must divide the number of partitions, got 3 for 4"),
        (lambda: even(balance=0.5), "balance must be at least 1"),
        (lambda: even(balance=4.0), "less than the number of stages, got 4.0 for 4"),
        (lambda: even(step_seconds=0.0), "step_seconds must be above 0"),
        (lambda: even(backward_over_forward=0.0), "backward_over_forward must be above 0"),
        (lambda: even(parameters=3), "at least one a rank"),
        (lambda: even(activation_bytes=-1.0), "its bytes are 0 or more"),
        (lambda: even(delay=9), "delay must be within 1..sync_every"),
        (lambda: even(wire="int2"), "wire must be one of"),
        (lambda: dataclasses.replace(even(), order=even().order[:3]), "order must hold"),
        (lambda: dataclasses.replace(even(), order=(*even().order, ())), "something for each rank"),
        (lambda: dataclasses.replace(even(), backward_seconds=(1.0,)), "one number a stage"),
        (lambda: dataclasses.replace(even(), forward_seconds=(0.0,) * 4), "must be above 0"),
        (lambda: dataclasses.replace(even(), parameters=(1,)), "one number a rank, got 1 for 4"),
        (lambda: dataclasses.replace(even(), traffic=((1, 0, 1.0),)), "to a later one of 4"),
        (lambda: predict_hybrid(WIDE, even()), "need 4 nodes, got 1"),
        (lambda: play([[(True, 0, 0), (False, 0, 0)]], [1.0], [1.0]), "end.*rank 0 at .True, 0, 0"),
    ],
)
def test_what_is_out_of_range_is_named(wrong, named):
    with pytest.raises(ValueError, match=named):
        wrong()
