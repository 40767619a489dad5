"""An optimizer that is given one rank's parameters, and does what it would do with all of them."""

from __future__ import annotations

import dataclasses
import functools
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.extend.core import ClosedJaxpr, JaxprEqn, Literal, Var

from .._compat import host_call
from .._types import PyTree
from ._holding import Holding
from ._program import function_of, struct_of

Gather = Callable[[np.ndarray], np.ndarray]
"""The numbers of all ranks of a pipeline, ``[ranks, n]``, from this one's."""

_REDUCTIONS: dict[str, Callable[..., Any]] = {
    "reduce_sum": np.sum,
    "reduce_max": np.max,
    "reduce_min": np.min,
    "reduce_prod": np.prod,
    "reduce_and": np.logical_and.reduce,
    "reduce_or": np.logical_or.reduce,
    "dot_general": np.sum,
}
"""Reductions, and how those of the rows that several ranks hold become one."""

_CALLS = {
    "jit": "jaxpr",
    "pjit": "jaxpr",
    "closed_call": "call_jaxpr",
    "custom_jvp_call": "call_jaxpr",
    "custom_vjp_call": "call_jaxpr",
    "remat2": "jaxpr",
    "checkpoint": "jaxpr",
}

Holders = frozenset[int]
"""The ranks whose parameters a number depends on; none where all ranks hold the same."""

_ALL: Holders = frozenset()


class Whole:
    """Makes an optimizer of one rank's parameters one of all partitions' parameters.

    `optimizer` sees the whole tree, with zeros for what other ranks hold; what it makes of those is
    computed nowhere (the compiler drops it) and stored nowhere. Where it makes one number of an
    array, as in a global norm, a trust ratio or "are all finite", only the rank that holds the
    array knows it: its update is traced, and such numbers are sent to all. Those that do not depend
    on each other travel in one message; an optimizer without any sends nothing.

    Of an array whose rows are shared out (stacked layers that a cut goes through) the optimizer
    sees the rows that this rank holds, and sums, maxima and the like are completed. What depends on
    its number of rows, as a mean does, or mixes them otherwise, is refused.

    Attributes:
        transformation: what to use in place of `optimizer`; its trees are this rank's (`Holding`).

    Args:
        optimizer: any optax transformation.
        holding: who holds what.
        rank: of the pipeline.
        gather: brings the ranks' numbers together.

    Raises:
        NotImplementedError: `optimizer` joins arrays of several ranks, or compares them in a loop,
            or does with rows that are shared out what it would not do with all; in `update`.
    """

    def __init__(
        self,
        optimizer: optax.GradientTransformation,
        holding: Holding,
        rank: int,
        gather: Gather,
    ):
        self._optimizer = optax.with_extra_args_support(optimizer)
        self._holding, self._rank, self._gather = holding, rank, gather
        self._holders = [frozenset(holding.owners(leaf)) for leaf in range(len(holding.shapes))]
        self._seen = [jax.ShapeDtypeStruct(self._shape(k), d) for k, d in enumerate(holding.dtypes)]
        tree = jax.tree.unflatten(holding.tree, self._seen)
        states = jax.eval_shape(self._optimizer.init, tree)
        self._state_tree = jax.tree.structure(states)
        self._states = jax.tree.leaves(states)
        self.leaf_of_state = _leaves_of_state(states, tree)
        self.transformation = optax.GradientTransformationExtraArgs(self._init, self._update)  # pyright: ignore

    def _check_rows(self, plain: Callable[..., Any], closed: ClosedJaxpr, *args: Any) -> None:
        """Refuses what depends on how many rows of an array there are."""
        if all(len(holders) < 2 for holders in self._holders):
            return
        tree = self._holding.whole_structs()
        state = jax.eval_shape(self._optimizer.init, tree)
        params, extra = args
        whole = jax.make_jaxpr(plain)(tree, state, None if params is None else tree, extra)
        if list(_facts(closed.jaxpr)) != list(_facts(whole.jaxpr)):
            raise NotImplementedError(
                "The optimizer does something that depends on how many rows an array of parameters "
                "has, as a mean over it, and partitions share out the rows of one (layers that are "
                "stacked). Use one that does not, other boundaries, or num_partitions=1."
            )

    def _shape(self, leaf: int) -> tuple[int, ...]:
        """What the optimizer sees of a leaf."""
        if leaf in self._holding.scalars:
            return ()
        shape = self._holding.shapes[leaf]
        rows = self._holding.rows_held(leaf, self._rank)
        return (rows or shape[0], *shape[1:])

    def _here(self, leaf: int | None) -> bool:
        return leaf is None or self._rank in self._holders[leaf]

    def _view(self, tree: PyTree) -> PyTree:
        """The whole tree, from this rank's."""
        leaves = jax.tree.leaves(tree)
        seen = [
            leaf.reshape(s.shape) if self._here(k) else jnp.zeros(s.shape, leaf.dtype)
            for k, (leaf, s) in enumerate(zip(leaves, self._seen, strict=True))
        ]
        return jax.tree.unflatten(self._holding.tree, seen)

    def _own(self, tree: PyTree, like: PyTree) -> PyTree:
        """This rank's tree, from the whole one."""
        leaves = zip(jax.tree.leaves(tree), jax.tree.leaves(like), strict=True)
        own = [x.reshape(y.shape) if y.size else jnp.zeros(y.shape, x.dtype) for x, y in leaves]
        return jax.tree.unflatten(self._holding.tree, own)

    def _keep(self, states: Sequence[Any]) -> Any:
        """The states to store: of what other ranks hold, an empty array."""
        kept = [
            x if self._here(leaf) else jnp.zeros((0,), x.dtype)
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
            x if self._here(leaf) else jnp.zeros(s.shape, s.dtype)
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
            *(_ALL if leaf is None else self._holders[leaf] for leaf in self.leaf_of_state),
            *(self._holders if params is not None else []),
            *(_ALL for _ in jax.tree.leaves(extra)),
        ]
        evaluation = _Evaluation(self._rank, self._gather)
        outs = evaluation.run(closed, jax.tree.leaves(args), holders)
        made, new_state = jax.tree.unflatten(jax.tree.structure(shapes), [x for x, _ in outs])
        result = self._own(made, updates), self._keep(jax.tree.leaves(new_state))
        # So that a message is not dropped on the rank that happens not to use what it brings.
        return jax.lax.optimization_barrier((result, evaluation.turn))[0]


