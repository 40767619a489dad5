"""Second moments of an inner optimizer, shared between the nodes while they cycle.

The inner state keeps a node's own second moments v. In a cycling update the inner optimizer is
given ``shared(v)`` in their place (`_rules.second_moments`), and its updates are taken; the moments
continue by the optimizer's own rule::

    updates, _ = inner(gradients, (m, shared(v)))
    _, (m, v) <- inner(gradients, (m, v))

The second line computes the moments alone: the compiler leaves out what is not used. It comes
behind the first (`chains.behind`). Otherwise XLA would join the two, and since the first needs
moments that the second overwrites, it would write new ones to memory of their own and copy them
back: two more copies of the parameters, and two to three times the time of an update on CPUs
(benchmarks/NOTES.md).

In blocking updates all nodes have the mean gradient, and v is that of all nodes already. The last
one before the nodes cycle (without a warm-up, `init`) makes it the node's own, and the last cycling
one that of all nodes again. Both are conditions at the end of an update: in the steps between,
nothing else reads v.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import cached_property, partial
from typing import Any

import jax
import jax.numpy as jnp
from jax.core import Tracer

from .._jax.cpus import namespace_of
from .._jax.types import PyTree
from .._payload.chains import behind
from .._rules.second_moments import own_of, shared
from .between import Between
from .exchanges import Exchanges
from .find_moments import Moments
from .update import Update


@dataclasses.dataclass(frozen=True)
class Sharing:
    """The second moments that one `daso` shares; none with ``second_moments="own"``.

    Attributes:
        exchanges: those of the parameters.
    """

    exchanges: Exchanges

    @property
    def between(self) -> Between:
        """The optimizer's settings."""
        return self.exchanges.between

    @cached_property
    def moments(self) -> tuple[Moments, ...]:
        """The moments that the inner state keeps."""
        finder = self.between.moments
        return () if finder is None else finder.find(self.exchanges.params).shared

    @property
    def fact(self) -> tuple[str, str]:
        """The moments found, on which the nodes must agree: each node looks on its own."""
        rates = sorted({(x.first_decay, x.second_decay) for x in self.moments})
        found = ", ".join(f"b1 = {a:g} and b2 = {b:g}" for a, b in rates)
        return "the second moments that are shared", f"{len(self.moments)} leaves {found}".strip()

    def init(self, inner: PyTree) -> PyTree:
        """The first inner state, whose second moments may be those of an earlier run."""
        flat = jax.tree.leaves(inner)
        if self.between.phases.warmup_steps or all(_is_zero(flat[x.second]) for x in self.moments):
            return inner
        return self._each(inner, own_of, where=True)

    def begin(self, u: Update) -> Update:
        """The last update of the warm-up, after which the nodes have their own v."""
        return u.with_state(inner=self._each(u.state.inner, own_of, where=True))

    def end(self, u: Update) -> Update:
        """The last cycling update, with second moments of all nodes."""
        return u.with_state(inner=self._each(u.state.inner, shared, where=True))

    def update(self, u: Update, inner: Callable[[PyTree], Any]) -> Any:
        """The inner optimizer's updates and new state, with the node's own v while nodes cycle.

        Args:
            u: the update.
            inner: the inner optimizer's update, of its state alone.
        """
        own = u.state.inner
        if not self.moments:
            return inner(own)
        if isinstance(u.state.step, Tracer):  # else an update may read numbers of its state
            inner = jax.jit(inner)  # traced once
        updates, new = inner(self._each(own, shared, where=~u.act.blocking))
        updates, later = self._behind(own, updates)
        again = jax.tree.leaves(inner(later)[1])
        flat, tree = jax.tree.flatten(new)
        for each in self.moments:
            flat[each.first], flat[each.second] = again[each.first], again[each.second]
        return updates, jax.tree.unflatten(tree, flat)

    def _behind(self, own: PyTree, updates: PyTree) -> tuple[PyTree, PyTree]:
        """The updates and the inner state, with moments that come after the updates."""
        (flat, tree), (made, tree_made) = jax.tree.flatten(own), jax.tree.flatten(updates)
        for each in self.moments:
            moments = flat[each.first], flat[each.second]
            read_by = range(len(made)) if each.parameter is None else [each.parameter]
            moments, read = behind(moments, [made[k] for k in read_by])
            flat[each.first], flat[each.second] = moments
            for k, x in zip(read_by, read, strict=True):
                made[k] = x
        return jax.tree.unflatten(tree_made, made), jax.tree.unflatten(tree, flat)

    def _each(self, inner: PyTree, function: Any, where: Any) -> PyTree:
        """The inner state, with a function of moments applied to all second ones."""
        flat, tree = jax.tree.flatten(inner)
        biases: dict[Any, Any] = {}
        for each in self.moments:
            about = each.count, each.first_decay, each.second_decay
            if about not in biases:
                biases[about] = each.bias(flat)
            flat[each.second] = _applied(
                where,
                flat[each.second],
                flat[each.first],
                biases[about],
                function=function,
                nodes=self.between.nodes,
                decay=each.first_decay,
            )
        return jax.tree.unflatten(tree, flat)


def _is_zero(x: Any) -> bool:
    """True if an array is known to be zero."""
    if isinstance(x, Tracer) or not getattr(x, "is_fully_addressable", True):
        return False
    xp = namespace_of(x)
    return not xp.any(xp.asarray(x))


# Compiled functions, so that JAX traces them once for all leaves of a shape.


@partial(jax.jit, static_argnames=("function", "nodes", "decay"))
def _applied(
    where: Any, second: Any, first: Any, bias: Any, *, function: Any, nodes: int, decay: float
) -> jax.Array:
    """A function of moments where a condition holds, else the second moments."""
    found = function(_wide(second), _wide(first) * bias, nodes, decay)
    return jnp.where(where, found.astype(second.dtype), second)


def _wide(x: Any) -> jax.Array:
    return jnp.asarray(x, jnp.float32)
