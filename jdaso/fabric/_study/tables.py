"""Rows of a study as tables that other tools read: OSU micro-benchmarks, nccl-tests, CSV."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from .alpha_beta import on_wire
from .collectives import BUS, bandwidths
from .measured import Key, MeasuredLaunch, RowsError, good_cells, key_of
from .ratios import spread_of
from .rows import OK


class Column(NamedTuple):
    """Cells that differ in their size only: a table of those tools.

    Attributes:
        factors: all but the bytes.
        sizes: in bytes, increasing.
        seconds: the median of the replicates' medians, of one operation.
    """

    factors: Key
    sizes: list[int]
    seconds: list[float]


OSU: Mapping[str, tuple[str, str]] = {
    "latency": ("Latency Test", "Latency (us)"),
    "bandwidth": ("Bandwidth Test", "Bandwidth (MB/s)"),
    "allreduce": ("Allreduce Latency Test", "Avg Latency(us)"),
    "allgather": ("Allgather Latency Test", "Avg Latency(us)"),
    "reduce_scatter": ("Reduce_scatter Latency Test", "Avg Latency(us)"),
    "alltoall": ("All-to-All Personalized Exchange Latency Test", "Avg Latency(us)"),
}
"""Workload -> title and unit of OSU's table; jdaso's own exchange has none there."""
_OF_ONE_RANK = ("allgather", "alltoall")
"""Operations whose size OSU gives for one rank: a P-th part of ours."""
_COUNTED_BY_RANK = ("allgather", "reduce_scatter", "alltoall")
"""Operations of which nccl-tests count the elements of one rank: a P-th part, beside the size."""


def columns_of(launches: Iterable[MeasuredLaunch]) -> list[Column]:
    """Returns the cells of micro-benchmarks, in the order of factors and sizes.

    Raises:
        RowsError: there are none.
    """
    found: dict[Key, list[tuple[int, float]]] = {}
    for some in good_cells(launches).values():
        factors = some[0].factors
        if factors.get("workload") in BUS and "bytes" in factors:
            cell = factors["bytes"], float(np.median([launch.median for launch in some]))
            found.setdefault(key_of(factors, without=["bytes"]), []).append(cell)
    if not found:
        raise _without(BUS)
    return [
        Column(key, *map(list, zip(*sorted(cells), strict=True))) for key, cells in found.items()
    ]


def _without(workloads: Iterable[str]) -> RowsError:
    """Makes the error for rows that have none of a table's workloads."""
    return RowsError(
        f"The rows have no micro-benchmark ({', '.join(workloads)}) that ended well, and so "
        "nothing for this table. Take --format csv or json."
    )


def osu(columns: Iterable[Column], name: str = "") -> str:
    """Formats tables as OSU's micro-benchmarks print them: microseconds, or MB/s of 1e6 bytes.

    Each table has a size at the start of a line, blanks, and a number with two digits. The size of
    an all-gather or all-to-all is one rank's part, as OSU counts it. A name stands in each heading.

    Raises:
        RowsError: OSU has no table for any of the columns.
    """
    lines = []
    for column in columns:
        factors = dict(column.factors)
        if factors["workload"] not in OSU:
            continue
        title, unit = OSU[factors["workload"]]
        lines += [f"# OSU MPI {title}", f"# measured by jdaso: {_told(column, name)}"]
        lines.append(f"{'# Size':<10}{unit:>20}")
        for size, seconds in zip(column.sizes, column.seconds, strict=True):
            rate = factors["workload"] == "bandwidth"
            number = size / seconds / 1e6 if rate else 1e6 * seconds
            part = factors["nodes"] if factors["workload"] in _OF_ONE_RANK else 1
            lines.append(f"{size // part:<10}{number:>20.2f}")
        lines.append("")
    if not lines:
        raise _without(OSU)
    return "\n".join(lines)


_NCCL_HEAD = (
    f"#{'':61}out-of-place{'':23}in-place",
    "#       size         count      type   redop    root     time   algbw   busbw #wrong"
    "     time   algbw   busbw #wrong",
    "#        (B)    (elements)                               (us)  (GB/s)  (GB/s)       "
    "     (us)  (GB/s)  (GB/s)       ",
)


