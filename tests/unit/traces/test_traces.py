"""Traces: rows, clocks, files that were cut short, profiles that are joined."""

import gzip
import json
import os
import queue
import random
import threading
import time

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import traces_checked

import jdaso
from jdaso import Event, hidden_share, metrics
from jdaso._mpi.topology import Topology
from jdaso._nodes.control import Control
from jdaso.cli import main
from jdaso.cli import trace as trace_command
from jdaso.report._runs import read_run
from jdaso.traces import TraceError, merge, profiles_in, read, write
from jdaso.traces._chrome_format import TraceRows, _place
from jdaso.traces._clock_offset import Offset, fastest, measure
from jdaso.traces._intervals import Stretches
from jdaso.traces._recorder import TraceRecorder
from jdaso.traces._timeline import Timeline
from jdaso.traces._write import untangled

EVENTS = [
    Event("compute", 3, 10.0, 10.5, "device 0"),
    Event("pack", 3, 10.5, 10.7, "device 0"),
    Event("copy", 3, 10.6, 10.65, "device 0", size_bytes=400, of="1.4"),
    Event("exchange", 3, 10.61, 11.0, "exchange", None, 800, "1.4"),
    Event("chunk", 3, 10.62, 10.9, "worker 0", 0, 400, "1.4"),
    Event("wait", 3, 10.98, 11.0, "device 0", of="1.4"),
]


def recorder(folder, timeline=None):
    control = Control(Topology(0, 1, "here"), timeout_seconds=120.0)
    return TraceRecorder(folder, control, timeline or Timeline(), engine="mpi4py", devices=1)


def test_rows_are_chromes():
    made = TraceRows(2, lambda seconds: 1e6 * (seconds - 10))
    rows = made.process("h") + [row for event in EVENTS for row in made.of(event)]
    traces_checked.are_chromes(json.loads(json.dumps(rows)))
    bars = [row for row in rows if row["ph"] == "X"]
    assert bars[0]["ts"] == 0 and bars[0]["dur"] == 5e5 and bars[2]["args"]["of"] == "1.4"


def test_events_come_back(tmp_path):
    """Reads the latest run in the file, from between other rows."""
    for events in (EVENTS[:2], EVENTS):
        timeline = Timeline()
        written = recorder(tmp_path, timeline)
        zero = written._seconds(0.0)
        for event in events:
            begin, end = event.begin_seconds - zero, event.end_seconds - zero
            timeline.sink(event._replace(begin_seconds=begin, end_seconds=end))
        written.writer.put({"kind": "step", "step": 3})
        written.close(failed=False)
    (node,) = read(tmp_path).nodes
    assert node.closed and node.host == "here"
    assert list(node.events) == sorted(EVENTS, key=lambda x: (x.begin_seconds, -x.end_seconds))
    kinds = [json.loads(line)["kind"] for line in written.path.read_text().splitlines()]
    assert kinds.count("trace") == kinds.count("clock") == kinds.count("step") == 2


def test_events_do_not_wait_for_numbers(tmp_path, monkeypatch):
    """The file of a process killed in a hanging step shows the events."""
    never = object()
    monkeypatch.setattr("jdaso.traces._writer.is_ready", lambda value: value is not never)
    timeline = Timeline()
    written = recorder(tmp_path, timeline)
    written.writer.put({"kind": "step", "step": 1, "loss": never})
    timeline.record("wait", 1, time.perf_counter())
    written.writer.put_now({"kind": "fault", "step": 1})
    (node,) = read(tmp_path).nodes
    assert [event.name for event in node.events] == ["wait"] and not node.closed
    monkeypatch.undo()
    written.close(failed=True)


def test_metrics_of_the_same_folder_are_in_the_same_file(tmp_path):
    with jdaso.Session(trace=tmp_path / "run") as session:
        threads = threading.active_count()
        with metrics.Recorder(tmp_path / "run", session) as rows:
            assert threading.active_count() == threads
            with metrics.Recorder(tmp_path / "other", session) as others:
                for of in (rows, others):
                    of.step(1, loss=jnp.float32(0.5))
        session.timeline.record("step", 7, time.perf_counter())  # the trace goes on
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["node-00000.jsonl"]
    for name in ("run", "other"):
        run = read_run(tmp_path / name)
        assert run.nodes[0].last("loss") == 0.5 and run.nodes[0].ended and not run.damaged
    (node,) = read(tmp_path / "run").nodes
    assert [event.step for event in node.events] == [7] and node.closed
    with pytest.raises(TraceError, match="no node-.*jsonl with a trace"):
        read(tmp_path / "other")


