"""Verdicts on rows whose truth is known: their error rates by simulation, and their laws."""

import dataclasses
import math

import numpy as np
import pytest
from nights import nightly
from scipy import stats
from study_rows import launches, row, rows_of, write

from jdaso.fabric._study.checks import StudyError
from jdaso.fabric._study.declared import read_declared
from jdaso.fabric._study.equivalence import judge, more_replicates, power
from jdaso.fabric._study.measured import RowsError, launches_of, read_launches
from jdaso.fabric._study.ratios import bootstrap_ratio, pairs_of
from jdaso.fabric._study.summaries import summaries
from jdaso.fabric._study.verdicts import verdicts

MARGIN = 0.05
BOUND = math.log(1.05)


def only(found):
    (one,) = found
    return one


def rate(happens, runs):
    """The share of runs in which something happens, and its 99.9 % upper and lower limits."""
    count = sum(map(bool, happens))
    interval = stats.binomtest(count, runs).proportion_ci(0.998)
    return interval.low, interval.high


def drawn(runs, n, effect=0.0, spread=0.05, seed=1):
    return np.random.default_rng(seed).normal(effect, spread, (runs, n))


# Error rates: also test_study_rates.py.


def test_a_link_that_is_slower_by_a_fifth_is_found():
    for seed in range(20):
        found = only(verdicts(launches({"a": 1.0, "b": 1.2}, seed=seed), MARGIN))
        assert found.said == "slower" and found.ratio.low < 1.2 * 1.02
        assert found.ratio.low - 1 > MARGIN and found.ratio.high < 1.3


@pytest.mark.parametrize("runs", [100, pytest.param(3000, marks=nightly)])
def test_the_interval_covers_the_truth_as_often_as_it_claims(runs):
    logs = drawn(runs, 5, 0.1)
    found = [judge(some, MARGIN) for some in logs]
    low, high = rate((one.low <= 0.1 <= one.high for one in found), runs)
    assert low <= 0.9 <= high


@pytest.mark.parametrize("n", [4, 12])
@pytest.mark.parametrize("effect", [0.0, math.log(1.2)])
def test_power_is_the_share_of_studies_that_decide(effect, n):
    """Compares with simulated t tests, in NumPy alone."""
    for spread in np.sqrt(n) * np.array([0.006, 0.012, 0.03, 0.05]):
        logs = drawn(20_000, n, effect, spread, seed=3)
        error, t = logs.std(axis=1, ddof=1) / n**0.5, stats.t.ppf(0.95, n - 1)
        low, high = logs.mean(axis=1) - t * error, logs.mean(axis=1) + t * error
        decided = low > BOUND if effect else (-BOUND < low) & (high < BOUND)
        found, share = power(n, float(spread), effect, BOUND), decided.mean()
        assert found <= share + 0.015
        assert found >= share - 0.015 or (not effect and share < 0.7)


def test_advice_is_the_fewest_replicates_of_that_power():
    """Counts upwards, for the spread's upper limit; no outcome is known after 4 replicates."""
    logs = np.array([-0.08, 0.06, 0.05, -0.04])
    found = judge(logs, MARGIN)
    limit = np.std(logs, ddof=1) * (3 / stats.chi2.ppf(0.2, 3)) ** 0.5
    enough = next(n for n in range(2, 1000) if power(n, limit, 0.0, BOUND) >= 0.8)
    assert found.outcome == "undecided" and found.more == enough - 4 > 0
    twice = more_replicates(2 * logs, (-1.0, 1.0), BOUND)
    assert found.more is not None and twice is not None and twice > 3 * found.more


def test_a_ratio_at_the_margin_has_no_advice():
    logs = BOUND + np.array([0.01, -0.01, 0.02, -0.02])
    assert judge(logs, MARGIN).more is None
    found = only(verdicts(launches({"a": 1.0, "b": 1.05}, 6, 0.01), MARGIN))
    assert found.said == "not enough data"


# Laws.


def test_swapping_the_fabrics_inverts_the_ratio_and_its_intervals():
    some = launches({"a": 1.0, "b": 1.13}, spread=0.02)
    there, back = (only(verdicts(some, MARGIN, reference=name)) for name in ("a", "b"))
    assert (there.said, back.said) == ("slower", "faster")
    for one, other in ((there.ratio, back.ratio), (there.bootstrap, back.bootstrap)):
        assert one and other
        assert [one.value, one.low, one.high] == pytest.approx(
            [1 / other.value, 1 / other.high, 1 / other.low], rel=1e-3
        )


def test_scaling_both_fabrics_changes_nothing():
    rows = rows_of({"a": 1.0, "b": 1.02}, spread=0.02)
    scaled = [one | {"seconds": [1e-4 * x for x in one["seconds"]]} for one in rows]
    one, other = (only(verdicts(launches_of(some), MARGIN)) for some in (rows, scaled))
    assert (one.said, one.more) == (other.said, other.more)
    for name in ("value", "low", "high"):
        assert getattr(one.ratio, name) == pytest.approx(getattr(other.ratio, name))


