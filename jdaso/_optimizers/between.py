"""The settings of one `jdaso.daso`."""

from __future__ import annotations

import dataclasses

from .._jax.types import LocalAxis
from .._payload.wire import Wire
from .._rules.merge import Merge
from .._rules.phases import Phases
from .._session import Session
from .find_lengths import LengthsFinder
from .find_moments import MomentsFinder
from .placements import Placements


@dataclasses.dataclass(frozen=True)
class Between:
    """Settings of one `daso`'s averages between nodes; all that changes is in `DasoState`.

    Attributes:
        session: the nodes.
        number: the session's number for the optimizer.
        phases: when the nodes exchange.
        rule: how a late result is merged.
        named_wire: the format of late exchanges; None for the fastest one (``"auto"``).
        local_axis: axis of the local devices that the caller runs inside, or None.
        blocking: what is averaged while waiting, ``"gradients"`` or ``"parameters"``.
        on_nonfinite: ``"raise"`` or ``"skip"``.
        on_drift: ``"raise"`` or ``"ignore"``, if replicated values diverged.
        chunk_bytes: maximum float32 bytes sent at once.
        name: distinguishes optimizers of equal shapes that are used in one step.
        moments: finds second moments that are shared; None if each node uses its own.
        lengths: finds updates of a fixed length, likewise.
        counts: F of the parameters last divided; empty before.
        placements: how trees lie on the node's devices.
    """

    session: Session
    number: int
    phases: Phases
    rule: Merge
    named_wire: Wire | None
    local_axis: LocalAxis
    blocking: str
    on_nonfinite: str
    on_drift: str
    chunk_bytes: int
    name: str
    placements: Placements = dataclasses.field(compare=False)
    moments: MomentsFinder | None = None
    lengths: LengthsFinder | None = None
    counts: list[int] = dataclasses.field(default_factory=list, compare=False)

    @property
    def nodes(self) -> int:
        """The number of nodes, P."""
        return self.session.num_nodes

    @property
    def wire(self) -> Wire:
        """The format of late exchanges; exact means are float32."""
        return self.session.fastest_wire() if self.named_wire is None else self.named_wire

    @property
    def merges(self) -> bool:
        """True if anything is ever merged late."""
        return self.nodes > 1 and self.phases.cycling_steps > 0

    @property
    def facts(self) -> list[tuple[str, str]]:
        """Settings that must be the same on all nodes, by name."""
        settings = {
            "phases": self.phases,
            "wire": self.wire.name,
            "merge": self.rule.name,
            "blocking": self.blocking,
            "on_nonfinite": self.on_nonfinite,
            "on_drift": self.on_drift,
            "chunk_bytes": self.chunk_bytes,
            "name": self.name,
            "second_moments": "own" if self.moments is None else "shared",
            "update_lengths": "own" if self.lengths is None else "shared",
        }
        facts = [(f"the setting {key}", str(value)) for key, value in settings.items()]
        return [("the optimizer", f"daso, number {self.number}"), *facts]
