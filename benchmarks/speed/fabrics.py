"""Studies of links that are known: are they found equal, slower, and of their rate?

    python benchmarks/speed/fabrics.py [--quick] [--parts equal slower rates fits] [--replicates 8]

- *equal*: two fabrics of the same rate. *slower*: of one of them, one host's link is made 20 %
  slower after the study has made and measured it. Each is run twice, and the verdicts compared.
- *rates*: streams of messages between two hosts, beside iperf3 as a program of a study.
- *fits*: latency and rate of each collective, fitted to half of the cells, against the others.

Needs root, iproute2 and MPICH; *rates* also iperf3.
"""

from __future__ import annotations

import argparse
import contextlib
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.lib import harness
from jdaso.fabric import emulated_cluster
from jdaso.fabric._emulate import cluster as links
from jdaso.fabric._study import clusters
from jdaso.fabric._study.alpha_beta import fits_of
from jdaso.fabric._study.declaration import study_of
from jdaso.fabric._study.measured import MeasuredLaunch, named, read_launches
from jdaso.fabric._study.runner import run_study
from jdaso.fabric._study.verdicts import verdicts

SLOWED = 0.8
IPERF3 = str(Path(__file__).with_name("_iperf3.py"))
TWO = {"one": {"rate": "1gbit"}, "other": {"rate": "1000mbit"}}
"""The same rate, in words that distinguish both."""
WORKS = [
    {"workload": "allreduce", "bytes": "4MiB"},
    {"workload": "exchange", "bytes": "4MiB", "wire": "int8"},
    {"workload": "training", "model": "paced", "method": "synchronous"},
    {"workload": "training", "model": "paced", "method": "daso", "wire": "bfloat16"},
    {"workload": "halo", "grid": 64, "scaling": "strong"},
]
RATES = ("100mbit", "1gbit", "2.5gbit", "10gbit")
SIZES = [f"{4**k}KiB" for k in range(8)]


@contextlib.contextmanager
def slowed(*arguments: Any, **named_ones: Any) -> Iterator[links.Cluster]:
    """An emulated cluster; of the one that "other" names, one host's link is slower than it was."""
    with emulated_cluster(*arguments, **named_ones) as made:
        if arguments[1] == TWO["other"]["rate"]:
            for namespace, device in ((made.hosts[1], "eth0"), (made.switch, "port1")):
                links._shape(namespace, device, SLOWED * made.bits_per_second)
        yield made


def run(name: str, **declared: Any) -> list[MeasuredLaunch]:
    """Runs a study anew and returns its launches."""
    folder = harness.OUT / "studies" / name
    shutil.rmtree(folder, ignore_errors=True)
    study = study_of({"name": name, "limit_seconds": 120, **declared})
    run_study(study, folder, lambda row, left: print(name, left, row.outcome.status, flush=True))
    return read_launches(folder)


def judged(name: str, replicates: int, works: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Runs a study of two fabrics twice, and returns both verdicts on each work."""
    cells = [
        {"fabric": fabric, "library": "mpich", "nodes": 2, **work}
        for fabric in TWO
        for work in works
    ]
    found = []
    for time in (1, 2):
        about = {"cells": cells, "fabrics": TWO, "replicates": replicates, "seed": time}
        found.append(verdicts(run(f"{name} {time}", **about), reference="one"))
    return [
        {"part": name, "work": named(first.setting), "first": first.words, "second": second.words}
        | {"same": first.said == second.said}
        for first, second in zip(*found, strict=True)
    ]


def rates(replicates: int) -> list[dict[str, Any]]:
    """Compares the rate of a stream of messages with iperf3's, in one study.

    Raises:
        SystemExit: there is no iperf3.
    """
    if shutil.which("iperf3") is None:
        raise SystemExit("There is no iperf3 on PATH. Install it, or leave out the part rates.")
    launches = run(
        "rates",
        replicates=replicates,
        factors={
            "fabric": list(RATES),
            "library": "mpich",
            "workload": ["bandwidth", "iperf3"],
            "nodes": 2,
            "bytes": "1MiB",
        },
        fabrics={rate: {"rate": rate, "check": False} for rate in RATES},
        workloads={"iperf3": {"program": IPERF3, "seconds": 3}, "bandwidth": {"iterations": 10}},
    )
    found = []
    for rate in RATES:
        bits = {}
        for name, size in (("bandwidth", 2**20), ("iperf3", 1)):
            named_so = {"fabric": rate, "workload": name}
            some = [x for x in launches if named_so.items() <= x.factors.items()]
            bits[name] = harness.median([8 * size / one.median for one in some]) / 1e9
        off = bits["bandwidth"] / bits["iperf3"] - 1
        row = {"part": "rates", "rate": rate, "Gbit/s": bits["bandwidth"]}
        found.append({**row, "iperf3": bits["iperf3"], "off": off, "mark": 0.05})
    return found


def fits(replicates: int) -> list[dict[str, Any]]:
    """Fits half of the cells of messages and collectives; the other half measures the error."""
    launches = run(
        "fits",
        replicates=replicates,
        factors={
            "fabric": list(RATES[:3]),
            "library": "mpich",
            "workload": ["latency", "allreduce", "alltoall"],
            "nodes": [2, 4],
            "bytes": SIZES,
        },
        fabrics={rate: {"rate": rate, "check": False} for rate in RATES},
    )
    return [
        {"part": "fits", "of": named(one.factors), "words": one.words}
        | {"median error": one.median_error, "worst error": one.worst_error}
        for one in fits_of(launches).fits
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parts = ("equal", "slower", "rates", "fits")
    parser.add_argument("--parts", nargs="*", choices=parts, default=parts)
    parser.add_argument("--replicates", type=int, help="(default 8; --quick: 2)")
    parser.add_argument("--quick", action="store_true", help="one work")
    given = parser.parse_args()
    replicates = given.replicates or (2 if given.quick else 8)
    works, rows = WORKS[: 1 if given.quick else None], []
    for part in given.parts:
        if part in ("equal", "slower"):
            clusters.emulated_cluster = slowed if part == "slower" else emulated_cluster
            rows = judged(part, replicates, works)
        else:
            clusters.emulated_cluster = emulated_cluster
            rows = rates(replicates) if part == "rates" else fits(min(replicates, 3))
        harness.report(f"fabrics {part}", rows, replicates=replicates)


if __name__ == "__main__":
    main()
