"""The model of a step's time: by hand, by brute force, and its laws."""

import dataclasses
import json
import math
import shlex
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jdaso.cli import main
from jdaso.fabric import Fabric, Training, advise, predict, predict_synchronous
from jdaso.fabric._emulate.cluster import any_bits_per_second_of, bits_per_second_of
from jdaso.fabric._model.exchange import exchange_seconds
from jdaso.fabric._model.settings import WIRE_BYTES

fabrics = st.builds(
    Fabric,
    nodes=st.integers(2, 4096),
    bits_per_second=st.floats(1e8, 1e12),
    latency_seconds=st.floats(0, 1e-3),
    jitter_seconds=st.floats(0, 0.05),
    accelerators=st.booleans(),
)
trainings = st.builds(
    Training,
    parameters=st.integers(1, 10**9),
    step_seconds=st.floats(1e-3, 2.0),
    sync_every=st.integers(4, 16),
    delay=st.integers(1, 4),
    wire=st.sampled_from(sorted(WIRE_BYTES)),
)


def test_by_hand():
    """25.6 M numbers of 2 bytes, 4 nodes, 1 Gbit/s: 2 * 3/4 * 51.2 MB / 125 MB/s = 614 ms."""
    fabric = Fabric(4, 1e9, latency_seconds=0.0, efficiency=1.0, copy_bytes_per_second=1e30)
    assert exchange_seconds(fabric, 25_600_000, "bfloat16", 2**24) == pytest.approx(0.6144)
    training = Training(25_600_000, 0.2, sync_every=4, delay=4, fragments=1)
    found = predict(fabric, training)
    assert found.exposed_seconds == 0 and found.hidden_share == 1
    assert found.step_seconds == pytest.approx(0.2, rel=0.02)
    assert found.bytes_per_step == pytest.approx(2 * 3 / 4 * 51.2e6 / 4)
    late = predict(fabric, dataclasses.replace(training, delay=2))
    assert late.exposed_seconds == pytest.approx((0.6144 - 0.4) / 4)
    assert late.hidden_share == pytest.approx(0.4 / 0.6144)
    waits = predict_synchronous(fabric, training)
    assert waits.exposed_seconds == pytest.approx(2 * 0.6144)
    overlapped = predict_synchronous(fabric, training, behind_backward=0.5)
    assert overlapped.exposed_seconds == pytest.approx(2 * 0.6144 - 0.1)


def test_fragments_by_hand():
    """The same in 4 fragments: each takes 154 ms, and S = 1 hides it; on half the link 307 ms."""
    fabric = Fabric(4, 1e9, latency_seconds=0.0, efficiency=1.0, copy_bytes_per_second=1e30)
    training = Training(25_600_000, 0.2, sync_every=4, delay=1)
    assert training.count == 4
    found = predict(fabric, training)
    assert found.exchange_seconds == pytest.approx(0.6144 / 4)
    assert found.exposed_seconds == 0 and found.hidden_share == 1
    slow = dataclasses.replace(fabric, bits_per_second=5e8)
    late = predict(slow, training)
    assert late.exposed_seconds == pytest.approx(4 * (0.3072 - 0.2) / 4)
    assert late.hidden_share == pytest.approx(0.2 / 0.3072)
    # A larger S does not make the link faster: four of them have to cross it in every cycle.
    later = predict(slow, dataclasses.replace(training, delay=4))
    assert later.exposed_seconds == pytest.approx((4 * 0.3072 - 0.8) / 4)


@pytest.mark.parametrize("nodes", [2, 3, 8, 64])
@pytest.mark.parametrize("wire", sorted(WIRE_BYTES))
def test_message_by_message(nodes, wire):
    """Every chunk: P - 1 messages to be summed and P - 1 of the sums, one after another."""
    alpha, rate, parameters, chunk = 1e-4, 1e8, 10_000_000, 2**22
    fabric = Fabric(nodes, 8 * rate, alpha, efficiency=1.0, copy_bytes_per_second=1e30)
    seconds, left = 0.0, 4 * parameters
    while left > 0:
        now = min(chunk, left)
        seconds += 2 * sum(
            alpha + now / 4 * WIRE_BYTES[wire] / nodes / rate for _ in range(nodes - 1)
        )
        left -= now
    assert exchange_seconds(fabric, parameters, wire, chunk) == pytest.approx(seconds)


@settings(max_examples=200)
@given(fabric=fabrics, training=trainings)
def test_laws(fabric, training):
    found = predict(fabric, training)
    assert found.step_seconds >= found.bare_seconds == training.step_seconds
    assert 0 <= found.hidden_share <= 1
    parts = found.bare_seconds + found.handling_seconds + found.exposed_seconds
    assert found.step_seconds == pytest.approx(parts)
    alone = predict(dataclasses.replace(fabric, nodes=1), training)
    assert alone.step_seconds == training.step_seconds and alone.bytes_per_step == 0
    slower = dataclasses.replace(fabric, bits_per_second=fabric.bits_per_second / 2)
    assert predict(slower, training).step_seconds >= found.step_seconds
    later = dataclasses.replace(training, delay=training.sync_every)
    assert predict(fabric, later).step_seconds <= found.step_seconds


