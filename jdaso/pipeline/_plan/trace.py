"""Traces a loss and flattens it into one list of equations."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.core import ClosedJaxpr, JaxprEqn, Literal, Var

from ..._jax.axes import new_var
from ..._jax.types import PyTree
from .equations import REMAT, Atom, jaxpr_of, new_like, struct_of
from .program import Program, RowRange
from .state import check_state

_ENTERED = {"jit": "jaxpr", "pjit": "jaxpr", "closed_call": "call_jaxpr", "core_call": "call_jaxpr"}
"""Calls that are nothing but their equations, and the parameter that holds these."""

_REMAT_PARTS = 64
"""The most parts into which a rematerialised call is taken apart."""


class Flat:
    """Collects the equations of a jaxpr without its calls.

    Calls of functions are replaced by their equations. Scans over parameters, such as those over
    the layers of a model, are taken apart into iterations, and rematerialised calls into parts if
    `enter` returns True. Functions with custom derivatives, loops, branches and other scans stay
    whole.
    """

    def __init__(self, params: Sequence[Var], enter: Callable[[JaxprEqn], bool]):
        self.eqns: list[JaxprEqn] = []
        self.consts: dict[Var, Any] = {}
        self.rows: dict[Var, RowRange] = {}
        self.scans: dict[int, tuple[int, int]] = {}
        self._params = {var: leaf for leaf, var in enumerate(params)}
        self._made_by: dict[Var, JaxprEqn] = {}
        self._weights: set[Var] = set(params)  # variables that depend on parameters alone
        self._known: dict[int, Var] = {}
        self._rows: dict[RowRange, Var] = {}
        self._slices: dict[tuple[Var, int], Var] = {}
        self._enter = enter
        self._scans = 0
        self._scope: Any = None

    def _scoped(self, eqn: JaxprEqn) -> Any:
        """The names of scopes around an equation, those around functions that hold it included."""
        own = eqn.source_info.name_stack
        return own if self._scope is None else self._scope + own

    def const(self, value: Any) -> Var:
        """Returns the variable of an array that the loss closes over."""
        if id(value) not in self._known:
            var = new_var(jax.typeof(value))
            self._known[id(value)], self.consts[var] = var, value
        return self._known[id(value)]

    def add(self, closed: ClosedJaxpr, args: Sequence[Atom]) -> list[Atom]:
        """Adds a jaxpr's equations; returns the variables of its results in this list."""
        env: dict[Var, Atom] = dict(zip(closed.jaxpr.invars, args, strict=True))
        env |= zip(closed.jaxpr.constvars, map(self.const, closed.consts), strict=True)

        def read(atom: Atom) -> Atom:
            return atom if isinstance(atom, Literal) else env[atom]

        for eqn in closed.jaxpr.eqns:
            ins, name = [read(atom) for atom in eqn.invars], eqn.primitive.name
            if name in _ENTERED:
                body = eqn.params[_ENTERED[name]]
                body = body if isinstance(body, ClosedJaxpr) else ClosedJaxpr(body, ())
                outer, self._scope = self._scope, self._scoped(eqn)
                outs = self.add(body, ins)
                self._scope = outer
            elif name == "scan" and self._is_over_layers(eqn, ins):
                outs = self._add_scan(eqn, ins)
            elif name in REMAT and self._enter(eqn):
                outs = self._add_remat(eqn, ins)
            else:
                outs = self._append(eqn, ins)
            env |= zip(eqn.outvars, outs, strict=True)
        return [read(atom) for atom in closed.jaxpr.outvars]

    def _append(self, eqn: JaxprEqn, ins: Sequence[Atom], **params: Any) -> list[Var]:
        outs = [new_var(var.aval) for var in eqn.outvars]
        params = {**eqn.params, **params}
        about = eqn.source_info.replace(name_stack=self._scoped(eqn))
        about = {"source_info": about, "params": params}
        self.eqns.append(eqn.replace(invars=list(ins), outvars=outs, **about))
        self._made_by |= dict.fromkeys(outs, self.eqns[-1])
        if all(isinstance(atom, Literal) or atom in self._weights for atom in ins):
            self._weights |= set(outs)
        return outs

    def _is_over_layers(self, eqn: JaxprEqn, ins: Sequence[Atom]) -> bool:
        """Returns whether each iteration of a scan has parameters of its own."""
        about = eqn.params
        xs = ins[about["num_consts"] + about["num_carry"] :]
        weights = any(
            isinstance(x, Var) and x in self._weights and struct_of(x).ndim > 1 for x in xs
        )
        return weights and not about["reverse"] and about["length"] > 1

    def apply(self, function: Callable[..., Any], *ins: Atom) -> list[Atom]:
        """Adds the equations of a function of arrays; returns its results."""
        return self.add(jax.make_jaxpr(function)(*map(struct_of, ins)), ins)

    def apply_as(self, out: Var, function: Callable[..., Any], *ins: Atom) -> None:
        """Adds the equations of a function whose result is the variable `out`."""
        self.apply(function, *ins)
        self.eqns[-1] = self.eqns[-1].replace(outvars=[out])

    def slices(self, rows: dict[Var, RowRange], params: Sequence[Var]) -> list[JaxprEqn]:
        """Returns equations that cut rows out of parameters that are also used whole."""
        flat = Flat((), self._enter)
        for var, piece in rows.items():
            flat.apply_as(
                var, lambda x, p=piece: jax.lax.slice_in_dim(x, p.begin, p.end), params[piece.leaf]
            )
        return flat.eqns

    def _row(self, atom: Atom, at: int) -> Atom:
        """Returns row `at` of an array, ``[1, ...]``.

        A row of a parameter is a variable of its own, so that only the stage that uses the row must
        hold it; a conversion of the whole array becomes one of the row.
        """
        if atom in self._params:
            key = RowRange(self._params[atom], at, at + 1)
            if key not in self._rows:
                self._rows[key] = new_like(atom, 1)
                self.rows[self._rows[key]] = key
            return self._rows[key]
        if (atom, at) not in self._slices:
            made = self._made_by.get(atom)
            if made is not None and made.primitive.name == "convert_element_type":
                row = self._row(made.invars[0], at)
                (self._slices[atom, at],) = self.apply(
                    lambda x: x.astype(struct_of(atom).dtype), row
                )
            else:
                cut = partial(jax.lax.slice_in_dim, start_index=at, limit_index=at + 1)
                (self._slices[atom, at],) = self.apply(cut, atom)
        return self._slices[atom, at]

    def _add_scan(self, eqn: JaxprEqn, ins: Sequence[Atom]) -> list[Atom]:
        """Adds each iteration as a scan of length 1, so that stages can meet between them."""
        about = eqn.params
        consts, carry, length = about["num_consts"], about["num_carry"], about["length"]
        fixed, state, xs = ins[:consts], list(ins[consts : consts + carry]), ins[consts + carry :]
        self._scans += 1
        pieces: list[list[Atom]] = []
        for at in range(length):
            rows = [self._row(x, at) for x in xs]
            ys = [new_like(var, 1) for var in eqn.outvars[carry:]]
            one = eqn.replace(outvars=[*eqn.outvars[:carry], *ys])
            self.scans[len(self.eqns)] = (self._scans, at)
            outs = self._append(one, [*fixed, *state, *rows], length=1)
            state = list(outs[:carry])
            pieces.append(list(outs[carry:]))
        joined = [
            self.apply(lambda *y: jnp.concatenate(y), *each)[0]
            for each in zip(*pieces, strict=True)
        ]
        return [*state, *joined]

    def _add_remat(self, eqn: JaxprEqn, ins: Sequence[Atom]) -> list[Atom]:
        """Adds the parts of a rematerialised call, each rematerialised by itself."""
        inner = Flat((), self._enter)
        args = [new_var(var.aval) for var in eqn.params["jaxpr"].invars]
        outs = inner.add(ClosedJaxpr(eqn.params["jaxpr"], ()), args)
        env: dict[Var, Atom] = dict(zip(args, ins, strict=True))
        env |= {var: self.const(value) for var, value in inner.consts.items()}

        def read(atom: Atom) -> Atom:
            return atom if isinstance(atom, Literal) else env[atom]

        size = max(1, -(-len(inner.eqns) // _REMAT_PARTS))
        later = [var for var in outs if isinstance(var, Var)]
        for begin in range(0, len(inner.eqns), size):
            part, rest = inner.eqns[begin : begin + size], inner.eqns[begin + size :]
            used = {var for e in rest for var in e.invars if isinstance(var, Var)} | set(later)
            made = [var for e in part for var in e.outvars if var in used]
            own = {var for e in part for var in e.outvars}
            needs = list(
                dict.fromkeys(
                    var for e in part for var in e.invars if isinstance(var, Var) and var not in own
                )
            )
            call = eqn.replace(invars=list[Atom](needs), outvars=made)
            body = jaxpr_of(part, needs, made)
            env |= zip(made, self._append(call, [read(v) for v in needs], jaxpr=body), strict=True)
        return [read(atom) for atom in outs]


def trace(
    loss_fn: Callable[..., Any],
    params: PyTree,
    state: PyTree,
    batch: PyTree,
    enter: Callable[[JaxprEqn], bool] = lambda eqn: False,
) -> tuple[Program, Any]:
    """Traces the loss of a micro-batch.

    Args:
        loss_fn: ``(params, batch) -> loss`` or ``(loss, aux)``; with a state
            ``(params, state, batch) -> (loss, (state, aux))``.
        params: tree of arrays, or of their shapes and dtypes.
        state: the same; None if the model has none.
        batch: the same.
        enter: returns whether to take a rematerialised call apart; by default none is.

    Returns:
        The program, and the structure of its auxiliary output (None if it has none).

    Raises:
        TypeError: the loss is not a scalar of a floating-point dtype.
        ValueError: the loss has side effects.
    """
    args = (params, batch) if state is None else (params, state, batch)
    closed, out = jax.make_jaxpr(loss_fn, return_shape=True)(*args)
    loss: Any
    loss, aux = out if isinstance(out, tuple) and len(out) == 2 else (out, None)
    if state is not None:
        aux = check_state(state, aux)
    if jax.tree.structure(loss) != jax.tree.structure(0) or loss.shape != ():
        given = jax.tree.map(lambda x: x.shape, loss)
        raise TypeError(
            f"loss_fn must return a scalar, or (scalar, aux), got arrays of shape {given}. "
            "Take the mean over the batch inside loss_fn."
        )
    if not jnp.issubdtype(loss.dtype, jnp.floating):
        raise TypeError(f"The loss must be a floating-point number, got {loss.dtype}.")
    if closed.effects:
        names = ", ".join(sorted({str(effect) for effect in closed.effects}))
        raise ValueError(
            f"loss_fn has side effects ({names}), but a pipeline computes its parts more than "
            "once and on several nodes. Remove callbacks and prints from it; return what you want "
            "to see as aux."
        )
    count, states = len(jax.tree.leaves(params)), len(jax.tree.leaves(state))
    invars = closed.jaxpr.invars
    flat = Flat(invars[:count], enter)
    outs = flat.add(closed, invars)
    live, kept = {v for v in outs if isinstance(v, Var)}, []
    for at in reversed(range(len(flat.eqns))):
        eqn = flat.eqns[at]
        if live.intersection(eqn.outvars):
            live |= {v for v in eqn.invars if isinstance(v, Var)}
            kept.append(at)
    rows = {var: rows for var, rows in flat.rows.items() if var in live}
    whole = {var: rows[var] for var in rows if invars[rows[var].leaf] in live}
    slices = flat.slices(whole, invars)
    scans = {len(slices) + k: flat.scans.get(at) for k, at in enumerate(reversed(kept))}
    program = Program(
        (*slices, *(flat.eqns[at] for at in reversed(kept))),
        tuple(invars[:count]),
        tuple(invars[count : count + states]),
        tuple(invars[count + states :]),
        {var: piece for var, piece in rows.items() if var not in whole},
        {var: value for var, value in flat.consts.items() if var in live},
        tuple(outs),
        {at: scan for at, scan in scans.items() if scan is not None},
    )
    return program, jax.tree.structure(aux) if aux is not None else None
