"""Rates at which verdicts and claims err: simulated studies of known truth, with a fixed seed.

Thousands of studies are judged by NumPy at once, by the rule of the intervals; `judge` itself gives
the same on some of them. A rate is refuted if it lies outside of its 99.9 % limits.
"""

import math

import numpy as np
import pytest
from nights import rows
from scipy import stats

from jdaso.fabric._study.equivalence import ALPHA, POWER, judge
from jdaso.fabric._study.settled import settle

MARGIN = 0.05
BOUND = math.log(1 + MARGIN)
RUNS = 20_000
SPREADS = (0.01, 0.03, 0.1)
"""Spreads of a replicate's log ratio: a quiet machine, a usual one, a busy one."""
OUTCOMES = ("undecided", "equal", "slower", "faster")


def drawn(ratio, spread, n=5, runs=RUNS, seed=11):
    return np.random.default_rng(seed).normal(math.log(ratio), spread, (runs, n))


def judged(logs):
    """The number in `OUTCOMES` for each study, by the interval of ``1 - 2 alpha``."""
    n = logs.shape[-1]
    reach = stats.t.ppf(1 - ALPHA, n - 1) * logs.std(axis=-1, ddof=1) / n**0.5
    low, high = logs.mean(axis=-1) - reach, logs.mean(axis=-1) + reach
    within, slower, faster = (-BOUND < low) & (high < BOUND), low > BOUND, high < -BOUND
    return 1 * within + 2 * slower + 3 * faster


def at_most(happens, limit):
    """Returns whether a rate may be within the limit: its lower 99.9 % limit is below."""
    count, runs = int(np.sum(happens)), np.size(happens)
    return stats.binomtest(count, runs).proportion_ci(0.998).low <= limit


def test_judge_is_the_rule_of_the_intervals():
    for ratio in (1.0, 1.05, 1.2, 0.9):
        logs = drawn(ratio, 0.03, runs=20)
        assert [OUTCOMES[k] for k in judged(logs)] == [judge(one, MARGIN).outcome for one in logs]


@pytest.mark.parametrize("spread", SPREADS)
@pytest.mark.parametrize(
    ("ratio", "wrong"),
    [
        (1.0, ["slower", "faster"]),
        (1.02, ["slower", "faster"]),
        (1.05, ["equal"]),
        (1.05, ["slower"]),
        (1.05, ["faster"]),
        (1.2, ["equal", "faster"]),
        (1 / 1.05, ["equal"]),
    ],
)
def test_wrong_verdicts_are_at_most_alpha(ratio, wrong, spread):
    found = judged(drawn(ratio, spread))
    assert at_most(np.isin(found, [OUTCOMES.index(one) for one in wrong]), ALPHA)


def test_a_limit_is_reached_where_it_must_be():
    """Verdicts "equal" and "slower" have probability alpha each at the margin: no slack is hidden.

    Else a rule that never decides would pass.
    """
    found = judged(drawn(1.05, 0.01, n=8))
    assert np.mean(found == 1) == pytest.approx(ALPHA, abs=0.005)
    assert np.mean(found == 2) == pytest.approx(ALPHA, abs=0.005)


@pytest.mark.parametrize("ratio", [1.0, 1.2])
@pytest.mark.parametrize(
    ("spread", "runs"), rows([(0.04, 60), (0.04, 2000), (0.1, 2000)], [(0.04, 60)])
)
def test_the_advised_replicates_decide_as_often_as_advised(ratio, spread, runs):
    """Five replicates, then those advised: decided rightly in 80 % of the studies or more."""
    random, right = np.random.default_rng(5), []
    for logs in drawn(ratio, spread, runs=runs, seed=3):
        found = judge(logs, MARGIN)
        if found.outcome == "undecided":
            more = random.normal(math.log(ratio), spread, found.more or 1000)
            found = judge(np.append(logs, more), MARGIN)
        right.append(found.outcome == ("equal" if ratio == 1.0 else "slower"))
    assert at_most(~np.array(right), 1 - POWER)


@pytest.mark.parametrize("spread", SPREADS)
def test_a_study_run_twice_has_the_same_verdict_wherever_both_decide(spread):
    """Two runs may differ only at the margin itself: one equal, one slower, ``2 alpha^2``."""
    for ratio in (1.0, 1.02, 1.05, 1.2):
        first, second = (judged(drawn(ratio, spread, seed=seed)) for seed in (1, 2))
        parted = (first != second) & (first > 0) & (second > 0)
        assert at_most(parted, 2 * ALPHA**2 if ratio == 1.05 else 1e-3)


def p_values(ratios, spread, n=5, runs=1500):
    """P values of settings with these true ratios, for each simulated study."""
    logs = np.stack([drawn(r, spread, n, runs, seed=k) for k, r in enumerate(ratios)], axis=1)
    return tuple(
        stats.ttest_1samp(logs, bound, axis=-1, alternative=side).pvalue
        for bound, side in ((BOUND, "less"), (-BOUND, "greater"))
    )


def said(expects, ratios, spread=0.02, **keywords):
    both = zip(*p_values(ratios, spread, **keywords), strict=True)
    return np.array([settle(expects, *ps).said for ps in both])


@pytest.mark.parametrize(
    ("expects", "truths"),
    [
        ("no significant effect", [1.05, 1 / 1.05] * 6),
        ("slower", [1.05] * 12),
        ("faster", [1 / 1.05] * 12),
    ],
)
def test_a_claim_that_is_right_at_all_settings_is_refuted_with_alpha_at_most(expects, truths):
    """Each setting lies at the margin, the worst case. Uncorrected, the rate would be 40 %."""
    refuted = said(expects, truths, 0.01) == "does not hold"
    assert at_most(refuted, ALPHA) and np.mean(refuted) > ALPHA / 4
    assert at_most(said(expects, truths, 0.3) == "does not hold", ALPHA)


@pytest.mark.parametrize(
    ("expects", "truths"),
    [
        ("no significant effect", [1.0] * 5 + [1.05]),
        ("slower", [1.5] * 5 + [1.05]),
        ("faster", [0.7] * 5 + [1 / 1.05]),
    ],
)
def test_a_claim_that_is_wrong_at_one_setting_passes_with_alpha_at_most(expects, truths):
    passed = said(expects, truths, 0.01) == "holds"
    assert at_most(passed, ALPHA) and np.mean(passed) > ALPHA / 2


def test_claims_that_are_far_from_the_margin_are_decided():
    assert np.mean(said("no significant effect", [1.0] * 12, 0.01) == "holds") > 0.95
    assert (
        np.mean(said("no significant effect", [1.0] * 11 + [1.2], 0.01) == "does not hold") > 0.95
    )
    assert np.mean(said("slower", [1.2] * 12, 0.01) == "holds") > 0.95
