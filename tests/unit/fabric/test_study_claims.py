"""Claims: read from a declaration, kept in the folder, and judged over settings of known truth."""

import json
import math

import numpy as np
import pytest
from scipy import stats
from studies import launches as launches_in_order
from studies import lines, row_of, small
from study_rows import row, rows_of

from jdaso.fabric._study.checks import StudyError
from jdaso.fabric._study.claims import claims, compared
from jdaso.fabric._study.declared import read_declared
from jdaso.fabric._study.equivalence import power
from jdaso.fabric._study.findings import findings
from jdaso.fabric._study.journal import open_journal, read_declaration
from jdaso.fabric._study.measured import launches_of
from jdaso.fabric._study.settled import holm, settle

CLAIM = {"name": "alike", "text": "two is like one", "compare": "library"}
CLAIM |= {"of": "two", "against": "one"}

# Reading.


def test_a_claim_is_about_cells_that_differ_in_its_factor_alone():
    study = small(claims=[CLAIM | {"where": {"bytes": ["2B", 3]}}])
    (claim,) = study.claims
    assert claim.expects == "no significant effect" and claim.where == {"bytes": (2, 3)}
    found = compared(claim, [cell.factors for cell in study.cells])
    assert sorted(cell["bytes"] for _, cell in found) == [2, 3]
    assert {level for level, _ in found} == {"two"} == {cell["library"] for _, cell in found}
    gone = [{"library": "one", "bytes": 2}]
    study = small(claims=[CLAIM | {"where": {"bytes": [2, 3]}}], exclude=gone)
    found = compared(study.claims[0], [cell.factors for cell in study.cells])
    assert [cell["bytes"] for _, cell in found] == [3]


MISTAKES = {
    r"claims\[0\]: unknown key 'expect'. Did you mean 'expects'": {"expect": "slower"},
    r"claims\[0\].expects: 'slow' is not known. Did you mean 'slower'": {"expects": "slow"},
    r"claims\[0\].compare: 'librari' is not known. Did you mean 'library'": {"compare": "librari"},
    r"claims\[0\] \(alike\): library: 'too' is not known. Did you mean 'two'": {"of": "too"},
    r"claims\[0\] \(alike\): library: 'on' is not known. Did you mean 'one'": {"against": "on"},
    r"claims\[0\] \(alike\): bytes: '9' is not known. Give one of: 1, 2": {"where": {"bytes": 9}},
    r"claims\[0\].where: unknown key 'byte'. Did you mean 'bytes'": {"where": {"byte": 1}},
    r"claims\[0\] \(alike\): wire: 'int8' is not known": {"where": {"wire": "int8"}},
    r"\['one', 'two'\] with 'one' where \{\}. Leave 'one' out of 'of'": {"of": ["one", "two"]},
    r"Leave .* library out of 'where'": {"where": {"library": "two"}},
    r"claims\[0\].name must be a text, got 3": {"name": 3},
}


@pytest.mark.parametrize("text", MISTAKES)
def test_a_mistake_in_a_claim_is_reported_with_its_remedy(text):
    with pytest.raises(StudyError, match=text):
        small(claims=[CLAIM | MISTAKES[text]])


def test_other_mistakes_in_claims():
    for key in ("name", "text", "of", "against"):
        with pytest.raises(StudyError, match=rf"claims\[0\] has no {key}. Add it"):
            small(claims=[{k: v for k, v in CLAIM.items() if k != key}])
    with pytest.raises(StudyError, match="two have the name 'alike'. Rename one"):
        small(claims=[CLAIM, CLAIM])
    with pytest.raises(StudyError, match=r"about no cells, got \{'bytes': \(2,\)\}.*in library"):
        gone = [{"library": "one", "bytes": 2}]
        small(claims=[CLAIM | {"where": {"bytes": 2}}], exclude=gone)


def test_the_folder_has_the_newest_claims_and_margin_and_keeps_its_rows(tmp_path):
    study = small()
    (replicate, cell), *_ = launches_in_order(study)
    with open_journal(tmp_path, study) as journal:
        journal.append(row_of(study, 0, cell, replicate))
    assert read_declared(tmp_path)[0::2] == (0.05, ())
    newer = small(claims=[CLAIM], margin=0.1, replicates=9)
    with open_journal(tmp_path, newer) as journal:
        assert len(journal) == 1
    found = read_declared(tmp_path)
    assert found.margin == 0.1 and found.claims == newer.claims and len(found.cells) == 8
    assert read_declaration(tmp_path)["study"]["replicates"] == 9
    assert len(lines(tmp_path)) == 1 and not [*tmp_path.glob("*.new")]
    with pytest.raises(StudyError, match="belongs to another declaration"):
        with open_journal(tmp_path, small(seed=8)):
            pytest.fail("it was opened")
    assert read_declared(tmp_path).claims == newer.claims


# Judging.


def at(nodes, rows):
    return [one | {"factors": one["factors"] | {"nodes": nodes}} for one in rows]


