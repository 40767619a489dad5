"""Lets an optimizer of one rank's parameters make updates as if it had all parameters."""

from __future__ import annotations

import functools
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.extend.core import ClosedJaxpr, Literal

from ..._jax.types import PyTree
from .._plan.holding import Holding
from .evaluation import ALL, Evaluation, Gather, bodies_of, unknown


class WholeOptimizer:
    """Makes an optimizer of one rank's parameters act like one of all partitions' parameters.

    `optimizer` sees the whole tree, with zeros for the parameters that other ranks hold. Results of
    those are neither computed (the compiler drops them) nor stored. If `optimizer` reduces an array
    to one number, as for a global norm, a trust ratio or "are all finite", only the rank that holds
    the array can compute it: so the update is traced, and such numbers are sent to all ranks.
    Those that do not depend on each other travel in one message; an optimizer without any sends
    nothing.

    If the rows of an array are shared out (stacked layers that a cut goes through), the optimizer
    sees the rows that this rank holds, and sums, maxima and the like are completed across ranks. An
    operation that depends on the number of rows, such as a mean, or mixes rows in another way is
    refused.

    Attributes:
        transformation: used in place of `optimizer`; its trees are this rank's (`Holding`).

    Args:
        optimizer: any optax transformation.
        holding: which rank holds which rows.
        rank: this rank's number in the pipeline.
        gather: gathers numbers from all ranks of the pipeline.

    Raises:
        NotImplementedError: in `update`: `optimizer` joins arrays of several ranks, compares them
            in a loop, or would treat shared-out rows differently from the whole array.
    """

    def __init__(
        self, optimizer: optax.GradientTransformation, holding: Holding, rank: int, gather: Gather
    ):
        self._optimizer = optax.with_extra_args_support(optimizer)
        self._holding, self._rank, self._gather = holding, rank, gather
        self._holders = [frozenset(holding.owners(leaf)) for leaf in range(len(holding.shapes))]
        self._seen = [jax.ShapeDtypeStruct(self._shape(k), d) for k, d in enumerate(holding.dtypes)]
        tree = jax.tree.unflatten(holding.tree, self._seen)
        states = jax.eval_shape(self._optimizer.init, tree)
        self._state_tree = jax.tree.structure(states)
        self._states = jax.tree.leaves(states)
        self.leaf_of_state = leaves_about(states, tree)
        self.transformation = optax.GradientTransformationExtraArgs(self._init, self._update)  # pyright: ignore

    def _check_rows(self, plain: Callable[..., Any], closed: ClosedJaxpr, *args: Any) -> None:
        """Refuses an update that depends on the number of rows of an array."""
        if all(len(holders) < 2 for holders in self._holders):
            return
        tree = self._holding.whole_structs()
        state = jax.eval_shape(self._optimizer.init, tree)
        params, extra = args
        whole = jax.make_jaxpr(plain)(tree, state, None if params is None else tree, extra)
        if list(_facts(closed.jaxpr)) != list(_facts(whole.jaxpr)):
            raise NotImplementedError(
                "The optimizer does something that depends on how many rows an array of parameters "
                "has, such as a mean over it, but partitions divide the rows of one (stacked "
                "layers). Use another optimizer, other boundaries, or num_partitions=1."
            )

    def _follow_arrays(self, closed: ClosedJaxpr, args: list[Any], holders: list[Any]) -> None:
        """Finds the holders of arrays that a state keeps in a tree unlike the parameters'."""
        first = len(self._holders)
        arrays = [k for k, leaf in enumerate(self.leaf_of_state) if leaf is None]
        arrays = [k for k in arrays if self._states[k].shape]
        changed = bool(arrays)
        while changed:
            known: list[Any] = []

            def dry(*args: Any, known: list[Any] = known) -> list[Any]:
                outs = Evaluation(self._rank, self._gather).run(closed, args, holders)
                known += [who for _, who in outs[len(outs) - len(self.leaf_of_state) :]]
                return []

            jax.eval_shape(dry, *args)
            changed = False
            for k in arrays:
                if not known[k] <= holders[first + k]:
                    holders[first + k] |= known[k]
                    changed = True

    def _known_to_all(self, evaluation: Evaluation, outs: list[tuple[Any, Any]]) -> list[Any]:
        """Sends scalars of the state that every rank keeps to all ranks; returns all results."""
        first = len(outs) - len(self.leaf_of_state)
        kept = {
            first + k: outs[first + k]
            for k, leaf in enumerate(self.leaf_of_state)
            if leaf is None and outs[first + k][1] and not jnp.shape(outs[first + k][0])
        }
        found = list(outs)
        for k, x in zip(kept, evaluation.shared(list(kept.values())), strict=True):
            found[k] = x, ALL
        return found

    def _shape(self, leaf: int) -> tuple[int, ...]:
        """Returns the shape in which the optimizer sees a leaf."""
        if leaf in self._holding.scalars:
            return ()
        shape = self._holding.shapes[leaf]
        rows = self._holding.rows_held(leaf, self._rank)
        return (rows or shape[0], *shape[1:])

    def _here(self, leaf: int | None) -> bool:
        return leaf is None or self._rank in self._holders[leaf]

    def _view(self, tree: PyTree) -> PyTree:
        """Returns the whole tree, with zeros for what other ranks hold."""
        leaves = jax.tree.leaves(tree)
        # Of another shape in a trial of `daso`, on small arrays; scalars are held as one row.
        seen = [
            (leaf if s.shape else leaf.reshape(())) if self._here(k) else unknown(s)
            for k, (leaf, s) in enumerate(zip(leaves, self._seen, strict=True))
        ]
        return jax.tree.unflatten(self._holding.tree, seen)

    def _own(self, tree: PyTree, like: PyTree) -> PyTree:
        """Returns this rank's tree, from the whole one."""
        leaves = zip(jax.tree.leaves(tree), jax.tree.leaves(like), strict=True)
        own = [x.reshape(y.shape) if y.size else np.zeros(y.shape, x.dtype) for x, y in leaves]
        return jax.tree.unflatten(self._holding.tree, own)

    def _keep(self, states: Sequence[Any]) -> Any:
        """Returns the states to store; those of arrays that other ranks hold become empty."""
        kept = [
            x if self._here(leaf) else np.zeros((0,), x.dtype)
            for x, leaf in zip(states, self.leaf_of_state, strict=True)
        ]
        return jax.tree.unflatten(self._state_tree, kept)

    def _init(self, params: PyTree) -> Any:
        def init(params: PyTree) -> Any:
            return self._keep(jax.tree.leaves(self._optimizer.init(self._view(params))))

        return jax.jit(init)(params)

    def _update(self, updates: PyTree, state: Any, params: PyTree = None, **extra: Any) -> Any:
        def plain(updates: PyTree, state: Any, params: PyTree, extra: Any) -> Any:
            return self._optimizer.update(updates, state, params, **extra)

        seen_states = [
            x if self._here(leaf) else unknown(s)
            for x, leaf, s in zip(
                jax.tree.leaves(state), self.leaf_of_state, self._states, strict=True
            )
        ]
        seen_params = None if params is None else self._view(params)
        whole_state = jax.tree.unflatten(self._state_tree, seen_states)
        args = self._view(updates), whole_state, seen_params, extra
        if self._holding.ranks == 1:
            made, new_state = plain(*args)
            return self._own(made, updates), new_state
        closed, shapes = jax.make_jaxpr(plain, return_shape=True)(*args)
        self._check_rows(plain, closed, seen_params, extra)
        holders = [
            *self._holders,
            *(ALL if leaf is None else self._holders[leaf] for leaf in self.leaf_of_state),
            *(self._holders if params is not None else []),
            *(ALL for _ in jax.tree.leaves(extra)),
        ]
        self._follow_arrays(closed, jax.tree.leaves(args), holders)
        evaluation = Evaluation(self._rank, self._gather)
        outs = evaluation.run(closed, jax.tree.leaves(args), holders)
        outs = self._known_to_all(evaluation, outs)
        made, new_state = jax.tree.unflatten(jax.tree.structure(shapes), [x for x, _ in outs])
        result = self._own(made, updates), self._keep(jax.tree.leaves(new_state))
        return _after(evaluation, result)


