"""The page of a study, and the command that makes it and the other formats."""

import argparse
import csv
import io
import json
import os
import re
import sys
from html.parser import HTMLParser

import jsonschema
import numpy as np
import pytest
from browser import Browser, find_browser
from study_rows import row, write

from jdaso.cli import _study_report
from jdaso.fabric._study import curves
from jdaso.fabric._study.answers import answers_of, schema
from jdaso.fabric._study.curves import charts_of
from jdaso.fabric._study.measured import launches_of

CLAIMS = [
    {"name": "alike", "text": "The <b>two</b> links are alike", "of": "1g-b", "against": "1g"},
    {"name": "fast", "text": "Large messages are faster at 10 Gbit/s", "expects": "faster"}
    | {"of": ["10g"], "against": "1g", "where": {"workload": "allreduce", "bytes": "4MiB"}},
]
SCRIPT = "<script>alert(1)</script> killed"


def rows_of_links(slow=1.0, seed=1, replicates=4):
    """Links of 1 and 10 Gbit/s, a second one of 1 Gbit/s that is slower, and one bad launch."""
    random, rows = np.random.default_rng(seed), []
    rates = {"1g": 1.25e8, "1g-b": 1.25e8 / slow, "10g": 1.25e9}
    for fabric, rate in rates.items():
        for nodes in (2, 4):
            for replicate in range(replicates):
                place = {"library": "mpich", "nodes": nodes}
                for size in (2**10, 2**14, 2**18, 2**22):
                    ring = 2 * (nodes - 1) * (30e-6 + size / nodes / rate)
                    seconds = ring * np.exp(random.normal(0, 0.01, 20))
                    rows.append(row(fabric, replicate, seconds, bytes=size, **place))
                seconds = (0.1 + 5e6 / rate) * np.exp(random.normal(0, 0.01, 20))
                place |= {"workload": "training", "model": "paced", "bytes": None, "batch": 32}
                compute = {"compute_seconds": [0.1] * 20}
                rows.append(row(fabric, replicate, seconds, **place, **compute))
    return [*rows, row("10g", 0, [], "out of memory", words=SCRIPT, nodes=8)]


@pytest.fixture(scope="module")
def studies(tmp_path_factory):
    """Two studies: in the second one a link is secretly 20 % slower."""
    folder, rates = tmp_path_factory.mktemp("studies"), {"1g": "1gbit", "1g-b": "1gbit"}
    found = {"equal": rows_of_links(), "slower <b>": rows_of_links(1.2, seed=2)}
    return [
        str(write(folder / name, rows, rates=rates, claims=CLAIMS)) for name, rows in found.items()
    ]


def report(*options):
    parser = argparse.ArgumentParser()
    _study_report.add_arguments(parser)
    return _study_report.run(parser.parse_args(list(map(str, options))))


@pytest.fixture(scope="module")
def page(studies, tmp_path_factory):
    path = tmp_path_factory.mktemp("page") / "study.html"
    assert report(*studies, "-o", path) == 0
    return path


