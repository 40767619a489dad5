"""Schedules of pipelines: no deadlock with any skips, the length of a step, numbers held."""

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jdaso.pipeline._schedule import SCHEDULES, Action, Deadlock, check, make_schedule

SIZES = st.integers(1, 7), st.integers(1, 24)


def schedules(ranks, microbatches, chunks):
    """Returns all schedules for so many ranks and micro-batches."""
    names = ["gpipe", "1f1b"] if chunks == 1 else ["interleaved"]
    return [make_schedule(name, ranks, microbatches, chunks) for name in names]


@given(*SIZES, st.integers(1, 4), st.data())
def test_no_order_deadlocks_whatever_is_skipped(ranks, microbatches, chunks, data):
    """A stage is only known to need some of the earlier ones, perhaps none."""
    for schedule in schedules(ranks, microbatches, chunks):
        needs = [
            data.draw(st.sets(st.integers(0, s - 1))) if s else () for s in range(ranks * chunks)
        ]
        every = check(schedule)
        assert check(schedule, lambda s, needs=needs: sorted(needs[s])) <= every, (
            "fewer needs take longer"
        )
        chain = check(schedule, lambda s: [s - 1] if s else [])
        assert chain == every, "the chain of neighbors is to imply all others"


@given(*SIZES, st.data())
def test_no_order_deadlocks_whatever_an_action_takes(ranks, microbatches, data):
    """A step takes at least as long as the rank that has most to do."""
    schedule = make_schedule("1f1b", ranks, microbatches)
    times = {
        a: data.draw(st.floats(0.1, 9))
        for a in (Action(b, s, 0) for b in (0, 1) for s in range(ranks))
    }
    step = check(schedule, seconds=lambda a: times[a._replace(microbatch=0)])
    busy = [sum(times[0, s, 0] + times[1, s, 0] for _ in range(microbatches)) for s in range(ranks)]
    assert step >= max(busy) * (1 - 1e-9)


@given(st.integers(1, 7), st.integers(1, 6), st.integers(1, 4))
def test_a_step_is_as_long_as_the_bound_says(ranks, groups, chunks):
    """The bound holds if M is a multiple of K; a rank's passes take as long as one stage's."""
    for schedule in schedules(ranks, ranks * groups, chunks):
        microbatches = ranks * groups
        step = check(schedule, seconds=lambda action: 1.0 / chunks)
        assert step == pytest.approx(2 * microbatches / schedule.bound())


@given(*SIZES, st.integers(1, 4))
def test_a_step_is_never_shorter_than_the_bound(ranks, microbatches, chunks):
    for schedule in schedules(ranks, microbatches, chunks):
        assert 0 < schedule.bound() <= 1
        step = check(schedule, seconds=lambda action: 1.0 / chunks)
        assert step >= 2 * microbatches / schedule.bound() - 1e-9
        # Groups are larger than in Megatron-LM by less than their number: so little is lost.
        assert step <= 2 * (microbatches + 2 * ranks) + 1e-9


@given(*SIZES)
def test_1f1b_and_gpipe_take_equally_long(ranks, microbatches):
    gpipe, other = schedules(ranks, microbatches, 1)
    assert check(gpipe) == check(other) == 2 * (microbatches + ranks - 1)


@given(*SIZES, st.integers(1, 4))
def test_what_is_held(ranks, microbatches, chunks):
    for schedule in schedules(ranks, microbatches, chunks):
        for rank in range(ranks):
            held = schedule.in_flight(rank)
            assert len(held) == chunks
            assert all(1 <= n <= microbatches for n in held)
            if schedule.name == "gpipe":
                assert held == [microbatches]
            if schedule.name == "1f1b":
                ahead = ranks - rank if rank < ranks - 1 else 0
                assert held == [min(ahead + 1, microbatches)]


@given(*SIZES, st.integers(1, 4))
def test_each_rank_does_all_of_its_own_once(ranks, microbatches, chunks):
    for schedule in schedules(ranks, microbatches, chunks):
        assert (schedule.stages, len(schedule.order)) == (ranks * chunks, ranks)
        for rank, order in enumerate(schedule.order):
            own = {
                Action(back, stage, m)
                for back in (False, True)
                for stage in range(rank, ranks * chunks, ranks)
                for m in range(microbatches)
            }
            assert len(order) == len(own)
            assert set(order) == own
            for back in (False, True):
                for stage in range(rank, ranks * chunks, ranks):
                    numbers = [a.microbatch for a in order if a[:2] == (back, stage)]
                    assert numbers == sorted(numbers), "a state goes from each to the next"


def test_1f1b_of_three_ranks():
    """Compares with the drawing: three ranks, four micro-batches."""
    said = [" ".join(map(str, order)) for order in make_schedule("1f1b", 3, 4).order]
    said = [
        text.replace("forward", "f").replace("backward", "b").replace(", ", ".") for text in said
    ]
    assert said == [
        "f(0.0) f(0.1) f(0.2) f(0.3) b(0.0) b(0.1) b(0.2) b(0.3)",
        "f(1.0) f(1.1) f(1.2) b(1.0) f(1.3) b(1.1) b(1.2) b(1.3)",
        "f(2.0) b(2.0) f(2.1) b(2.1) f(2.2) b(2.2) f(2.3) b(2.3)",
    ]


