"""Arrays on more and more nodes: measured on emulated hosts, predicted for up to 1024.

    python benchmarks/speed/arrays_at_scale.py [--quick] [--rows 1000000] [--gigabits 1 10]
        [--hosts 2 4] [--rounds 5] [--picture FILE]

Strong scaling: as many rows on all nodes together, whatever their number; weak: as many on each.
Of each task the table has

- *ms*: the median of its rounds, on the slowest node.
- *between*: of these, in operations between nodes, waits for slower nodes included.
- *predicted*: computing + alpha rounds(P) + 8 bytes(P) / rate. Computing is a line through the
  times of one node with fewer rows, while each other core does the same; rounds and bytes are those
  of the algorithms (a tree for reductions and gathers, P - 1 for what passes from node to node, one
  more tree for the comparison of calls). Alpha is that of an operation of one number on the same
  hosts. *bytes / predicted*: those that were counted; the bytes of k-means and LASSO are a line
  through their counts, and say nothing here.
- *speedup*: one node's time with all rows over that of P nodes; weak: times as much as the work
  has grown, which is P, and P^1.5 for products. A `resplit` has none, since one node does nothing.

Hosts beyond the number of cores share them, and take longer than predicted. Needs root, iproute2
and MPICH.
"""

from __future__ import annotations

import argparse
import math
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
from scipy import optimize

from benchmarks.lib import harness
from benchmarks.speed import _arrays
from benchmarks.speed._arrays import BINS, COLUMNS, side
from jdaso.fabric import ClusterError, emulated_cluster

TASKS = ["mean and std", "histogram", "k-means", "sort", "matmul", "resplit", "cdist", "LASSO"]
PREDICTED = (8, 16, 32, 64, 128, 256, 512, 1024)
SIZES = (1, 4, 16)
"""One node's times are taken with so many times fewer rows."""
SMALL_BYTES = 1 << 23
"""An operand of a product, or of distances, that is gathered at once."""
ONE_THREAD = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"