class _Wanted(NamedTuple):
    """A number that is to be sent to all ranks."""

    out: Var
    here: Any
    holders: Holders
    how: Callable[..., Any]


@dataclasses.dataclass
class _Evaluation:
    """Evaluates a jaxpr on all ranks of a pipeline, each with what it holds.

    Messages have no tags, so all ranks must send them in one order. The compiler may change that of
    calls that do not depend on each other, and ranks with different rows have different programs:
    one would send the norm of a first array while another sends that of a second. So each call
    takes the `turn` that the one before it gives.
    """

    rank: int
    gather: Gather
    turn: Any = 0

    def run(
        self, closed: ClosedJaxpr, args: Sequence[Any], holders: Sequence[Holders]
    ) -> list[tuple[Any, Holders]]:
        """Results of a jaxpr, and who knows each.

        Equations are taken in their order, but for those that need numbers from other ranks: they
        are put off until nothing else is left, so that as many numbers as can be travel together.
        """
        env: dict[Var, tuple[Any, Holders]] = dict(
            zip(closed.jaxpr.invars, zip(args, holders, strict=True), strict=True)
        )
        env |= {v: (x, _ALL) for v, x in zip(closed.jaxpr.constvars, closed.consts, strict=True)}

        def read(atom: Any) -> tuple[Any, Holders]:
            return (atom.val, _ALL) if isinstance(atom, Literal) else env[atom]

        todo = list(closed.jaxpr.eqns)
        while todo:
            wanted: dict[Var, _Wanted] = {}
            later = []
            for eqn in todo:
                if any(isinstance(v, Var) and (v not in env or v in wanted) for v in eqn.invars):
                    later.append(eqn)
                    continue
                ins = [read(atom) for atom in eqn.invars]
                several = {who for _, who in ins if who}
                if missing := _missing(eqn, ins):
                    for atom, x, who in missing:
                        wanted[atom] = _Wanted(atom, x, who, _first)
                    later.append(eqn)
                    continue
                _check_rows_apart(eqn, ins)
                outs = self._results(eqn, ins)
                env |= zip(eqn.outvars, outs, strict=True)
                if several and _reduces(eqn):
                    out, (here, who) = eqn.outvars[0], outs[0]
                    wanted[out] = _Wanted(out, here, who, _REDUCTIONS[eqn.primitive.name])
            for want, value in zip(
                wanted.values(), self._share(list(wanted.values())), strict=True
            ):
                env[want.out] = value, _ALL
            todo = later
        return [read(atom) for atom in closed.jaxpr.outvars]

    def _results(
        self, eqn: JaxprEqn, ins: Sequence[tuple[Any, Holders]]
    ) -> list[tuple[Any, Holders]]:
        values, holders = [x for x, _ in ins], [who for _, who in ins]
        name, who = eqn.primitive.name, frozenset().union(*holders)
        if who and name in _CALLS:
            body = eqn.params[_CALLS[name]]
            body = body if isinstance(body, ClosedJaxpr) else ClosedJaxpr(body, ())
            return self.run(body, values, holders)
        if who and name == "cond" and not holders[0]:
            return self._branch(eqn, values, holders)
        if who and name in ("cond", "while", "scan") and _reduces_inside(eqn):
            raise NotImplementedError(
                f"The optimizer makes one number of an array of parameters inside of a {name}, "
                "which cannot be done over the partitions of a pipeline. Use an optimizer that "
                "does not, or num_partitions=1."
            )
        given = {v: x for v, x in zip(eqn.invars, values, strict=True) if isinstance(v, Var)}
        outs = function_of([eqn], list(given), eqn.outvars)(*given.values())
        return [(x, who) for x in outs]

    def _branch(
        self, eqn: JaxprEqn, values: Sequence[Any], holders: Sequence[Holders]
    ) -> list[tuple[Any, Holders]]:
        """All ranks take the same branch, so it may send numbers too."""
        who = [_ALL] * len(eqn.outvars)

        def branch_of(closed: ClosedJaxpr) -> Callable[..., Any]:
            def branch(*args: Any) -> Any:
                inner = _Evaluation(self.rank, self.gather, turn)
                outs = inner.run(closed, args, holders[1:])
                for k, (_, holder) in enumerate(outs):
                    who[k] |= holder
                results = [jnp.asarray(x) for x, _ in outs]
                return results, inner.turn

            return branch

        turn = jnp.int32(self.turn)
        branches = [branch_of(branch) for branch in eqn.params["branches"]]
        outs, self.turn = jax.lax.switch(values[0], branches, *values[1:])
        return list(zip(outs, who, strict=True))

    def _share(self, wanted: Sequence[_Wanted]) -> list[Any]:
        """Numbers of all ranks, the same bits on each."""
        if not wanted:
            return []
        dtypes = [np.dtype(want.here.dtype) for want in wanted]
        shapes = [jax.ShapeDtypeStruct((), dtype) for dtype in dtypes]
        who, how = [sorted(want.holders) for want in wanted], [want.how for want in wanted]
        mine = [want.here if self.rank in want.holders else None for want in wanted]

        def call(turn: np.ndarray, *here: np.ndarray) -> list[np.ndarray]:
            known, words = iter(here), np.zeros(len(mine), np.float64)  # holds float32 and int32
            for k, x in enumerate(mine):
                words[k] = 0.0 if x is None else float(next(known))
            everyone = self.gather(words)
            numbers = [
                np.asarray(how[k](everyone[who[k], k].astype(dtype), axis=0), dtype)
                for k, dtype in enumerate(dtypes)
            ]
            return [np.asarray(turn + 1, np.int32), *numbers]

        shapes = [jax.ShapeDtypeStruct((), np.int32), *shapes]
        here = (x for x in mine if x is not None)
        self.turn, *values = host_call(call, shapes, jnp.int32(self.turn), *here)
        return values