class Page(HTMLParser):
    """Tags, headings, and the cells of each table by its caption."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.tables, self.headings, self.inside = [], {}, [], ""
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        self.inside = tag
        if tag == "tr" and self.tables:
            [*self.tables.values()][-1].append([])
        if tag in ("td", "th") and self.tables:
            [*self.tables.values()][-1][-1].append("")

    def handle_endtag(self, tag):
        self.inside = ""

    def handle_data(self, data):
        if self.inside == "caption":
            self.tables[data] = []
        elif self.inside == "h2":
            self.headings.append(data)
        elif self.inside in ("td", "th"):
            [*self.tables.values()][-1][-1][-1] = data


def test_claims_are_first_with_the_settings_that_they_rest_on(page):
    found = Page(page.read_text())
    assert found.headings[:2] == ["Claims", "Verdicts"] and [*found.tables][0] == "Claims"
    head, *rows = found.tables["Claims"]
    assert head == ["study", "claim", "answer"] and len(rows) == 4
    assert page.stat().st_size < 1_500_000
    answers = {(study, claim): answer for study, claim, answer in rows}
    alike = "The <b>two</b> links are alike"
    assert answers["equal", alike].startswith("holds: no significant effect at 10 settings (")
    assert answers["slower <b>", alike].startswith("does not hold: surely otherwise at ")
    assert all("90% interval" in x and "n = 4, margin 0.05)" in x for x in answers.values())
    fast = answers["equal", "Large messages are faster at 10 Gbit/s"]
    assert fast.startswith("holds: faster at 2 settings (")
    _, *places = found.tables["Settings of the claim fast in equal"]
    assert [one[1] for one in places] == ["holds"] * 2
    assert places[0][0] == "allreduce, 2 nodes, 4194304 bytes, mpich, 10g against 1g"


def test_verdicts_of_two_studies_stand_beside_each_other(page):
    found = Page(page.read_text())
    head, *rows = found.tables["Verdicts"]
    assert head == ["number", "setting", "compared", "equal", "slower <b>"]
    assert len(rows) == 3 * 2 * 5
    large = [r for r in rows if r[2] == "1g-b against 1g" and "4194304 bytes" in r[1]]
    assert len(large) == 2
    for one in large:
        assert one[3].startswith("no significant effect (ratio ")
        assert one[4].startswith("slower by 1") and "n = 4, margin 0.05" in one[4]


def test_the_page_has_every_part(page):
    found = Page(page.read_text())
    assert found.headings == [
        "Claims",
        "Verdicts",
        "Ratios",
        "Bandwidth against bytes",
        "Latency against bytes",
        "Throughput against nodes",
        "Exposed communication against nodes",
        "Exposed communication against the fabric's rate",
        "Latency and bandwidth",
        "Cells",
        "Launches without numbers",
        "Machine and versions",
    ]
    assert "Bus bandwidth: allreduce, 4 nodes: equal, 10g" in found.tables
    head, *rows = found.tables["Latency and bandwidth in equal"]
    rates = {one[0]: float(one[head.index("Gbit/s")]) for one in rows}
    assert rates["allreduce, 1g, mpich"] == pytest.approx(1, rel=0.02)
    assert rates["allreduce, 10g, mpich"] == pytest.approx(10, rel=0.02)


def test_a_launch_that_failed_is_shown_with_its_last_words_and_never_as_markup(page):
    text = page.read_text()
    found = Page(text)
    _, bad = found.tables["Launches of equal without numbers"]
    assert bad[3:] == ["out of memory", SCRIPT]
    assert SCRIPT not in text and not [tag for tag, _ in found.tags if tag == "b"]
    outside = [of.get("src") or of.get("href") for _, of in found.tags]
    assert all(url.startswith(("#", "data:")) for url in outside if url)


@pytest.fixture(scope="module")
def browser():
    if find_browser() is None:
        if os.geteuid() == 0:
            pytest.fail("no browser: `make setup`, as root, installs chromium-headless-shell")
        pytest.skip("no chromium or chrome on PATH, and only root can install one")
    with Browser() as browser:
        yield browser


@pytest.mark.parametrize("width", [360, 1280])
def test_it_is_drawn_without_a_network_and_fits_the_window(browser, page, width):
    browser.open(page, width=width, height=800, dark=width == 360)
    browser.wait_for("'drawn' in document.body.dataset && Bokeh.documents.every(x => x.is_idle)")
    asked = [about["request"]["url"] for method, about in browser.events if "requestWill" in method]
    assert [url for url in asked if not url.startswith("data:")] == [page.as_uri()]
    said = ("Log.entryAdded", "Runtime.consoleAPICalled", "Runtime.exceptionThrown")
    assert not [event for event in browser.events if event[0] in said]
    browser.run("document.querySelectorAll('details').forEach(x => { x.open = true })")
    assert browser.run("document.documentElement.scrollWidth") == width
    drawn = """[...document.querySelectorAll('.chart')].map(x => x.querySelectorAll('.bk-Figure')
        .length)"""
    assert browser.run(drawn) == [1] * (6 + 4 + 2 + 1)


def test_curves_by_hand():
    """10 us and 20 us, 1000 bytes on 2 nodes; 0.5 s a step of 8 samples, 0.4 of it compute."""
    rows = [row("a", 0, [10e-6, 20e-6, 20e-6], bytes=1000)]
    rows.append(row("a", 1, [20e-6, 20e-6], bytes=1000))
    rows.append(row("a", 0, [1.0], bytes=4000))
    step = {"workload": "training", "bytes": None, "batch": 8, "compute_seconds": [0.4] * 3}
    rows += [row("a", 0, [0.5] * 3, nodes=nodes, **step) for nodes in (4, 1)]
    charts = {chart.key: chart for chart in charts_of({"x": launches_of(rows)})}
    assert [*charts] == [
        "bandwidth-allreduce-2", "time-allreduce-2", "throughput-training", "exposed-training",
    ]  # fmt: skip
    (curve,) = charts["time-allreduce-2"].curves
    assert curve.label == "x, a" and curve.x.tolist() == [1000, 4000]
    assert [curve.low[0], curve.median[0], curve.high[0]] == pytest.approx([12.0, 20.0, 20.0])
    (curve,) = charts["bandwidth-allreduce-2"].curves
    assert curve.median[0] == pytest.approx(1000 / 20e-6 / 1e9)
    (curve,) = charts["throughput-training"].curves
    assert curve.x.tolist() == [1, 4] and curve.median == pytest.approx([8 / 0.5, 32 / 0.5])
    assert charts["throughput-training"].y_label == "samples per second"
    (curve,) = charts["exposed-training"].curves
    assert curve.median == pytest.approx([20, 20])
    assert charts["time-allreduce-2"].log == "xy" and charts["throughput-training"].log == ""
    twice = charts_of({"x": launches_of(rows), "y": launches_of(rows)})
    assert [curve.label for curve in twice[0].curves] == ["x", "y"]


def test_the_exposed_share_of_each_study_is_its_own():
    """The same cells in two studies, with another compute."""
    step = {"workload": "training", "bytes": None, "model": "x"}
    rows = [[row("a", 0, [0.5] * 3, compute_seconds=[c] * 3, **step)] for c in (0.4, 0.1)]
    (chart,) = curves.exposed_charts({k: launches_of(x) for k, x in zip("xy", rows, strict=True)})
    assert [curve.median.tolist() for curve in chart.curves] == [
        pytest.approx([20]), pytest.approx([80]),
    ]  # fmt: skip


def test_the_exposed_share_against_the_rate_of_emulated_and_of_real_fabrics():
    """Declared rates stand for emulated fabrics, fits for real ones; others are left out."""
    rows = []
    for fabric, seconds in {"e": 0.8, "f": 0.5, "real": 0.4, "unknown": 9.0}.items():
        step = {"workload": "training", "bytes": None, "model": "x"}
        for nodes in (1, 4):
            compute = {"compute_seconds": [0.4] * 3}
            rows.append(row(fabric, 0, [seconds] * 3, nodes=nodes, **step, **compute))
    for size in (10**3, 10**4, 10**5, 10**6):
        rows.append(row("real", 0, [1e-5 + size / 1.25e9], bytes=size, workload="bandwidth"))
        rows.append(row("real", 0, [1e-5 + size / 1e9], bytes=size, workload="alltoall", nodes=2))
    (chart,) = curves.rate_charts({"s": launches_of(rows, {"e": 1e8, "f": 1e9})})
    (curve,) = chart.curves
    assert chart.log == "x" and curve.label == "s, 4 nodes"
    assert curve.x == pytest.approx([0.1, 1, 10], rel=1e-3)
    assert curve.median == pytest.approx([50, 20, 0])


def test_json_has_the_answers_and_follows_the_published_schema(studies, capsys):
    assert report(*studies, "--format", "json") == 0
    found = json.loads(capsys.readouterr().out)
    jsonschema.Draft202012Validator.check_schema(schema())
    jsonschema.validate(found, schema())
    assert len(found["studies"]) == 2 and not found["between"]
    alike, fast = found["studies"][1]["claims"]
    assert (alike["said"], fast["said"]) == ("does not hold", "holds")
    assert alike["name"] == "alike" and len(alike["places"]) == 10
    assert fast["where"] == {"workload": ["allreduce"], "bytes": [2**22]}
    second = found["studies"][1]
    pair = {"factor": "fabric", "level": "1g-b", "reference": "1g"}
    said = [
        one
        for one in second["verdicts"]
        if pair.items() <= one.items() and one["setting"].get("bytes") == 2**22
    ]
    assert [one["said"] for one in said] == ["slower", "slower"]
    assert all(1.05 < one["ratio"]["low"] < one["ratio"]["high"] < 1.3 for one in said)
    assert all(one["ratio"]["replicates"] == 4 and one["margin"] == 0.05 for one in said)
    assert second["failed"][0]["status"] == "out of memory"
    rates = {one["factors"]["fabric"]: 1 / one["beta_seconds"] for one in second["fits"]}
    assert rates["1g-b"] == pytest.approx(1.25e8 / 1.2, rel=0.02)
    assert len(second["cells"]) == 3 * 2 * 5


@pytest.mark.parametrize(
    "wrong",
    [
        {"format": 2},
        {"studies": []},
        {"more": 1},
        {"between": [{"said": "slower"}]},
    ],
)
def test_the_schema_refuses_other_answers(wrong):
    good = {"format": 1, "studies": [answers_of("x", launches_of([row("a")]), [], [])]}
    good = json.loads(json.dumps(good | {"between": []}))
    jsonschema.validate(good, schema())
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(good | wrong, schema())
    study = {**good["studies"][0], "cells": [{**good["studies"][0]["cells"][0], "median": -1.0}]}
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(good | {"studies": [study]}, schema())


def test_rows_of_other_code_machines_and_packages_are_named(tmp_path, capsys):
    base = {
        "commit": "a1",
        "machine": {"cpu": "x", "cores": 2, "load": 0.1},
        "versions": {"jax": "1.0", "python": "3"},
    }
    rows = [
        row("a", k, library=library) | base | {"versions": base["versions"] | {"mpi": library}}
        for k in range(2)
        for library in ("mpich", "openmpi")
    ]
    rows[0] |= {"machine": base["machine"] | {"load": 9.0}}  # passes, so it is not named
    rows.append(row("a", 2, [], "failed") | base | {"commit": "z9"})  # never counts
    folder = write(tmp_path / "study", rows)
    assert report(folder, "--format", "json") == 0
    same = capsys.readouterr()
    assert json.loads(same.out)["studies"][0]["mixed"] == [] and not same.err

    rows[2] |= {"commit": "b2", "machine": base["machine"] | {"cores": 4}}
    rows[3] |= {"commit": "b2", "versions": rows[3]["versions"] | {"jax": "1.1"}}
    folder = write(tmp_path / "mixed", rows)
    assert report(folder, "-o", tmp_path / "page.html") == 0
    told = capsys.readouterr().err.splitlines()
    assert [text.split("which")[0] for text in told] == [
        "mixed: The rows are of 2 commits of jdaso, ",
        "mixed: The rows are of 2 machines, ",
        "mixed: The rows are of 2 sets of versions for library openmpi, ",
    ]
    assert [text.split("include: ")[1] for text in told] == [
        "a1, b2.",
        "cores 2, 4.",
        "jax 1.0, 1.1.",
    ]
    page = (tmp_path / "page.html").read_text()
    assert all(text in page for text in told)


def test_answers_without_numbers_follow_the_schema(tmp_path, capsys):
    rows = [row("a", 0, [], "failed"), row("b", 0, [], "timed out")]
    claim = {"name": "x", "text": "x", "of": "b", "against": "a"}
    assert report(write(tmp_path / "study", rows, claims=[claim]), "--format", "json") == 0
    found = json.loads(capsys.readouterr().out)
    jsonschema.validate(found, schema())
    (study,) = found["studies"]
    assert study["claims"][0]["said"] == "not enough data" and study["claims"][0]["more"] == 3
    assert study["verdicts"][0]["p_not_slower"] is None and not study["cells"]


def test_any_factor_is_compared(tmp_path, capsys):
    """A library that takes twice the time, and numbers of nodes in their order."""
    rows = [
        row("a", k, [x * nodes * (1 + k / 1000)], library=library, nodes=nodes)
        for k in range(3)
        for nodes in (2, 16)
        for library, x in (("mpich", 1.0), ("openmpi", 2.0))
    ]
    folder = write(tmp_path / "study", rows)
    assert report(folder, "--format", "json", "--compare", "library") == 0
    found = json.loads(capsys.readouterr().out)
    jsonschema.validate(found, schema())
    first, second = found["studies"][0]["verdicts"]
    assert (first["factor"], first["level"], first["reference"]) == ("library", "openmpi", "mpich")
    assert first["ratio"]["value"] == pytest.approx(2) == second["ratio"]["value"]
    assert [one["setting"]["nodes"] for one in (first, second)] == [2, 16]
    options = ("--format", "json", "--compare", "nodes", "--reference", "16")
    assert report(folder, *options) == 0
    found = json.loads(capsys.readouterr().out)["studies"][0]["verdicts"]
    assert [(one["level"], one["reference"], one["said"]) for one in found] == [
        (2, 16, "faster")
    ] * 2
    assert report(folder, "--compare", "wire", "-o", tmp_path / "page.html") == 0
    assert "study: no verdict: no setting has two levels of wire." in capsys.readouterr().out
    text = (tmp_path / "page.html").read_text()
    assert "study has no verdict: no setting has two levels of the compared factor" in text


def test_a_reference_may_be_in_one_study_only(tmp_path, capsys):
    pairs = {"here": ("1g", "10g"), "there": ("ib0", "eth0")}
    folders = [
        write(tmp_path / name, [row(fabric, k) for k in range(3) for fabric in pair])
        for name, pair in pairs.items()
    ]
    assert report(*folders, "--format", "json", "--reference", "1g") == 0
    here, there = json.loads(capsys.readouterr().out)["studies"]
    assert len(here["verdicts"]) == 1 and not there["verdicts"]


def test_the_page_has_a_line_for_each_machine_and_not_for_each_launch(tmp_path):
    """Parts that every launch has anew are left out; of many values the first ones are shown."""
    about = lambda k: {  # noqa: E731
        "machine": {"cores": 2, "load": k / 10, "link_bits_per_second": [k, k]},
        "environment": {"JDASO_STUDY_COORDINATOR": f"127.0.0.1:{k}"},
        "versions": {"jax": str(k)},
    }
    rows = [row("a", k, nodes=nodes) | about(k + 50 * nodes) for k in range(50) for nodes in (2, 4)]
    path = tmp_path / "page.html"
    assert report(write(tmp_path / "study", rows), "-o", path) == 0
    head, *found = Page(path.read_text()).tables["Rows of study"]
    values = {name: [x for field, x in found if field == name] for name, _ in found}
    assert values["machine"] == ['{"cores": 2}'] and values["environment"] == ["{}"]
    assert len(values["versions"]) == 21 and values["versions"][-1] == "and 80 others"


def test_one_node_has_no_bus_bandwidth(tmp_path):
    rows = [row("a", bytes=size, nodes=n) for size in (2**10, 2**20) for n in (1, 2)]
    titles = [chart.title for chart in charts_of({"study": launches_of(rows)})]
    assert [x for x in titles if "bandwidth" in x] == ["Bus bandwidth: allreduce, 2 nodes"]
    assert "Time: allreduce, 1 nodes" in titles


def test_one_study_is_compared_with_another(studies, tmp_path, capsys):
    """The link that is 20 % slower in the second study is found there, and the others are alike."""
    where = ("--where", "bytes=4194304", "--where", "nodes=2")
    assert report(*studies, "--compare", "study", "--format", "json", *where) == 0
    found = json.loads(capsys.readouterr().out)
    jsonschema.validate(found, schema())
    assert not any(study["verdicts"] for study in found["studies"])
    said = {one["setting"]["fabric"]: one["said"] for one in found["between"]}
    assert said == {
        "10g": "no significant effect", "1g": "no significant effect", "1g-b": "slower",
    }  # fmt: skip
    assert {(one["level"], one["reference"]) for one in found["between"]} == {
        ("slower <b>", "equal")
    }
    page = tmp_path / "page.html"
    assert report(*studies, "--compare", "study", *where, "-o", page) == 0
    assert (
        "allreduce, 2 nodes, 4194304 bytes, 1g-b, mpich: slower <b> against equal: slower by"
        in (capsys.readouterr().out)
    )
    head, *rows = Page(page.read_text()).tables["Verdicts"]
    assert head == ["number", "setting", "compared", "verdict"] and len(rows) == 3


def test_studies_of_other_margins_are_compared_by_a_given_one(tmp_path, capsys):
    folders = [
        write(tmp_path / name, [row("a", k) for k in range(2)], margin=margin)
        for name, margin in (("x", 0.05), ("y", 0.1))
    ]
    assert report(*folders, "--compare", "study", "--format", "json") == 2
    assert "declare different margins, 0.05, 0.1. Choose one: --margin" in capsys.readouterr().err
    options = ("--compare", "study", "--format", "json", "--margin", "0.2")
    assert report(*folders, *options) == 0
    assert json.loads(capsys.readouterr().out)["between"][0]["said"] == "no significant effect"


def test_a_choice_of_rows_leaves_the_claims_whole(studies, capsys):
    assert report(studies[0], "--format", "json", "--where", "nodes=2") == 0
    (study,) = json.loads(capsys.readouterr().out)["studies"]
    assert len(study["claims"][0]["places"]) == 10 and study["claims"][0]["said"] == "holds"


def test_other_formats_and_a_choice_of_rows(studies, capsys):
    where = ("--where", "fabric=10g", "--where", "nodes=2")
    assert report(studies[0], "--format", "osu", *where) == 0
    out = capsys.readouterr().out
    assert out.count("# OSU MPI Allreduce Latency Test") == 1
    assert re.search(r"^4194304\s+(\S+)", out, re.MULTILINE)
    assert report(studies[0], "--format", "nccl-tests", *where) == 0
    assert capsys.readouterr().out.count("# Avg bus bandwidth") == 1
    assert report(studies[0], "--format", "csv", *where) == 0
    rows = list(csv.DictReader(io.StringIO(out := capsys.readouterr().out)))
    assert len(rows) == 5 * 4 and {one["factor fabric"] for one in rows} == {"10g"}
    assert not out.endswith("\n\n") and not out.endswith("\r\n\n")


def test_csv_of_a_file_has_every_row(studies, tmp_path, capsys):
    path = tmp_path / "rows.csv"
    assert report(*studies, "--format", "csv", "-o", path) == 0
    assert capsys.readouterr().out == ""
    assert len(list(csv.DictReader(path.open()))) == 2 * (3 * 2 * 5 * 4 + 1)


def test_the_margin_is_the_declared_one_unless_an_option_gives_another(tmp_path, capsys):
    folder = write(tmp_path / "study", rows_of_links(1.2), margin=0.5)
    for options, margin in (((), 0.5), (("--margin", 0.02), 0.02)):
        assert report(folder, "--format", "json", "--reference", "1g", *options) == 0
        (study,) = json.loads(capsys.readouterr().out)["studies"]
        assert {one["margin"] for one in study["verdicts"]} == {margin}
        assert {one["reference"] for one in study["verdicts"]} == {"1g"}
    for margin in ("-1", "5"):  # 5 for 5 %
        assert report(folder, "--format", "json", "--margin", margin) == 2
        assert f"margin must be between 0 and 1, got {margin}" in capsys.readouterr().err


def test_one_fabric_has_a_page_without_a_verdict(tmp_path, capsys):
    folder = write(tmp_path / "study", [row("a", 0), row("a", 1)])
    assert report(folder, "-o", tmp_path / "page.html") == 0
    text = (tmp_path / "page.html").read_text()
    assert "study has no verdict: no setting has two levels of the compared factor" in text


def test_fabrics_without_a_common_setting_have_no_verdict(tmp_path, capsys):
    folder = write(tmp_path / "study", [row("a", nodes=2), row("b", nodes=4)])
    assert report(folder, "-o", tmp_path / "page.html") == 0
    assert "study: no verdict: no setting has two levels of fabric." in capsys.readouterr().out


def test_where_takes_bytes_as_a_study_does_and_refuses_what_no_factor_is(tmp_path, capsys):
    rows = [row(fabric, k, bytes=size) for fabric in "ab" for k in (0, 1) for size in (2**20, 9)]
    folder = write(tmp_path / "study", rows)
    for text in ("1MiB", "1048576"):
        assert report(folder, "--format", "csv", "--where", f"bytes={text}") == 0
        found = [*csv.DictReader(io.StringIO(capsys.readouterr().out))]
        assert {one["factor bytes"] for one in found} == {"1048576"}
    for where, words in (
        (["byte=9"], "--where: 'byte' is not known. Did you mean 'bytes'"),
        (["bytes=many"], "--where bytes must be a positive number of bytes"),
        (["fabric=a", "fabric=b"], "--where names fabric twice"),
        (["bytes=2MiB"], "has no row with bytes=2MiB"),
    ):
        options = [word for one in where for word in ("--where", one)]
        assert report(folder, "--format", "csv", *options) == 2
        assert words in capsys.readouterr().err


def test_studies_of_one_name_are_distinguished(tmp_path, capsys):
    rows = rows_of_links(replicates=2)
    folders = [write(tmp_path / name / "study", rows) for name in ("x", "y")]
    assert report(*folders, "--format", "json") == 0
    names = [one["study"] for one in json.loads(capsys.readouterr().out)["studies"]]
    assert names == ["study", "study (2)"]


def test_mistakes_in_the_arguments(tmp_path, studies, capsys):
    for options, words in (
        ([tmp_path], "holds no study"),
        ([studies[0], "--where", "nodes=3"], "has no row with nodes=3"),
        ([studies[0], "--where", "nodes"], "must be FACTOR=LEVEL"),
        ([studies[0], "--reference", "z"], "No fabric is named 'z'"),
        ([studies[0], "--format", "osu", "--where", "workload=training"], "no micro-benchmark"),
    ):
        assert report(*options) == 2
        assert words in capsys.readouterr().err


def test_without_bokeh_it_says_what_to_install(studies, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "bokeh", None)
    for name in ("_charts", "_cycle", "_phases", "_sections", "_study_charts", "_study_page"):
        monkeypatch.delitem(sys.modules, f"jdaso.report.{name}", raising=False)
        monkeypatch.delattr(f"jdaso.report.{name}", raising=False)
    assert report(studies[0]) == 1
    assert 'pip install "jdaso[report]"' in capsys.readouterr().err


def test_pictures_for_papers_are_the_same_for_the_same_rows(tmp_path, capsys):
    rows = [one for one in rows_of_links(1.2, replicates=2) if one["factors"]["fabric"] != "10g"]
    folder = write(tmp_path / "study", rows)
    for name in ("x", "y"):
        options = ("--format", "csv", "-o", tmp_path / "a.csv", "--plots", tmp_path / name)
        options += ("--where", "workload=allreduce", "--where", "nodes=2")
        assert report(folder, *options) == 0
    first, second = (
        {path.name: path.read_bytes() for path in (tmp_path / name).glob("*.svg")}
        for name in ("x", "y")
    )
    assert first == second and first.keys() == {
        "bandwidth-allreduce-2.svg", "time-allreduce-2.svg", "ratios-study-1g-b-1g.svg",
    }  # fmt: skip

    assert {path.suffix for path in (tmp_path / "x").iterdir()} == {".svg", ".png"}
    assert all(text.startswith(b"<?xml") and len(text) > 5000 for text in first.values())


def test_pictures_of_levels_that_differ_in_a_sign_have_files_of_their_own(tmp_path):
    """open-mpi and open.mpi make the same name of a file, and mpich-2 may be another's number."""
    rows = [
        row("a", k, [seconds] * 3, library=library)
        for library, seconds in (("open-mpi", 1.0), ("open.mpi", 2.0), ("mpich", 3.0))
        for k in range(2)
    ]
    folder = write(tmp_path / "study", rows)
    options = ("--format", "csv", "-o", tmp_path / "a.csv", "--compare", "library")
    assert report(folder, *options, "--plots", tmp_path / "plots") == 0
    names = {path.stem for path in (tmp_path / "plots").glob("ratios-*.svg")}
    assert names == {
        "ratios-study-open-mpi-mpich",
        "ratios-study-open-mpi-mpich-2",
        "ratios-study-open-mpi-open-mpi",
    }
    first, second = (
        (tmp_path / "plots" / f"ratios-study-open-mpi-mpich{end}.svg").read_bytes()
        for end in ("", "-2")
    )
    assert first != second


