"""Reading runs, thinning, and a page in which no content of a run is markup or script."""

import base64
import gzip
import re
import sys
import time
from html.parser import HTMLParser

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from recorded import STATS, header, long_run, step, write_run

import jdaso
from jdaso.cli import main
from jdaso.report import ReportError, _cycle, make_page, read_run, thin
from jdaso.report._cycle import Bar, bars_of, cycle_of
from jdaso.report._html import short, text_of
from jdaso.report._phases import phase_spans, stairs, time_charts
from jdaso.report._sections import _signs
from jdaso.report._series import of_run, over_nodes
from jdaso.report._tables import summary_table

finite = st.floats(-1e6, 1e6)


@given(st.lists(finite, min_size=1, max_size=300), st.integers(1, 20))
def test_thinning_keeps_extremes_ends_and_the_sum(values, bins):
    y = np.array(values)
    x = np.arange(y.size, dtype=float)
    thinned = thin(x, y, bins)
    assert thinned.x.size <= max(bins, 1)
    assert thinned.low.min() == y.min() and thinned.high.max() == y.max()
    assert (np.diff(thinned.x) > 0).all()
    slack = 1e-9 * (1 + np.abs(y).max())
    assert (thinned.low <= thinned.mean + slack).all()
    assert (thinned.mean <= thinned.high + slack).all()


def test_a_short_series_stays_as_it_is_and_what_is_not_finite_is_left_out():
    thinned = thin(np.arange(4.0), np.array([1.0, np.nan, np.inf, 4.0]), 10)
    assert thinned.x.tolist() == [0.0, 3.0] and thinned.mean.tolist() == [1.0, 4.0]


def test_a_peak_of_one_step_in_a_million_is_still_there():
    y = np.zeros(1_000_000)
    y[123_456] = 7.0
    thinned = thin(np.arange(y.size, dtype=float), y)
    assert thinned.high.max() == 7.0 and thinned.x.size <= 100


def test_short_numbers():
    assert [short(x) for x in (0, 1e-5, 12345, 2.5e9)] == ["0", "1e-05", "12.35 k", "2.5 G"]


def test_rows_are_read_and_damaged_ones_are_named_and_left_out(tmp_path):
    good = [header(0), *(step(n, loss=1 / n) for n in range(1, 5)), {"kind": "end"}]
    bad = [
        '{"kind":"step","step":5,"sec',
        "null",
        '{"kind":"step","step":-1,"seconds":1}',
        '{"kind":"step","step":6,"seconds":"soon"}',
        '{"kind":"step","step":6,"seconds":NaN}',
        '{"kind":"step","step":6,"seconds":1,"bytes_sent":"NaN"}',
        '{"kind":"unknown"}',
        '{"kind":"step","step":6,"seconds":1,"loss":[1]}',
        f'{{"kind":"step","step":6,"seconds":{10**400}}}',
        "[" * 100_000,
        "\x00\ufffd",
        '{"kind":"checkpoint","step":3}',
    ]
    path = write_run(tmp_path, [good]) / "node-00000.jsonl"
    path.write_text("\n".join([*bad[:1], path.read_text().strip(), *bad[1:]]))
    run = read_run(tmp_path)
    assert run.nodes[0].columns["step"].tolist() == [1, 2, 3, 4] and run.nodes[0].ended
    assert run.nodes[0].columns["loss"].tolist() == [1 / n for n in range(1, 5)]
    lines = [1, *range(8, 19)]
    assert [int(re.search(r"node-00000.jsonl, line (\d+): ", x)[1]) for x in run.damaged] == lines
    assert "Left out: 12 damaged rows." in make_page([run])


def test_what_cannot_be_reported_on_says_what_to_do(tmp_path, capsys):
    assert main(["report", str(tmp_path / "none")]) == 2
    assert "none is not a folder. Give the folder" in capsys.readouterr().err
    assert main(["report", str(tmp_path)]) == 2
    assert "has no node-*.jsonl" in capsys.readouterr().err
    assert main(["report", "s3://bucket/run"]) == 2
    assert "s3://bucket/run" in capsys.readouterr().err
    write_run(tmp_path, [[header(0)]])
    with pytest.raises(ReportError, match="has no row of a step"):
        read_run(tmp_path)
    with pytest.raises(ReportError, match="no runs"):
        make_page([])


