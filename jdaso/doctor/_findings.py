"""Results of checks, merged over ranks and formatted."""

from __future__ import annotations

import dataclasses
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

_WIDTH = 100


@dataclasses.dataclass(frozen=True)
class Finding:
    """One line of the report.

    what: the subject of the check.
    found: the result.
    ok: whether jdaso can work with this result.
    remedy: how to fix the problem if not.
    alike: whether the result must be the same on all ranks.
    """

    what: str
    found: str
    ok: bool = True
    remedy: str = ""
    alike: bool = False


@dataclasses.dataclass(frozen=True)
class SharedFinding:
    """A finding and the ranks that share it; without ranks, it is about all of them together."""

    finding: Finding
    ranks: tuple[int, ...] = ()

    def as_json(self) -> dict[str, Any]:
        """Returns the line for scripts."""
        about = dataclasses.asdict(self.finding)
        del about["alike"]
        return {**about, "ranks": list(self.ranks)}


def merged(findings: Mapping[int, Sequence[Finding]]) -> list[SharedFinding]:
    """Merges equal findings of ranks into one line; different findings get several.

    Findings of one name are adjacent. If they must be alike but are not, each is a problem.
    """
    by_name: dict[str, dict[Finding, list[int]]] = {}
    for rank in sorted(findings):
        for finding in findings[rank]:
            by_name.setdefault(finding.what, {}).setdefault(finding, []).append(rank)
    lines = []
    for variants in by_name.values():
        differ = len({finding.found for finding in variants}) > 1
        for finding, ranks in variants.items():
            lines.append(
                SharedFinding(
                    _differing(finding) if differ and finding.alike else finding, (*ranks,)
                )
            )
    return lines


def joined(lines: Sequence[SharedFinding]) -> list[SharedFinding]:
    """Joins lines that have the same finding about different ranks."""
    ranks: dict[Finding, tuple[int, ...]] = {}
    for line in lines:
        ranks[line.finding] = (*ranks.get(line.finding, ()), *line.ranks)
    return [SharedFinding(finding, of) for finding, of in ranks.items()]


def _differing(finding: Finding) -> Finding:
    remedy = (
        f"{finding.what} differs between ranks: use one environment on all hosts (on a shared file "
        "system, or one container image), or install the same version everywhere."
    )
    return dataclasses.replace(finding, ok=False, remedy=f"{finding.remedy} {remedy}".strip())


def numbered(ranks: Sequence[int]) -> str:
    """Formats ranks: ``0-2, 5`` for 0, 1, 2, 5."""
    runs: list[list[int]] = []
    for rank in sorted(ranks):
        if runs and rank == runs[-1][-1] + 1:
            runs[-1].append(rank)
        else:
            runs.append([rank])
    return ", ".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)


def written(lines: Sequence[SharedFinding], hosts: Sequence[str]) -> str:
    """Formats the report as text: subject, result, ranks; and below each the remedy.

    Args:
        lines: lines of the report.
        hosts: the host of each rank.
    """
    wide = max((len(line.finding.what) for line in lines), default=0)
    text = []
    for line in lines:
        finding = line.finding
        said = f"{finding.found}{_whose(line.ranks, hosts)}"
        mark = "ok      " if finding.ok else "TROUBLE "
        text += _wrapped(said, f"{mark} {finding.what:{wide}}  ")
        if finding.remedy:
            text += _wrapped(finding.remedy, f"{'':8} {'':{wide}}  -> ")
    return "\n".join(text)


def _wrapped(text: str, first: str) -> list[str]:
    """Wraps text to the width of a terminal; later lines are indented like the first."""
    later = " " * len(first)
    return textwrap.wrap(
        text, _WIDTH, initial_indent=first, subsequent_indent=later, break_on_hyphens=False,
        break_long_words=False,
    )  # fmt: skip


def _whose(ranks: Sequence[int], hosts: Sequence[str]) -> str:
    if not ranks or len(hosts) < 2:
        return ""
    if len(ranks) == len(hosts):
        return f" (all {len(hosts)} ranks)"
    names = sorted({hosts[rank] for rank in ranks})
    on = names[0] if len(names) == 1 else f"{len(names)} hosts, {', '.join(names[:4])}"
    return f" (rank{'s' * (len(ranks) > 1)} {numbered(ranks)}, on {on})"