def _facts(jaxpr: Any) -> Iterator[Any]:
    """What a jaxpr does, but for the shapes of arrays."""
    for eqn in jaxpr.eqns:
        yield eqn.primitive.name, [str(x.val) for x in eqn.invars if isinstance(x, Literal)]
        for value in eqn.params.values():
            for body in _bodies(value):
                yield from _facts(body)


_AXES = ("axis", "axes", "dimension", "dimensions", "jaxpr", "cond_jaxpr")


def _check_rows_apart(eqn: JaxprEqn, ins: Sequence[tuple[Any, Holders]]) -> None:
    """Refuses to mix rows that several ranks hold: those along the first axes of such arrays."""
    shared = [k for k, (x, who) in enumerate(ins) if len(who) > 1 and jnp.shape(x)]
    if not shared or eqn.primitive.name in (*_CALLS, "cond") or _reduces(eqn):
        return
    name, about = eqn.primitive.name, eqn.params
    shape, shapes = jnp.shape(ins[shared[0]][0]), [struct_of(v).shape for v in eqn.outvars]
    if name == "dot_general":
        contracted, batched = about["dimension_numbers"]
        first = all(x[:1] == (0,) for x in batched)
        apart = first or (shared == [0] and not batched[0] and 0 not in contracted[0])
    elif name == "concatenate":
        apart = about["dimension"] != 0
    elif name.startswith(("reduce_", "arg")) and "axes" in about:
        apart = 0 not in about["axes"]
    elif name == "transpose":
        apart = about["permutation"][0] == 0
    elif name == "broadcast_in_dim":
        apart = about["broadcast_dimensions"][:1] == (0,) and shapes[0][0] == shape[0]
    elif name in ("reshape", "squeeze", "expand_dims"):
        apart = shapes[0][:1] == shape[:1] or len(shapes[0]) == 1  # end to end they are rows still
    else:
        apart = all(s == shape for s in shapes) and not any(key in about for key in _AXES)
    if not apart:
        raise NotImplementedError(
            f"The optimizer mixes rows of an array of parameters ({name} of shape {shape}), and "
            "partitions share out its rows (layers that are stacked). Use an optimizer that does "
            "not, other boundaries, or num_partitions=1."
        )