def test_a_restarted_run_is_joined(tmp_path):
    first = [header(0, time=100.0), *(step(n, bytes_sent=n) for n in range(1, 7))]
    second = [header(0, time=120.0), *(step(n, bytes_sent=n - 4) for n in range(5, 9))]
    (node,) = read_run(write_run(tmp_path, [first + second])).nodes
    assert node.columns["step"].tolist() == list(range(1, 9)) and node.starts == 2
    assert node.columns["seconds"].tolist() == [0.1, 0.2, 0.3, 0.4, 20.5, 20.6, 20.7, 20.8]
    assert node.columns["bytes_sent"].tolist() == [1, 2, 3, 4, 7, 8, 9, 10]
    (mark,) = node.marks
    assert mark.kind == "fault" and mark.step == 6 and "without a report" in mark.text


def test_a_checkpoint_that_a_node_could_not_write_does_not_count(tmp_path):
    """Nor is its fault taken for the reason of a later end."""
    saves = [{"kind": "checkpoint", "step": n, "seconds": n / 10} for n in (2, 4)]
    text = "a checkpoint could not be written: No space left"
    fails = {"kind": "fault", "step": 4, "seconds": 0.4, "text": text}
    steps = [step(n, loss=1.0) for n in range(1, 7)]
    again = [header(1, time=120.0), step(5), saves[1] | {"step": 6}]
    nodes = [[header(0, time=100.0), *steps, *saves], [header(1), *steps, saves[0], fails]]
    run = read_run(write_run(tmp_path, [nodes[0], [*nodes[1], *again]]))
    assert run.saved_steps == {2, 6}
    assert "without a report" in " ".join(mark.text for mark in run.nodes[1].marks)
    signs = [sign.text for sign in _signs(run, "step") if sign.kind == "checkpoint"]
    assert [re.search(r"step \d", text)[0] for text in signs] == ["step 2"]
    assert '<th scope="row">checkpoints</th><td>2</td>' in make_page([run])


def test_a_run_that_was_made_anew_leaves_the_older_one_out(tmp_path, capsys):
    totals = dict.fromkeys(STATS, 0) | {"bytes_sent": 30}
    end = {"kind": "end", "seconds": 0.5} | totals
    older = [[header(k, time=100.0), step(1), step(2), step(3), end] for k in (0, 1)]
    newer = [header(0, time=900.0), step(1, bytes_sent=7), step(2, bytes_sent=14), end]
    folder = write_run(tmp_path / "run", [older[0] + newer, older[1]])
    run = read_run(folder)
    (node,) = run.nodes
    assert run.older and node.starts == 1
    assert node.columns["seconds"].tolist() == [0.1, 0.2]
    assert (node.totals["bytes_sent"], node.totals["seconds"]) == (30, 0.5)  # of its end
    assert main(["report", str(folder), "-o", str(tmp_path / "page.html")]) == 0
    assert "older run in the folder is left out" in capsys.readouterr().out


def test_a_run_that_died_and_began_again_with_its_first_step_is_one_run(tmp_path):
    first = [header(0, time=100.0), step(1), step(2)]
    second = [header(0, time=150.0), step(1), step(2), step(3)]
    run = read_run(write_run(tmp_path, [first + second]))
    (node,) = run.nodes
    assert node.starts == 2 and not run.older
    assert node.columns["seconds"].tolist() == [50.1, 50.2, 50.3]  # the time lost is in it


@pytest.mark.parametrize("silent", [0, 1])
def test_a_node_without_a_step_in_the_newer_run_shows_none_of_the_older(silent, tmp_path):
    older = [[header(k, num_nodes=2), *map(step, (1, 2, 3)), {"kind": "end"}] for k in (0, 1)]
    newer = [[header(k, num_nodes=2, time=900.0), step(1), step(2)] for k in (0, 1)]
    newer[silent][1:] = []
    run = read_run(write_run(tmp_path, [a + b for a, b in zip(older, newer, strict=True)]))
    steps = [node.columns["step"].tolist() for node in run.nodes]
    assert steps[1 - silent] == [1, 2] and steps[silent] == []
    assert run.older and [node.starts for node in run.nodes] == [1, 1]