def judged(truths, expects="no significant effect", replicates=6, spread=0.01, drop=None):
    """The finding on "b against a" at settings with these true ratios."""
    rows = []
    for k, ratio in enumerate(truths, 1):
        rows += at(k, rows_of({"a": 1.0, "b": ratio}, replicates, spread, seed=k))
    return answered(rows, expects, drop)


def answered(rows, expects="no significant effect", drop=None):
    cells = [*{str(one["factors"]): one["factors"] for one in rows}.values()]
    declared = [{"name": "x", "text": "x", "of": "b", "against": "a", "expects": expects}]
    rows = [one for one in rows if drop is None or not drop(one)]
    (found,) = findings(claims(declared, cells), cells, launches_of(rows), 0.05)
    return found


@pytest.mark.parametrize(
    ("truths", "expects", "said"),
    [
        ([1.0, 0.99, 1.01], "no significant effect", "holds"),
        ([1.0, 1.2, 1.0], "no significant effect", "does not hold"),
        ([1.0, 0.8, 1.0], "no significant effect", "does not hold"),
        ([1.0, 1.045, 1.0], "no significant effect", "not enough data"),
        ([1.2, 2.0], "slower", "holds"),
        ([1.2, 1.0], "slower", "does not hold"),
        ([1.2, 1.04], "slower", "not enough data"),
        ([0.8, 0.5], "faster", "holds"),
        ([0.8, 1.2], "faster", "does not hold"),
        ([0.8, 1 / 1.055], "faster", "not enough data"),
    ],
)
def test_a_claim_is_judged_over_all_of_its_settings(truths, expects, said):
    found = judged(truths, expects)
    assert found.said == said and found.words.startswith(said)
    assert len(found.places) == len(truths) and (found.more == 0) == (said != "not enough data")


def test_the_sentence_names_settings_n_the_worst_interval_and_margin():
    found = judged([1.0, 1.02, 0.99])
    worst = found.places[1].verdict
    assert found.words == (
        "holds: no significant effect at 3 settings (the worst: allreduce, 2 nodes, 1024 bytes, "
        f"b against a: ratio {worst.ratio.value:.3f}, 90% interval {worst.ratio.low:.3f} to "
        f"{worst.ratio.high:.3f}; n = 6, margin 0.05)"
    )
    words = judged([1.0, 1.2, 1.0]).words
    assert words.startswith("does not hold: surely otherwise at 1 of 3 settings (the worst: ")
    assert "2 nodes, 1024 bytes, b against a: ratio 1.2" in words
    found = judged([1.0, 1.0, 1.0], drop=lambda one: one["factors"]["nodes"] == 2)
    assert found.said == "not enough data" and found.more == 3
    assert found.words == (
        "not enough data: 3 more replicates; no significant effect at 2 of 3 settings, open: "
        "allreduce, 2 nodes, 1024 bytes, b against a (the worst: allreduce, 2 nodes, 1024 bytes, "
        "b against a: no ratio; n = 0 to 6, margin 0.05)"
    )


def test_a_cell_that_failed_or_is_not_there_yet_leaves_its_claim_open():
    failed = judged([1.0], drop=lambda one: one["factors"]["fabric"] == "b")
    assert (failed.said, failed.more) == ("not enough data", 3)
    refuted = judged([1.2, 1.0], drop=lambda one: one["factors"]["nodes"] == 2)
    assert refuted.said == "does not hold"


def test_the_advice_is_that_of_the_setting_that_needs_most():
    found = judged([1.0] * 4, replicates=3, spread=0.03)
    needed = [place.more for place in found.places if place.said == found.said]
    assert found.said == "not enough data" and len(needed) > 1 and found.more == max(needed)
    assert f"not enough data: {max(needed)} more replicates" in found.words
    rows = [row("a", k, [1.0]) for k in range(4)]
    rows += [row("b", k, [1.05 + x]) for k, x in enumerate((0.02, -0.02, 0.01, -0.01))]
    at_the_margin = answered(rows)
    assert at_the_margin.more is None and "more than 1000 replicates" in at_the_margin.words


def test_the_advice_is_that_of_the_setting_that_would_refute_first():
    """One setting lies at the margin, which no replicates decide; another one is clearly slower."""
    logs = math.log(1.12) + np.array([0.04, -0.03, 0.01, -0.02])
    rows = [row("a", k, [1.0], nodes=nodes) for nodes in (1, 2) for k in range(4)]
    rows += [row("b", k, [1.05 + x], nodes=1) for k, x in enumerate((0.02, -0.02, 0.01, -0.01))]
    rows += [row("b", k, [math.exp(x)], nodes=2) for k, x in enumerate(logs)]
    found = answered(rows)
    first, second = (place.more for place in found.places)
    assert found.said == "not enough data" and first is None
    assert found.more == second and 0 < second < 20