def test_the_check_of_rows_finds_what_is_wrong():
    crossing = [Event("a", 0, 0.0, 2.0), Event("b", 0, 1.0, 3.0)]
    made = TraceRows(0, lambda seconds: 1e6 * seconds)
    with pytest.raises(AssertionError, match="cross"):
        traces_checked.are_chromes([row for event in crossing for row in made.of(event)])


def test_bars_that_would_cross_get_a_lane_of_their_own():
    events = [Event("a", 0, 0, 5), Event("b", 0, 1, 3), Event("c", 0, 2, 4), Event("d", 0, 4, 5)]
    lanes = {event.name: event.lane for event in untangled(reversed(events))}
    assert lanes == {"a": "steps", "b": "steps", "c": "steps (2)", "d": "steps"}
    assert _place("loss m\u00b2") == _place("loss")  # no digit that `int` takes
    places = [_place(x) for x in ("steps", "steps (2)", "device 0", "device 0 (2)", "device 1")]
    assert places == sorted(places)


def test_the_hidden_share_is_that_of_stats():
    lost, took = 0.05 + 0.02, 0.39
    stats = jdaso.Stats(exchanges=1, exchange_seconds=took, lost_seconds=lost)
    assert hidden_share(EVENTS) == pytest.approx(stats.hidden_share)
    mean = [Event("mean", 1, 0, 9, "exchange", of="1.2"), Event("wait", 1, 0, 9, of="1.2")]
    unended = [Event("copy", 7, 11.0, 12.0, "device 0", of="1.8")]
    other_device = [Event("wait", 3, 10.98, 11.0, "device 1")]
    assert hidden_share([*EVENTS, *mean, *unended, *other_device]) == hidden_share(EVENTS)
    assert hidden_share([]) == 1.0


def test_a_device_stands_still_with_the_one_that_waits():
    stretches = Stretches()
    stretches.stand("mean", 0, 0.5, 0.8, None)
    assert stretches.mark("compute", 0, 2, 1.0) == [("mean", 0, 0.5, 0.8)]
    stretches = Stretches()
    assert stretches.mark("compute", 0, 0, 1.0) == stretches.mark("compute", 0, 1, 1.0) == []
    stretches.mark("compute", 1, 0, 2.0), stretches.mark("compute", 1, 1, 2.1)
    stretches.stand("wait", 0, 2.2, 2.6, 0)
    assert stretches.mark("merge", 1, 0, 3.0) == [("wait", 1, 2.0, 2.2), ("merge", 1, 2.6, 3.0)]
    assert stretches.mark("merge", 1, 1, 3.0) == [
        ("wait", 1, 2.1, 2.2),
        ("wait", 0, 2.2, 2.6),
        ("merge", 1, 2.6, 3.0),
    ]
    assert stretches.mark("compute", 1, 1, 3.5) == [("compute", 1, 3.0, 3.5)]


class Mailbox:
    """One end of a link between two nodes, whose messages take a random time."""

    def __init__(self, rank, box, other):
        self._rank, self._box, self._other = rank, box, other
        self._late = random.Random(rank)

    def Get_rank(self):  # noqa: N802
        return self._rank

    def Get_size(self):  # noqa: N802
        return 2

    def Isend(self, data, node):  # noqa: N802
        self._other.put((time.perf_counter() + self._late.uniform(1e-4, 2e-3), float(data[0])))
        return self

    def Test(self):  # noqa: N802
        return True

    def Irecv(self, data, node):  # noqa: N802
        box = self._box

        class Request:
            arrival = None

            def Test(self):  # noqa: N802
                if self.arrival is None and not box.empty():
                    self.arrival, data[0] = box.get()
                return self.arrival is not None and time.perf_counter() >= self.arrival

        return Request()


