"""Rows of a table that run by day; ``make test-all`` also runs the others."""

from collections.abc import Collection, Iterable
from typing import Any

import pytest

nightly = pytest.mark.nightly


def rows(table: Iterable[Any], day: Collection[Any]) -> list[Any]:
    """Returns the rows as parameters; those not in `day` get the mark nightly."""
    table = list(table)
    unknown = [row for row in day if row not in table]
    assert not unknown, f"no rows of the table: {unknown}"
    return [row if row in day else at_night(row) for row in table]


def at_night(row: Any) -> Any:
    values = row if isinstance(row, tuple) else (row,)
    return pytest.param(*values, marks=nightly)