def nccl_tests(columns: Iterable[Column], name: str = "") -> str:
    """Formats tables as nccl-tests print them: microseconds, GB/s of 1e9 bytes.

    The numbers stand in the columns of out-of-place operations. Those of in-place ones are nan, and
    wrong results N/A, as neither was measured. Elements are float32.
    """
    lines = []
    for column in columns:
        factors = dict(column.factors)
        lines += [f"# measured by jdaso: {_told(column, name)}", *_NCCL_HEAD]
        reduces = "sum" if "reduce" in str(factors["workload"]) else "none"
        buses = []
        for size, seconds in zip(column.sizes, column.seconds, strict=True):
            algorithm, bus = bandwidths(factors["workload"], factors["nodes"], size, seconds)
            bus *= on_wire(factors)
            buses.append(bus)
            parts = factors["nodes"] if factors["workload"] in _COUNTED_BY_RANK else 1
            lines.append(
                f"{size:>12}  {size // 4 // parts:>12}  {'float':>8}  {reduces:>6}  {-1:>6}"
                f"  {1e6 * seconds:>7.2f}  {_digits(algorithm)}  {_digits(bus)}    N/A"
                f"  {'nan':>7}  {'nan':>6}  {'nan':>6}    N/A"
            )
        lines += [f"# Avg bus bandwidth    : {np.mean(buses):g} ", "#", ""]
    return "\n".join(lines)


def _digits(rate: float) -> str:
    """A rate in a column of six; slow links would be 0.01 with two digits."""
    return f"{rate:>6.2f}" if rate >= 1 else f"{rate:>6.4f}"


def _told(column: Column, name: str) -> str:
    factors = [f"{factor} {level}" for factor, level in column.factors]
    return ", ".join([*[name] * bool(name), *factors])


def table(studies: Mapping[str, Sequence[MeasuredLaunch]]) -> str:
    """Formats all rows of studies as CSV, one a launch, failed ones too.

    `COLUMNS` has its columns; "factor" stands for ``factor NAME`` of each factor.
    """
    launches = [(name, launch) for name, some in studies.items() for launch in some]
    names = list(dict.fromkeys(name for _, launch in launches for name in launch.factors))
    lines = [_fields(launch, names) | {"shown": shown} for shown, launch in launches]
    text = io.StringIO()
    writer = csv.DictWriter(text, list(lines[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(lines)
    return text.getvalue()


COLUMNS: Mapping[str, str] = {
    "shown": "name of the study in the report; several of one name have their folders'",
    "study": "name of the study",
    "declaration": "hash of all that it measures",
    "cell": "name of the cell",
    "replicate": "number of the launch among those of its cell",
    "attempt": "number of the launch among those of its cell and replicate",
    "order": "place of the launch among all",
    "factor": "level of a factor; empty where the workload does not read it",
    "status": "ok, failed, timed out, out of memory, missing, other fabric",
    "words": "end of its output, or the reason of the status",
    "iterations": "number of measured iterations",
    "median_seconds": "median of them",
    "seconds_5": "5 % took less",
    "seconds_95": "95 % took less",
    "algbw": "algorithm bandwidth in GB/s, of micro-benchmarks",
    "busbw": "bus bandwidth in GB/s, as nccl-tests define it, of bytes on the wire",
    "started": "time of the launch",
    "limit_seconds": "the longest that it might take",
    "limit_bytes": "the memory that it might take; empty for no limit",
    "hosts": "JSON: a host for each node",
    "commit": "version of the code",
    "expected_bytes": "the fewest bytes that had to cross the fabric",
    "bytes_at_interfaces": "JSON: interface to bytes received and sent",
    "chosen": "JSON: choices that the library reports",
    "machine": "JSON: the machine and its load",
    "versions": "JSON: package to version",
    "environment": "JSON: variables that the study set",
    "seconds": "every measured iteration, separated by blanks",
    "warmup_seconds": "every iteration before them",
    "compute_seconds": "the same work without a network",
    "communication_seconds": "communication in each iteration, hidden or not",
}
"""Column of the CSV -> its content."""

_AS_JSON = ("hosts", "bytes_at_interfaces", "chosen", "machine", "versions", "environment")
_LISTS = ("seconds", "warmup_seconds", "compute_seconds", "communication_seconds")


def _fields(launch: MeasuredLaunch, names: Sequence[str]) -> dict[str, object]:
    """Returns the columns of a launch, in the order of `COLUMNS`."""
    known = {**launch.row, "iterations": launch.seconds.size}
    known |= {name: json.dumps(launch.row.get(name)) for name in _AS_JSON}
    known |= {name: " ".join(map(repr, launch.row.get(name) or [])) for name in _LISTS}
    if launch.status == OK:
        spread = ("median_seconds", "seconds_5", "seconds_95")
        known |= dict(zip(spread, spread_of(launch.seconds), strict=True))
        known |= _rates(launch)
    fields = {}
    for column in COLUMNS:
        if column == "factor":
            fields |= {f"factor {name}": launch.factors.get(name) for name in names}
        else:
            fields[column] = known.get(column)
    return fields


def _rates(launch: MeasuredLaunch) -> dict[str, float]:
    """Returns both bandwidths of a micro-benchmark."""
    of = launch.factors
    if of.get("workload") not in BUS or "bytes" not in of:
        return {}
    algorithm, bus = bandwidths(of["workload"], of["nodes"], of["bytes"], launch.median)
    return {"algbw": algorithm, "busbw": bus * on_wire(of)}