def _after(evaluation: Evaluation, result: PyTree) -> PyTree:
    """Makes `result` depend on the last message, so that a rank sends those whose replies it drops.

    Only one array is tied to the message: a barrier over n arrays costs the compiler n * n.
    """
    turn = evaluation.turn
    if not isinstance(turn, jax.Array):  # no message
        return result
    leaves, tree = jax.tree.flatten(result)
    if not any(map(np.size, leaves)):  # a rank without parameters, whose results nothing uses
        evaluation.end()
        return result
    k = min(range(len(leaves)), key=lambda k: np.size(leaves[k]) or np.inf)
    leaves[k], _ = jax.lax.optimization_barrier((leaves[k], turn))
    return jax.tree.unflatten(tree, leaves)


_BY_POSITION = ("iota", "random_bits", "threefry2x32", "rng_bit_generator")


def _facts(jaxpr: Any) -> Iterator[Any]:
    """Yields what a jaxpr computes without the shapes of arrays, except arrays it makes itself."""
    made_here: set[Any] = set()
    for eqn in jaxpr.eqns:
        name = eqn.primitive.name
        yield name, [str(x.val) for x in eqn.invars if isinstance(x, Literal)]
        here = all(isinstance(x, Literal) or x in made_here for x in eqn.invars)
        if name in _BY_POSITION or here and name.startswith("reduce_"):
            yield [x.aval.shape for x in (*eqn.invars, *eqn.outvars)]
        if here:
            made_here |= set(eqn.outvars)
        for value in eqn.params.values():
            for body in bodies_of(value):
                yield from _facts(body)