def test_the_order_of_rows_changes_nothing():
    rows = rows_of({"c": 1.0, "a": 1.1, "b": 1.0})
    found = verdicts(launches_of(rows), MARGIN)
    assert len(found) == 3
    for seed in range(3):
        order = np.random.default_rng(seed).permutation(len(rows))
        assert verdicts(launches_of([rows[k] for k in order]), MARGIN) == found


def test_iterations_of_one_launch_are_not_replicates():
    """Launches that differ by 20 %, and a million iterations that hardly do, decide nothing."""
    few, many = (
        only(verdicts(launches({"a": 1.0, "b": 1.0}, 3, 0.2, iterations=n), MARGIN))
        for n in (5, 5000)
    )
    assert few.said == many.said == "not enough data"
    assert many.ratio.replicates == 3
    assert many.ratio.high / many.ratio.low > 1.3


def test_drift_of_the_machine_cancels():
    """A common drift of 30 % from replicate to replicate does not affect pairs."""
    found = only(verdicts(launches({"a": 1.0, "b": 1.2}, 6, 0.005, drift=0.3), MARGIN))
    assert found.said == "slower" and found.ratio.high / found.ratio.low < 1.05


def test_equal_numbers_are_equal_and_different_ones_differ():
    for slower, said in ((1.0, "no significant effect"), (1.2, "slower"), (0.8, "faster")):
        rows = [row(f, k, [x] * 3) for k in range(3) for f, x in (("a", 1.0), ("b", slower))]
        found = only(verdicts(launches_of(rows), MARGIN))
        assert found.said == said and found.ratio.value == pytest.approx(slower)
        assert found.ratio.low == pytest.approx(slower) == found.ratio.high
        assert found.bootstrap and found.bootstrap.low == pytest.approx(slower)


def test_the_bootstrap_is_near_student_for_many_replicates():
    logs = np.random.default_rng(5).normal(0.1, 0.05, 60)
    found, student = bootstrap_ratio(logs), judge(logs, MARGIN)
    assert math.log(found.low) == pytest.approx(student.low, abs=0.003)
    assert math.log(found.high) == pytest.approx(student.high, abs=0.003)
    assert found.value == pytest.approx(math.exp(logs.mean()))


def test_each_setting_is_judged_alone():
    rows = rows_of({"a": 1.0, "b": 1.0})
    rows += [one | {"factors": one["factors"] | {"nodes": 4}} for one in rows_of({"a": 1, "b": 2})]
    found = verdicts(launches_of(rows), MARGIN)
    assert [dict(one.setting)["nodes"] for one in found] == [2, 4]
    assert [one.said for one in found] == ["no significant effect", "slower"]


# Words.


def test_every_claim_names_n_interval_and_margin():
    cases = {1.0: "no significant effect (", 1.2: "slower by 1", 0.8: "faster by 1"}
    for truth, claim in cases.items():
        words = only(verdicts(launches({"a": 1.0, "b": truth}), MARGIN)).words
        assert words.startswith(claim) and "n = 5" in words and "margin 0.05" in words
        assert "90% interval" in words
    words = only(verdicts(launches({"a": 1.0, "b": 1.0}, 3, 0.1), MARGIN)).words
    assert "not enough data: " in words and " more replicates (" in words


def test_the_figures_in_the_words_are_those_of_the_interval():
    found = only(verdicts(launches({"a": 1.0, "b": 1.2}), MARGIN))
    low, high = 100 * (found.ratio.low - 1), 100 * (found.ratio.high - 1)
    assert found.words.startswith(f"slower by {low:.1f}% to {high:.1f}% ")


def test_too_few_replicates_are_no_verdict():
    for n, more in ((1, 2), (0, 3)):
        rows = rows_of({"a": 1.0, "b": 1.0}, max(n, 1))
        if not n:
            rows[0] |= {"status": "timed out", "seconds": []}
        found = only(verdicts(launches_of(rows), MARGIN))
        assert found.said == "not enough data" and found.more == more
        advice = f"{more} more replicates (" if n else "launches are timed out (mend this, then"
        assert advice in found.words and f"n = {n}," in found.words
        assert "nan" not in found.words


# Rows.


@pytest.mark.parametrize("status", ["failed", "timed out", "out of memory", "missing"])
def test_only_rows_that_are_ok_count(status):
    rows = rows_of({"a": 1.0, "b": 1.2}, 6)
    rows[0] |= {"status": status, "seconds": [50.0]}
    some = launches_of(rows)
    found = only(verdicts(some, MARGIN))
    assert found.ratio.replicates == 5 and found.alone == 1 and found.said == "slower"
    assert "1 without a partner" in found.words
    assert [one.replicates for one in summaries(some)] == [5, 6]