def test_a_start_that_failed_before_its_first_step_does_not_join_two_runs(tmp_path):
    older = [header(0), step(1), step(2), {"kind": "end"}]
    failed, newer = [header(0, time=500.0)], [header(0, time=900.0), step(1, loss=7.0)]
    run = read_run(write_run(tmp_path, [older + failed + newer]))
    assert run.older and run.nodes[0].columns["step"].tolist() == [1]


def test_a_run_that_is_recorded_at_every_tenth_step_is_told_from_the_next(tmp_path):
    rows = [*map(step, (10, 20)), {"kind": "end"}]
    run = read_run(write_run(tmp_path, [[header(0), *rows, header(0, time=900.0), *rows]]))
    assert run.older and run.nodes[0].starts == 1


def test_a_run_that_goes_on_with_fewer_rows_forgets_what_was_made_again(tmp_path):
    """Node 1 has no row of the second start, which went back to step 2."""
    first = [[header(k, num_nodes=2), *(step(n, loss=9.0) for n in (1, 2, 3))] for k in (0, 1)]
    second = [header(0, num_nodes=2, time=200.0), step(2, loss=1.0), step(3, loss=1.0)]
    run = read_run(write_run(tmp_path, [first[0] + second, first[1]]))
    np.testing.assert_array_equal(over_nodes(run, ("loss",))["loss"], [9, 1, 1])


@pytest.mark.parametrize("behind", [0, 1])
def test_a_restart_on_a_host_whose_clock_is_behind_is_the_later_start(behind, tmp_path):
    """The clocks of the two first starts differ by a day, in either direction."""
    times = [100.0, 86_500.0][:: 1 - 2 * behind]
    starts = [[header(0, time=times[0]), step(1), step(2)], [header(0, time=times[1]), step(2)]]
    run = read_run(write_run(tmp_path, [sum(starts, []), [header(1, time=times[1]), step(2)]]))
    assert not run.older and [node.starts for node in run.nodes] == [2, 1]
    seconds = [node.columns["seconds"] for node in run.nodes]
    assert (np.diff(seconds[0]) > 0).all() and seconds[0][-1] == pytest.approx(seconds[1][-1])


def test_means_over_nodes_are_over_those_that_have_the_step(tmp_path):
    nodes = [
        [header(0), step(1, loss=1.0), step(2, loss=3.0)],
        [header(1), step(1, loss=2.0), step(2, loss=None), step(3)],
    ]
    run = read_run(write_run(tmp_path, nodes))
    loss = over_nodes(run, ("loss",))["loss"]
    np.testing.assert_array_equal(loss, [1.5, 3.0, np.nan])
    assert [x.tolist() for x in of_run(run, "loss", "step")] == [[1, 2], [1.5, 3.0]]


def test_a_loss_that_is_no_longer_finite_is_in_the_summary(tmp_path):
    """On node 1 from step 39 on; an exchange would spread it."""
    losses = [[1 / n for n in range(1, 41)] for _ in range(2)]
    losses[1][38:] = ["NaN", "-Infinity"]
    nodes = [
        [header(k), *(step(n, loss=loss, rate=0.5) for n, loss in enumerate(losses[k], 1))]
        for k in (0, 1)
    ]
    run = read_run(write_run(tmp_path, nodes))
    rows = text_of(summary_table([run]))
    assert '<th scope="row">loss, at the end</th><td>not finite</td>' in rows
    assert '<th scope="row">loss, not finite</th><td>2 of 40 steps, the first 39</td>' in rows
    assert '<th scope="row">rate, at the end</th><td>0.5</td>' in rows
    assert "rate, not finite" not in rows
    assert "Loss against steps" in make_page([run])


def test_a_step_that_is_recorded_twice_counts_once_with_its_latest_numbers(tmp_path):
    """In one start: as after a restore by the program, and a number that came later."""
    rows = [step(1, loss=8.0), step(2, loss=8.0), step(3, loss=8.0)]
    rows += [step(2, loss=2.0) | {"seconds": 0.4}, step(3, loss=3.0) | {"seconds": 0.5}]
    rows += [step(3, accuracy=0.5) | {"seconds": 0.6}]
    (node,) = read_run(write_run(tmp_path, [[header(0), *rows]])).nodes
    assert node.columns["step"].tolist() == [1, 2, 3] and len(node.phases) == 3
    assert node.columns["loss"].tolist() == [8, 2, 3]
    assert node.columns["seconds"].tolist() == [0.1, 0.4, 0.6]
    assert node.columns["accuracy"][-1] == 0.5