def _alike(leaf: Any, param: Any) -> bool:
    return leaf.shape == param.shape


def leaves_about(
    states: PyTree, params: PyTree, alike: Callable[[Any, Any], bool] = _alike
) -> list[int | None]:
    """Returns, for each leaf of an optimizer's state, the parameter it belongs to, or None.

    A state with a value per parameter holds a tree like the parameters' (or, if some are masked, a
    part of it with the same shapes). So the path of its leaf ends in the path of the parameter, and
    its siblings have no other names: hyperparameters b1, b2 and eps are not mistaken for the biases
    of a model. (If the parameters are a single array without a path, leaves with axes that are
    `alike` belong to it.)
    """
    paths = {tuple(path): k for k, (path, _) in enumerate(jax.tree.leaves_with_path(params))}
    leaves = [(tuple(path), leaf) for path, leaf in jax.tree.leaves_with_path(states)]
    if () in paths:
        (param,) = jax.tree.leaves(params)
        return [0 if leaf.shape and alike(leaf, param) else None for _, leaf in leaves]
    below: dict[Any, set[Any]] = defaultdict(set)  # maps each prefix of a path to its suffixes
    for path, _ in leaves:
        for n in range(len(path)):
            below[path[:n]].add(path[n:])
    given = jax.tree.leaves(params)

    @functools.cache
    def kind(begin: Any) -> str:
        ends = below[begin]
        return "whole" if ends == paths.keys() else "part" if ends < paths.keys() else ""

    def is_about(path: Any, leaf: Any, n: int) -> bool:
        of = kind(path[:n])
        return of == "whole" or of == "part" and alike(leaf, given[paths[path[n:]]])

    found: list[int | None] = []
    for path, leaf in leaves:
        begin = next((n for n in range(len(path)) if is_about(path, leaf, n)), None)
        found.append(None if begin is None else paths[path[begin:]])
    return found
