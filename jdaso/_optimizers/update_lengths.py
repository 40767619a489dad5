"""Lengths of updates, shared between the nodes while they cycle.

The inner optimizers concerned make updates of a fixed length (`find_lengths`). A cycling update
multiplies these by a factor for each parameter (`_rules.update_lengths`). A start keeps some
numbers of the snapshot; the merge adds the change, which gives the same numbers of the target, and
the factor follows from both. Numbers of a piece are taken at equal distances.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp

from .._exchange.late import Correction
from .._exchange.updates import exchanged
from .._jax.types import PyTree
from .._payload.explicit import replicated
from .._payload.fragments import Fragment
from .._payload.header import living
from .._payload.trees import travels
from .._rules.update_lengths import follow
from .exchanges import Exchanges
from .find_lengths import parts_of_params
from .state import Lengths
from .update import Update

_LOOK = 4096
"""Numbers of each piece: enough to measure its length to 2 %."""


@dataclasses.dataclass(frozen=True)
class SharedLengths:
    """The updates of a fixed length of one `daso`; none with ``update_lengths="own"``.

    Attributes:
        exchanges: those of the parameters.
    """

    exchanges: Exchanges

    @cached_property
    def _found(self) -> tuple[int, ...]:
        """Numbers of their parameters among the exchanged leaves, including divided ones."""
        finder = self.exchanges.between.lengths
        return () if finder is None else finder.find(self.exchanges.params).leaves

    @cached_property
    def leaves(self) -> tuple[int, ...]:
        """Numbers of their parameters among the exchanged leaves, without divided ones."""
        return tuple(k for k in self._found if not self.exchanges.exchanged[k].division)

    @cached_property
    def decayed(self) -> tuple[int, ...]:
        """Those of `leaves` whose updates hold a multiple of the parameter: weight decay."""
        finder = self.exchanges.between.lengths
        found = () if finder is None else finder.find(self.exchanges.params).decayed
        return tuple(k for k in found if k in self.leaves)

    def decay(self, params: PyTree, update: Callable[[PyTree], PyTree]) -> dict[int, jax.Array]:
        """The multiples of parameters in their updates, by leaf.

        Args:
            params: the parameters.
            update: from parameters to the inner optimizer's updates.
        """
        if not self.decayed:
            return {}
        flat = jax.tree.leaves(params)
        exchanged = [place for place, x in enumerate(flat) if travels(x)]
        places = [exchanged[leaf] for leaf in self.decayed]
        parts = parts_of_params(update, params, places, [flat[place] for place in places])
        return dict(zip(self.decayed, parts, strict=True))

    @property
    def fact(self) -> tuple[str, str]:
        """The parameters that were found, on which the nodes must agree."""
        found = f"{len(self._found)} leaves, weight decay in {len(self.decayed)}"
        return "the update lengths that are shared", found

    def init(self) -> tuple[Lengths, ...]:
        """The lengths in the state before the first update, for each fragment."""
        return tuple(map(self._init, self.exchanges.fragments)) if self.leaves else ()

    def _init(self, fragment: Fragment) -> Lengths:
        """Lengths of a fragment about which nothing is known yet."""
        count = len(self._pieces(fragment))
        zeros = lambda *shape: jnp.zeros(shape, jnp.float32)  # noqa: E731
        return Lengths(zeros(count), zeros(count, _LOOK), zeros(count, _LOOK))

    def scaled(self, u: Update, decay: Mapping[int, jax.Array]) -> PyTree:
        """The updates, those of a fixed length times their factors if the nodes cycle.

        The mean over the nodes does not shorten `decay`, which is not multiplied.
        """
        if not self.leaves:
            return u.updates
        of_pieces: dict[int, list[Any]] = {leaf: [] for leaf in self.leaves}
        for fragment, held in zip(self.exchanges.fragments, u.state.lengths, strict=True):
            for k, place in enumerate(self._pieces(fragment)):
                of_pieces[fragment.pieces[place].leaf].append(held.factor[k])
        flat, tree = jax.tree.flatten(u.updates, is_leaf=lambda x: x is None)
        places = [place for place, _ in exchanged(u.params, u.updates)]
        for leaf, factors in of_pieces.items():
            mean = jnp.mean(jnp.maximum(jnp.stack(factors), 1))
            factor = jnp.where(u.act.blocking, 1, mean)
            if (x := flat[places[leaf]]) is not None:
                more = (factor - 1).astype(x.dtype)  # 0 leaves all bits
                rest = decay.get(leaf, jnp.zeros((), x.dtype)).astype(x.dtype)
                flat[places[leaf]] = x + more * (x - rest)
        return jax.tree.unflatten(tree, flat)

    def started(self, held: Lengths, fragment: Fragment, snapshot: Sequence[Any]) -> Lengths:
        """Lengths with numbers of a fragment's snapshot."""
        return held._replace(sent=self._look(fragment, snapshot))

    def merged(self, held: Lengths, fragment: Fragment, found: Correction) -> Lengths:
        """Lengths after a merge; unchanged if its result is discarded."""
        target = held.sent + self._look(fragment, found.change)
        own, mean = held.sent - held.target, target - held.target
        factor = follow(held.factor, own, mean, living(found.heads))
        new = held._replace(factor=factor, target=target)
        return jax.tree.map(lambda x, y: jnp.where(found.merges, x, y), new, held)

    def _pieces(self, fragment: Fragment) -> list[int]:
        """Places in a fragment of the pieces whose updates have a fixed length."""
        return [k for k, piece in enumerate(fragment.pieces) if piece.leaf in self.leaves]

    def _look(self, fragment: Fragment, pieces: Sequence[Any]) -> jax.Array:
        """Some numbers of each piece, ``[K, N]``; padded with zeros."""
        rows = []
        for place in self._pieces(fragment):
            flat = jnp.ravel(replicated(pieces[place]))
            some = flat[:: -(-flat.size // _LOOK)].astype(jnp.float32)
            rows.append(jnp.pad(some, (0, _LOOK - some.size)))
        return jnp.stack(rows) if rows else jnp.zeros((0, _LOOK), jnp.float32)