def test_a_fabric_whose_traffic_went_elsewhere_never_enters_a_verdict():
    rows = rows_of({"a": 1.0, "b": 1.0}, 6)
    rows = [
        one | {"status": "other fabric"} if one["factors"]["fabric"] == "b" else one for one in rows
    ]
    found = only(verdicts(launches_of(rows), MARGIN))
    assert found.said == "not enough data" and found.ratio.replicates == 0


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"seconds": []}, "no seconds"),
        ({"seconds": None}, "no seconds"),
        ({"seconds": [1.0, math.nan]}, "finite and above 0"),
        ({"seconds": [1.0, 0.0]}, "finite and above 0"),
        ({"seconds": [1.0, "x"]}, "not all numbers"),
        ({"compute_seconds": [math.inf]}, "compute_seconds must be finite"),
        ({"format": 3}, "has format 3"),
        ({"declaration": "e"}, "2 declarations"),
        ({"factors": {"nodes": 2}}, "does not name a fabric"),
    ],
)
def test_a_wrong_row_is_an_error_with_a_remedy(changed, words):
    rows = [row("a"), row("b") | changed]
    with pytest.raises(RowsError, match=words) as raised:
        launches_of(rows)
    assert any(word in str(raised.value) for word in ("Delete", "Run each", "Read it"))


def test_a_replicate_counts_once():
    with pytest.raises(RowsError, match="there twice"):
        launches_of([row("a"), row("b"), row("a")])
    launches_of([row("a", status="failed"), row("b"), row("a")])


def test_a_study_without_rows_or_with_one_fabric_has_no_verdict():
    with pytest.raises(RowsError, match="no rows yet"):
        launches_of([])
    with pytest.raises(RowsError, match="compares two levels of fabric, the study has a"):
        verdicts(launches({"a": 1.0}), MARGIN)
    with pytest.raises(RowsError, match="'x'. Choose one of a, b"):
        verdicts(launches({"a": 1.0, "b": 1.0}), MARGIN, reference="x")
    for margin in (0.0, -1.0, math.nan):
        with pytest.raises(ValueError, match="margin must be above 0"):
            verdicts(launches({"a": 1.0, "b": 1.0}), margin)


def test_rows_are_read_from_their_folder(tmp_path):
    rows = rows_of({"a": 1.0, "b": 1.1}, 3)
    folder = write(tmp_path / "study", rows)
    assert len(read_launches(folder)) == 6
    with (folder / "rows.jsonl").open("a") as file:
        file.write('{"format": 2, "stu')
    assert len(read_launches(folder)) == 6
    with (folder / "rows.jsonl").open("a") as file:
        file.write("\n")
    with pytest.raises(StudyError, match="line 7, is not a row of this study"):
        read_launches(folder)
    with pytest.raises(StudyError, match="holds no study"):
        read_launches(tmp_path)


def test_a_cell_is_described_by_all_of_its_iterations():
    rows = [row("a", 0, [1.0, 2.0, 3.0], compute_seconds=[1.0, 1.0, 1.0]), row("a", 1, [4.0, 5.0])]
    found = only(summaries(launches_of(rows)))
    assert (found.median, found.replicates, found.iterations) == (3.0, 2, 5)
    assert (found.low, found.high) == pytest.approx((1.2, 4.8))
    assert found.split is None
    found = only(summaries(launches_of(rows[:1])))
    assert found.split and (found.split.compute, found.split.exposed) == (1.0, 1.0)


def test_a_step_is_split_into_compute_and_hidden_and_exposed_communication():
    """One of two steps waits: means add up; communication that is not exposed is hidden."""
    parts = {"compute_seconds": [1.0, 1.0], "communication_seconds": [0.0, 3.0]}
    found = only(summaries(launches_of([row("a", 0, [1.0, 2.0], **parts)])))
    assert found.split and dataclasses.astuple(found.split) == (1.0, 0.5, 1.0)
    parts["communication_seconds"] = [0.1, 0.1]
    found = only(summaries(launches_of([row("a", 0, [1.0, 2.0], **parts)])))
    assert found.split and found.split.hidden == 0.0
    rows = [row("a", 0, **parts), row("a", 1, compute_seconds=[1.0])]
    found = only(summaries(launches_of(rows)))
    assert found.split and found.split.hidden is None


def test_replicates_are_paired_by_their_number():
    rows = [row("a", k, [2.0**k]) for k in range(4)] + [row("b", k, [2.0**k]) for k in (3, 1)]
    pairs = only(pairs_of(launches_of(rows), "a", "b"))
    assert pairs.logs == pytest.approx([0.0, 0.0]) and pairs.alone == 2
    assert dataclasses.asdict(pairs)["setting"] == (
        ("bytes", 1024), ("nodes", 2), ("workload", "allreduce"),
    )  # fmt: skip


def test_a_large_ratio_is_written_as_a_factor():
    words = only(verdicts(launches({"a": 1.0, "b": 9.0}), MARGIN)).words
    assert words.startswith("slower by a factor of 8.") or "factor of 9 to" in words


def test_the_declared_margin_is_read(tmp_path):
    folder = write(tmp_path / "study", [], margin=0.1)
    assert read_declared(folder).margin == 0.1
    for damaged in ("[]", "{", "{}"):
        (folder / "declaration.json").write_text(damaged)
        with pytest.raises(StudyError, match="holds no study"):
            read_declared(folder)
