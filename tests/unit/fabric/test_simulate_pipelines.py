"""``python -m jdaso simulate`` with pipelines."""

import json

import pytest

from jdaso.cli import main
from jdaso.fabric import Fabric, Hybrid, predict_hybrid
from jdaso.pipeline import make_schedule

COMMAND = ["simulate", "--nodes", "16", "--rate", "100gbit", "--partitions", "4"]


def rows_of(capsys, *options):
    assert main([*COMMAND, "--json", *options]) == 0
    return {row["method"]: row for row in json.loads(capsys.readouterr().out)["pipelines"]}


def test_the_rows_are_the_models(capsys):
    """Cuts 4 nodes' batches into 16 micro-batches; a step has data parallelism's samples."""
    rows = rows_of(capsys, "--activation-mb", "10", "--batch", "2", "--step-ms", "100")
    hybrid = Hybrid.even(
        make_schedule("1f1b", 4, 16).order,
        step_seconds=0.4,
        activation_bytes=2.5e6,
        parameters=25_600_000,
        samples=4 * 2 * 4,
        replicas=4,
    )
    expected = predict_hybrid(Fabric(16, 100e9), hybrid)
    found = rows["hybrid, daso"]
    assert found["step ms"] == pytest.approx(1e3 * expected.step_seconds)
    assert found["bubble"] == pytest.approx(3 / 19)
    assert found["samples/s"] == pytest.approx(128 / expected.step_seconds)
    assert found["of one node"] == pytest.approx(0.1 * 16 / expected.step_seconds)
    assert rows["data, synchronous"]["of data parallel"] == 1
    assert rows["data, daso"]["step ms"] < rows["data, synchronous"]["step ms"]
    assert rows["hybrid, synchronous"]["step ms"] >= found["step ms"]


def test_schedules_and_places(capsys):
    plain = rows_of(capsys)["hybrid, daso"]
    interleaved = rows_of(capsys, "--schedule", "interleaved")["hybrid, daso"]
    assert interleaved["bubble"] == pytest.approx(1 - 16 / (16 + 3 / 2))
    more = rows_of(capsys, "--schedule", "interleaved", "--chunks", "3")["hybrid, daso"]
    assert more["bubble"] == pytest.approx(1 - 16 / (16 + 3 / 3))
    finer = rows_of(capsys, "--microbatches", "64", "--schedule", "gpipe")["hybrid, daso"]
    assert finer["bubble"] == pytest.approx(3 / 67)
    uneven = rows_of(capsys, "--balance", "1.5")["hybrid, daso"]
    assert uneven["bubble"] > plain["bubble"]
    inside = rows_of(capsys, "--partitions-per-node", "4", "--replicas", "16")["hybrid, daso"]
    assert inside["MB a step"] < plain["MB a step"]


def test_pipelines_have_one_fragment_unless_told_otherwise(capsys):
    slow = ("--rate", "250mbit", "--activation-mb", "0", "--delay", "1")
    mine, one = rows_of(capsys, *slow), rows_of(capsys, *slow, "--fragments", "1")
    assert mine["hybrid, daso"] == one["hybrid, daso"]
    assert mine["data, daso"] != one["data, daso"]  # there it is up to 8


def test_fragments_reach_the_pipelines(capsys):
    """On a slow link the fragments' exchanges fit behind a cycle; one must end within S steps."""
    slow = ("--rate", "250mbit", "--activation-mb", "0", "--delay", "1")
    rows = {count: rows_of(capsys, *slow, "--fragments", count) for count in ("1", "4")}
    hybrid = Hybrid.even(
        make_schedule("1f1b", 4, 16).order,
        step_seconds=0.8,
        activation_bytes=0.0,
        parameters=25_600_000,
        replicas=4,
        delay=1,
        fragments=4,
    )
    expected = predict_hybrid(Fabric(16, 2.5e8), hybrid).step_seconds
    assert rows["4"]["hybrid, daso"]["step ms"] == pytest.approx(1e3 * expected)
    for name in ("hybrid, daso", "data, daso"):
        assert rows["4"][name]["step ms"] != pytest.approx(rows["1"][name]["step ms"])


def test_tables_and_a_picture(capsys, tmp_path):
    picture = tmp_path / "schedule.png"
    assert main([*COMMAND, "--draw", str(picture)]) == 0
    said = capsys.readouterr().out
    assert "4 pipelines of 4 partitions, 4 stages, 1f1b, 16 micro-batches; 25 MB over" in said
    assert "hybrid, synchronous" in said and "data, daso" in said and "no network" in said
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert main(["simulate"]) == 0
    assert "hybrid" not in capsys.readouterr().out
    assert main(["simulate", "--draw", str(picture)]) == 0
    assert "8 replicas of one partition" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--partitions", "0"], "--partitions must be at least 1"),
        (["--partitions-per-node", "3"], "multiple of --partitions-per-node, got 4 and 3"),
        (["--partitions", "5"], "takes 5 nodes; 3 of them do not make 16 nodes"),
        (["--replicas", "2"], "takes 4 nodes; 2 of them do not make 16"),
        (["--activation-mb", "-1"], "--activation-mb must be 0 or more, got -1"),
        (["--microbatches", "0"], "num_microbatches must be at least 1"),
        (["--chunks", "2"], "the others 1; got '1f1b' with chunks=2"),
        (["--balance", "0.5"], "balance must be at least 1"),
        (["--draw", "nowhere/schedule.png"], "--draw cannot write nowhere"),
        (["--draw", "schedule.words"], "words"),
    ],
)
def test_impossible_options_are_refused(options, words, capsys):
    assert main([*COMMAND, *options]) == 2
    assert words in capsys.readouterr().err


@pytest.mark.parametrize(
    "option",
    [
        ("--replicas", "2"),
        ("--microbatches", "8"),
        ("--schedule", "gpipe"),
        ("--chunks", "2"),
        ("--activation-mb", "5"),
        ("--balance", "1.5"),
        ("--partitions-per-node", "2"),
    ],
)
def test_an_option_of_pipelines_without_a_pipeline_is_refused(option, capsys):
    assert main(["simulate", *option]) == 2
    assert f"{option[0]} describes pipelines: give --partitions, too" in capsys.readouterr().err