@settings(max_examples=200)
@given(fabric=fabrics, training=trainings)
def test_advice_hides_everything_and_no_smaller_delay_does(fabric, training):
    for advice in advise(fabric, training):
        chosen = advice.training
        assert 1 <= chosen.delay <= chosen.sync_every <= 64
        assert chosen.sync_every >= training.sync_every
        assert advice.prediction.exposed_seconds == pytest.approx(0, abs=1e-9)
        if chosen.delay > 1:
            less = dataclasses.replace(chosen, delay=chosen.delay - 1)
            assert predict(fabric, less).exposed_seconds > 0


def test_advice_follows_a_measured_exchange():
    fabric = Fabric(4, 1e9)
    training = Training(25_600_000, 0.2, sync_every=1, delay=1, fragments=1)
    modelled = exchange_seconds(fabric, 25_600_000, "bfloat16", training.chunk_bytes)
    delays = [
        {
            a.training.wire: a.training.delay
            for a in advise(fabric, training, exchange_seconds_measured=s)
        }
        for s in (modelled, 3 * modelled)
    ]
    assert delays[0] == {a.training.wire: a.training.delay for a in advise(fabric, training)}
    assert all(delays[1][wire] >= 2 * delays[0][wire] for wire in delays[1])
    assert delays[1]["bfloat16"] == math.ceil(3 * modelled / 0.2)


def test_a_measured_exchange_is_that_of_a_fragment_of_the_run():
    """The predicted time of the run itself changes nothing."""
    fabric, training = Fabric(4, 1e10), Training(100_000_000, 0.3, wire="float32")
    assert training.count == 4
    measured = predict(fabric, training).exchange_seconds
    modelled = advise(fabric, training, least_steps=1)
    found = advise(fabric, training, least_steps=1, exchange_seconds_measured=measured)
    assert [a.training for a in found] == [a.training for a in modelled]


def test_hosts_too_slow_for_the_bound_are_still_advised():
    """Starts and merges take more than 5 % with every B; the link is not the cause."""
    fabric, training = Fabric(2, 1e11), Training(10**9, 0.005, sync_every=1, delay=1)
    best = advise(fabric, training)[0]
    assert best.prediction.exposed_seconds == 0
    assert best.prediction.handling_seconds > 0.05 * best.prediction.bare_seconds


@pytest.mark.parametrize("nodes", [2, 8, 64, 1000])
def test_the_slowest_of_many(nodes):
    """Compares with steps drawn from normal lengths."""
    drawn = np.random.default_rng(0).normal(size=(4000, nodes)).max(axis=1).mean()
    assert Fabric(nodes, 1e9, jitter_seconds=1.0).wait_for_slowest == pytest.approx(drawn, rel=0.05)


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        (lambda: Fabric(0, 1e9), "nodes must be at least 1, got 0"),
        (lambda: Fabric(2, 0.0), "bits_per_second must be above 0"),
        (lambda: Fabric(2, 1e9, efficiency=1.5), "efficiency is a share"),
        (lambda: Fabric(2, 1e9, latency_seconds=-1.0), "latency_seconds must be 0 or more"),
        (lambda: Training(0, 0.1), "parameters must be at least 1"),
        (lambda: Training(1, 0.0), "step_seconds must be above 0"),
        (lambda: Training(1, 0.1, sync_every=2, delay=3), "delay must be within 1..sync_every"),
        (lambda: Training(1, 0.1, wire="int2"), "wire must be one of .*got 'int2'"),
        (lambda: Training(1, 0.1, chunk_bytes=0), "chunk_bytes must be at least 1, got 0"),
        (lambda: Training(1, 0.1, fragments=3), "divide sync_every=4, got 3"),
        (lambda: Training(1, 0.1, fragments="all"), "divide sync_every=4, got 'all'"),
    ],
)
def test_what_is_out_of_range_is_named(wrong, named):
    with pytest.raises(ValueError, match=named):
        wrong()