def _first(column: np.ndarray, axis: int) -> Any:
    del axis
    return column[0]


def _missing(eqn: JaxprEqn, ins: Sequence[tuple[Any, Holders]]) -> list[tuple[Any, Any, Holders]]:
    """Numbers that all ranks must know before an equation, which others' parameters made."""
    name = eqn.primitive.name
    if name in _CALLS:
        return []
    given = [(v, x, who) for v, (x, who) in zip(eqn.invars, ins, strict=True) if who]
    if name == "cond":  # all ranks must take the same branch
        index = eqn.invars[0]
        return [(v, x, who) for v, x, who in given if v is index]
    if len({who for _, _, who in given}) < 2:
        return []
    if len({who for _, x, who in given if jnp.shape(x)}) > 1:
        raise NotImplementedError(
            f"The optimizer joins arrays of parameters that different partitions hold "
            f"({name} of shapes {[struct_of(v).shape for v in eqn.invars]}), as "
            "optax.flatten does. Use it on each array by itself, or num_partitions=1."
        )
    return [(v, jnp.asarray(x), who) for v, x, who in given if not jnp.shape(x)]


def _reduces(eqn: JaxprEqn) -> bool:
    """Whether an equation makes one number of an array."""
    if eqn.primitive.name not in _REDUCTIONS:
        return False
    return not struct_of(eqn.outvars[0]).shape and any(struct_of(v).shape for v in eqn.invars)


def _reduces_inside(eqn: JaxprEqn) -> bool:
    bodies = [x for value in eqn.params.values() for x in _bodies(value)]
    return any(_reduces(inner) or _reduces_inside(inner) for body in bodies for inner in body.eqns)


def _bodies(value: Any) -> list[Any]:
    if isinstance(value, tuple | list):
        return [body for x in value for body in _bodies(x)]
    if isinstance(value, ClosedJaxpr):
        return [value.jaxpr]
    return [value] if hasattr(value, "eqns") else []


def _leaves_of_state(states: PyTree, params: PyTree) -> list[int | None]:
    """Of each leaf of an optimizer's state, the parameter that it is about; None: of none.

    A state that holds something for each parameter holds a tree like theirs, or a part of it with
    the same shapes where some are masked, so the path of its leaf ends in the path of the
    parameter, and nothing beside it is named otherwise: hyperparameters b1, b2 and eps are none of
    a model's biases. (Where parameters are one array without a path, what has axes is about it.)
    """
    paths = {tuple(path): k for k, (path, _) in enumerate(jax.tree.leaves_with_path(params))}
    leaves = [(tuple(path), leaf) for path, leaf in jax.tree.leaves_with_path(states)]
    if () in paths:
        return [0 if leaf.shape else None for _, leaf in leaves]
    below: dict[Any, set[Any]] = defaultdict(set)  # of each beginning of a path, the ends
    for path, _ in leaves:
        for n in range(len(path)):
            below[path[:n]].add(path[n:])
    shapes = [leaf.shape for leaf in jax.tree.leaves(params)]

    @functools.cache
    def kind(begin: Any) -> str:
        ends = below[begin]
        return "whole" if ends == paths.keys() else "part" if ends < paths.keys() else ""

    def is_about(path: Any, leaf: Any, n: int) -> bool:
        of = kind(path[:n])
        return of == "whole" or of == "part" and leaf.shape == shapes[paths[path[n:]]]

    found: list[int | None] = []
    for path, leaf in leaves:
        begin = next((n for n in range(len(path)) if is_about(path, leaf, n)), None)
        found.append(None if begin is None else paths[path[begin:]])
    return found
