"""The page of a study, and the command that makes it and the other formats."""

import argparse
import csv
import io
import json
import os
import re
import sys
from html.parser import HTMLParser

import numpy as np
import pytest
from browser import Browser, find_browser
from study_rows import row, write

from jdaso.cli import _study_report
from jdaso.fabric._study.curves import charts_of
from jdaso.fabric._study.measured import launches_of

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
    folder = tmp_path_factory.mktemp("studies")
    found = {"equal": rows_of_links(), "slower <b>": rows_of_links(1.2, seed=2)}
    return [str(write(folder / name, rows)) for name, rows in found.items()]


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


def test_verdicts_are_first_and_two_studies_stand_beside_each_other(page):
    found = Page(page.read_text())
    assert found.headings[0] == "Verdicts" and [*found.tables][0] == "Verdicts"
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
        "Verdicts",
        "Ratios",
        "Bandwidth against bytes",
        "Latency against bytes",
        "Throughput against nodes",
        "Exposed communication",
        "Latency and bandwidth",
        "Cells",
        "Launches without numbers",
        "Machine and versions",
    ]
    assert "Bus bandwidth: allreduce, 4 nodes: equal: 10g mpich" in found.tables
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
    assert browser.run(drawn) == [1] * (6 + 4 + 2)


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
    assert curve.label == "a" and curve.x.tolist() == [1000, 4000]
    assert [curve.low[0], curve.median[0], curve.high[0]] == pytest.approx([12.0, 20.0, 20.0])
    (curve,) = charts["bandwidth-allreduce-2"].curves
    assert curve.median[0] == pytest.approx(1000 / 20e-6 / 1e9)
    (curve,) = charts["throughput-training"].curves
    assert curve.x.tolist() == [1, 4] and curve.median == pytest.approx([8 / 0.5, 32 / 0.5])
    assert charts["throughput-training"].y_label == "samples per second"
    (curve,) = charts["exposed-training"].curves
    assert curve.median == pytest.approx([20, 20])
    assert charts["time-allreduce-2"].log and not charts["throughput-training"].log
    twice = charts_of({"x": launches_of(rows), "y": launches_of(rows)})
    assert [curve.label for curve in twice[0].curves] == ["x: a", "y: a"]


def test_json_has_the_answers(studies, capsys):
    assert report(*studies, "--format", "json") == 0
    found = json.loads(capsys.readouterr().out)
    assert found["format"] == 1 and len(found["studies"]) == 2
    second = found["studies"][1]
    pair = {"fabric": "1g-b", "reference": "1g"}
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


def test_other_formats_and_a_choice_of_rows(studies, capsys):
    where = ("--where", "fabric=10g", "--where", "nodes=2")
    assert report(studies[0], "--format", "osu", *where) == 0
    out = capsys.readouterr().out
    assert out.count("# OSU MPI Allreduce Latency Test") == 1
    assert re.search(r"^4194304\s+(\S+)", out, re.MULTILINE)
    assert report(studies[0], "--format", "nccl-tests", *where) == 0
    assert capsys.readouterr().out.count("# Avg bus bandwidth") == 1
    assert report(studies[0], "--format", "csv", *where) == 0
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out.strip())))
    assert len(rows) == 5 * 4 and {one["factor fabric"] for one in rows} == {"10g"}


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
    assert report(folder, "--format", "json", "--margin", "-1") == 2
    assert "margin must be above 0" in capsys.readouterr().err


def test_one_fabric_has_a_page_without_a_verdict(tmp_path, capsys):
    folder = write(tmp_path / "study", [row("a", 0), row("a", 1)])
    assert report(folder, "-o", tmp_path / "page.html") == 0
    assert "study has one fabric, and so no verdict" in (tmp_path / "page.html").read_text()


def test_studies_of_one_name_are_told_apart(tmp_path, capsys):
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
