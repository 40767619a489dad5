"""The record of `benchmarks/gpu/gpu.py`: goals, wrong results, and processes that die."""

import pytest

from benchmarks.gpu import _launch, _record


def part(*rows, status="ok", why=""):
    return {"about": "It.", "status": status, "seconds": 1.0, "rows": list(rows), "why": why}


def judged(parts, *, dry_run=False):
    return [(each.measured, each.met) for each in _record.judge(parts, dry_run=dry_run)]


def test_the_worst_row_counts():
    good, bad = {"start / out": 1.2, "wait / in": 1.3}, {"start / out": 1.31, "wait / in": 1.0}
    parts = {"start_wait": part(good, bad), "nothing_due": part({"more us": 49.0})}
    parts["memory"] = part({"copies": 0.2}, {"copies": 0.4})
    assert judged(parts) == [(1.31, "no"), (1.3, "yes"), (49.0, "yes"), (0.4, "no")]


def test_what_is_not_there_is_not_met():
    assert judged({}) == [(None, "not measured")] * 4
    rest = part({"start / out": 1.0, "wait / in": 1.4}, status="failed", why="exit status 1")
    assert judged({"start_wait": rest}) == [
        (1.0, "not measured"),
        (1.4, "no"),
        (None, "not measured"),
        (None, "not measured"),
    ]


def test_a_dry_run_judges_nothing():
    parts = {"start_wait": part({"start / out": 9.0, "wait / in": 0.1})}
    assert {met for _, met in judged(parts, dry_run=True)} == {"dry run", "not measured"}


def test_what_failed_or_is_not_right_is_named():
    parts = {
        "good": part({"right": "yes", "status": "ok"}),
        "bad": part({"right": "no"}),
        "tests": part({"status": "failed"}),
        "dead": part(status="failed", why="killed by SIGSEGV\nlast words"),
    }
    texts = _record.wrong_answers(parts)
    assert [text.split(":")[0] for text in texts] == ["bad", "tests", "dead"]
    assert texts[-1] == "dead: failed, killed by SIGSEGV"


def test_the_page_says_that_it_is_a_dry_run_and_why_a_part_failed():
    parts = {
        "a": part({"x": 1.0}, {"y": "a|b"}),
        "b": part(status="failed", why="killed by SIGBUS"),
    }
    about = {"machine": {"gpus": "none"}, "parts": parts}
    page = _record.markdown({**about, "dry_run": True}, _record.judge(parts, dry_run=True))
    assert _record.DRY_RUN in page
    assert "| x | y |\n| --- | --- |\n| 1 |  |\n|  | a/b |\n" in page
    assert "killed by SIGBUS" in page
    page = _record.markdown({**about, "dry_run": False}, _record.judge(parts, dry_run=False))
    assert _record.DRY_RUN not in page


GIVES = "import json, os; open(os.environ['JDASO_BENCHMARK_RESULT'], 'w').write(json.dumps([1]));"


@pytest.mark.parametrize(
    "then, status, why",
    [
        ("", "ok", ""),
        ("import sys; sys.exit('no GPU')", "failed", "exit status 1\nno GPU"),
        ("os.kill(os.getpid(), 11)", "failed", "killed by SIGSEGV"),
        ("import time; print('here', flush=True); time.sleep(60)", "too slow", "longer than 5 s"),
    ],
)
def test_whatever_becomes_of_a_script_is_told(tmp_path, then, status, why):
    """And what it had given by then is kept."""
    script = tmp_path / "script.py"
    script.write_text(f"{GIVES}{then}\n")
    outcome = _launch.run_script(
        str(script), [], ranks=1, limit_seconds=5 if "slow" in status else 60, environment={}
    )
    assert (outcome.status, outcome.result) == (status, [1])
    assert outcome.why.startswith(why)