def fewest(logs, alpha, effect, expects):
    """The fewest further replicates that decide at alpha, by counting upwards."""
    n, bound = len(logs), math.log(1.05)
    limit = np.std(logs, ddof=1) * ((n - 1) / stats.chi2.ppf(0.2, n - 1)) ** 0.5
    counts = (power(more + n, limit, effect, bound, alpha) for more in range(1, 99))
    if expects != "no significant effect" and alpha < 0.05:  # the contrary has one side
        away = bound - (effect if expects == "slower" else -effect)
        counts = (beyond(more + n, limit, away, alpha) for more in range(1, 99))
    return 1 + next(k for k, x in enumerate(counts) if x >= 0.8)


def beyond(n, spread, away, alpha):
    """The power of one t test: its mean lies `away` from the bound."""
    return stats.nct.sf(stats.t.ppf(1 - alpha, n - 1), n - 1, away / (spread / n**0.5))


@pytest.mark.parametrize(
    ("expects", "center", "alpha"),
    [
        ("no significant effect", 1.12, 0.0025),
        ("no significant effect", 1.08, 0.0025),
        ("no significant effect", 0.89, 0.0025),
        ("faster", 0.99, 0.005),
        ("faster", 1.052, 0.005),  # as near to the other margin as can be
        ("slower", 0.95, 0.005),
        ("slower", 1.01, 0.005),
        ("slower", 1.08, 0.05),
    ],
)
def test_advice_is_for_the_level_that_decides_a_claim_or_its_contrary(expects, center, alpha):
    """Of ten settings the last is open. The contrary of no effect has two sides."""
    scale = 1.2 if center in (1.052, 0.95) else 1.0
    logs = math.log(center) + scale * np.array([0.04, -0.03, 0.01, -0.02])
    others = {"no significant effect": 1.0, "faster": 0.5, "slower": 2.0}[expects]
    rows = [row("a", k, [1.0], nodes=nodes) for nodes in range(1, 11) for k in range(4)]
    rows += [row("b", k, [others], nodes=nodes) for nodes in range(1, 10) for k in range(4)]
    rows += [row("b", k, [math.exp(x)], nodes=10) for k, x in enumerate(logs)]
    found = answered(rows, expects)
    assert found.said == found.places[-1].said == "not enough data"
    near = abs(center - 1) < 0.02  # the noise is as large
    effect = 0.0 if near else float(logs.mean())
    assert found.more == found.places[-1].more == fewest(logs, alpha, effect, expects)
    for p in (0.99 * alpha, 1.01 * alpha):
        sides = (1 - p, 0.0) if center > 1 else (0.0, 1 - p)
        if expects != "no significant effect" and alpha < 0.05:
            sides = (p, 0.0) if expects == "slower" else (0.0, p)
        other = {"no significant effect": (0.0, 0.0), "faster": (0.0, 1.0), "slower": (1.0, 0.0)}
        ps = np.array([other[expects]] * 9 + [sides])
        assert (settle(expects, ps[:, 0], ps[:, 1]).said == "not enough data") == (p > alpha)


def test_one_setting_may_be_slower_and_the_claim_about_many_still_open():
    """Holm's correction applies: a p value that decides alone does not decide among twenty."""
    slower = np.full(20, 0.999)
    ps = settle("no significant effect", np.append(slower * 0 + 0.001, 0.97), np.full(21, 0.001))
    assert ps.said == "not enough data" and ps.places.count("holds") == 20
    ps = settle("no significant effect", np.array([0.97]), np.array([0.001]))
    assert ps.said == "not enough data"
    ps = settle("no significant effect", np.array([0.976]), np.array([0.001]))
    assert ps.said == "does not hold"
    ps = settle("slower", np.array([0.04]), np.array([0.001]))
    assert ps.said == "does not hold"


def test_holm_by_its_definition():
    """Rejects in the order of p values as long as each is below alpha / (those that are left)."""
    random = np.random.default_rng(0)
    for _ in range(200):
        ps = random.uniform(0, 0.2, random.integers(1, 8))
        rejected = np.zeros(len(ps), bool)
        for left, k in zip(range(len(ps), 0, -1), np.argsort(ps), strict=True):
            if ps[k] >= 0.05 / left:
                break
            rejected[k] = True
        assert ((holm(ps) < 0.05) == rejected).all() and (holm(ps) >= ps).all()


def test_p_values_are_those_of_the_verdict_and_complete():
    found = judged([1.2, 1.0])
    for place in found.places:
        assert place.p_claim == max(place.verdict.p_not_slower, place.verdict.p_not_faster)
    assert found.places[0].p_contrary < 0.05 < found.places[1].p_contrary
    nothing = judged([1.0], drop=lambda one: one["factors"]["fabric"] == "b").places[0]
    assert math.isnan(nothing.verdict.p_not_slower) and nothing.p_claim == nothing.p_contrary == 1
    assert json.dumps([nothing.p_claim], allow_nan=False) == "[1.0]"
