"""The argument of a workload, and the line that it prints."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from typing import Any

from ..outcomes import RESULT


@dataclass(frozen=True)
class Given:
    """All that a study tells a workload.

    Attributes:
        factors: factor -> level of the cell.
        settings: settings of the workload.
        transport: "mpi" or "gloo".
    """

    factors: dict[str, Any]
    settings: dict[str, Any]
    transport: str = "mpi"

    @property
    def numbers(self) -> int:
        """The factor bytes as a number of float32, at least one."""
        return max(1, int(self.factors["bytes"]) // 4)


def given() -> Given:
    """Returns the argument of this program."""
    if len(sys.argv) != 2:
        raise SystemExit('usage: python -m WORKLOAD \'{"factors": {...}, "settings": {...}}\'')
    return Given(**json.loads(sys.argv[1]))


def give(result: dict[str, Any]) -> None:
    """Prints a result; called by node 0 alone."""
    print(f"\n{RESULT}{json.dumps(result, allow_nan=False)}", flush=True)