@pytest.mark.parametrize("made", ["csv", "osu", "nccl-tests"])
def test_options_that_change_nothing_are_refused(made, studies, tmp_path, capsys):
    for option, level in (("compare", "library"), ("reference", "1g"), ("margin", "0.1")):
        assert report(studies[0], "--format", made, f"--{option}", level) == 2
        told = capsys.readouterr()
        assert f"--{option} is for verdicts, and --format {made} has none." in told.err
        assert f"Leave --{option} out, or take --format html" in told.err and told.out == ""
    assert report(studies[0], "--format", made, "--title", "x", "--plots", tmp_path) == 2
    assert f"--title is for the page, got --format {made}. Leave" in capsys.readouterr().err
    where = ("--where", "workload=allreduce", "--where", "nodes=2", "--plots", tmp_path / made)
    assert report(studies[0], "--format", made, "--reference", "1g", *where) == 0
    assert (tmp_path / made / "ratios-equal-10g-1g.svg").exists()


@pytest.mark.parametrize("made", ["html", "json"])
def test_a_reference_that_is_no_level_is_refused_also_beside_a_single_one(made, tmp_path, capsys):
    folder = write(tmp_path / "study", [row("a", 0), row("a", 1)])
    about = (folder, "--format", made, "-o", tmp_path / "answers")
    assert report(*about, "--reference", "nosuch") == 2
    assert "No fabric is named 'nosuch'. Choose one of a." in capsys.readouterr().err
    assert report(*about, "--compare", "model", "--reference", "nosuch") == 2
    assert "No model is named 'nosuch'. The rows have none" in capsys.readouterr().err
    assert report(*about, "--reference", "a") == 0


def test_a_file_that_cannot_be_written_is_told_with_its_remedy(studies, tmp_path, capsys):
    (tmp_path / "file").write_text("")
    nowhere = tmp_path / "file" / "answers"
    for option, made in (("--output", "html"), ("--output", "csv"), ("--plots", "csv")):
        assert report(studies[0], "--format", made, option, nowhere) == 2
        told = capsys.readouterr().err
        assert f"cannot write {nowhere}: Not a directory. Free space, or choose" in told
        assert f"another place with {option}." in told
