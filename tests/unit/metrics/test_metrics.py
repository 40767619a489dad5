"""A recorder's rows while a run goes on, and its behaviour if it cannot write."""

import contextlib
import errno
import json
import os
import signal
import sys
import threading
import time

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import jdaso
import jdaso.array as ja
from jdaso.checkpoint import Checkpoints, _arrays
from jdaso.faults import Fault, Faults
from jdaso.metrics import Recorder
from jdaso.report._runs import read_run
from jdaso.report._tables import state_of
from jdaso.traces import _writer
from jdaso.traces._writer import Writer

PHASES = jdaso.Phases(total_steps=10, warmup_steps=2, cooldown_steps=2, sync_every=3, delay=2)


def rows_in(folder, node=0, kind=None):
    rows = [json.loads(line) for line in (folder / f"node-{node:05}.jsonl").open()]
    return [row for row in rows if kind in (None, row["kind"])]


def train(session, recorder, steps=10, after=lambda n, state: None):
    """The loop donates its state, as programs do."""
    tx = jdaso.daso(optax.sgd(0.1), phases=PHASES, session=session)
    params = {"w": jnp.ones(3)}

    @jax.jit
    def loss_of(params):
        return jnp.sum(params["w"] ** 2)

    def update(params, state):
        loss, grads = jax.value_and_grad(loss_of)(params)
        updates, state = tx.update(grads, state, params, value=loss)
        return optax.apply_updates(params, updates), state, loss

    step, state, losses = jax.jit(update, donate_argnums=(0, 1)), tx.init(params), []
    for n in range(steps):
        params, state, loss = step(params, state)
        recorder.step(n + 1, state, loss=loss, rate=0.1)
        after(n + 1, {"params": params})
        losses.append(float(loss))
    return losses


def test_a_row_for_each_step_with_phase_b_s_and_the_numbers(tmp_path):
    with jdaso.Session() as session:
        with Recorder(tmp_path, session, settings={"rate": 0.1}) as recorder:
            losses = train(session, recorder)
    kinds = [row["kind"] for row in rows_in(tmp_path)]
    assert kinds == ["run", "settings", *["step"] * 8, "events", *["step"] * 2, "events", "end"]
    run, settings = rows_in(tmp_path)[:2]
    assert run["num_nodes"] == 1 and run["settings"] == {"rate": 0.1} and run["devices"]
    assert "total_steps=10" in settings["settings"]["1"]["phases"]
    steps = rows_in(tmp_path, kind="step")
    assert [row["step"] for row in steps] == list(range(1, 11))
    assert [row["phase"] for row in steps] == [PHASES.name(n) for n in range(10)]
    assert [row["sync_every"] for row in steps] == [1, 1, *[3] * 6, 1, 1]
    assert [row["delay"] for row in steps] == [0, 0, *[2] * 6, 0, 0]
    np.testing.assert_array_equal(np.float32([row["loss"] for row in steps]), np.float32(losses))
    seconds = [row["seconds"] for row in steps]
    assert seconds == sorted(seconds) and all(row["rate"] == 0.1 for row in steps)


def test_recorders_of_one_session_give_its_time_and_their_own_seconds(tmp_path, monkeypatch):
    """The host's clock is set back after the session's start; no recorder reads it."""
    with jdaso.Session() as session:
        monkeypatch.setattr("time.time", lambda: 0.0)
        for name in ("first", "second"):
            Recorder(tmp_path / name, session).close()
    runs = [rows_in(tmp_path / name, kind="run")[0] for name in ("first", "second")]
    assert [run["time"] for run in runs] == [session.began.unix_seconds] * 2
    assert 0 <= runs[0]["seconds"] < runs[1]["seconds"] < 60


