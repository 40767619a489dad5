"""The law of the phases: steps that block, start and merge, and the effect of the loss."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import reference
from hypothesis import given, settings
from hypothesis import strategies as st

import jdaso
from jdaso._exchange.updates import select
from jdaso._rules import decide, measured, plateau
from jdaso._rules import loss as _loss
from jdaso._rules import state as _state
from jdaso._rules.state import PhaseState

pytestmark = pytest.mark.strict_dtypes

PAIRS = [(b, s) for b in range(1, 9) for s in range(1, b + 1)]


def events(phases, steps, fragments=1):
    """(step, what, age) of every merge and start, and the steps with a mean, by `decide` alone.

    With several fragments, what is (what, fragment).
    """

    def update(carry, step):
        state, started, ticket, delay = carry
        todo = decide.decide(phases, state, step, started, ticket, delay)
        ticket = jnp.where(todo.merge, 0, ticket)
        for f in range(fragments):
            counted = decide.count_start(phases, state, f, fragments)
            state = select(todo.start[f], counted, state)
            delay = delay.at[f].set(jnp.where(todo.start[f], state.delay, delay[f]))
        age = step - started
        started = jnp.where(todo.start, step, started)
        ticket = jnp.where(todo.start, step + 1, ticket)
        return (state, started, ticket, delay), (todo, age, ticket)

    nothing = jnp.zeros(fragments, jnp.int32)
    first = (_state.init_phases(phases), nothing - 1, nothing, nothing)
    todo, ages, tickets = jax.lax.scan(update, first, jnp.arange(steps, dtype=jnp.int32))[1]
    found = []
    for step in range(steps):
        for what, due in (("merge", todo.merge[step]), ("start", todo.start[step])):
            for f in np.flatnonzero(due).tolist():
                age = int(ages[step, f]) if what == "merge" else 0
                found.append((step, what if fragments == 1 else (what, f), age))
    return found, np.asarray(todo.mean), np.asarray(todo.blocking), np.asarray(tickets)


def reference_events(total, warmup, cooldown, sync_every, delay, steps, fragments=1):
    nothing = np.zeros(fragments, np.float32)
    return reference.daso(
        nothing,
        lambda n, p, x: nothing,
        nodes=2,
        inner=reference.Sgd(1.0, 0.0),
        total=total,
        warmup=warmup,
        cooldown=cooldown,
        sync_every=sync_every,
        delay=delay,
        fragments=[[[f]] for f in range(fragments)],
        steps=steps,
    ).events


@pytest.mark.parametrize(("sync_every", "delay"), PAIRS)
def test_starts_and_merges(sync_every, delay):
    phases = jdaso.Phases(40, 5, 6, sync_every, delay)
    found, mean, blocking, tickets = events(phases, 44)
    assert found == reference_events(40, 5, 6, sync_every, delay, 44)
    np.testing.assert_array_equal(np.flatnonzero(mean), [33, 34, 35])
    np.testing.assert_array_equal(np.flatnonzero(~blocking), np.arange(5, 34))
    assert not tickets[33:].any(), "something stays in flight after the last cycling update"


FRAGMENTS = [(4, 1, 2), (4, 1, 4), (4, 3, 4), (8, 2, 4), (6, 6, 3), ((8, 4), (2, 1), 4)]
FRAGMENTS += [(4, (4, 1), 4), (4, (2, 4), 2)]


@pytest.mark.parametrize(("sync_every", "delay", "fragments"), FRAGMENTS)
def test_fragments_take_turns(sync_every, delay, fragments):
    phases = jdaso.Phases(60, 5, 6, sync_every, delay, fragments=fragments)
    found, mean, blocking, tickets = events(phases, 64, fragments)
    wanted = reference_events(60, 5, 6, sync_every, delay, 64, fragments)
    assert sorted(found, key=str) == sorted(wanted, key=str)
    np.testing.assert_array_equal(np.flatnonzero(mean), [53, 54, 55])
    assert not tickets[53:].any(), "something stays in flight after the last cycling update"


def test_the_example_with_fragments():
    """B = 4, F = 2: fragment 1 starts two steps after fragment 0; S holds for each by itself."""
    found, *_ = events(jdaso.Phases(16, 2, 0, 4, 3, fragments=2), 16, 2)
    starts = [(step, f) for step, (what, f), _ in found if what == "start"]
    merges = [(step, f, age) for step, (what, f), age in found if what == "merge"]
    assert starts == [(2, 0), (4, 1), (6, 0), (8, 1), (10, 0), (12, 1), (14, 0)]
    assert merges == [
        (5, 0, 3),
        (7, 1, 3),
        (9, 0, 3),
        (11, 1, 3),
        (13, 0, 3),
        (15, 0, 1),
        (15, 1, 3),
    ]


def test_a_shorter_interval_leaves_no_fragment_behind():
    """B falls from 8 to 1 in the middle of a cycle: from the next cycle on all start together."""
    phases = jdaso.Phases(40, 0, 0, 8, 1, fragments=4)
    state, started = _state.init_phases(phases), jnp.full(4, -1, jnp.int32)
    for step in range(12):
        todo = decide.decide(
            phases, state, jnp.int32(step), started, *[jnp.zeros(4, jnp.int32)] * 2
        )
        started = jnp.where(todo.start, step, started)
        if step == 3:  # fragments 0 and 1 have started
            np.testing.assert_array_equal(started, [0, 2, -1, -1])
            state = state._replace(sync_every=jnp.int32(1))
        if step > 3:
            assert todo.start.all()


@pytest.mark.parametrize(
    ("sync_every", "size_bytes", "count"),
    [
        (4, 10**9, 4),
        (4, 2 * 10**5, 2),
        (4, 2 * 10**5 - 4, 1),
        (4, 100, 1),
        (6, 4 * 10**5, 3),
        ((8, 4, 2), 10**9, 2),
        (10**6, 10**9, 8),
    ],
)
def test_fragments_auto_is_the_largest_divisor_of_at_least_a_tenth_of_a_megabyte(
    sync_every, size_bytes, count
):
    assert jdaso.Phases(40, 0, 0, sync_every, 1).fragments_of(size_bytes)[0] == count


def test_fragments_auto_are_larger_if_the_loss_sets_the_interval():
    phases = jdaso.Phases.plateau(40, 2, max_sync_every=8)
    assert phases.fragments_of(10**9) == (8, 4, 2, 1)
    assert phases.fragments_of(2 * 10**6 - 4) == (1,)


def test_fragments_must_fit():
    with pytest.raises(
        ValueError, match="fragments must divide sync_every, got fragments=3 with 4"
    ):
        jdaso.Phases(40, 0, 0, 4, 1, fragments=3)
    with pytest.raises(ValueError, match="fragments must divide the largest sync_every"):
        jdaso.Phases.plateau(40, 2, max_sync_every=8, fragments=3)
    with pytest.raises(ValueError, match='fragments is a number or "auto", got .all.'):
        jdaso.Phases(40, fragments="all")
    with pytest.raises(ValueError, match="at least 1, got 0"):
        jdaso.Phases(40, fragments=0)
    with pytest.raises(TypeError, match="must be an int"):
        jdaso.Phases(40, fragments=True)


def test_the_example_of_the_design():
    """B = 4, S = 2, first cycling update n: starts at n, n+4, ...; merges in n+2, n+6, ..."""
    found, *_ = events(jdaso.Phases(13, 2, 0, 4, 2), 13)
    assert [e for e in found if e[1] == "start"] == [(n, "start", 0) for n in (2, 6, 10)]
    assert [e for e in found if e[1] == "merge"] == [(n, "merge", 2) for n in (4, 8, 12)]


@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_laws(data):
    """Any settings have at most one in flight, merges at S or at the end, starts B apart."""
    warmup, cooldown = data.draw(st.integers(0, 8)), data.draw(st.integers(0, 8))
    total = max(warmup + cooldown + data.draw(st.integers(0, 30)), 1)
    every = tuple(data.draw(st.lists(st.integers(1, 6), min_size=1, max_size=3)))
    delay = tuple(data.draw(st.integers(1, b)) for b in every)
    phases = jdaso.Phases(total, warmup, cooldown, every, delay)
    found, mean, blocking, tickets = events(phases, total + 3)
    assert found == reference_events(total, warmup, cooldown, every, delay, total + 3)
    for step in range(total + 3):
        assert blocking[step] == (phases.name(step) != "cycling")
    kinds = [what for _, what, _ in found]
    assert kinds == ["start", "merge"] * (len(kinds) // 2), "in flight twice, or never merged"
    starts = [step for step, what, _ in found if what == "start"]
    assert np.diff(starts).tolist() == [every[k % len(every)] for k in range(len(starts))][:-1]
    end = total - cooldown
    assert all(age >= 1 for _, what, age in found if what == "merge")
    assert mean.sum() == (min(3, total + 3 - end + 1) if end > warmup else 0)
    assert not tickets[end - 1 :].any()


def test_names_of_steps():
    phases = jdaso.Phases(total_steps=10, warmup_steps=2, cooldown_steps=3)
    names = [phases.name(step) for step in range(12)]
    assert names == ["warm-up"] * 2 + ["cycling"] * 5 + ["cool-down"] * 5


def test_tuples_of_the_poster():
    """S = 4, 2, 1, 4, 2, 1, ..."""
    phases = jdaso.Phases(30, sync_every=(4, 2, 1), delay=(4, 2, 1))
    found, *_ = events(phases, 30)
    starts = [step for step, what, _ in found if what == "start"]
    assert starts == [0, 4, 6, 7, 11, 13, 14, 18, 20, 21, 25, 27, 28]
    ages = [age for _, what, age in found if what == "merge"]
    assert ages[:6] == [4, 2, 1, 4, 2, 1]


def test_tuples_of_different_lengths_go_round_on_their_own():
    phases = jdaso.Phases(60, sync_every=(4, 3), delay=(1, 2, 3))
    assert phases.pairs == ((4, 1), (3, 2), (4, 3), (3, 1), (4, 2), (3, 3))
    found, *_ = events(phases, 60)
    assert found == reference_events(60, 0, 0, (4, 3), (1, 2, 3), 60)


def drive(phases, losses_of_epochs, steps_per_epoch, per_step=None):
    """(B, S, l) at the end of each epoch when every step of an epoch brings the same loss."""

    def update(state, at):
        step, loss = at
        state = _loss.count_loss(state, jnp.stack([loss, loss]), jnp.ones(2))
        return plateau.end_step(phases, state, step), state

    losses = jnp.repeat(jnp.asarray(losses_of_epochs, jnp.float32), steps_per_epoch)
    steps = jnp.arange(losses.size, dtype=jnp.int32)
    _, seen = jax.lax.scan(update, _state.init_phases(phases), (steps, losses))
    last = slice(
        steps_per_epoch - 1, None, steps_per_epoch
    )  # in force during the epoch's last step
    settings = [np.asarray(x)[last] for x in (seen.sync_every, seen.delay, seen.local_every)]
    return [tuple(int(x) for x in row) for row in zip(*settings, strict=True)]


def test_heat_with_a_flat_loss():
    """(4,1,1) (2,1,1) (1,1,1) (8,2,2) (4,1,1), three epochs each, once the warm-up set the best."""
    phases = jdaso.Phases.heat(steps_per_epoch=7, total_epochs=40)
    seen = drive(phases, [1.0] * 40, 7)
    expected = [(4, 1, 1), (2, 1, 1), (1, 1, 1), (8, 2, 2), (4, 1, 1), (2, 1, 1), (1, 1, 1)]
    for k, setting in enumerate(expected):
        assert seen[4 + 3 * k : 7 + 3 * k] == [setting] * 3, f"third {k} of the cycling phase"


def test_heat_without_warm_up_takes_one_epoch_to_know_the_best():
    phases = jdaso.Phases.heat(steps_per_epoch=5, total_epochs=20, warmup_epochs=0)
    seen = drive(phases, [1.0] * 20, 5)
    assert seen[:8] == [(4, 1, 1)] * 4 + [(2, 1, 1)] * 3 + [(1, 1, 1)]


def test_heat_improvements_reset_the_count_and_not_the_best():
    phases = jdaso.Phases.heat(steps_per_epoch=4, total_epochs=40, warmup_epochs=1)
    # Best 1.0; 0.96 is no 5 % better (bad), 0.94 is (and is the new best), then 0.9 is not.
    losses = [1.0, 0.96, 0.96, 0.94, 0.9, 0.9, 0.9, *[0.9] * 33]
    seen = drive(phases, losses, 4)
    assert seen[:7] == [(4, 1, 1)] * 7
    assert seen[7:10] == [(2, 1, 1)] * 3
    # A plateau resets the counter, not the best: 0.9 stays bad after it.
    assert seen[10:13] == [(1, 1, 1)] * 3


def test_heat_defaults():
    phases = jdaso.Phases.heat(steps_per_epoch=10, total_epochs=90)
    assert (phases.total_steps, phases.warmup_steps, phases.cooldown_steps) == (900, 40, 40)
    rule = phases.by_loss
    assert (rule.threshold, rule.patience, rule.reduction) == (0.05, 3, 2)
    assert rule.first == (4, 1, 1) and rule.largest == (8, 2, 2)
    big = jdaso.Phases.heat(steps_per_epoch=10, total_epochs=90, max_skips=32)
    assert big.by_loss.largest == (32, 8, 8)


@pytest.mark.parametrize("max_skips", [1, 2, 3])
def test_heat_honours_max_skips_in_the_first_cycle(max_skips):
    phases = jdaso.Phases.heat(steps_per_epoch=3, total_epochs=60, max_skips=max_skips)
    seen = drive(phases, [1.0] * 60, 3)
    assert max(b for b, _, _ in seen) == max_skips
    assert all(1 <= s <= b for b, s, _ in seen)


def test_plateau_begins_at_the_largest_and_goes_back_to_it():
    phases = jdaso.Phases.plateau(400, 10, max_sync_every=8, max_delay=3, patience=2)
    seen = drive(phases, [1.0] * 40, 10)
    assert seen[:3] == [(8, 3, 1)] * 3  # the first window sets the best
    assert seen[3:12] == [(4, 2, 1)] * 2 + [(2, 1, 1)] * 2 + [(1, 1, 1)] * 2 + [(8, 3, 1)] * 2 + [
        (4, 2, 1)
    ]


def test_plateau_never_lowers_while_the_loss_falls():
    phases = jdaso.Phases.plateau(400, 10, patience=1, threshold=0.05)
    assert set(drive(phases, [0.9**k for k in range(40)], 10)) == {(8, 2, 1)}


def test_negative_losses_have_plateaus_too():
    """5 % better than -1 is -1.05."""
    phases = jdaso.Phases.plateau(400, 10, patience=1, threshold=0.05)
    assert drive(phases, [-1.0, -1.1, -1.2, -1.2], 10) == [(8, 2, 1)] * 4
    assert drive(phases, [-1.0, -1.0, -1.0, -1.0], 10)[2] == (4, 1, 1)


def test_windows_without_a_loss_decide_nothing():
    """The step count alone drives the phases without `value=`."""
    phases = jdaso.Phases.plateau(100, 5, patience=1)
    state = _state.init_phases(phases)
    for step in range(50):
        state = plateau.end_step(phases, state, jnp.int32(step))
    assert int(state.sync_every) == 8 and float(state.best_loss) == _state.NO_LOSS


def seconds(phases, state, exchange, step, link=(0.0, 0.0), held=(0.0, 0.0), **about):
    times = measured.Times(*map(jnp.asarray, (exchange, step, link, held)))
    return measured.fit(phases, state, times, **{"sets_interval": True} | about)


def test_auto_delay_is_the_last_nodes_exchange_over_the_slowest_step():
    phases = jdaso.Phases(100, sync_every=8, delay="auto")
    state = _state.init_phases(phases)
    assert int(state.delay) == 1, "before anything is measured"
    for exchange, step, delay in [
        ([0.09, 0.03], [0.01, 0.02], 2),
        ([0.02, 0.011], [0.01, 0.01], 2),
        ([1e-6, 1e-6], [1.0, 1.0], 1),
        ([9.0, 0.9], [0.1, 0.1], 8),
        ([1e30, 1e29], [1e-9, 1.0], 8),
    ]:
        assert int(seconds(phases, state, exchange, step).delay) == delay
    state = state._replace(delay=jnp.int32(5))
    for nothing in ([0.0, 9.0], [0.1, 0.1]), ([0.1, 0.1], [0.0, 0.0]):
        assert int(seconds(phases, state, *nothing).delay) == 5, "nothing measured, nothing changed"


def test_a_fixed_delay_ignores_what_was_measured():
    phases = jdaso.Phases(100, sync_every=8, delay=2)
    assert int(seconds(phases, _state.init_phases(phases), [1.0, 1.0], [0.1, 0.1]).delay) == 2


AUTO = jdaso.Phases(10_000, 100, sync_every="auto", delay="auto")


def test_auto_interval_is_the_least_that_hides_everything():
    """The node that starts last measures the link, in steps of the slowest node."""
    state = _state.init_phases(AUTO)
    assert (int(state.sync_every), int(state.delay)) == (1, 1), "before anything is measured"
    for link, every in [
        ([0.004, 0.006], 1),
        ([0.038, 0.1], 2),
        ([0.18, 0.042], 3),
        ([1e9, 1e8], 64),
    ]:
        found = seconds(AUTO, state, [0.09, 0.05], [0.01, 0.02], link)
        assert (int(found.sync_every), int(found.delay)) == (every, min(every, 3))
    for step, link in ([0.02, 0.02], [0.0, 0.0]), ([0.0, 0.0], [0.1, 0.1]):
        unknown = seconds(AUTO, state, [0.05, 0.02], step, link)
        assert int(unknown.sync_every) == 1


def test_auto_interval_stays_after_a_minute_unless_the_link_changes():
    state = _state.init_phases(AUTO)
    for begin, interval, every in [
        (0.0, 2.5, 3),
        (30.0, 4.9, 4),  # the first minute follows: 2.5 + (4.9 - 2.5) / 4
        (30.0, 1.7, 3),  # 3.1 - (3.1 - 1.7) / 4
        (30.0, 5.9, 6),  # at once: more than twice 2.75
        (59.95, 4.4, 6),
        (60.0, 3.0, 6),  # from here on it stays at 5.5
        (None, 11.0, 6),
        (None, 11.3, 12),
        (None, 5.5, 6),
        (None, 9.1, 6),
        (None, 2.7, 3),
        (None, 9.1, 10),  # more than twice as much
        (None, 4.6, 10),
        (None, 4.5, 5),  # less than half
    ]:
        if begin is not None:
            state = state._replace(cycled_seconds=jnp.float32(begin))
        state = seconds(AUTO, state, [0.01, 0.01], [0.02, 0.03], [0.03 * interval, 99.0])
        assert int(state.sync_every) == every, (begin, interval)


def test_the_minute_is_the_time_of_the_steps_of_cycles():
    state = _state.init_phases(AUTO)._replace(sync_every=jnp.int32(5))
    state = seconds(AUTO, state, [0.0, 0.0], [0.02, 0.03])
    assert float(state.cycled_seconds) == pytest.approx(0.15), "five steps of the slowest node"
    given = [0.0, 0.0], [0.02, 0.03], [9.0, 9.0]
    same = seconds(AUTO, state, *given, sets_interval=False)
    assert float(same.cycled_seconds) == float(state.cycled_seconds)
    assert int(same.sync_every) == 5, "once a cycle"


def test_the_minute_is_the_same_sum_with_a_fused_multiply_add():
    """Nodes of different processors add the same: the product is exact."""
    random = np.random.default_rng(0)
    for every in (1, 7, 33, 63, 64):
        for step in random.uniform(1e-4, 30, 20).astype(np.float32):
            begin = np.float32(random.uniform(0, 100))
            state = _state.init_phases(AUTO)._replace(sync_every=jnp.int32(every))
            state = state._replace(cycled_seconds=jnp.asarray(begin))
            zero = seconds(AUTO, state._replace(cycled_seconds=jnp.float32(0)), [0.0], [step])
            exact = float(zero.cycled_seconds)
            assert exact == pytest.approx(float(step) * every, rel=1e-5)
            assert (exact / every) * every == exact and np.float32(exact / every) == exact / every
            found = float(seconds(AUTO, state, [0.0], [step]).cycled_seconds)
            assert found == np.float32(float(begin) + exact)


@pytest.mark.parametrize("intervals", [(4, 8, 5), (1, 64, 1), (64, 2, 5)])
@pytest.mark.parametrize("fragments", [1, 3, 8])
def test_every_fragment_keeps_its_turn_when_the_interval_changes(fragments, intervals):
    """No fragment is left out for two cycles of the larger B."""
    phases = jdaso.Phases(600, sync_every="auto", delay="auto", fragments=fragments)
    state = _state.init_phases(phases)._replace(sync_every=jnp.int32(intervals[0]))
    started = jnp.full(fragments, -1, jnp.int32)
    ticket = delay = jnp.zeros(fragments, jnp.int32)
    starts = []
    act_of = jax.jit(lambda *given: decide.decide(phases, *given))
    for step in range(500):
        act = act_of(state, jnp.int32(step), started, ticket, delay)
        ticket = jnp.where(act.merge, 0, ticket)
        if step in (150, 300):
            state = state._replace(sync_every=jnp.int32(intervals[step // 150]))
        for f in np.flatnonzero(act.start):
            starts.append((step, f))
            started, ticket = started.at[f].set(step), ticket.at[f].set(step + 1)
            state = decide.count_start(phases, state, int(f), fragments)
    for f in range(fragments):
        steps = [step for step, which in starts if which == f]
        assert max(np.diff(steps)) < 2 * max(intervals)
        assert set(np.diff([x for x in steps if x > 430])) == {intervals[2]}


def test_fragments_of_an_interval_that_is_measured():
    phases = jdaso.Phases(100, sync_every="auto", delay="auto")
    assert phases.fragments_of(10**9) == (4, 2, 1)
    assert phases.fragments_of(2 * 10**6) == (2, 1)
    assert phases.fragments_of(2 * 10**6 - 4) == (1,)
    assert jdaso.Phases(100, sync_every="auto", fragments=3).fragments_of(10**9) == (3,)


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (dict(sync_every="auto", delay=2), 'needs delay="auto" or 1, got 2'),
        (dict(sync_every="Auto"), "an int, or \"auto\", got 'Auto'"),
        (dict(sync_every="auto", delay="auto", fragments=0), "at least 1, got 0"),
    ],
)
def test_auto_settings_that_cannot_be_are_named(given, told):
    with pytest.raises((TypeError, ValueError), match=told):
        jdaso.Phases(100, **given)


def test_auto_interval_bounds_what_the_slowest_host_loses():
    """Starts and merges of a cycle take 4 ms there: 5 % of four steps."""
    state = _state.init_phases(AUTO)
    given = [0.01, 0.01], [0.01, 0.02], [0.05, 0.05]
    assert int(seconds(AUTO, state, *given, held=[0.0002, 0.002]).sync_every) == 3
    assert int(seconds(AUTO, state, *given, held=[0.0002, 0.00399]).sync_every) == 4


def test_auto_delay_stays_within_a_changing_distance():
    phases = jdaso.Phases(60, sync_every=(6, 2), delay="auto")
    found, *_ = events(phases, 60)
    ages = [age for _, what, age in found if what == "merge"]
    distances = [6, 2] * len(ages)
    assert all(1 <= age <= b for age, b in zip(ages, distances, strict=False))


def test_the_state_is_arrays_of_stable_types():
    for phases in (jdaso.Phases(9), jdaso.Phases.heat(steps_per_epoch=3, total_epochs=9)):
        state = _state.init_phases(phases)
        assert isinstance(state, PhaseState)
        for x in state:
            assert isinstance(x, jax.Array)
        assert {x.shape for x in state._replace(untold=jnp.float32(0))} == {()}
        step = jnp.int32(0)
        after = jax.eval_shape(
            lambda s, n, phases=phases: plateau.end_step(
                phases, decide.count_start(phases, s, 0, 1), n
            ),
            state,
            step,
        )
        assert [x.dtype for x in after] == [x.dtype for x in state]
        assert not any(x.weak_type for x in after)


BAD = [
    (dict(total_steps=0), "total_steps must be at least 1, got 0"),
    (dict(total_steps=9, warmup_steps=-1), "warmup_steps must be at least 0, got -1"),
    (dict(total_steps=9, cooldown_steps=-1), "cooldown_steps must be at least 0, got -1"),
    (dict(total_steps=9, warmup_steps=5, cooldown_steps=5), r"5 \+ 5 > 9.*shorten"),
    (dict(total_steps=9, sync_every=0), "sync_every must be at least 1, got 0.*synchronous"),
    (dict(total_steps=9, sync_every=2, delay=3), "delay must be within.*delay=3.*sync_every=2"),
    (dict(total_steps=9, sync_every=2, delay=0), "delay must be within.*delay=0"),
    (dict(total_steps=9, sync_every=(4, 1), delay=(4, 2)), "delay=2.*sync_every=1"),
    (dict(total_steps=9, sync_every=()), "sync_every must not be an empty tuple"),
    (dict(total_steps=9, delay="slow"), "\"auto\", got 'slow'"),
    (dict(total_steps=9, local_every=0), "local_every must be at least 1, got 0"),
]


@pytest.mark.parametrize(("bad", "message"), BAD, ids=[str(bad) for bad, _ in BAD])
def test_bad_settings(bad, message):
    with pytest.raises(ValueError, match=message):
        jdaso.Phases(**bad)


@pytest.mark.parametrize("bad", [2.0, "4", None, True, (2, 1.5)])
def test_settings_are_whole_numbers(bad):
    with pytest.raises(TypeError, match="sync_every"):
        jdaso.Phases(9, sync_every=bad)


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (dict(window_steps=0), "window_steps must be at least 1, got 0"),
        (dict(window_steps=5, patience=0), "patience must be at least 1, got 0"),
        (dict(window_steps=5, reduction=1), "reduction must be at least 2, got 1"),
        (dict(window_steps=5, threshold=1.5), "threshold.*1.5"),
        (dict(window_steps=5, max_sync_every=0), "max_sync_every must be at least 1, got 0"),
        (dict(window_steps=5, max_sync_every=4, max_delay=5), "delay.*5.*4"),
    ],
    ids=str,
)
def test_bad_plateaus(bad, message):
    with pytest.raises(ValueError, match=message):
        jdaso.Phases.plateau(100, **bad)


def test_bad_heat_settings():
    with pytest.raises(ValueError, match="max_skips must be at least 1, got 0"):
        jdaso.Phases.heat(steps_per_epoch=5, total_epochs=20, max_skips=0)
    with pytest.raises(ValueError, match=r"4 \* 5|20 \+ 20 > 35|must not exceed"):
        jdaso.Phases.heat(steps_per_epoch=5, total_epochs=7)


def test_phases_are_values():
    """Settings compare by value, so that nodes can compare them, and cannot be changed."""
    one = jdaso.Phases(9, sync_every=(4, 2), delay=(2, 1))
    assert one == jdaso.Phases(9, sync_every=(4, 2), delay=(2, 1)) and hash(one) == hash(one)
    with pytest.raises(AttributeError):
        one.total_steps = 10


@pytest.mark.parametrize("nodes", [2, 3])
def test_the_loss_drives_a_real_run(nodes):
    """HeAT's sequence through the whole optimizer: the loss travels in the exchanges."""
    epochs, length = 24, 8
    phases = jdaso.Phases.heat(
        steps_per_epoch=length, total_epochs=epochs, warmup_epochs=2, cooldown_epochs=2
    )
    with jdaso.Session(engine=jdaso.Simulated(nodes)) as session:
        tx = jdaso.daso(optax.sgd(0.1), phases=phases, session=session)

        def run(loss):
            x = jnp.ones(3)

            def step(carry, _):
                x, state = carry
                updates, state = tx.update(x, state, x, value=loss)
                return (optax.apply_updates(x, updates), state), state.phase

            return jax.lax.scan(step, (x, tx.init(x)), length=epochs * length)[1]

        # Nodes with losses of their own: the mean is 1.
        losses = jnp.linspace(0.5, 1.5, nodes)
        seen = jax.jit(jax.vmap(run, axis_name=session.node_axis))(losses)
    for x in seen:
        np.testing.assert_array_equal(x, np.broadcast_to(x[:1], x.shape))  # the same on all nodes
    every = np.asarray(seen.sync_every)[0].reshape(epochs, length)[:, length // 2]
    expected = [4] * 3 + [2] * 3 + [1] * 3 + [8] * 3 + [4] * 3 + [2] * 3 + [1] * 2
    assert every[2:22].tolist() == expected
    np.testing.assert_allclose(seen.best_loss[0, -1], 1.0, rtol=1e-6)
