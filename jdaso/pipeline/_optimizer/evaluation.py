"""Evaluates a jaxpr on several ranks, each of which holds a part of its arguments."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import ClosedJaxpr, JaxprEqn, Literal, Var

from ..._jax.host_call import host_call
from ..._optimizers.stand_ins import in_trial
from .._plan.equations import function_of, struct_of

Gather = Callable[[np.ndarray], np.ndarray]
"""Maps this rank's numbers, ``[n]``, to those of all ranks of a pipeline, ``[ranks, n]``."""

_REDUCTIONS: dict[str, Callable[..., Any]] = {
    "reduce_sum": np.sum,
    "reduce_max": np.max,
    "reduce_min": np.min,
    "reduce_prod": np.prod,
    "reduce_and": np.logical_and.reduce,
    "reduce_or": np.logical_or.reduce,
    "dot_general": np.sum,
}
"""Reductions, and how the partial results of ranks that hold different rows are combined."""

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
"""The ranks whose parameters a number depends on; empty if all ranks hold the same number."""

ALL: Holders = frozenset()


class _Wanted(NamedTuple):
    """A number to be sent to all ranks."""

    out: Any  # the variable that the result is bound to
    here: Any
    holders: Holders
    how: Callable[..., Any]


@dataclasses.dataclass
class Evaluation:
    """Evaluates a jaxpr on all ranks of a pipeline, each with the arguments that it holds.

    Messages have no tags, so all ranks must send them in the same order. But the compiler may
    reorder calls that do not depend on each other, and ranks with different rows have different
    programs: one rank would send the norm of a first array while another sends that of a second. So
    each call takes the `turn` that the previous call returned.
    """

    rank: int
    gather: Gather
    turn: Any = 0

    def run(
        self, closed: ClosedJaxpr, args: Sequence[Any], holders: Sequence[Holders]
    ) -> list[tuple[Any, Holders]]:
        """Returns the results of a jaxpr, each with the ranks that hold it.

        Equations are evaluated in order, except those that need numbers from other ranks: they are
        postponed until nothing else is left, so that as many numbers as possible travel together.
        """
        env: dict[Var, tuple[Any, Holders]] = dict(
            zip(closed.jaxpr.invars, zip(args, holders, strict=True), strict=True)
        )
        env |= {v: (x, ALL) for v, x in zip(closed.jaxpr.constvars, closed.consts, strict=True)}

        def read(atom: Any) -> tuple[Any, Holders]:
            return (atom.val, ALL) if isinstance(atom, Literal) else env[atom]

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
                _check_rows_separate(eqn, ins)
                outs = self._results(eqn, ins)
                env |= zip(eqn.outvars, outs, strict=True)
                if several and _reduces(eqn):
                    out, (here, who) = eqn.outvars[0], outs[0]
                    wanted[out] = _Wanted(out, here, who, _REDUCTIONS[eqn.primitive.name])
            for want, value in zip(
                wanted.values(), self._share(list(wanted.values())), strict=True
            ):
                env[want.out] = value, ALL
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
                f"The optimizer reduces an array of parameters to one number inside a {name}, "
                "which is not possible across the partitions of a pipeline. Use another "
                "optimizer, or num_partitions=1."
            )
        if who and self.rank not in who:
            outs = [unknown(struct_of(v)) for v in eqn.outvars]
        elif any(bodies_of(value) for value in eqn.params.values()):
            given = {v: x for v, x in zip(eqn.invars, values, strict=True) if isinstance(v, Var)}
            outs = function_of([eqn], list(given), eqn.outvars)(*given.values())
        else:
            outs = eqn.primitive.bind(*values, **eqn.params)
            outs = outs if eqn.primitive.multiple_results else [outs]
        return [(x, who) for x in outs]

    def _branch(
        self, eqn: JaxprEqn, values: Sequence[Any], holders: Sequence[Holders]
    ) -> list[tuple[Any, Holders]]:
        """Evaluates a `cond`: all ranks take the same branch, which may thus send numbers."""
        who = [ALL] * len(eqn.outvars)

        def branch_of(closed: ClosedJaxpr) -> Callable[..., Any]:
            def branch(*args: Any) -> Any:
                inner = Evaluation(self.rank, self.gather, turn)
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

    def shared(self, numbers: Sequence[tuple[Any, Holders]]) -> list[Any]:
        """Sends numbers that only their holders have to all ranks, and returns them."""
        return self._share([_Wanted(None, jnp.asarray(x), who, _first) for x, who in numbers])

    def _share(self, wanted: Sequence[_Wanted]) -> list[Any]:
        """Returns the wanted numbers, the same bits on every rank."""
        if not wanted:
            return []
        dtypes = [np.dtype(want.here.dtype) for want in wanted]
        shapes = [jax.ShapeDtypeStruct((), dtype) for dtype in dtypes]
        who, how = [sorted(want.holders) for want in wanted], [want.how for want in wanted]
        gather = _alone if in_trial() else self.gather
        mine = [k for k, want in enumerate(wanted) if self.rank in want.holders]

        def call(turn: np.ndarray, *here: np.ndarray) -> list[np.ndarray]:
            words = np.zeros(len(who), np.float64)  # holds float32 and int32
            words[mine] = [float(x) for x in here]
            everyone = gather(words)
            numbers = [
                np.asarray(how[k](everyone[who[k], k].astype(dtype), axis=0), dtype)
                for k, dtype in enumerate(dtypes)
            ]
            return [np.asarray(turn + 1, np.int32), *numbers]

        shapes = [jax.ShapeDtypeStruct((), np.int32), *shapes]
        here = (wanted[k].here for k in mine)
        self.turn, *values = host_call(
            call, shapes, jnp.int32(self.turn), *here, holder=self.gather
        )
        return values

    def end(self) -> None:
        """Keeps the messages in the program, although nothing uses a reply."""
        nothing = jax.ShapeDtypeStruct((), np.int32)
        host_call(np.asarray, nothing, jnp.int32(self.turn), kept=True, holder=self.gather)