def test_charts_over_seconds_go_forward(tmp_path):
    """Step 2 was recorded on a slow node only, step 3 on a fast one only."""
    first = [header(0, num_nodes=2), step(1), step(3)]
    second = [header(1, num_nodes=2), step(1), step(2) | {"seconds": 9.0}]
    (chart,) = time_charts([read_run(write_run(tmp_path, [first, second]))])
    rows = [[row[0].text for row in table.iter("tr")][1:] for table in chart.iter("table")]
    assert rows == [["0.1", "0.3", "9"]] * 2


def test_numbers_that_stay_are_kept_where_they_change():
    x, y = np.arange(1.0, 8.0), np.array([4.0, 4, 2, 2, 2, 4, 4])
    assert [column.tolist() for column in stairs(x, y)[:2]] == [[1, 3, 6, 7], [4, 2, 4, 4]]
    one = stairs(x[:1], y[:1])
    assert one.x.tolist() == [1] and one.mean.tolist() == [4]
    many = stairs(np.arange(1000.0), np.arange(1000.0) % 2)
    assert many.x.size == 100 and (many.low == 0).all() and (many.high == 1).all()


def test_without_bokeh_the_command_says_what_to_install(tmp_path, capsys, monkeypatch):
    folder = write_run(tmp_path / "run", [[header(0), step(1, loss=1.0)]])
    monkeypatch.setitem(sys.modules, "bokeh", None)
    for name in ("_charts", "_cycle", "_phases", "_sections"):
        monkeypatch.delitem(sys.modules, f"jdaso.report.{name}", raising=False)
        monkeypatch.delattr(f"jdaso.report.{name}", raising=False)
    assert read_run(folder).steps == 1
    assert main(["report", str(folder), "-o", str(tmp_path / "page.html")]) == 1
    said = capsys.readouterr()
    assert "which is missing" in said.err and 'pip install "jdaso[report]".\n' in said.err
    assert said.err.count("\n") == 1 and not said.out and not (tmp_path / "page.html").exists()


def test_spans_of_phases(tmp_path):
    names = ["warm-up", "warm-up", "cycling", "cool-down"]
    rows = [step(n, phase=name) for n, name in enumerate(names, 1)]
    (node,) = read_run(write_run(tmp_path, [[header(0), *rows]])).nodes
    assert phase_spans(node) == [
        ("warm-up", 0.0, 0.2),
        ("cycling", 0.2, 0.3),
        ("cool-down", 0.3, 0.4),
    ]


def test_the_cycle_comes_from_traces_where_there_are_any(tmp_path):
    events = [{"name": "exchange", "step": 4 * k, "begin": k, "end": k + 0.4} for k in range(3)]
    rows = [header(0), step(1), step(2), {"kind": "events", "events": [*events, {"name": 3}]}]
    run = read_run(write_run(tmp_path, [rows]))
    begin, end = cycle_of(bars_of(run))
    assert (round(begin, 2), round(end, 2)) in [(-0.06, 1.06), (0.94, 2.06)]
    with jdaso.Session(trace=tmp_path) as session:
        begin = time.perf_counter()
        for k in range(3):
            session.timeline.record("exchange", k, begin + k - 10)
    (left_out,) = (run := read_run(tmp_path)).damaged
    assert left_out == "node-00000.jsonl, line 4: 1 of 4 events left out: its begin is None"
    file = tmp_path / "node-00000.jsonl"
    file.write_text(file.read_text()[:-4])  # as a process that is killed leaves it
    bars = [bar for bar in bars_of(run) if bar.name == "exchange"]
    assert [bar.step for bar in bars] == [0, 1, 2]
    apart = [bar.begin - bars[0].begin for bar in bars]
    assert apart == pytest.approx([0, 1, 2], abs=1e-5)
    write_run(tmp_path, [rows])
    assert [bar.step for bar in bars_of(run) if bar.name == "exchange"] == [0, 4, 8]