class Timed:
    """The nodes of arrays, with the seconds that their operations have taken."""

    def __init__(self, at: Any):
        self._at, self.node, self.nodes, self.seconds = at, at.node, at.nodes, 0.0

    def __getattr__(self, name: str) -> Any:
        return self._timed(getattr(self._at, name))

    def _timed(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            jax.block_until_ready(arguments)  # computing does not count
            begin = time.perf_counter()
            found = function(*arguments, **options)
            self.seconds += time.perf_counter() - begin
            return self._timed(found) if callable(found) else found

        return call


def measure(totals: Sequence[int], rounds: int, alone: bool) -> tuple[int, dict[str, Any]]:
    """Times all tasks with each number of rows; returns this node's number, and its results.

    Args:
        totals: numbers of rows, on all nodes together.
        rounds: times that a task is timed.
        alone: whether each process is one node of its own.
    """
    import jax.numpy as jnp

    import jdaso
    import jdaso.array as ja
    from jdaso.array import _world

    with jdaso.Session(timeout_seconds=600) as session:
        all_nodes = ja.asarray(0.0).world
        at = Timed(_world.ALONE if alone else all_nodes)

        def largest(seconds: float) -> float:
            return float(all_nodes.reduce(jnp.asarray(seconds), "max"))

        found: dict[str, Any] = {"tasks": []}
        times = harness.interleaved([lambda: at.numbers(np.zeros(1, int))], 20 * rounds)
        found["call"] = largest(harness.median(times[0]))
        for rows in totals:
            with _world.using(at):
                tasks = _arrays.tasks_of_jdaso(rows)
                for name in TASKS:
                    tasks[name]()  # compiles
                    with ja.counted() as count:
                        tasks[name]()
                    spent = []
                    for _ in range(rounds):
                        largest(0.0)  # all begin together
                        at.seconds, begin = 0.0, time.perf_counter()
                        tasks[name]()
                        taken = time.perf_counter() - begin
                        spent.append((largest(taken), largest(at.seconds)))
                    seconds, between = (harness.median(each) for each in zip(*spent, strict=True))
                    row = {"task": name, "rows": rows, "seconds": seconds, "between": between}
                    found["tasks"].append(row | {"calls": count.calls, "bytes": count.bytes_sent})
        return session.node, found


def work(task: str, rows: int) -> float:
    """The amount that a task computes on all nodes together, in any unit."""
    return side(rows) ** 3 if task == "matmul" else rows


def moves(task: str, rows: int, nodes: int) -> tuple[float, float]:
    """Returns a task's rounds of messages, and the bytes that each node sends."""
    others, share, tree = nodes - 1, (nodes - 1) / nodes, math.ceil(math.log2(nodes))
    call = 2 * tree  # the comparison of calls, and a reduction or a gather

    def passed(nbytes: int) -> tuple[float, float]:
        if nbytes <= SMALL_BYTES:
            return call, nbytes * share
        pieces = math.ceil(nbytes / nodes / SMALL_BYTES)
        return pieces * others * (tree + 1), nbytes * share

    if task == "mean and std":
        return 2 * call, 3 * 4 * COLUMNS * others
    if task == "histogram":
        return 2 * call, 2 * 4 * others + 2 * 4 * BINS * share
    if task == "sort":
        bits = 8 if others << 8 <= 512 else 4
        digits, counts = 32 // bits, others << bits
        search = digits * 2 * 8 * counts * share + 2 * 8 * others * others
        return (digits + 1) * call + tree + others, search + 4 * rows * share / nodes
    if task == "matmul":
        return passed(4 * side(rows) ** 2)
    if task == "resplit":
        return tree + others, 4 * COLUMNS * rows * share / nodes
    if task == "cdist":
        return passed(4 * COLUMNS * min(rows, 2 * side(rows)))
    raise KeyError(task)


class Model:
    """Predicts tasks on P nodes.

    Args:
        alone: rows of `measure` of one node.
        counted: rows of `measure` of several numbers of nodes, by these numbers.
        alpha: seconds of a round.
        gigabits: of a link.
    """

    def __init__(
        self, alone: list[dict], counted: dict[int, list[dict]], alpha: float, gigabits: float
    ):
        self._alpha, self._gigabits, self._computes, self._others = alpha, gigabits, {}, {}
        for task in TASKS:
            lines = [(work(task, x["rows"]), x["seconds"]) for x in alone if x["task"] == task]
            amounts, seconds = np.array(lines, float).T
            terms = np.stack([np.ones_like(amounts), amounts], 1) / seconds[:, None]
            self._computes[task], _ = optimize.nnls(terms, np.ones(len(seconds)))
            calls, places = 0, []
            for nodes, rows in counted.items():
                calls, sent = next((x["calls"], x["bytes"]) for x in rows if x["task"] == task)
                places.append(((nodes - 1, (nodes - 1) / nodes), sent))
            terms, sent = (np.array(each, float) for each in zip(*places, strict=True))
            self._others[task] = calls, np.linalg.lstsq(terms, sent, rcond=None)[0]

    def moves(self, task: str, rows: int, nodes: int) -> tuple[float, float]:
        """Rounds and bytes: by formula, or for tasks of reductions and gathers by their counts."""
        try:
            return moves(task, rows, nodes)
        except KeyError:
            calls, terms = self._others[task]
            sent = terms @ [nodes - 1, (nodes - 1) / nodes]
            return 2 * math.ceil(math.log2(nodes)) * calls, float(sent)

    def seconds(self, task: str, rows: int, nodes: int) -> float:
        """Predicts a task's time."""
        fixed, each = self._computes[task]
        rounds, sent = self.moves(task, rows, nodes)
        computing = fixed + each * work(task, rows) / nodes
        return computing + self._alpha * rounds + 8e-9 * sent / self._gigabits


def launch(hosts: int, gigabits: float, totals: list[int], rounds: int) -> dict[str, Any]:
    """Measures on hosts whose links have this rate, or on one alone."""
    flags = ["--rounds", rounds, "--totals", *totals]
    if hosts == 1:
        return harness.launch(__file__, ["--alone", *flags], os.cpu_count() or 1)
    with emulated_cluster(hosts, gigabits * 1e9, check=gigabits < 10) as cluster:
        os.environ |= cluster.environment
        return harness.launch(__file__, flags, hosts, cluster.mpiexec([]))


def table(rows: int, hosts: list[int], gigabits: list[float], rounds: int) -> list[dict[str, Any]]:
    """Measures all, and returns rows of the table, those that are predicted only after others."""
    alone = launch(1, 0, [rows // k for k in SIZES], rounds)["tasks"]
    base = {x["task"]: x["seconds"] for x in alone if x["rows"] == rows}
    lines = []
    for rate in gigabits:
        found = {p: launch(p, rate, [rows, rows * p], rounds) for p in hosts}
        alpha = harness.median([x["call"] / 2 / math.ceil(math.log2(p)) for p, x in found.items()])
        strong = {p: [one for one in x["tasks"] if one["rows"] == rows] for p, x in found.items()}
        model = Model(alone, strong, alpha, rate)
        print(f"{rate:g} Gbit/s: a round of messages takes {1e6 * alpha:.0f} us", flush=True)
        for task in TASKS:
            for scaling in ("strong", "weak"):
                for p in [*hosts, *(p for p in PREDICTED if p > max(hosts))]:
                    total = rows * p if scaling == "weak" else rows
                    line = {"task": task, "scaling": scaling, "Gbit/s": rate, "nodes": p}
                    seconds = predicted = model.seconds(task, total, p)
                    if p in found:
                        measured = next(
                            x for x in found[p]["tasks"] if (x["task"], x["rows"]) == (task, total)
                        )
                        _, sent = model.moves(task, total, p)
                        seconds = measured["seconds"]
                        line |= {"ms": 1e3 * seconds, "between": 1e3 * measured["between"]}
                        line["bytes / predicted"] = measured["bytes"] / sent
                    line["predicted"] = 1e3 * predicted
                    if task != "resplit":
                        grown = work(task, total) / work(task, rows)
                        line["speedup"] = grown * base[task] / seconds
                    lines.append(line)
    return lines


def judge(lines: list[dict[str, Any]], cores: int) -> None:
    """Prints how far the prediction is off where each host has a core of its own."""
    off = {}
    for x in lines:
        if "ms" in x and x["nodes"] <= cores:
            name = f"{x['task']}, {x['scaling']}, {x['nodes']} nodes, {x['Gbit/s']:g} Gbit/s"
            off[name] = x["ms"] / x["predicted"]
    if off:
        half = harness.median([abs(each - 1) for each in off.values()])
        far = max(off, key=lambda name: abs(math.log(off[name])))
        print(f"measured / predicted on at most {cores} nodes: half of them within {half:.0%}; the")
        print(f"farthest is {off[far]:.2f} ({far})")


def draw(lines: list[dict[str, Any]], path: Path) -> None:
    """Draws speedups: measured ones as dots, predicted ones as lines."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    rates = sorted({line["Gbit/s"] for line in lines})
    figure, axes = pyplot.subplots(2, len(rates), figsize=(4.6 * len(rates), 8), squeeze=False)
    for row, scaling in zip(axes, ("strong", "weak"), strict=True):
        for axis, rate in zip(row, rates, strict=True):
            for k, task in enumerate(one for one in TASKS if one != "resplit"):
                own = [
                    x for x in lines
                    if (x["task"], x["scaling"], x["Gbit/s"]) == (task, scaling, rate)
                ]  # fmt: skip
                scale = [x["speedup"] * x.get("ms", x["predicted"]) / x["predicted"] for x in own]
                axis.plot([x["nodes"] for x in own], scale, color=f"C{k}", label=task)
                seen = [x for x in own if "ms" in x]
                axis.plot(
                    [x["nodes"] for x in seen], [x["speedup"] for x in seen], "o", color=f"C{k}"
                )
            most = max(x["nodes"] for x in lines)
            axis.plot([1, most], [1, most], ":", color="gray")
            axis.set(
                xscale="log", yscale="log", xlabel="nodes", ylabel="speed, that of one node is 1"
            )
            axis.set_title(f"{scaling} scaling, {rate:g} Gbit/s")
    axes[0][0].legend()
    figure.tight_layout()
    figure.savefig(path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--gigabits", type=float, nargs="+", default=[1, 10])
    parser.add_argument("--hosts", type=int, nargs="+", default=[2, 4])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--picture", type=Path, help="an SVG or PNG")
    parser.add_argument("--alone", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--totals", type=int, nargs="+", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if min(given.hosts) < 2:
        parser.error(f"--hosts must be 2 or more, got {given.hosts}: one node is measured anyway.")
    if harness.is_rank():
        node, found = measure(given.totals, given.rounds, given.alone)
        if node == 0:
            harness.give(found)
        return
    os.environ |= {"XLA_FLAGS": ONE_THREAD, "NPROC": "1", "OMP_NUM_THREADS": "1"}
    if given.quick:
        given.rows, given.gigabits, given.hosts, given.rounds = 20_000, [1], [2], 1
    try:
        lines = table(given.rows, given.hosts, given.gigabits, given.rounds)
    except ClusterError as error:
        raise SystemExit(f"Nothing was measured: {error}") from None
    harness.report("arrays_at_scale", lines, of=given.rows, rounds=given.rounds)
    judge(lines, os.cpu_count() or 1)
    if given.picture:
        draw(lines, given.picture)


if __name__ == "__main__":
    main()
