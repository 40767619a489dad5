"""Cuts of a line, against all cuts there are."""

import itertools
import random

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from jdaso.pipeline._plan import search
from jdaso.pipeline._plan.search import CutError, LineValue, best_cuts, bytes_entering


def entering(values, begin, end):
    """Bytes that a stage receives: each value once, if made before the stage and used inside it."""
    return sum(v.bytes for v in values if v.made < begin and any(begin <= u < end for u in v.used))


def judge(costs, values, cuts):
    """Bytes over all cuts, and the cost of the largest stage."""
    edges = [0, *cuts, len(costs)]
    pairs = list(itertools.pairwise(edges))
    return sum(entering(values, *pair) for pair in pairs), max(sum(costs[a:b]) for a, b in pairs)


def all_cuts(allowed, stages, forced):
    for cuts in itertools.combinations(allowed, stages - 1):
        if set(forced) <= set(cuts):
            yield list(cuts)


@st.composite
def lines(draw, longest=10):
    """Costs, values, stages, places where a cut may be, and some where it must."""
    length = draw(st.integers(2, longest))
    costs = draw(st.lists(st.integers(0, 9), min_size=length, max_size=length))
    values = []
    for _ in range(draw(st.integers(0, 8))):
        made = draw(st.integers(0, length - 2))
        used = draw(st.sets(st.integers(made + 1, length - 1), max_size=3))
        values.append(LineValue(made, tuple(sorted(used)), float(draw(st.integers(0, 9)))))
    allowed = sorted(draw(st.sets(st.integers(1, length - 1))))
    stages = draw(st.integers(1, min(5, len(allowed) + 1)))
    most = st.sets(st.sampled_from(allowed), max_size=stages - 1) if allowed else st.just(set())
    return costs, values, stages, allowed, sorted(draw(most))


def limit_of(costs, values, stages, allowed, forced, balance):
    found = [judge(costs, values, cuts)[1] for cuts in all_cuts(allowed, stages, forced)]
    return max(balance * sum(costs) / stages, min(found))


@settings(max_examples=150)
@given(lines(), st.sampled_from([1.0, 1.1, 1.5, 4.0]))
def test_no_cut_within_the_limit_has_less_traffic(line, balance):
    costs, values, stages, allowed, forced = line
    cuts = best_cuts(costs, values, stages, allowed=allowed, balance=balance, forced=forced)
    assert len(cuts) == stages - 1
    assert sorted(set(cuts)) == cuts
    assert set(forced) <= set(cuts) <= set(allowed)
    limit = limit_of(*line, balance) * (1 + 1e-6)
    assert judge(costs, values, cuts)[1] <= limit, "a stage is too large"
    others = [judge(costs, values, other) for other in all_cuts(allowed, stages, forced)]
    assert judge(costs, values, cuts) == min(pair for pair in others if pair[1] <= limit)


def test_of_many_places_some_are_left_out_and_the_limit_is_kept(monkeypatch):
    """Places with the least traffic alone may allow no way to the end."""
    chance = random.Random(0)
    for _ in range(150):
        length, stages = chance.randrange(8, 50), chance.randrange(2, 7)
        costs = [chance.choice([0, 0, 0, 1, 1, chance.randrange(9)]) for _ in range(length)]
        values = [
            LineValue(k, (chance.randrange(k + 1, length),), float(chance.randrange(9)))
            for k in range(length - 1)
        ]
        places, balance = dict(allowed=range(1, length)), chance.choice([1.0, 1.1, 1.3])
        best = best_cuts(costs, [], stages, balance=1.0, **places)
        limit = max(balance * sum(costs) / stages, judge(costs, [], best)[1])
        monkeypatch.setattr(search, "_WIDEST", chance.randrange(2, 6))
        cuts = best_cuts(costs, values, stages, balance=balance, **places)
        monkeypatch.undo()
        assert judge(costs, values, cuts)[1] <= limit * (1 + 1e-6)


@given(lines())
def test_bytes_entering(line):
    costs, values, stages, allowed, _ = line
    cuts = allowed[: stages - 1]
    edges = [0, *cuts, len(costs)]
    found = bytes_entering(values, cuts, len(costs))
    assert found == [entering(values, *pair) for pair in itertools.pairwise(edges)]
    assert found[0] == 0


def test_many_stages_of_a_long_line():
    """A chain of equal costs gets stages of one length."""
    values = [LineValue(k, (k + 1,), 1.0) for k in range(999)]
    cuts = best_cuts([1.0] * 1000, values, 10, allowed=range(1, 1000), balance=1.0)
    assert cuts == list(range(100, 1000, 100))


def test_a_narrow_place_is_taken_within_the_balance():
    values = [LineValue(k, (k + 1,), 1.0 if k == 5 else 9.0) for k in range(9)]
    places = dict(allowed=range(1, 10))
    assert best_cuts([1.0] * 10, values, 2, balance=1.2, **places) == [6]
    assert best_cuts([1.0] * 10, values, 2, balance=1.1, **places) == [5]


def test_a_value_goes_to_each_stage_that_uses_it_and_past_others():
    value = LineValue(0, (2, 3, 9), 5.0)
    assert bytes_entering([value], [2, 4, 6], 10) == [0, 5, 0, 5]


@given(lines())
def test_too_few_places(line):
    costs, values, _, allowed, _ = line
    stages = len(allowed) + 2
    with pytest.raises(CutError, match=f"It has {len(allowed)} places"):
        best_cuts(costs, values, stages, allowed=allowed, balance=1.1)


def test_more_forced_cuts_than_stages():
    with pytest.raises(CutError, match="2 cuts are requested, too many for 2 stages"):
        best_cuts([1.0] * 4, [], 2, allowed=[1, 2, 3], balance=1.1, forced=[1, 2])


@given(lines())
def test_places_outside_the_line_are_none(line):
    costs, values, stages, allowed, forced = line
    assume(not forced)
    settings_ = dict(balance=1.1)
    cuts = best_cuts(costs, values, stages, allowed=allowed, **settings_)
    more = [0, *allowed, len(costs), len(costs) + 1]
    assert best_cuts(costs, values, stages, allowed=more, **settings_) == cuts


def test_costs_of_any_size():
    rng = np.random.default_rng(0)
    for scale in (1e-12, 1.0, 1e15):
        costs = (rng.random(40) * scale).tolist()
        cuts = best_cuts(costs, [], 4, allowed=range(1, 40), balance=1.0)
        found = judge(costs, [], cuts)[1]
        least = min(
            judge(costs, [], list(other))[1] for other in itertools.combinations(range(1, 40), 3)
        )
        assert found <= least * (1 + 1e-6)
