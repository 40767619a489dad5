"""The making of a version: numbers are written, encoded and sent; sums become its result."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from .._jax.ffi.on_device import OnDevice
from .._payload.checksums import checksum_on_host
from .._payload.wire import Wire
from .._payload.words import Facts, facts_of
from .._rules.merge import Merge
from .in_flight import InFlight
from .programs import Programs
from .staging import Leaves
from .version import Version


@dataclasses.dataclass(frozen=True)
class Making:
    """A version in the making, as its channel sees it; see `in_flight.Numbers`.

    Attributes:
        version: the version.
        arrays: the parameters' leaves, in the step's memory.
        wire: the wire format.
        rule: the merge rule.
        programs: the arithmetic.
        leaves: the places of the leaves.
        node: this node's number.
        anchored: whether a common point is kept.
        checks: whether a checksum of that point travels in the header.
    """

    version: Version
    arrays: Sequence[np.ndarray | OnDevice]
    wire: Wire
    rule: Merge
    programs: Programs
    leaves: Leaves
    node: np.int32
    anchored: bool
    checks: bool

    @property
    def nbytes(self) -> int:
        """See `Numbers.nbytes`."""
        return sum(x.nbytes for x in self.arrays)

    def write(self) -> Iterator[int]:
        """See `Numbers.write`."""
        assert self.version.numbers is not None
        return self.leaves.write(self.arrays, self.version.numbers)

    def encode(self, k: int, room: Callable[[], np.ndarray]) -> tuple[np.ndarray, int]:
        """See `Numbers.encode`."""
        version, wire, rule = self.version, self.wire, self.rule
        assert version.numbers is not None
        numbers, before = version.numbers.rows[k], version.before
        rows = numbers
        if wire.narrow or version.weight is not None:
            anchor = before.anchor[k] if before is not None and wire.narrow else None
            owed = None if before is None else before.owed(k, rule, self.node)
            keeps, rows = wire.narrow and not rule.keeps_progress, room()
            given = numbers, rows, anchor, version.weight, owed
            error, paid = self.programs.passes.encode(*given, keeps=keeps)
            if error is not None:
                version.error = (*version.error, error)
            if paid is not None:
                version.paid = (*version.paid, paid)
        elif k == len(version.numbers.rows) - 1:
            rows = room()
            np.copyto(rows[:, : numbers.shape[1]], numbers)
        if before is None or not self.checks:
            return rows, 0
        return rows, checksum_on_host(before.anchor[k], salt=k)

    def finish(self, flight: InFlight) -> None:
        """See `Numbers.finish`."""
        version = self.version
        assert version.numbers is not None and flight.heads is not None and flight.place is not None
        before, rows = version.before or Version(0), flight.place.rows
        facts = version.facts = facts_of(flight.heads)
        version.residuals = tuple(flight.residuals)
        if facts.merges:
            outer = before.outer
            if outer is None:
                outer = self.programs.outer(before.anchor)
            given = rows, before.anchor, outer, facts.factor, version.numbers.rows
            target, version.outer = self.programs.merge(*given, returns=self.anchored)
            if self.anchored:
                version.anchor = tuple(target)
        else:
            version.anchor, version.outer = before.anchor, before.outer
            if self.wire.narrow:
                version.error = self._come_back(rows, facts)
                version.residuals = tuple(np.zeros_like(x) for x in version.residuals)
        self.leaves.clear_gaps(version.numbers.whole)
        version.heads = flight.heads

    def _come_back(self, rows: Sequence[np.ndarray], facts: Facts) -> tuple[Any, ...]:
        """Error feedback of a result that is discarded: nothing is lost with it."""
        version = self.version
        if not facts.finite:
            return tuple(map(np.zeros_like, version.error))
        found, passes = [], self.programs.passes
        for lost, sums, residual in zip(version.error, rows, version.residuals, strict=True):
            error = np.empty_like(lost)
            passes.decode(sums, error)
            error /= facts.living
            error += lost
            error[self.node] += residual
            found.append(error)
        return tuple(found)
