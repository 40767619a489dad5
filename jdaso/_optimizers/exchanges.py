"""The exchanges of one `jdaso.daso`, each made once for an update."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from functools import cached_property, partial

import jax
import jax.numpy as jnp

from .._exchange.exact import Everything
from .._exchange.exchange import Exchange
from .._exchange.late import Late
from .._exchange.make import exchange_of, late_of
from .._jax.types import Leaves, PyTree, ShapeDtype
from .._payload.fragments import Fragment, deal, deal_most
from .._payload.layout import Division, Leaf, describe
from .._payload.placement import Placement
from .._payload.spans import Span, spans_of
from .._payload.trees import travels
from .._payload.wire import Wire
from .between import Between


@dataclasses.dataclass(frozen=True)
class Exchanges:
    """The exchanges between nodes of one optimizer's parameters, and of trees like them.

    Attributes:
        between: the optimizer's settings.
        params: the parameters, or their shapes.
    """

    between: Between
    params: PyTree

    @cached_property
    def placement(self) -> Placement | None:
        """The placement of the parameters; None if none is divided over several devices."""
        return self.between.placements.of(self.params)

    @cached_property
    def leaves(self) -> Sequence[Leaf]:
        """The leaves of the parameters with their divisions."""
        here = self.placement
        return describe(self.params) if here is None else here.leaves(self.params)

    @cached_property
    def exchanged(self) -> tuple[Leaf, ...]:
        """Those of the leaves that are exchanged."""
        return tuple(leaf for leaf in self.leaves if leaf.exchanged)

    @cached_property
    def of_params(self) -> Exchange:
        """The exchange of the parameters."""
        return self._exchange_of(self.params, self.placement)

    def of_gradients(self, gradients: PyTree) -> Exchange:
        """The exchange of a tree like the parameters, with None for some of their leaves."""
        here = self.placement
        along = None if here is None else here.along(self.params, gradients)
        return self._exchange_of(gradients, along)

    def of_everything(self, tree: PyTree) -> Exchange:
        """The exchange of `Everything`, or only of leaves that are on all devices."""
        if not isinstance(tree, Everything):
            here = self.placement
            if here is not None:  # inside jax.shard_map all devices call the host
                whole = here.of([()] * len(jax.tree.leaves(tree)))
                here = whole if here.mesh is None else None
            return self._exchange_of(tree, here)
        return self._exchange_of(tree, self._placement_of(tree.inner, tree.whole))

    def of_bits(self, inner: PyTree) -> tuple[Exchange, Sequence[Division]]:
        """The exchange of parameters and inner state, for their checksum; their divisions."""
        here = self._placement_of(inner)
        if not jax.tree.leaves(inner):
            return self.of_params, () if here is None else here.divisions
        exchange = self._exchange_of((self.params, inner), here)
        return exchange, () if here is None else here.divisions

    @cached_property
    def fragments(self) -> tuple[Fragment, ...]:
        """The fragments of the parameters.

        Raises:
            ValueError: the parameters cannot be divided into as many as the phases ask for.
        """
        between = self.between
        size_bytes = 4 * sum(leaf.size * leaf.shards for leaf in self.exchanged)
        if size_bytes == 0:
            known = between.counts if _is_opaque(self.params) else []
            return deal(self.leaves, 1) * (known[-1] if known else 1)
        counts = between.phases.fragments_of(size_bytes)
        fragments = deal_most(self.leaves, counts, self.placement)
        between.counts[:] = [len(fragments)]
        return fragments

    @cached_property
    def late(self) -> tuple[Late, ...]:
        """The late exchanges of each fragment."""
        return tuple(map(self._late, range(len(self.fragments))))

    def _late(self, index: int) -> Late:
        """The late exchanges of a fragment."""
        between, count, fragment = self.between, len(self.fragments), self.fragments[index]
        name = between.name
        if count > 1:  # parts of models of other shapes may be alike
            of = self.of_params.layout.fingerprint
            name = f"{name}, fragment {index} of {count} of the parameters {of}"
        here = self.placement
        if here is not None:
            here = here.of([leaf.division for leaf in fragment.leaves])
        exchange = self._exchange_of(fragment.leaves, here, between.wire, name)
        shapes = jax.tree.map(lambda x: ShapeDtype(jnp.shape(x), jnp.result_type(x)), self.params)
        dress = partial(_dressed, shapes, fragment)
        return late_of(exchange, between.rule, dress, checks=between.on_drift != "ignore")

    @cached_property
    def spans(self) -> tuple[tuple[Span, ...], ...]:
        """For each fragment, the place that each leaf of its exchange has among the parameters."""
        joined = self.between.session.joined
        pairs = zip(self.fragments, self.late, strict=True)
        return tuple(
            spans_of(fragment, self.exchanged, late.exchange.placement, cuts_copies=joined)
            for fragment, late in pairs
        )

    def _placement_of(self, inner: PyTree, whole: PyTree = ()) -> Placement | None:
        """The placement of parameters, inner state, and undivided leaves, one after another."""
        return self.between.placements.of_both(self.params, inner, whole)

    def _exchange_of(
        self,
        tree: PyTree,
        placement: Placement | None,
        wire: str | Wire = "float32",
        name: str | None = None,
    ) -> Exchange:
        """The exchange of trees like `tree`; the name is that of the optimizer by default."""
        between = self.between
        return exchange_of(
            tree,
            between.session,
            wire=wire,
            local_axis=between.local_axis,
            name=between.name if name is None else name,
            owner=between.number,
            chunk_bytes=between.chunk_bytes,
            raise_nonfinite=between.on_nonfinite == "raise",
            placement=placement,
            copies_alike=between.phases.max_local_every == 1,
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
    flat = [jnp.zeros(0, jnp.float32)] * len(jax.tree.leaves(params))
    for piece, x in zip(fragment.pieces, pieces, strict=True):
        flat[place[piece.leaf]] = x
    return jax.tree.unflatten(jax.tree.structure(params), flat)
