"""The argument of a workload, and the line that it prints."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from typing import Any

from ..models import BATCH, MODELS, Model
from ..outcomes import RESULT


@dataclass(frozen=True)
class Given:
    """The argument of a workload.

    Attributes:
        factors: factor -> level of the cell.
        settings: settings of the workload.
        transport: one of `chosen.TRANSPORTS`.
    """

    factors: dict[str, Any]
    settings: dict[str, Any]
    transport: str = "mpi"

    @property
    def numbers(self) -> int:
        """The factor bytes as a number of float32, at least one."""
        return max(1, int(self.factors["bytes"]) // 4)

    @property
    def engine(self) -> str:
        """The engine of jdaso's sessions."""
        if self.factors.get("method") == "instant":
            return "instant"
        return "mpi4jax" if self.transport == "mpi4jax" else "mpi4py"

    @property
    def wire(self) -> str:
        """The factor wire."""
        return self.factors.get("wire", "float32")

    @property
    def method(self) -> str:
        """The factor method."""
        return self.factors["method"]

    @property
    def model(self) -> Model:
        """The numbers of the factor model."""
        return MODELS[self.factors["model"]]

    @property
    def batch(self) -> int:
        """The factor batch."""
        return self.factors.get("batch", BATCH)

    @property
    def step_seconds(self) -> float:
        """Seconds of a paced step: as set, or as published."""
        own = self.settings["step_seconds"]
        return own or self.model.published_seconds(self.batch, self.settings["tokens"])


def given() -> Given:
    """Returns the argument of this program."""
    if len(sys.argv) != 2:
        raise SystemExit('usage: python -m WORKLOAD \'{"factors": {...}, "settings": {...}}\'')
    return Given(**json.loads(sys.argv[1]))


def give(result: dict[str, Any]) -> None:
    """Prints a result; called by node 0 alone."""
    print(f"\n{RESULT}{json.dumps(result, allow_nan=False)}", flush=True)
