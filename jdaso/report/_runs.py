"""Reads the records of a run: joins parts of a restarted run, leaves out damaged rows."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

from .._launch.paths import local_folder
from ._joined import Node, nodes_of
from ._rows import UNWRITTEN, read_parts
from ._starts import latest_run, starts_of


class ReportError(Exception):
    """The given folders cannot be reported on."""


@dataclasses.dataclass
class Run:
    """The records of all nodes of a run.

    Attributes:
        name: name of the folder.
        folder: path of the folder.
        nodes: by their number.
        damaged: rows that could not be read, as "node-00003.jsonl, line 17: why".
        older: whether the folder also holds an older run, which is left out: one that had ended
            before this run began and repeated all its steps.
    """

    name: str
    folder: Path
    nodes: list[Node]
    damaged: list[str]
    older: bool = False

    @property
    def steps(self) -> int:
        """Completed updates of the node that got furthest."""
        return max(node.steps for node in self.nodes)

    @property
    def saved_steps(self) -> set[int]:
        """Steps of the checkpoints that no node failed to write, at its last attempt."""
        latest: dict[tuple[int, int], bool] = {}
        for node in self.nodes:
            for mark in node.marks:
                failed = mark.kind == "fault" and mark.text.startswith(UNWRITTEN)
                if mark.step is not None and (failed or mark.kind == "checkpoint"):
                    latest[mark.step, node.node] = not failed
        failed = {step for (step, _), good in latest.items() if not good}
        return {step for step, _ in latest} - failed


def read_run(folder: str | Path) -> Run:
    """Reads the rows that `jdaso.metrics.Recorder` wrote.

    Args:
        folder: the recorder's folder.

    Returns:
        The run; unreadable rows are left out and listed in `Run.damaged`.

    Raises:
        ReportError: the folder does not exist or holds no row.
    """
    folder = local_folder(folder)
    if not folder.is_dir():
        raise ReportError(
            f"{folder} is not a folder. Give the folder that jdaso.metrics.Recorder wrote to."
        )
    files = [path for path in folder.iterdir() if re.fullmatch(r"node-\d+\.jsonl", path.name)]
    files.sort(key=lambda path: (len(path.name), path.name))
    if not files:
        raise ReportError(
            f"{folder} has no node-*.jsonl. Write them with jdaso.metrics.Recorder(folder, session)"
            ", or with python -m jdaso demo --record FOLDER."
        )
    damaged: list[str] = []
    parts = [some for path in files if (some := read_parts(path, damaged))]
    starts = starts_of(parts)
    latest = latest_run(starts)
    nodes = nodes_of(latest) if latest else []
    if not any(node.columns["step"].size for node in nodes):
        rows = f"; {len(damaged)} rows are damaged, as {damaged[0]}" if damaged else ""
        raise ReportError(f"{folder} has no row of a step{rows}. Call recorder.step in the loop.")
    older = len(latest) < len(starts)
    return Run(folder.resolve().name or str(folder), folder, nodes, damaged, older)


def counted(number: int, what: str) -> str:
    """Formats a count: 1 node, 2 nodes."""
    return f"{number} {what}{'' if number == 1 else 's'}"