class _Copies:
    """The numbers of one rank as if all ranks had them."""

    def __init__(self, words: np.ndarray):
        self._words = words

    def __getitem__(self, place: tuple[list[int], int]) -> np.ndarray:
        ranks, k = place
        return np.full(len(ranks), self._words[k])


def _alone(words: np.ndarray) -> Any:
    """Sends nothing: one rank alone may try an optimizer."""
    return _Copies(words)


_AXES = ("axis", "axes", "dimension", "dimensions", "jaxpr", "cond_jaxpr")


def _check_rows_separate(eqn: JaxprEqn, ins: Sequence[tuple[Any, Holders]]) -> None:
    """Refuses to mix rows that several ranks hold, along the first axes of such arrays."""
    shared = [k for k, (x, who) in enumerate(ins) if len(who) > 1 and jnp.shape(x)]
    if not shared or eqn.primitive.name in (*_CALLS, "cond") or _reduces(eqn):
        return
    name, about = eqn.primitive.name, eqn.params
    shape, shapes = jnp.shape(ins[shared[0]][0]), [struct_of(v).shape for v in eqn.outvars]
    if name == "dot_general":
        contracted, batched = about["dimension_numbers"]
        first = all(x[:1] == (0,) for x in batched)
        separate = first or (shared == [0] and not batched[0] and 0 not in contracted[0])
    elif name == "concatenate":
        separate = about["dimension"] != 0
    elif name.startswith(("reduce_", "arg")) and "axes" in about:
        separate = 0 not in about["axes"]
    elif name == "transpose":
        separate = about["permutation"][0] == 0
    elif name == "broadcast_in_dim":
        separate = about["broadcast_dimensions"][:1] == (0,) and shapes[0][0] == shape[0]
    elif name in ("reshape", "squeeze", "expand_dims"):
        # Flattened: rows stay contiguous.
        separate = shapes[0][:1] == shape[:1] or len(shapes[0]) == 1
    else:
        moves = name.startswith(("scatter", "dynamic_update_slice"))
        same = all(s == shape for s in shapes)
        separate = same and not moves and not any(key in about for key in _AXES)
    if not separate:
        raise NotImplementedError(
            f"The optimizer mixes rows of an array of parameters ({name} of shape {shape}), but "
            "partitions divide its rows (stacked layers). Use another optimizer, "
            "other boundaries, or num_partitions=1."
        )


def unknown(struct: Any) -> np.ndarray:
    """Stands for an array that only other ranks hold: a zero, whatever its shape."""
    return np.broadcast_to(np.zeros((), struct.dtype), struct.shape)


def _first(column: np.ndarray, axis: int) -> Any:
    del axis
    return column[0]


def _missing(eqn: JaxprEqn, ins: Sequence[tuple[Any, Holders]]) -> list[tuple[Any, Any, Holders]]:
    """Returns numbers made from other ranks' parameters that all ranks need before an equation."""
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
    """Returns whether an equation reduces an array to one number."""
    if eqn.primitive.name not in _REDUCTIONS:
        return False
    return not struct_of(eqn.outvars[0]).shape and any(struct_of(v).shape for v in eqn.invars)


def _reduces_inside(eqn: JaxprEqn) -> bool:
    bodies = [x for value in eqn.params.values() for x in bodies_of(value)]
    return any(_reduces(inner) or _reduces_inside(inner) for body in bodies for inner in body.eqns)


def bodies_of(value: Any) -> list[Any]:
    if isinstance(value, tuple | list):
        return [body for x in value for body in bodies_of(x)]
    if isinstance(value, ClosedJaxpr):
        return [value.jaxpr]
    return [value] if hasattr(value, "eqns") else []
