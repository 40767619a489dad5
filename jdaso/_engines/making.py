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
from .job import Job
from .programs import Programs, subtract_from
from .staging import Leaves
from .version import Version


@dataclasses.dataclass(frozen=True)
class Making:
    """A version in the making, as its channel sees it; see `job.Numbers`.

    Attributes:
        version: the version.
        arrays: the parameters' leaves, in the step's memory.
        wire: the wire format.
        rule: the merge rule.
        programs: their arithmetic.
        leaves: the places of the leaves.
        node: this node's number.
        anchored: whether a common point is kept.
        checks: whether a checksum of it travels in the header.
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
        """As `Numbers.nbytes`."""
        return sum(x.nbytes for x in self.arrays)

    def write(self) -> Iterator[int]:
        """As `Numbers.write`."""
        assert self.version.numbers is not None
        return self.leaves.write(self.arrays, self.version.numbers)

    def encode(self, k: int, room: Callable[[], np.ndarray]) -> tuple[np.ndarray, int]:
        """As `Numbers.encode`."""
        version, wire, rule = self.version, self.wire, self.rule
        assert version.numbers is not None
        numbers, before = version.numbers.rows[k], version.before
        last, recoded = k == len(version.numbers.rows) - 1, wire.narrow
        recoded |= version.weight is not None
        encoded = rows = numbers
        if recoded:
            anchor = before.anchor[k] if before is not None and wire.narrow else None
            owed = None if before is None else before.owed(k, rule, self.node)
            keeps = wire.narrow and not rule.keeps_progress
            given = numbers, anchor, version.weight, owed
            encoded, error, paid = self.programs.encode(*given, keeps=keeps)
            if wire.narrow:
                version.error = (*version.error, error)
            if keeps:
                version.paid = (*version.paid, paid)
        if recoded or last:
            rows = room()
            np.copyto(rows[:, : encoded.shape[1]], encoded)
        if before is None or not self.checks:
            return rows, 0
        return rows, checksum_on_host(np.asarray(before.anchor[k]), salt=k)

    def finish(self, job: Job) -> None:
        """As `Numbers.finish`."""
        version = self.version
        assert version.numbers is not None and job.heads is not None
        before, rows = version.before or Version(0), job.place.rows
        facts = version.facts = facts_of(job.heads)
        version.residuals = tuple(job.residuals)
        if facts.merges:
            outer = before.outer
            if outer is None:
                outer = self.programs.outer(before.anchor)
            given = rows, before.anchor, outer, facts.factor
            targets, version.outer = self.programs.targets(*given)
            for k, target in enumerate(targets):
                if self.rule.keeps_progress:
                    subtract_from(target, version.numbers.rows[k])
                else:
                    np.copyto(version.numbers.rows[k], target)
            if self.anchored:
                own = lambda x: np.array(x) if isinstance(x, np.ndarray) else x  # noqa: E731
                version.anchor = tuple(map(own, targets))
        else:
            version.anchor, version.outer = before.anchor, before.outer
            if self.wire.narrow:
                version.error = self._come_back(rows, facts)
                version.residuals = tuple(np.zeros_like(x) for x in version.residuals)
        self.leaves.clear_gaps(version.numbers.whole)
        version.heads = job.heads

    def _come_back(self, rows: Sequence[np.ndarray], facts: Facts) -> tuple[Any, ...]:
        """Error feedback of a result that is discarded: nothing is lost with it."""
        version = self.version
        if not facts.finite:
            return tuple(np.zeros_like(x) for x in map(np.asarray, version.error))
        zipped = zip(version.error, rows, version.residuals, strict=True)
        return tuple(self.programs.returned(*x, self.node, facts.living) for x in zipped)