def test_a_step_does_not_wait_for_its_numbers(tmp_path):
    with jdaso.Session() as session, Recorder(tmp_path, session) as recorder:
        free, late = [], jnp.float32(2)  # stands for an array whose step is still running
        monkey = pytest.MonkeyPatch()
        monkey.setattr("jdaso.traces._writer.is_ready", lambda x: x is not late or bool(free))
        recorder.step(1, loss=late)
        recorder.step(2, loss=1.0)
        recorder._writer.put_now({"kind": "fault", "step": 2, "seconds": 0.0})
        assert not rows_in(tmp_path, kind="step") and rows_in(tmp_path, kind="fault")
        free.append(True)
        recorder.flush()
        monkey.undo()
        assert [row["loss"] for row in rows_in(tmp_path, kind="step")] == [2.0, 1.0]


def test_numbers_that_never_come_are_null_and_close_does_not_wait_for_ever(tmp_path, monkeypatch):
    never = jnp.float32(2)
    monkeypatch.setattr("jdaso.traces._writer.is_ready", lambda x: x is not never)
    writer = Writer(tmp_path / "node-00000.jsonl")
    writer.put({"kind": "step", "loss": never})
    writer.close(0.05)
    assert rows_in(tmp_path) == [{"kind": "step", "loss": None}]


def test_values_are_exact_and_valid_json(tmp_path):
    given = {
        "a": np.float64(0.1),
        "b": jnp.float32(0.1),
        "c": jnp.bfloat16(1.5),
        "d": jnp.int32(2**31 - 1),
        "e": jnp.ones((1,)),
        "f": float("nan"),
        "g": jnp.float32(-jnp.inf),
        "h": True,
    }
    with jdaso.Session() as session, Recorder(tmp_path, session) as recorder:
        recorder.step(1, **given)
    (row,) = rows_in(tmp_path, kind="step")
    found = {name: row[name] for name in given}
    expected = [0.1, 0.1, 1.5, 2**31 - 1, 1.0, "NaN", "-Infinity", True]
    assert found == dict(zip(given, expected, strict=True))


@pytest.mark.parametrize("value", [jnp.ones(2), "text", None, np.array(["x"])])
def test_what_is_no_single_number_is_refused(tmp_path, value):
    with jdaso.Session() as session, Recorder(tmp_path, session) as recorder:
        with pytest.raises(ValueError, match="single numbers, got loss="):
            recorder.step(1, loss=value)
        with pytest.raises(ValueError, match="seconds is a name that rows use"):
            recorder.step(1, seconds=1)


def test_checkpoints_faults_and_exceptions_are_recorded(tmp_path):
    with pytest.raises(RuntimeError, match="<b>broken"), jdaso.Session() as session:
        with Recorder(tmp_path / "run", session) as recorder:
            faults = Faults([Fault(0, 3, "delay", seconds=0.01)], session)
            checkpoints = Checkpoints(tmp_path / "checkpoints", session, every_steps=4)

            def after(n, state):
                faults.at(n, state)
                checkpoints.after(n, state)

            train(session, recorder, after=after)
            checkpoints.wait()
            raise RuntimeError("<b>broken\nsecond line")
    marks = rows_in(tmp_path / "run", kind="checkpoint") + rows_in(tmp_path / "run", kind="fault")
    assert [(row["kind"], row["step"], row.get("text")) for row in marks] == [
        ("checkpoint", 4, None),
        ("checkpoint", 8, None),
        ("fault", 3, "delay on purpose at 3"),
        ("fault", None, "RuntimeError: <b>broken"),
    ]
    assert not rows_in(tmp_path / "run", kind="end")


def test_a_checkpoint_is_recorded_once_it_is_written(tmp_path, monkeypatch):
    """Also the last one, which is still being written when the recorder closes."""
    write_arrays, go = _arrays.write_arrays, threading.Event()

    def slow(folder, name, part):
        go.wait(20)
        return write_arrays(folder, name, part)

    monkeypatch.setattr(_arrays, "write_arrays", slow)
    with jdaso.Session() as session, Recorder(tmp_path / "run", session):
        checkpoints = Checkpoints(tmp_path / "checkpoints", session)
        checkpoints.save(3, jnp.ones(3))
        assert not rows_in(tmp_path / "run", kind="checkpoint")
        threading.Timer(0.2, go.set).start()
    (row,) = rows_in(tmp_path / "run", kind="checkpoint")
    assert row["step"] == 3