def test_a_clock_that_is_off_is_found():
    boxes = queue.SimpleQueue(), queue.SimpleQueue()
    ends = [Mailbox(0, boxes[0], boxes[1]), Mailbox(1, boxes[1], boxes[0])]
    clocks = time.perf_counter, lambda: time.perf_counter() * (1 + 1e-5) - 1234.5
    found = [None, None]

    def run(node):
        found[node] = measure(ends[node], lambda: None, 20.0, clock=clocks[node])

    threads = [threading.Thread(target=run, args=(node,)) for node in (0, 1)]
    [thread.start() for thread in threads], [thread.join(30) for thread in threads]
    zero, one = found
    assert zero.seconds == zero.bound_seconds == 0
    truth = (one.at_seconds + 1234.5) / (1 + 1e-5) - one.at_seconds
    assert 0 < one.bound_seconds < 4e-3
    assert abs(one.seconds - truth) <= one.bound_seconds


def test_a_vain_wait_for_a_clock_ends():
    nobody = Mailbox(1, queue.SimpleQueue(), queue.SimpleQueue())
    begin = time.monotonic()
    assert measure(nobody, lambda: None, 0.1) is None
    assert time.monotonic() - begin < 2


def test_the_fastest_round_counts():
    assert fastest([(1.0, 5.0, 3.0), (4.0, 7.6, 4.2)]) == pytest.approx(Offset(4.1, 3.5, 0.1))


def test_a_clock_that_drifts_is_corrected(tmp_path, monkeypatch):
    """The node's clock is 500 s off and gains 0.1 ms a second."""
    begin = time.perf_counter()
    own = lambda true: (1 + 1e-4) * true - 500  # noqa: E731
    truths = begin, begin + 1000
    measured = iter([Offset(own(true), true - own(true), 1e-6) for true in truths])
    monkeypatch.setattr(TraceRecorder, "_measure", lambda self, limit: next(measured))
    timeline = Timeline()
    written = recorder(tmp_path, timeline)
    for after in (0, 250, 500, 1000):
        timeline.sink(Event("step", after, own(begin + after), own(begin + after + 1)))
    written.close(failed=False)
    (node,) = read(tmp_path).nodes
    assert node.bound_seconds == 1e-6 and node.closed
    first = node.events[0].begin_seconds
    for event in node.events:
        assert event.begin_seconds - first == pytest.approx(event.step, abs=1e-5)
        assert event.seconds == pytest.approx(1, abs=1e-5)


def test_a_file_that_was_never_closed_is_read_to_its_last_whole_row(tmp_path):
    timeline = Timeline()
    written = recorder(tmp_path, timeline)
    for n in np.arange(3, dtype=np.int32):  # as a loop may count
        timeline.record("step", n, time.perf_counter())
    written.close(failed=False)
    whole = written.path.read_bytes()
    last = whole.index(b'"step":2')
    for end in (whole.index(b'{"kind":"clock"'), last, last + 9):
        written.path.write_bytes(whole[:end])
        (node,) = read(tmp_path).nodes
        assert not node.closed
        assert [event.step for event in node.events] == list(range(2 if end <= last + 9 else 3))
    written.path.write_bytes(whole[:last] + b"\0" * 50)
    assert len(read(tmp_path).nodes[0].events) == 2
    written.path.write_bytes(b"")
    with pytest.raises(TraceError, match="no node-.*jsonl with a trace"):
        read(tmp_path)


def test_in_nanoseconds_no_bar_crosses_another():
    """Bars touch in a file, on a clock that is no whole number of nanoseconds off."""
    ends = np.cumsum(np.random.default_rng(0).uniform(1e-7, 1e-3, 400)).tolist()
    events = [Event("step", 0, a, b, "steps") for a, b in zip(ends, ends[1:], strict=False)]
    made = TraceRows(0, lambda seconds: 1e6 * seconds + 1e9 / 7)
    rows = [row for event in events for row in made.of(event) if row["ph"] == "X"]
    spans = [(1e-6 * row["ts"], 1e-6 * (row["ts"] + row["dur"])) for row in rows]
    again = list(untangled(Event("step", 0, *span, "steps") for span in spans))
    assert {event.lane for event in again} == {"steps"}
    merged = TraceRows(0, lambda seconds: 1e6 * seconds)
    rows = [row for event in again for row in merged.of(event) if row["ph"] == "X"]
    spans = [(round(1e3 * row["ts"]), round(1e3 * row["dur"])) for row in rows]
    assert all(a + x <= b for (a, x), (b, _) in zip(spans, spans[1:], strict=False))


