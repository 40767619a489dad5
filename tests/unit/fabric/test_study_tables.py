"""Tables, read by the rules of the tools that read the originals."""

import csv
import io
import json
import re
from pathlib import Path

import pytest
from study_rows import row

from jdaso.fabric._study.collectives import BUS
from jdaso.fabric._study.measured import RowsError, launches_of
from jdaso.fabric._study.tables import COLUMNS, OSU, columns_of, nccl_tests, osu, table

SIZES = (8, 1024, 4194304)


def columns(workload, nodes=2, sizes=SIZES):
    """Operations of a microsecond and a nanosecond a byte."""
    rows = [
        row("a", k, [1e-6 + 1e-9 * size] * 3, workload=workload, nodes=nodes, bytes=size)
        for size in sizes
        for k in range(2)
    ]
    return columns_of(launches_of(rows))


def read_by_reframe(text, size):
    """ReFrame's rule for OSU: the first line that begins with the size, then its next word."""
    found = re.search(rf"^{size}\s+(\S+)", text, re.MULTILINE)
    assert found, f"no line of {size} bytes in\n{text}"
    return float(found[1])


@pytest.mark.parametrize("workload", [name for name in OSU if name != "bandwidth"])
@pytest.mark.parametrize("nodes", [2, 4])
def test_reframe_reads_latencies_of_osu_in_microseconds(workload, nodes):
    """A size of OSU is one rank's part of an all-gather and all-to-all, else the whole array."""
    parts = nodes if workload in ("allgather", "alltoall") else 1
    text = osu(columns(workload, nodes, sizes=[8 * nodes, 4194304]))
    small = 8 * nodes // parts
    assert read_by_reframe(text, small) == pytest.approx(1 + 8e-3 * nodes, abs=0.005)
    assert read_by_reframe(text, 4194304 // parts) == pytest.approx(4195.304, abs=0.005)
    assert all(f"\n{size} " in text for size in (small, 4194304 // parts))


def test_reframe_reads_bandwidth_of_osu_in_megabytes():
    text = osu(columns("bandwidth"))
    assert read_by_reframe(text, 4194304) == pytest.approx(4194304 / 4195.304e-6 / 1e6, abs=0.005)
    assert text.startswith("# OSU MPI Bandwidth Test\n") and "Bandwidth (MB/s)" in text


def test_all_lines_of_osu_are_comments_sizes_or_empty():
    """A size stands once in its table: its first line is the one that readers take."""
    for workload in OSU:
        lines = osu(columns(workload, 4)).splitlines()
        assert all(re.fullmatch(r"#.*|\d+ +\d+\.\d\d|", line) for line in lines), lines
        sizes = [line.split()[0] for line in lines if line and line[0] != "#"]
        assert len(sizes) == len(set(sizes)) == len(SIZES)
    assert set(OSU) | {"exchange"} == set(BUS)


def read_nccl_tests(text):
    """The rule of readers of nccl-tests: lines that begin with a number, columns by the head."""
    head = next(line for line in text.splitlines() if re.match(r"#\s+size\s+count", line))
    names = head[1:].split()
    assert names.count("busbw") == 2 and len(names) == 13
    lines = [line.split() for line in text.splitlines() if re.match(r"\s*\d", line)]
    assert all(len(line) == len(names) for line in lines)
    places = {name: names.index(name) for name in ("size", "count", "time", "algbw", "busbw")}
    return [{name: float(line[k]) for name, k in places.items()} for line in lines]


@pytest.mark.parametrize("workload", BUS)
def test_every_operation_is_read_and_its_elements_are_those_of_nccl_tests(workload):
    """Elements count one rank's part where each has a part; bytes count all."""
    parts = 4 if workload in ("allgather", "reduce_scatter", "alltoall") else 1
    found = read_nccl_tests(nccl_tests(columns(workload, nodes=4, sizes=[1024, 4096])))
    assert [(one["size"], one["count"]) for one in found] == [
        (1024, 256 / parts), (4096, 1024 / parts),
    ]  # fmt: skip
    assert all(
        one["busbw"] == pytest.approx(BUS[workload](4) * one["algbw"], abs=0.01) for one in found
    )


def test_nccl_tests_are_read_by_their_columns():
    text = nccl_tests(columns("allreduce", nodes=4))
    rows = read_nccl_tests(text)
    assert [one["size"] for one in rows] == list(SIZES)
    last = rows[-1]
    assert last["time"] == pytest.approx(4195.304, abs=0.005) and last["count"] == 4194304 / 4
    assert last["algbw"] == pytest.approx(4194304 / 4195.304e-6 / 1e9, abs=0.005)
    assert last["busbw"] == pytest.approx(1.5 * 4194304 / 4195.304e-6 / 1e9, abs=0.005)
    mean = re.search(r"# Avg bus bandwidth\s*:\s*(\S+)", text)
    assert mean
    buses = [1.5 * size / (1e-6 + 1e-9 * size) / 1e9 for size in SIZES]
    assert float(mean[1]) == pytest.approx(sum(buses) / 3, rel=1e-4)


def test_what_was_not_measured_is_not_claimed():
    lines = [x for x in nccl_tests(columns("alltoall")).splitlines() if re.match(r"\s*\d", x)]
    assert all(line.split()[-5:] == ["N/A", "nan", "nan", "nan", "N/A"] for line in lines)
    assert "Out of bounds" not in nccl_tests(columns("alltoall"))


def test_a_table_for_each_fabric_and_number_of_nodes():
    found = columns("allreduce") + columns("allreduce", 4)
    assert nccl_tests(found).count("Avg bus bandwidth") == 2
    assert "fabric a, nodes 4, workload allreduce" in nccl_tests(found)


def test_the_columns_of_csv_are_documented():
    """The docs' table has them in the same order, with one row for all factors."""
    text = table({"a": launches_of([row("a", library="mpich")])})
    names = [re.sub(" .*", "", name) for name in next(csv.reader(io.StringIO(text)))]
    assert list(dict.fromkeys(names)) == [*COLUMNS]
    page = (Path(__file__).parents[3] / "docs" / "studies.md").read_text()
    said = dict(re.findall(r"^\| `(\w+)` \| (.*) \|$", page, re.MULTILINE))
    assert said == COLUMNS


def test_training_has_no_such_table():
    with pytest.raises(RowsError, match="no micro-benchmark"):
        columns_of(launches_of([row("a", workload="training")]))


def test_exchanges_alone_have_no_table_of_osu():
    with pytest.raises(RowsError, match="no micro-benchmark .latency.*Take --format csv or json"):
        osu(columns("exchange"))
    both = [*columns("exchange"), *columns("latency")]
    assert osu(both) == osu(columns("latency"))


def test_csv_has_all_rows_and_all_iterations():
    good = row("a", 0, [0.1, 0.3, 0.2], words='two\nlines, "quoted"', library="mpich")
    bad = row("b", 0, [], status="timed out", words="stuck")
    found = list(csv.DictReader(io.StringIO(table({"before": launches_of([good, bad])}))))
    assert [one["status"] for one in found] == ["ok", "timed out"]
    first, second = found
    assert [float(x) for x in first["seconds"].split()] == [0.1, 0.3, 0.2]
    assert float(first["median_seconds"]) == 0.2 and first["words"] == good["words"]
    assert first["factor library"] == "mpich" and second["factor library"] == ""
    assert float(first["algbw"]) == pytest.approx(1024 / 0.2 / 1e9)
    assert json.loads(first["bytes_at_interfaces"]) == {"eth0": [10, 20]}
    assert second["median_seconds"] == "" and second["words"] == "stuck"
    assert first["shown"] == "before"


def test_several_studies_are_named():
    assert "# measured by jdaso: before, fabric a" in osu(columns("latency"), "before")
    assert "# measured by jdaso: after, fabric a" in nccl_tests(columns("allreduce"), "after")


def test_slow_links_keep_their_digits():
    """1024 bytes in 0.1 s are 1e-5 GB/s; in 10 microseconds 0.1024."""
    rows = [row("a", 0, [1e-5] * 3, workload="bandwidth")]
    (found,) = read_nccl_tests(nccl_tests(columns_of(launches_of(rows))))
    assert float(found["algbw"]) == pytest.approx(0.1024, abs=1e-4)


def test_the_bus_carries_the_bytes_of_the_wire():
    def of(wire):
        rows = [row("a", 0, [0.1] * 3, workload="exchange", wire=wire)]
        (found,) = csv.DictReader(io.StringIO(table({"a": launches_of(rows)})))
        return float(found["algbw"]), float(found["busbw"])

    (rate, bus), (same, narrow) = of("float32"), of("int8")
    assert rate == same and narrow == pytest.approx(bus * 0.258, rel=0.02)