def test_a_checkpoint_that_cannot_be_written_is_a_fault(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    with jdaso.Session() as session, Recorder(tmp_path / "run", session) as recorder:
        recorder.step(1)
        checkpoints = Checkpoints(tmp_path / "checkpoints", session)
        monkeypatch.setattr(_arrays, "write_arrays", full)
        checkpoints.save(3, jnp.ones(3))
        checkpoints.save(4, jnp.ones(3))  # the failure of the one before is no error of the loop
        session.hooks.settle(20.0)
        monkeypatch.undo()
        checkpoints.save(5, jnp.ones(3))
        checkpoints.wait()
    assert [row["step"] for row in rows_in(tmp_path / "run", kind="checkpoint")] == [5]
    faults = rows_in(tmp_path / "run", kind="fault")
    assert [row["step"] for row in faults] == [3, 4]
    assert "a checkpoint could not be written: [Errno 28] No space left" in faults[0]["text"]
    assert read_run(tmp_path / "run").saved_steps == {5}


@pytest.mark.parametrize("inside", [True, False])
def test_a_run_that_stops_as_asked_is_to_be_continued(tmp_path, inside):
    """Also if the session closes the recorder, after the error has left the loop."""
    with pytest.raises(jdaso.Stopped), jdaso.Session() as session:
        recorder = Recorder(tmp_path / "run", session)
        checkpoints = Checkpoints(tmp_path / "checkpoints", session)
        os.kill(os.getpid(), signal.SIGTERM)
        with recorder if inside else contextlib.nullcontext():
            for n in range(1, 100):
                recorder.step(n)
                checkpoints.after(n, jnp.ones(3))
    (end,) = rows_in(tmp_path / "run", kind="end")
    assert end["stopped"] == 1


def test_a_run_that_is_started_again_appends_behind_a_torn_row(tmp_path):
    for _ in range(2):
        with jdaso.Session() as session, Recorder(tmp_path, session) as recorder:
            recorder.step(1, loss=1.0)
        path = tmp_path / "node-00000.jsonl"
        path.write_bytes(path.read_bytes()[:-4])
    lines = path.read_text().splitlines()
    assert sum(line.startswith('{"kind":"run"') for line in lines) == 2


def test_events_are_written_once_and_those_of_cycling_outlive_the_cool_down(tmp_path):
    with jdaso.Session() as session, Recorder(tmp_path, session, PHASES) as recorder:
        for n in range(10):
            name = "exchange" if PHASES.name(n) == "cycling" else "mean"
            for _ in range(2 if n < 9 else 3000):
                session.timeline.record(name, n, recorder._began)
            recorder.step(n + 1)
    cycling, rest = (row["events"] for row in rows_in(tmp_path, kind="events"))
    names = [event["name"] for event in cycling]
    assert names == ["mean"] * 4 + ["exchange"] * 12 + ["mean"] * 2
    assert {event["name"] for event in rest} == {"mean"} and len(rest) == 1000
    assert min(event["end"] for event in rest) > max(event["end"] for event in cycling)


def test_closing_the_session_closes_the_recorder(tmp_path):
    with jdaso.Session() as session:
        recorder = Recorder(tmp_path, session)
        recorder.step(1, loss=jnp.float32(1))
    assert rows_in(tmp_path)[-1]["kind"] == "end"
    recorder.close()
    assert len(rows_in(tmp_path, kind="end")) == 1
    for late in (
        lambda: recorder.step(2),
        lambda: recorder.checkpoint(2),
        lambda: recorder.fault("x"),
    ):
        with pytest.raises(RuntimeError, match="This recorder was closed"):
            late()


def test_a_folder_that_cannot_be_made_is_one_warning(tmp_path, caplog):
    (tmp_path / "file").touch()
    with jdaso.Session() as session, Recorder(tmp_path / "file" / "run", session) as recorder:
        for n in range(3):
            recorder.step(n + 1, loss=jnp.float32(1))
            recorder.flush()
    warnings = [x for x in caplog.records if "Rows are lost" in x.message]
    assert len(warnings) == 1 and "Training goes on" in warnings[0].message


def test_a_full_disk_is_one_warning_and_what_follows_reads(tmp_path, caplog, monkeypatch):
    real, left = os.write, [40, -1, -1]

    def write(file, data):
        if not left:
            return real(file, data)
        if (room := left.pop(0)) < 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(file, data[:room])

    writer = Writer(tmp_path / "node-00000.jsonl")
    monkeypatch.setattr("jdaso.traces._writer.os.write", write)
    for k in range(4):
        writer.put_now({"kind": "step", "number": k, "text": "x" * 40})
    writer.close(1.0)
    lines = (tmp_path / "node-00000.jsonl").read_text().splitlines()
    assert [json.loads(line)["number"] for line in lines[1:]] == [2, 3]
    assert len([x for x in caplog.records if "No space left" in x.message]) == 1


def test_a_file_system_that_hangs_holds_up_nothing(tmp_path, monkeypatch):
    """Neither a row that is urgent, nor the end; once the file system is back, all is written."""
    real, back = os.write, threading.Event()
    monkeypatch.setattr(_writer, "_NOW_SECONDS", 0.3)
    limit = 60.0  # that of a recorder
    writer = Writer(tmp_path / "node-00000.jsonl")
    monkeypatch.setattr(
        "jdaso.traces._writer.os.write", lambda *about: back.wait(20) and real(*about)
    )
    begin = time.monotonic()
    for k in range(20):
        writer.put_now({"kind": "fault", "number": k})
    writer.put({"kind": "step", "number": 20})
    writer.flush(limit)
    writer.close(limit)
    assert time.monotonic() - begin < 5 and not rows_in(tmp_path)
    back.set()
    writer._thread.join(20)
    assert sorted(row["number"] for row in rows_in(tmp_path)) == list(range(21))


def test_a_row_that_is_not_for_json_is_lost_alone(tmp_path, caplog):
    writer = Writer(tmp_path / "node-00000.jsonl", row_of=lambda event: 1 / 0)
    writer.put_now({"kind": "fault", ("a", "pair"): 1})
    writer.put_now({"kind": "fault", "number": 1})
    writer.put_event("one that makes no row")
    writer.put_now({"kind": "fault", "number": 2})
    writer.put_now({"kind": "fault", "number": 3})
    writer.close(1.0)
    assert [row["number"] for row in rows_in(tmp_path)] in ([1, 2, 3], [1, 3])
    assert len(caplog.records) == 1 and "Rows are lost" in caplog.text


def test_settings_that_are_not_for_json_are_refused(tmp_path):
    with jdaso.Session() as session, pytest.raises(ValueError, match="settings must have text as"):
        Recorder(tmp_path / "run", session, settings={"a": {("b", 1): 2}})
    assert not (tmp_path / "run").exists()


def test_events_may_be_read_while_threads_record(tmp_path):
    with jdaso.Session() as session:
        stop = threading.Event()

        def record():
            while not stop.is_set():
                session.timeline.record("exchange", 0, time.perf_counter())

        threads = [threading.Thread(target=record) for _ in range(3)]
        for thread in threads:
            thread.start()
        try:
            for _ in range(200):
                jdaso.hidden_share(session.timeline.events)
        finally:
            stop.set()
            for thread in threads:
                thread.join()


def test_numbers_of_arrays_over_nodes(tmp_path):
    with jdaso.Session() as session, Recorder(tmp_path, session) as recorder:
        recorder.step(1, mean=ja.mean(ja.ones(3)), none=ja.asarray(np.float32("nan")))
        with pytest.raises(ValueError, match=r"one is divided over the nodes, .* one=float\(one\)"):
            recorder.step(2, one=ja.ones(1, split=0))
    (row,) = rows_in(tmp_path, kind="step")
    assert (row["mean"], row["none"]) == (1, "NaN")


def test_tensorboard_gets_the_numbers(tmp_path):
    pytest.importorskip("tensorboardX")
    from tensorboardX.proto.event_pb2 import Event

    with jdaso.Session() as session, Recorder(tmp_path, session, tensorboard=True) as recorder:
        recorder.step(7, loss=jnp.float32(0.5), bad=float("nan"))
    (path,) = (tmp_path / "tensorboard" / "node-00000").iterdir()
    data, found = path.read_bytes(), {}
    while data:  # length, its checksum, the event, its checksum
        size = int.from_bytes(data[:8], "little")
        event = Event.FromString(data[12 : 12 + size])
        found |= {value.tag: (event.step, value.simple_value) for value in event.summary.value}
        data = data[16 + size :]
    assert found["loss"] == (7, 0.5) and "bytes_sent" in found and "bad" not in found


def test_tensorboard_that_is_missing_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorboardX", None)
    with jdaso.Session() as session, pytest.raises(ImportError, match=r"jdaso\[metrics\]"):
        Recorder(tmp_path, session, tensorboard=True)


def test_settings_that_are_not_finite_are_valid_json(tmp_path):
    """In lists and tables too, of NumPy and JAX."""
    nan, inf = float("nan"), float("inf")
    settings = {
        "limit": inf,
        "table": {"a": [nan, np.float32(-inf), jnp.float32(inf)], "b": (1, "text", None, True)},
    }
    with jdaso.Session() as session, Recorder(tmp_path, session, settings=settings):
        pass
    header = (tmp_path / "node-00000.jsonl").read_text().splitlines()[0]
    found = json.loads(header, parse_constant=pytest.fail)["settings"]
    assert found["limit"] == "Infinity"
    assert found["table"] == {"a": ["NaN", "-Infinity", "Infinity"], "b": [1, "text", None, True]}


def test_numbers_of_numpy_in_events_and_settings(tmp_path):
    settings = {"rate": np.float32(0.1), "sizes": [np.int64(3)]}
    with (
        jdaso.Session() as session,
        Recorder(tmp_path, session, settings=settings) as recorder,
    ):
        for n in np.arange(2):
            session.timeline.record("step", n, 0.0)
            recorder.step(n + 1, loss=1.0, overflow=bool(n))
    assert [row["overflow"] for row in rows_in(tmp_path, kind="step")] == [0, 1]
    assert rows_in(tmp_path, kind="events") and rows_in(tmp_path, kind="end")
    (header,) = rows_in(tmp_path, kind="run")
    assert header["settings"]["sizes"] == [3]


def test_a_run_that_was_asked_to_stop_is_to_be_continued(tmp_path):
    for number in range(2):
        with contextlib.suppress(jdaso.Stopped), jdaso.Session() as session:
            with Recorder(tmp_path, session) as recorder:
                recorder.step(number + 1, loss=1.0)
                recorder.flush()
                raise jdaso.Stopped
        run = read_run(tmp_path)
        assert state_of(run) == "stopped, to be continued" and run.steps == number + 1
    assert not run.older and not [m for m in run.nodes[0].marks if m.kind == "fault"]
    with jdaso.Session() as session, Recorder(tmp_path, session) as recorder:
        recorder.step(3, loss=1.0)
    assert state_of(read_run(tmp_path)) == "ended"


def test_a_fault_that_never_happens_is_refused_or_reported(caplog):
    with pytest.raises(ValueError, match="at warm-up, cycling.*got 'cyclng'"):
        Fault.parse("1@cyclng:kill")
    with jdaso.Session() as session:
        Faults([Fault(4, 40, "kill")], session)
    assert "Fault(node=4, when=40" in caplog.text and "no such node of 1" in caplog.text