def test_damaged_rows_are_named_and_left_out(tmp_path, capsys):
    timeline = Timeline()
    written = recorder(tmp_path, timeline)
    for n in range(3):
        timeline.record("step", n, time.perf_counter())
    written.close(failed=False)
    header, *events, clock = written.path.read_text().splitlines()
    events += [
        '{"kind":"event"}',
        events[1].replace('"step":1', '"step":"1"'),
        events[1].replace('"lane"', '"lake"'),
        events[1].replace('"begin":', '"begin":"soon","began":'),
        '{"kind":"event","name":"st',
        '{"knd":"event"}',
    ]
    written.path.write_text("\n".join([header, *events, clock]) + "\n")
    trace = read(tmp_path)
    assert [event.step for event in trace.nodes[0].events] == [0, 1, 2] and trace.nodes[0].closed
    assert [text.partition(": ")[0] for text in trace.damaged] == [
        f"node-00000.jsonl, line {line}" for line in range(5, 11)
    ]
    assert main(["trace", str(tmp_path)]) == 0
    said = capsys.readouterr()
    assert "6 damaged rows left out" in said.out and said.err.count("node-00000.jsonl, line") == 3


@pytest.mark.parametrize("old, new", [('"node":0', '"node":"0"'), ('"host"', '"hose"')])
def test_rows_after_a_damaged_start_are_not_those_of_the_trace_before(old, new, tmp_path):
    for _ in range(2):
        timeline = Timeline()
        written = recorder(tmp_path, timeline)
        timeline.record("step", 0, time.perf_counter())
        written.close(failed=False)
    lines = written.path.read_text().splitlines()
    written.path.write_text("\n".join([*lines[:3], lines[3].replace(old, new), *lines[4:]]))
    with pytest.raises(TraceError, match="no node-.*jsonl with a trace.*node-00000.jsonl, line 4"):
        read(tmp_path)


def test_a_node_0_whose_clock_was_set_back_has_the_latest_run(tmp_path):
    for node, began in ((0, 9.0), (1, 9.0), (0, 7.0)):
        with (tmp_path / f"node-{node:05}.jsonl").open("a") as file:
            about = {"node": node, "num_nodes": 2, "host": "h", "unix_seconds": began}
            row = {"kind": "trace", **about, "bound_seconds": 0.0}
            file.write(json.dumps(row, separators=(",", ":")) + "\n")
    trace = read(tmp_path)
    assert trace.unix_seconds == 7.0 and trace.missing == (1,)


def test_the_latest_run_counts(tmp_path):
    """Rows of a node that took part only in an earlier run are left out."""
    for node, nodes, began in ((0, 2, 7.0), (1, 2, 7.0), (0, 2, 9.0), (3, 4, 5.0)):
        with (tmp_path / f"node-{node:05}.jsonl").open("a") as file:
            about = {"node": node, "num_nodes": nodes, "host": "h", "unix_seconds": began}
            row = {"kind": "trace", **about, "bound_seconds": 0.0}
            file.write(json.dumps(row, separators=(",", ":")) + "\n")
    trace = read(tmp_path)
    assert [node.node for node in trace.nodes] == [0] and trace.missing == (1,)
    assert trace.unix_seconds == 9.0


def test_an_unwritable_file_harms_nothing_and_is_reported_once(tmp_path, caplog):
    (tmp_path / "file").touch()
    with jdaso.Session(trace=tmp_path / "file") as session:
        session.timeline.record("step", 0, time.perf_counter())
    assert caplog.text.count("cannot be written") == 1

    caplog.clear()
    timeline = Timeline()
    written = recorder(tmp_path, timeline)
    written.writer._file = os.open("/dev/full", os.O_WRONLY)
    timeline.record("step", 0, time.perf_counter())
    written.close(failed=False)
    timeline.record("step", 1, time.perf_counter())
    assert caplog.text.count("cannot be written") == 1 and "No space" in caplog.text
    assert timeline.sink is None and len(timeline.events) == 2