def seconds(schedule, late):
    """Returns the length of a step in which each pass takes 1 and each message `late`."""
    ended, clock, at = {}, [0.0] * schedule.ranks, [0] * schedule.ranks
    while any(at[rank] < len(order) for rank, order in enumerate(schedule.order)):
        for rank, order in enumerate(schedule.order):
            while at[rank] < len(order):
                back, stage, m = action = order[at[rank]]
                other = Action(back, stage + 1 if back else stage - 1, m)
                if other not in ended and 0 <= other.stage < schedule.ranks:
                    break
                arrived = ended.get(other, -late) + late
                clock[rank] = ended[action] = max(clock[rank], arrived) + 1.0
                at[rank] += 1
    return max(clock)


@pytest.mark.parametrize(("ranks", "microbatches"), [(2, 16), (4, 8), (4, 16)])
def test_1f1b_hides_messages_between_its_passes(ranks, microbatches):
    """Messages count only while the pipeline fills and drains, as with GPipe."""
    late = 0.05
    fewest = 2 * (microbatches + ranks - 1 + late * (ranks - 1))
    assert seconds(make_schedule("gpipe", ranks, microbatches), late) == pytest.approx(fewest)
    assert seconds(make_schedule("1f1b", ranks, microbatches), late) < 1.002 * fewest


def with_order(schedule, rank, order):
    orders = list(schedule.order)
    orders[rank] = tuple(order)
    return dataclasses.replace(schedule, order=tuple(orders))


def test_a_deadlock_lists_the_waits():
    schedule = make_schedule("1f1b", 2, 2)
    backward_first = [
        Action(False, 0, 0),
        Action(True, 0, 0),
        Action(False, 0, 1),
        Action(True, 0, 1),
    ]
    forward_late = [
        Action(False, 1, 0),
        Action(False, 1, 1),
        Action(True, 1, 0),
        Action(True, 1, 1),
    ]
    wrong = with_order(with_order(schedule, 0, backward_first), 1, forward_late)
    with pytest.raises(Deadlock) as caught:
        check(wrong)
    assert str(caught.value) == (
        "rank 0 at backward(0, 0) waits for backward(1, 0); "
        "rank 1 at forward(1, 1) waits for forward(0, 1)"
    )


def test_a_backward_pass_before_its_own_forward_pass_never_comes():
    schedule = make_schedule("gpipe", 1, 1)
    with pytest.raises(Deadlock, match=r"rank 0 at backward\(0, 0\) waits for forward\(0, 0\)"):
        check(with_order(schedule, 0, reversed(schedule.order[0])))


@given(st.integers(2, 5), st.integers(1, 6), st.data())
def test_a_swap_is_no_deadlock_or_reported_as_one(ranks, microbatches, data):
    """Swaps any two of a rank's actions: `check` plays it, or names a rank that is stuck."""
    schedule = make_schedule("1f1b", ranks, microbatches)
    rank = data.draw(st.integers(0, ranks - 1))
    order = list(schedule.order[rank])
    a, b = (data.draw(st.integers(0, len(order) - 1)) for _ in range(2))
    order[a], order[b] = order[b], order[a]
    wrong = with_order(schedule, rank, order)
    late = any(
        order.index(Action(False, rank, m)) > order.index(Action(True, rank, m))
        for m in range(microbatches)
    )
    try:
        assert check(wrong) >= check(schedule)
        assert not late
    except Deadlock as error:
        assert f"rank {rank} at " in str(error)  # noqa: PT017


@pytest.mark.parametrize("rank", [0, 2])
def test_what_is_missing_or_there_twice_or_at_another_rank_is_refused(rank):
    schedule = make_schedule("1f1b", 3, 2)
    order = schedule.order[rank]
    stranger = Action(False, 3, 0)
    for wrong in (order[1:], (*order, order[-1]), (*order[1:], order[-1]), (*order[1:], stranger)):
        with pytest.raises(ValueError, match="each of 12 actions once"):
            check(with_order(schedule, rank, wrong))


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (("zero-bubble", 2, 2), "must be one of gpipe, 1f1b, interleaved, got 'zero-bubble'"),
        (("1f1b", 0, 2), "num_partitions and num_microbatches must be at least 1, got 0 and 2"),
        (("gpipe", 2, 0), "at least 1, got 2 and 0"),
        (("1f1b", 2, 2, 2), "got '1f1b' with chunks=2"),
        (("gpipe", 2, 2, 0), "got 'gpipe' with chunks=0"),
        (("interleaved", 2, 2), "got 'interleaved' with chunks=1"),
    ],
)
def test_wrong_arguments(given, said):
    with pytest.raises(ValueError, match=said):
        make_schedule(*given)


def test_names():
    assert SCHEDULES == ("gpipe", "1f1b", "interleaved")
