"""The verdicts of `make bench` on its own figures."""

import pytest

from benchmarks.lib.marks import JDASO, marks, table


def row(method, hosts=4, *, fits=True, **figures):
    return {"method": method, "hosts": hosts, "fits": fits, "of bare": 0.9, "ms": 100.0, **figures}


def found(**instead):
    key = [
        row(JDASO, 2, **{"of instant": 0.98, "of bare": 0.92, "model off": -0.1}),
        row(JDASO, **{"of instant": 0.96, "model off": 0.15}),
        row("daso float32 corrected", fits=False, **{"of instant": 0.5, "of allowed": 0.95}),
        row("synchronous", ms=600.0),
        row("torch ddp", ms=499.0),
        row("torch post-local sgd", ms=150.0),
    ]
    accuracy = [
        {"task": task, "setting": setting, "behind": behind}
        for task, setting, behind in (
            ("fashion", "default", 0.3),
            ("fashion", "default", -0.2),
            ("fashion", "paper", 5.0),
            ("text", "default", 1.1),
        )
    ]
    many_nodes = [
        {"task": task, "setting": setting, "behind": behind}
        for task, setting, behind in (
            ("fashion", "default", 9.0),
            ("fashion", "near", 0.4),
            ("text", "synchronous", 0.0),
            ("text", "near", 1.1),
        )
    ]
    pipelines = [
        {"schedule": schedule, "of bound": value}
        for schedule, value in (("gpipe", 0.96), ("gpipe", 0.94), ("1f1b", 0.95), ("other", 0.1))
    ]
    return {
        "key": key,
        "accuracy": accuracy,
        "many_nodes": many_nodes,
        "pipelines": pipelines,
        "hybrid": [{"method": f"hybrid {x}", "of data synchronous": 2.0} for x in ("daso", "x")],
        "deep": [{"depth": 110, "first step s": 400.0}, {"depth": 1001, "first step s": 301.0}],
        **instead,
    }


def judged(rows):
    return {mark.what: (mark.measured, mark.held) for mark in marks(rows)}


@pytest.mark.parametrize(
    ("what", "measured", "held"),
    [
        ("relative to *instant*", "0.96 to 0.98; met in 1 of 2", False),
        ("*bare*, the key case, 2 hosts", "0.92", True),
        ("*bare*, the key case, 4 hosts", "0.90", False),
        ("link allows", "0.95", True),
        ("each synchronous peer", "4.99 to 6.00; met in 1 of 2", False),
        ("real nodes, default settings, fashion", "-0.20 to 0.30", True),
        ("real nodes, default settings, text", "1.10", False),
        ("64 virtual nodes", "0.40 to 1.10; met in 1 of 2", False),
        ("pipelines, gpipe", "0.94 to 0.96; met in 1 of 2", False),
        ("pipelines, 1f1b", "0.95", True),
        ("2 partitions, 2 replicas", "2.00", True),
        ("ResNet-1001", "301.00", False),
        ("model's step time", "0.10 to 0.15", True),
    ],
)
def test_each_figure_is_held_against_its_mark(what, measured, held):
    (of_it,) = [judgement for text, judgement in judged(found()).items() if what in text]
    assert of_it == (measured, held)


def test_what_was_not_measured_is_not_judged():
    assert judged({}) == {} and table({}) == ""
    only_links = judged({"links": [{"float32 of link": 0.89, "bfloat16 of link": 0.95}]})
    assert [held for _, held in only_links.values()] == [False, True]
    assert table(found()).count("\n") == 2 + len(judged(found()))