@pytest.mark.parametrize(
    ("event", "why"),
    [
        ('"step":[1],"begin":1,"end":2', "its step is [1]"),
        ('"step":true,"begin":1,"end":2', "its step is True"),
        ('"step":"4","begin":1,"end":2', "its step is '4'"),
        ('"step":1,"begin":NaN,"end":2', "its begin is nan"),
        ('"step":1,"begin":1,"end":Infinity', "its end is inf"),
        (f'"step":1,"begin":{10**400},"end":2', "its begin is 1000"),
        ('"step":1,"begin":false,"end":2', "its begin is False"),
        ('"step":1,"begin":1', "its end is None"),
    ],
)
def test_a_damaged_event_is_named_and_the_others_are_drawn(event, why, tmp_path):
    """A step is a whole number, null, or missing; begin and end are finite."""
    first, last = '"begin":3,"end":4,"step":null', '"begin":5,"end":6'
    some = ",".join(f'{{"name":"exchange",{one}}}' for one in (first, event, last))
    row = f'{{"kind":"events","events":[{some}]}}'
    run = read_run(write_run(tmp_path, [[header(0), step(1, loss=1.0), row]]))
    (left_out,) = run.damaged
    assert left_out.startswith(f"node-00000.jsonl, line 3: 1 of 3 events left out: {why}")
    assert [bar.begin for bar in bars_of(run)] == [3, 5]
    page = make_page([run])
    assert "Left out: 1 damaged row." in page and "A cycle: " in page


@pytest.mark.parametrize("events", [[5], ["begin"], [None]])
def test_an_event_that_is_no_object_is_left_out(events, tmp_path):
    rows = [header(0), step(1, loss=1.0), {"kind": "events", "events": events}]
    (left_out,) = read_run(write_run(tmp_path, [rows])).damaged
    assert left_out.endswith("1 of 1 events left out: it is not a JSON object")


def test_one_step_on_several_tracks_of_a_trace_is_no_cycle():
    bars = [Bar(0, "mean", k, k + 1e-5 * n, k + 0.5) for k in range(4) for n in range(3)]
    begin, end = cycle_of(bars)
    assert end - begin == pytest.approx(1.12)
    begin, end = cycle_of([bar._replace(step=None) for bar in bars[::3]])
    assert end - begin == pytest.approx(1.12)


def test_a_cycle_runs_from_one_start_of_a_fragment_to_its_next():
    """Four fragments, one a step: the cycle has four steps, not one."""
    bars = [Bar(0, "exchange", k, k, k + 0.5, str(1 + k % 4)) for k in range(12)]
    begin, end = cycle_of(bars)
    assert end - begin == pytest.approx(4 * 1.12)


class Tags(HTMLParser):
    def __init__(self, page):
        super().__init__()
        self.tags, self.attributes = [], []
        self.feed(page)

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        self.attributes += [name for name, _ in attributes]


def test_nothing_that_was_read_becomes_markup(tmp_path):
    evil = '"><script>alert(1)</script><img src=x onerror=alert(1)>&amp;'
    rows = [
        header(0, host=evil, settings={evil: {evil: evil}}, versions={evil: evil}),
        step(1, phase=evil, **{evil: 1.0}),
        {"kind": "fault", "step": 1, "seconds": 1, "text": evil},
        {"kind": "events", "events": [{"name": evil, "step": evil, "begin": 0, "end": 1}]},
        {"kind": "events", "events": [{"name": "exchange", "step": evil, "begin": 0, "end": 1}]},
        evil,
    ]
    folder = tmp_path / evil.replace("/", "|")
    tame = make_page([read_run(write_run(tmp_path / "tame", [[header(0), step(1, loss=1.0)]]))])
    page = make_page([read_run(write_run(folder, [rows]))], title=evil)
    found = Tags(page)
    assert "img" not in found.tags and "alert(1)" in page
    assert found.tags.count("script") == 2 + found.tags.count("figure")
    assert not [name for name in found.attributes if name.startswith("on")]
    assert set(found.tags) >= set(Tags(tame).tags)
    assert "http-equiv" in found.attributes and "default-src 'none'; script-src 'sha256-" in page


