"""Displays the demo: live on a terminal, otherwise a plain line every few seconds."""

import time

from rich.console import Console, Group
from rich.live import Live
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
)
from rich.table import Table

NAMES = {"daso": "jdaso.daso", "synchronous": "jdaso.synchronous"}


class DemoDisplay:
    """Shows node 0's reports. A context manager; `show` takes one report as a dict."""

    def __init__(self, console: Console, seconds_between_lines: float = 5.0) -> None:
        self.console = console
        self._seconds_between_lines = seconds_between_lines
        self._last_line = float("-inf")
        self._latest: dict[str, dict] = {}
        self._progress = Progress(
            TextColumn("{task.description:18}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("steps"),
            TimeRemainingColumn(),
            console=console,
        )
        self._tasks: dict[str, TaskID] = {}
        self._live = Live(console=console, refresh_per_second=4) if console.is_terminal else None

    def __enter__(self) -> "DemoDisplay":
        if self._live:
            self._live.start()
        return self

    def __exit__(self, *_exc) -> None:
        if self._live:
            self._live.stop()

    def show(self, report: dict) -> None:
        """Shows a progress report."""
        method, first = report["method"], report["method"] not in self._latest
        self._latest[method] = report
        if self._live:
            if first:
                self._tasks[method] = self._progress.add_task(
                    NAMES[method], total=report["total_steps"]
                )
            self._progress.update(self._tasks[method], completed=report["step"])
            self._live.update(Group(self._progress, progress_table(list(self._latest.values()))))
        elif first or time.monotonic() - self._last_line > self._seconds_between_lines:
            self._last_line = time.monotonic()
            self.console.print(progress_line(report), soft_wrap=True, highlight=False)

    def finish(self, report: dict) -> None:
        """Shows the result of one method."""
        if self._live and report["method"] in self._tasks:
            self._progress.update(self._tasks[report["method"]], completed=report["steps"])
        elif not self._live:
            self.console.print(
                f"{NAMES[report['method']]}: done, {report['test_accuracy']:.2%} of the test "
                f"images right after {report['seconds']:.1f} s",
                soft_wrap=True,
                highlight=False,
            )

    def note(self, line: str) -> None:
        """Prints a line that is not a report."""
        self.console.print(line, soft_wrap=True, highlight=False, markup=False)


def progress_line(report: dict) -> str:
    """Formats a report as one line for logs."""
    return (
        f"{NAMES[report['method']]}: step {report['step']}/{report['total_steps']}, "
        f"{report['phase']}, B {report['sync_every']}, S {report['delay']}, "
        f"loss {report['loss']:.3f}, {report['images_per_second']:.0f} images/s, "
        f"{report['hidden_share']:.0%} of the exchange time hidden"
    )


def progress_table(reports: list[dict]) -> Table:
    """Makes a table with the latest report of each method, one per row."""
    table = Table("method", "step", "phase", "B", "S", "loss", "images/s", "hidden")
    for report in reports:
        table.add_row(
            NAMES[report["method"]],
            str(report["step"]),
            report["phase"],
            str(report["sync_every"]),
            str(report["delay"]),
            f"{report['loss']:.3f}",
            f"{report['images_per_second']:.0f}",
            f"{report['hidden_share']:.0%}",
        )
    return table


def result_table(results: list[dict]) -> Table:
    """Makes a table of both methods side by side."""
    table = Table("", *(NAMES[result["method"]] for result in results))
    rows = {
        "test accuracy": lambda result: f"{result['test_accuracy']:.2%}",
        "seconds": lambda result: f"{result['seconds']:.1f}",
        "images/s": lambda result: f"{result['images_per_second']:.0f}",
        "bytes sent per step": lambda result: f"{result['bytes_per_step']:,.0f}",
        "exchange time hidden": lambda result: f"{result['hidden_share']:.0%}",
        "all nodes equal": lambda result: "yes" if result["nodes_equal"] else "NO",
    }
    for name, value in rows.items():
        table.add_row(name, *(value(result) for result in results))
    for column in table.columns[1:]:
        column.justify = "right"
    return table
