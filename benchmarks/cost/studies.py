"""Time that a study adds to its launches: rows, counters, proofs, the end of all processes.

    python benchmarks/cost/studies.py [--quick] [FILE.toml]

A launch by hand takes from the start of its command to that command's end. All else until the next
command starts is the study's: looking for processes that are left, reading the output, the row and
its way to the disk, the next command line. Emulated hosts, which a launch by hand needs too, have a
column of their own, and so has the start of the study (versions of libraries, commit, guard).
Mark: per launch at most 1 % of the launch. Without ``--quick`` it needs root and iproute2.
"""

import argparse
import os
import select
import subprocess
import tempfile
import threading
import time
from contextlib import contextmanager

from benchmarks.lib import harness
from jdaso.fabric._study import clusters, processes
from jdaso.fabric._study.declaration import read_study, study_of
from jdaso.fabric._study.runner import run_study

FILE = "examples/studies/links.toml"
HERE = {
    "name": "here",
    "replicates": 2,
    "factors": {
        "fabric": "here",
        "library": "mpich",
        "workload": ["latency", "allreduce"],
        "nodes": 2,
        "bytes": ["1KiB", "1MiB"],
    },
}


class Watched(subprocess.Popen):
    """A process whose start and end are noted when they happen, not when they are asked for."""

    spans: list["Watched"] = []

    def __init__(self, *args, **keywords):
        self.begin = time.perf_counter()
        super().__init__(*args, **keywords)
        self._running = os.pidfd_open(self.pid)
        self.watch = threading.Thread(target=self._note)
        self.watch.start()
        Watched.spans.append(self)

    def _note(self):
        select.select([self._running], [], [])
        self.end = time.perf_counter()
        os.close(self._running)


@contextmanager
def noted():
    """Notes the launches of a study, and the seconds in which its emulated hosts are made."""
    making, make, popen = [], clusters.emulated_cluster, subprocess.Popen

    @contextmanager
    def timed(*args, **keywords):
        begin = time.perf_counter()
        with make(*args, **keywords) as cluster:
            making.append((begin, time.perf_counter()))
            yield cluster

    clusters.emulated_cluster, processes.subprocess = timed, _with(subprocess, Popen=Watched)
    try:
        yield making
    finally:
        clusters.emulated_cluster, processes.subprocess = make, subprocess
        assert subprocess.Popen is popen


def _with(module, **names):
    """A module with other names."""
    return type("Module", (), {**vars(module), **names})


def measure(study):
    """One row: milliseconds of a launch, and those that the study adds to each of them."""
    begin = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder, noted() as making:
        launches = run_study(study, folder)
    end, spans = time.perf_counter(), Watched.spans
    for span in spans:
        span.watch.join()
    hosts = sum(b - a for a, b in making)
    first = spans[0].begin - begin - sum(b - a for a, b in making if b < spans[0].begin)
    alone = [span.end - span.begin for span in spans]
    between = [
        b.begin - a.end - sum(y - x for x, y in making if a.end < x < b.begin)
        for a, b in zip(spans[:-1], spans[1:], strict=True)
    ]
    share = harness.median([more / one for more, one in zip(between, alone, strict=False)])
    return {
        "study": study.name,
        "launches": launches,
        "launch ms": harness.median(alone) * 1e3,
        "study adds ms": harness.median(between) * 1e3,
        "most ms": max(between) * 1e3,
        "share of all %": 100 * sum(between) / sum(alone),
        "median share %": 100 * share,
        "start s": first,
        "end s": end - spans[-1].end,
        "emulated hosts s": hosts,
    }


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="two ranks of this machine")
    parser.add_argument("file", nargs="?", default=FILE)
    arguments = parser.parse_args()
    study = study_of(HERE) if arguments.quick else read_study(arguments.file, short=True)
    harness.report("studies", [measure(study)])
