"""Late exchanges between real nodes: one call to the host for a start, and one for a merge."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from .._engines.versions import Versions
from .._jax.types import Leaves, PyTree
from .._payload.layout import BARE, describe
from .._payload.words import BAD_LEAF, STEP
from .callbacks import guarded
from .host import HostExchange, on_host
from .late import Correction, Late
from .order import token_of
from .replicated import Common
from .within_node import device_number

log = logging.getLogger("jdaso")


class HostLate(Late):
    """Late exchanges of one fragment between real nodes; see `Late`."""

    exchange: HostExchange

    @cached_property
    def versions(self) -> Versions:
        """The numbers that the host holds. All nodes open the channel together."""
        kept = self.exchange.channel.versions
        key = self.rule, self.checks
        if key not in kept:
            about = {"checks": self.checks, "node": self.exchange.node}
            whole = self.exchange.whole
            dress = tuple if self.exchange.session.joined else self.dress  # leaves are parts there
            kept[key] = Versions(self.exchange.channel, self.rule, dress, whole=whole, **about)
        return kept[key]

    def empty(self, model: int) -> PyTree:
        """Returns the model's number: the host holds all else."""
        return jnp.asarray(model, jnp.int32)

    def begin(self, held: PyTree, leaves: Leaves, step: jax.Array) -> tuple[PyTree, jax.Array]:
        """See `Late.begin`."""
        versions, owner = self.versions, self.exchange.owner

        def begin(_: Any, model: Any, *arrays: Any) -> np.ndarray:
            versions.begin(arrays, owner, int(model))
            return np.zeros((), np.int32)

        call = guarded(on_host(begin), self.exchange.session, np.zeros((), np.int32))
        return held, self.exchange.send(call, jnp.int32(0), (step, held), leaves)

    def start(
        self,
        held: PyTree,
        leaves: Leaves,
        head: jax.Array,
        *,
        step: jax.Array,
        before: jax.Array,
        weight: jax.Array | None,
        turn: jax.Array,
    ) -> tuple[jax.Array, PyTree]:
        """See `Late.start`."""
        versions, owner, weighted = self.versions, self.exchange.owner, weight is not None

        def start(
            ticket: Any,
            model: Any,
            before: Any,
            weight: Any,
            head: Any,
            device: Any,
            *arrays: Any,
        ) -> np.ndarray:
            versions.start(
                int(ticket),
                arrays,
                np.asarray(head),
                before=int(before),
                weight=np.float32(weight) if weighted else None,
                owner=owner,
                model=int(model),
                device=int(device),
            )
            return np.array(ticket, np.int32)

        # A refused start still returns its ticket; the wait for that ticket raises the error.
        call = guarded(on_host(start), self.exchange.session, lambda ticket, *_: np.array(ticket))
        given = jnp.float32(1) if weight is None else weight
        about = step + 1, held, before, given, head, device_number()
        return self.exchange.send(call, turn, about, leaves), held

    def wait(
        self, held: PyTree, ticket: jax.Array, age: jax.Array, turn: jax.Array, common: Common
    ) -> tuple[Correction, PyTree]:
        """See `Late.wait`."""
        versions, owner = self.versions, self.exchange.owner

        def wait(ticket: Any, model: Any, age: Any, device: Any) -> Any:
            about = {"owner": owner, "model": int(model), "device": int(device)}
            heads, leaves = versions.correction(int(ticket), int(age), **about)
            if not self.exchange.raise_nonfinite and heads[:, BAD_LEAF].any():
                self._note_skip(heads)
            return heads, tuple(leaves)

        found = self._fetch(wait, turn, ticket, held, age, device_number())
        heads = self.exchange.report(found.heads, common, beside=self._beside)
        return Correction(found.change, heads), held

    def feedback(
        self, held: PyTree, before: jax.Array, turn: jax.Array
    ) -> tuple[Leaves, jax.Array]:
        """See `Late.feedback`."""
        versions, owner = self.versions, self.exchange.owner

        def feedback(ticket: Any, model: Any) -> Any:
            heads, leaves = versions.feedback(int(ticket), owner, int(model))
            return heads, tuple(leaves)

        found = self._fetch(feedback, turn, before, held)
        heads = self.exchange.report(found.heads, None)
        return self.exchange.behind(heads, found.change), token_of(heads)

    def without_feedback(self, held: PyTree) -> PyTree:
        """See `Late.without_feedback`; the state no longer names a version."""
        return held

    def _note_skip(self, heads: np.ndarray) -> None:
        """Counts merges that are skipped, and logs the first, the second, the fourth, ..."""
        skips = self.versions.count_skip()
        if skips & (skips - 1):
            return
        paths = self.exchange.paths
        bad = [(node, int(leaf)) for node, leaf in enumerate(heads[:, BAD_LEAF]) if leaf]
        log.warning(
            "%s All nodes skip this merge, and each after it until these numbers are finite (%d "
            "so far): %s.",
            self.exchange.session.topology.prefix(int(heads[self.exchange.node, STEP])),
            skips,
            "; ".join(f"node {node}, leaf {paths[leaf - 1]}" for node, leaf in bad),
        )

    def _fetch(self, function: Callable[..., Any], turn: jax.Array, *args: Any) -> Correction:
        """Calls a function that returns headers, and numbers for each leaf."""
        words, leaves = self.exchange.fetch(function, 1, turn, args)
        return Correction(leaves, words)

    def _beside(self, heads: np.ndarray) -> tuple[tuple[str, ...], np.ndarray]:
        """Names and checksums of the replicated numbers that the host holds."""
        if not self.anchored:
            return (), np.zeros(0, np.int32)
        exchange = self.exchange
        leaves = [("anchor", leaf) for leaf in exchange.layout.exchanged]
        leaves += [("outer", leaf) for leaf in describe(self.versions.outer_shapes)]
        names = [of + leaf.path.removeprefix(BARE) for of, leaf in leaves if np.prod(leaf.shape)]
        ticket = int(heads[exchange.node % len(heads), STEP]) + 1
        return tuple(names), self.versions.prints(ticket, exchange.owner)