def test_the_command(capsys, tmp_path):
    command = ["simulate", "--nodes", "4", "--rate", "1gbit", "--step-ms", "200"]
    picture = tmp_path / "scaling.png"
    assert main([*command, "--advise", "--plot", str(picture)]) == 0
    said = capsys.readouterr().out
    assert "4 nodes, links of 1 Gbit/s" in said
    assert 'Advice: wire="bfloat16", sync_every=4, delay=1: ' in said, said
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert main([*command, "--json"]) == 0
    rows = {row["method"]: row for row in json.loads(capsys.readouterr().out)["rows"]}
    assert rows["synchronous"]["step ms"] > 5 * rows["daso"]["step ms"]
    assert main([*command, "--json", "--copy-gbytes", "3.2"]) == 0
    found = json.loads(capsys.readouterr().out)
    fabric = Fabric(4, 1e9, copy_bytes_per_second=3.2e9, accelerators=False)
    expected = predict(fabric, Training(25_600_000, 0.2))
    assert found["rows"][0]["step ms"] == pytest.approx(1e3 * expected.step_seconds)
    assert found["rows"][0]["step ms"] > 1.2 * rows["daso"]["step ms"]
    assert main([*command, "--wire", "int2"]) == 2
    assert "jdaso simulate: wire must be" in capsys.readouterr().err
    for options, words in (
        (["--batch", "0"], "--batch must be at least 1, got 0"),
        (["--samples", "0"], "--samples must be at least 1"),
        (["--devices", "0"], "--devices must be at least 1"),
        (["--copy-gbytes", "0"], "copy_bytes_per_second must be above 0"),
        (["--delay", "0"], "delay must be within 1..sync_every, got delay=0"),
        (["--backward", "1.5"], "share of a step, 0 to 1, got 1.5"),
        (["--advise", "--exchange-ms", "0"], "must be above 0"),
        (["--exchange-ms", "30"], "--exchange-ms is used by --advise only: give --advise, too"),
        (["--parameters", "inf"], "--parameters must be a number of at least 1, got inf"),
        (["--parameters", "nan"], "--parameters must be a number of at least 1, got nan"),
        (["--plot", "scaling.words"], "words"),
        (["--plot", "nowhere/scaling.png"], "nowhere"),
    ):
        assert main(["simulate", *options]) == 2
        assert words in capsys.readouterr().err
    slow = ["simulate", "--nodes", "64", "--rate", "10mbit", "--step-ms", "1", "--advise"]
    assert main(slow) == 0
    assert "No wire can be hidden" in capsys.readouterr().out


def test_presets_give_way_to_options(capsys):
    assert main(["simulate", "--preset", "cloud-25g", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["fabric"]["bits_per_second"] == 25e9
    assert main(["simulate", "--preset", "cloud-25g", "--rate", "1gbit", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["fabric"]["bits_per_second"] == 1e9


def test_the_output_in_the_docs_is_what_the_command_prints(capsys):
    page = (Path(__file__).parents[3] / "docs" / "emulated_cluster.md").read_text()
    _, _, rest = page.partition("python -m jdaso simulate --preset juwels-booster")
    options, _, rest = rest.partition("\n```\n\n```text\n")
    assert main(["simulate", "--preset", "juwels-booster", *shlex.split(options)]) == 0
    assert capsys.readouterr().out == rest.partition("```")[0]


@pytest.mark.parametrize("wire", sorted(WIRE_BYTES))
def test_accelerators_and_hosts_exchange_float32_on_any_wire(wire):
    """The host encodes: 25.6 M numbers of 4 bytes go there and back, at 20 GB/s."""
    fabric = Fabric(4, 1e12, latency_seconds=0.0, staging_bytes_per_second=20e9)
    found = predict(fabric, Training(25_600_000, 0.2, sync_every=4, delay=4, wire=wire))
    assert found.handling_seconds == pytest.approx(2 * 4 * 25.6e6 / 20e9 / 4)


@pytest.mark.parametrize("count", [1, 2, 8])
def test_a_step_that_may_run_ahead_waits_no_longer_than_one_that_must_not(count):
    """Nodes drift apart between merges, which come every B / F steps."""
    fabric = Fabric(64, 800e9, latency_seconds=2e-6, jitter_seconds=0.03)
    training = Training(25_600_000, 0.1, sync_every=8, delay=1, fragments=count)
    waits = predict_synchronous(fabric, training)
    assert predict(fabric, training).exposed_seconds < waits.exposed_seconds


def test_advice_is_in_the_order_of_its_steps():
    """Steps within 1 % of the fastest are equal; all others are not."""
    found = advise(Fabric(8, 50e6, accelerators=False), Training(25_600_000, 0.8), least_steps=1)
    seconds = [advice.prediction.step_seconds for advice in found]
    near = [x for x in seconds if x <= 1.01 * min(seconds)]
    assert seconds[: len(near)] == near or set(seconds[: len(near)]) == set(near)
    assert seconds[len(near) :] == sorted(seconds[len(near) :]) and len(near) < len(seconds)


@pytest.mark.parametrize(
    ("rate", "bits"), [("3200gbit", 3.2e12), ("5mbit", 5e6), ("1e+10", 1e10), ("2.5gbit/s", 2.5e9)]
)
def test_any_rate_is_simulated_and_some_are_emulated(rate, bits, capsys):
    assert any_bits_per_second_of(rate) == bits
    assert main(["simulate", "--nodes", "4", "--rate", rate]) == 0
    if 1e7 <= bits <= 1e12:
        assert bits_per_second_of(rate) == bits
    else:
        with pytest.raises(ValueError, match="must be from 10 mbit to 1000 gbit"):
            bits_per_second_of(rate)
