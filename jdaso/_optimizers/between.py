"""The settings of one `jdaso.daso`, and the exchanges that follow from them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from functools import partial

import jax
import jax.numpy as jnp
import optax

from .._exchange.exchange import Exchange
from .._exchange.late import Late
from .._exchange.make import exchange_of, late_of
from .._jax.types import Leaves, LocalAxis, PyTree, ShapeDtype
from .._payload.fragments import Fragment, deal, deal_most
from .._payload.layout import Leaf, describe
from .._payload.placement import Placement
from .._payload.spans import Span, spans_of
from .._payload.trees import travels
from .._payload.wire import Wire
from .._rules.merge import Merge
from .._rules.phases import Phases
from .._rules.state import init_phases
from .._session import Session
from .find_lengths import LengthsFinder
from .find_moments import MomentsFinder
from .placements import Placements
from .state import DasoState, Lengths


@dataclasses.dataclass(frozen=True)
class Between:
    """Settings of one `daso`'s averages between nodes; all that changes is in `DasoState`.

    Attributes:
        session: the nodes.
        number: the session's number for the optimizer.
        phases: when the nodes exchange.
        rule: how a late result is merged.
        wire: the format of exchanges; exact means are float32.
        local_axis: axis of the local devices that the caller runs inside, or None.
        blocking: what is averaged while waiting, ``"gradients"`` or ``"parameters"``.
        on_nonfinite: ``"raise"`` or ``"skip"``.
        on_drift: ``"raise"`` or ``"ignore"``, if replicated values diverged.
        chunk_bytes: maximum float32 bytes sent at once.
        name: distinguishes optimizers of equal shapes that are used in one step.
        moments: finds second moments that are shared; None if each node uses its own.
        lengths: finds updates of a fixed length, likewise.
        counts: F of the parameters that were last divided; empty before.
        placements: how trees lie on the node's devices.
    """

    session: Session
    number: int
    phases: Phases
    rule: Merge
    wire: Wire
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
        """P."""
        return self.session.num_nodes

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

    def exchange_of(
        self,
        tree: PyTree,
        wire: str | Wire = "float32",
        name: str | None = None,
        placement: Placement | None = None,
    ) -> Exchange:
        """Exchanges of trees like `tree`; the name is that of the optimizer by default."""
        return exchange_of(
            tree,
            self.session,
            wire=wire,
            local_axis=self.local_axis,
            name=self.name if name is None else name,
            owner=self.number,
            chunk_bytes=self.chunk_bytes,
            raise_nonfinite=self.on_nonfinite == "raise",
            placement=placement,
            copies_alike=self.phases.max_local_every == 1,
        )

    def fragments(self, params: PyTree) -> tuple[Fragment, ...]:
        """The fragments of trees like `params`.

        Raises:
            ValueError: the parameters cannot be divided into as many as the phases ask for.
        """
        leaves, placement = describe(params), self.placements.of(params)
        size_bytes = 4 * sum(leaf.size for leaf in leaves if leaf.exchanged)
        if size_bytes == 0:
            return deal(leaves, 1) * (self.counts[-1] if self.counts and _is_opaque(params) else 1)
        counts = self.phases.fragments_of(size_bytes)
        fragments = deal_most(self.leaves(params), counts, placement)
        self.counts[:] = [len(fragments)]
        return fragments

    def spans(self, params: PyTree, late: Late, fragment: Fragment) -> tuple[Span, ...]:
        """The place that each leaf of a fragment's exchange has among the parameters."""
        leaves = [leaf for leaf in self.leaves(params) if leaf.exchanged]
        placement = late.exchange.placement
        return spans_of(fragment, leaves, placement, cuts_copies=self.session.joined)

    def leaves(self, params: PyTree) -> Sequence[Leaf]:
        """The leaves of the parameters with their divisions."""
        placement = self.placements.of(params)
        return describe(params) if placement is None else placement.leaves(params)

    def late(self, params: PyTree, fragments: Sequence[Fragment], index: int) -> Late:
        """The late exchanges of a fragment of trees like `params`."""
        several = f"{self.name}, fragment {index} of {len(fragments)}"
        name = self.name if len(fragments) == 1 else several
        fragment = fragments[index]
        placement = self.placements.of(params)
        if placement is not None:
            placement = placement.of([leaf.division for leaf in fragment.leaves])
        exchange = self.exchange_of(fragment.leaves, self.wire, name, placement)
        shapes = jax.tree.map(lambda x: ShapeDtype(jnp.shape(x), jnp.result_type(x)), params)
        dress = partial(_dressed, shapes, fragment)
        return late_of(exchange, self.rule, dress, checks=self.on_drift != "ignore")

    def init(
        self, params: PyTree, inner: optax.OptState, lengths: Callable[..., tuple[Lengths, ...]]
    ) -> DasoState:
        """The state before the first update.

        Args:
            params: the parameters.
            inner: the inner optimizer's state.
            lengths: returns those of fragments.
        """
        fragments = self.fragments(params)
        count = len(fragments)
        # Each field has its own buffers: a step that donates its state must not donate one twice.
        zero = lambda: jnp.zeros((), jnp.int32)  # noqa: E731
        several = self.nodes > 1 and self.session.simulated
        held = (self.late(params, fragments, f).empty() if several else () for f in range(count))
        return DasoState(
            optimizer=jnp.asarray(self.number, jnp.int32),
            step=zero(),
            ticket=jnp.zeros(count, jnp.int32),
            started=jnp.full(count, -1, jnp.int32),
            delay=jnp.zeros(count, jnp.int32),
            drift=zero(),
            phase=init_phases(self.phases),
            loss=jnp.zeros(2, jnp.float32),
            since=jnp.zeros((count, 2), jnp.float32),
            weight=jnp.ones((), jnp.float32),
            scale=jnp.ones(count, jnp.float32),
            inner=inner,
            lengths=lengths(fragments),
            held=tuple(held),
        )


def _is_opaque(params: PyTree) -> bool:
    """Returns whether an object without leaves is no container, but optax's stand-in for params."""
    return params is not None and not isinstance(params, dict | list | tuple)


def _dressed(params: PyTree, fragment: Fragment, pieces: Leaves) -> PyTree:
    """A fragment's pieces in the structure of the parameters; all other leaves are empty.

    An outer optimizer is given such trees, and errors name their leaves.
    """
    numbers = (number for number, x in enumerate(jax.tree.leaves(params)) if travels(x))
    place = dict(enumerate(numbers))  # exchanged leaf -> leaf
    flat = [jnp.zeros(0, jnp.float32) for _ in jax.tree.leaves(params)]
    for piece, x in zip(fragment.pieces, pieces, strict=True):
        flat[place[piece.leaf]] = x
    return jax.tree.unflatten(jax.tree.structure(params), flat)