def test_a_long_run_of_many_nodes_makes_a_small_page():
    """Bokeh, compressed, is 0.47 MB of it."""
    page = make_page([long_run(name, steps=10_000) for name in ("first", "second")])
    assert 450_000 < len(page) < 750_000


def test_runs_of_one_name_are_distinguished(tmp_path):
    folders = [write_run(tmp_path / x / "run", [[header(0), step(1, loss=1.0)]]) for x in "ab"]
    output = tmp_path / "page.html"
    assert main(["report", *map(str, folders), "-o", str(output)]) == 0
    page = output.read_text()
    assert "run (1)" in page and "run (2)" in page


def test_a_run_without_numbers_of_its_own_still_has_a_page(tmp_path):
    page = make_page([read_run(write_run(tmp_path, [[header(0), step(1)]]))])
    assert "Nodes of" in page and "Loss" not in page


@pytest.mark.parametrize(
    ("losses", "log"), [([5.0, 0.1], True), ([5.0, 1.0], False), ([5, 0], False)]
)
def test_a_loss_that_falls_far_is_drawn_on_a_log_scale(losses, log, tmp_path):
    rows = [header(0), *(step(n, loss=loss) for n, loss in enumerate(losses, 1))]
    page = make_page([read_run(write_run(tmp_path, [rows]))])
    packed = re.findall(r'<script type="text/plain">([^<]+)<', page)
    charts = [gzip.decompress(base64.b64decode(text)).decode() for text in packed]
    assert charts and all('"Figure"' in text for text in charts)
    for sign in ("loss, log scale", "LogScale"):
        assert any(sign in text for text in charts) == log


def test_nodes_that_came_later_and_nodes_that_left(tmp_path):
    """Node 1 came at the second start; at the third, from step 3, it was not there."""
    first = [header(0, time=100.0), *(step(n, loss=1.0) for n in (1, 2))]
    second = [header(k, time=200.0, num_nodes=2) for k in (0, 1)]
    third = [header(0, time=300.0), *(step(n, loss=3.0) for n in (3, 4))]
    both = [step(n, loss=1.0 + k) for n in (3, 4) for k in (0, 1)]
    nodes = [[*first, second[0], *both[::2], *third], [second[1], *both[1::2]]]
    run = read_run(write_run(tmp_path, nodes))
    assert [node.columns["step"].tolist() for node in run.nodes] == [[1, 2, 3, 4], []]
    assert run.nodes[1].ended and run.steps == 4
    loss = over_nodes(run, ("loss",))["loss"]
    np.testing.assert_array_equal(loss, [1, 1, 3, 3])
    page = make_page([run])
    assert "200.4" in page and "1 at the end, 2 in all" in page


def test_a_node_that_has_no_row_yet(tmp_path, capsys):
    folder = write_run(tmp_path / "run", [[header(0)], [header(1), step(1, loss=2.0)]])
    assert main(["report", str(folder), "-o", str(tmp_path / "page.html")]) == 0
    assert "2 nodes, 1 step" in capsys.readouterr().out
    page = (tmp_path / "page.html").read_text()
    assert "nan" not in re.sub("<script.*?</script>", "", page, flags=re.DOTALL).lower()


def test_a_run_without_steps_is_left_out_of_several(tmp_path, capsys):
    write_run(tmp_path / "good", [[header(0), step(1, loss=1.0)]])
    (tmp_path / "bad").mkdir()
    page = tmp_path / "page.html"
    folders = [str(tmp_path / name) for name in ("bad", "good")]
    assert main(["report", *folders, "-o", str(page)]) == 0
    assert "left out" in capsys.readouterr().err and page.stat().st_size > 1000
    assert main(["report", folders[0], folders[0], "-o", str(page)]) == 2


def test_traces_that_cannot_be_read_or_are_large_leave_the_rows(tmp_path, monkeypatch):
    rows = [header(0), step(1, loss=1.0), step(2, loss=1.0)]
    write_run(tmp_path, [rows])
    run = read_run(tmp_path)
    bars = bars_of(run)
    assert bars
    monkeypatch.setattr(_cycle, "_MOST_BYTES", 10)
    assert bars_of(run) == bars

    def fails(folder):
        raise OSError(5, "broken")

    monkeypatch.undo()
    monkeypatch.setattr(_cycle.traces, "read", fails)
    assert bars_of(run) == bars