def train(session, steps):
    tx = jdaso.daso(optax.sgd(0.1), phases=jdaso.Phases(100, 0, 0), session=session)

    @jax.jit
    def step(w, state, x):
        loss, g = jax.value_and_grad(lambda w: jnp.mean(jnp.tanh(x @ w) ** 2))(w)
        updates, state = tx.update(g, state, w, value=loss)
        return optax.apply_updates(w, updates), state

    w, x = jnp.ones((64, 64)), np.ones((8, 64), np.float32)
    state = tx.init(w)
    for n in range(steps):
        begin = time.perf_counter()
        w, state = jax.block_until_ready(step(w, state, x))
        session.timeline.record("step", n, begin)


def test_a_profile_of_jax_is_joined(tmp_path, capsys):
    with jdaso.Session(trace=tmp_path / "run") as session:
        with jax.profiler.trace(str(tmp_path / "profile")):
            train(session, 4)
    output = tmp_path / "joined.json.gz"
    arguments = ["trace", str(tmp_path / "run"), "--profiler", str(tmp_path / "profile")]
    assert main([*arguments, "-o", str(output)]) == 0
    assert "profile joined: node 0" in capsys.readouterr().out
    rows = json.loads(gzip.decompress(output.read_bytes()))["traceEvents"]
    own = [row for row in rows if row["pid"] == 0]
    traces_checked.are_chromes(own)
    steps = [row for row in own if row["name"] == "step"]
    calls = [row for row in rows if row["pid"] != 0 and "jdaso_host_call" in row["name"]]
    calls = [row for row in calls if not row["name"].startswith("end")]
    assert len(steps) == len(calls) == 4
    for step, call in zip(steps, sorted(calls, key=lambda row: row["ts"]), strict=True):
        assert step["ts"] - 500 < call["ts"] < step["ts"] + step["dur"] + 500, (step, call)
    assert any("JAX's profile" in str(row["args"].get("name")) for row in rows if row["ph"] == "M")


def test_a_profile_without_our_time_is_refused(tmp_path):
    path = tmp_path / "x.trace.json.gz"
    path.write_bytes(gzip.compress(b'{"traceEvents": [{"ph": "X", "name": "dot", "ts": 1}]}'))
    with pytest.raises(TraceError, match="has no timestamps from jdaso"):
        profiles_in(tmp_path)
    path.write_bytes(b"no gzip")
    with pytest.raises(TraceError, match="is not a profile"):
        profiles_in(tmp_path)
    with pytest.raises(TraceError, match=r"holds no \*.trace.json.gz"):
        profiles_in(tmp_path / "nowhere")


def test_one_node_shows_its_steps(tmp_path, capsys, monkeypatch):
    with jdaso.Session(trace=tmp_path) as session:
        train(session, 5)
    trace = read(tmp_path)
    (node,) = trace.nodes
    computed = [event for event in node.events if event.name == "compute"]
    assert [event.step for event in computed] == [1, 2, 3, 4]
    assert {event.lane for event in computed} == {"device 0"}
    write(merge(trace), tmp_path / "all.json")
    traces_checked.are_chromes(json.loads((tmp_path / "all.json").read_text())["traceEvents"])
    assert main(["trace", str(tmp_path)]) == 0
    assert "ui.perfetto.dev" in capsys.readouterr().out
    (tmp_path / "trace.json.gz").unlink()
    monkeypatch.setenv("RUNS", str(tmp_path))
    assert main(["trace", "$RUNS"]) == 0 and (tmp_path / "trace.json.gz").exists()
    assert main(["trace", str(tmp_path / "none")]) == 2
    assert main(["trace", "s3://bucket/run"]) == 2
    assert "holds no node-*.jsonl with a trace" in capsys.readouterr().err


def test_some_steps_of_a_long_trace(tmp_path, capsys, monkeypatch):
    with jdaso.Session(trace=tmp_path) as session:
        for step in range(100):
            session.timeline.record("step", step, time.perf_counter())
    (node,) = read(tmp_path, range(40, 50)).nodes
    assert [event.step for event in node.events] == list(range(40, 50))
    monkeypatch.setattr(trace_command, "_MOST_BYTES", 100)
    assert main(["trace", str(tmp_path)]) == 2
    assert "Choose some steps: --steps 9000:9100" in capsys.readouterr().err
    assert main(["trace", str(tmp_path), "--steps", "40:50"]) == 0
    assert " 10 " in capsys.readouterr().out
    with pytest.raises(SystemExit):
        main(["trace", str(tmp_path), "--steps", "50:40"])
