"""Long stages are compiled in parts, and parts that are alike only once.

A compiler takes as long for the hundredth block of a deep network as for the first. Where a stage
has very many equations it is cut once more, at its narrowest places; what follows from one block to
the next is the same arrays in the same shapes, so that hundreds of blocks are a handful of
programs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Literal, Var

from ._line import Line
from ._program import Atom, function_of, is_inexact, struct_of

_LONG = 800
"""Stages of more equations are cut."""

_LEAST = 40
"""Equations of a part, but for those between two wide places."""


def segment_cuts(line: Line, begin: int, end: int) -> list[int]:
    """Places at which to cut the stage [begin, end) for the compiler; none in a short one.

    Where as few results as anywhere in the stage go from before to after.
    """
    program = line.program
    if end - begin <= _LONG or program.scans:
        return []
    crossing = _crossing(line)
    least = min(crossing[place] for place in range(begin + 1, end))
    inside = {p for first, last in line.spans for p in range(first + 1, last)}
    cuts, last = [], begin
    for place in range(begin + 1, end):
        narrow = crossing[place] <= least and place not in inside
        if narrow and crossing[place - 1] > least and place - last >= _LEAST:
            cuts.append(place)
            last = place
    return cuts


def _crossing(line: Line) -> list[int]:
    """How many results go over each place."""
    change = [0] * (len(line.places) + 2)
    for value in line.values:
        change[value.made + 1] += 1
        change[value.used[-1] + 1] -= 1
    total, out = 0, []
    for step in change:
        total += step
        out.append(total)
    return out


class Signatures:
    """Tells whether two lists of equations compute the same thing, under other names."""

    def __init__(self) -> None:
        self._texts: dict[int, tuple[Any, str]] = {}  # with the object, so that its id stays its

    def of(self, eqns: Sequence[JaxprEqn], ins: Sequence[Var], outs: Sequence[Atom]) -> str:
        """A text that is equal for two that are."""
        names: dict[Var, str] = {}

        def name(atom: Atom) -> str:
            if isinstance(atom, Literal):
                return f"{atom.val!r}:{atom.aval}"
            return names.setdefault(atom, f"v{len(names)}")

        lines = [" ".join(f"{name(var)}:{var.aval}" for var in ins)]
        for eqn in eqns:
            used, made = [name(a) for a in eqn.invars], [f"{name(v)}:{v.aval}" for v in eqn.outvars]
            lines.append(f"{made} = {eqn.primitive.name}{self._about(eqn)} {used} {eqn.ctx}")
        return "\n".join([*lines, " ".join(name(atom) for atom in outs)])

    def _about(self, eqn: JaxprEqn) -> str:
        rule = _derivative_rule(eqn)
        if rule is None:
            return str([(k, self._text(v)) for k, v in sorted(eqn.params.items())])
        about = {k: self._text(v) for k, v in eqn.params.items() if isinstance(v, _JAXPRS)}
        if id(rule) not in self._texts:
            self._texts[id(rule)] = rule, _derivative(eqn)
        return f"{about} {self._texts[id(rule)][1]}"

    def _text(self, value: Any) -> str:
        if not isinstance(value, _JAXPRS):
            return str(value)  # of a function that is its address, so that others are different
        if id(value) not in self._texts:
            consts = value.consts if isinstance(value, ClosedJaxpr) else ()
            self._texts[id(value)] = value, f"{value} {[id(x) for x in consts]}"
        return self._texts[id(value)][1]


_JAXPRS = (Jaxpr, ClosedJaxpr)


def _derivative_rule(eqn: JaxprEqn) -> Any:
    """The function that holds an equation's own derivative, if it has one."""
    if not eqn.primitive.name.startswith("custom_"):
        return None
    return next((v for k, v in sorted(eqn.params.items()) if callable(v)), None)


def _derivative(eqn: JaxprEqn) -> str:
    """Two functions of the same equations may have different derivatives: those, as text."""
    ins = list(dict.fromkeys(atom for atom in eqn.invars if isinstance(atom, Var)))
    floats = [k for k, var in enumerate(ins) if is_inexact(var)]
    run = function_of([eqn], ins, eqn.outvars)
    kept = [k for k, var in enumerate(eqn.outvars) if is_inexact(var)]

    def derivative(args: Any, cotangents: Any) -> Any:
        def of_floats(*given: Any) -> Any:
            whole = list(args)
            for k, x in zip(floats, given, strict=True):
                whole[k] = x
            made = run(*whole)
            return [made[k] for k in kept]

        return jax.vjp(of_floats, *(args[k] for k in floats))[1](cotangents)

    closed = jax.make_jaxpr(derivative)(
        [struct_of(var) for var in ins], [struct_of(eqn.outvars[k]) for k in kept]
    )
    return f"{closed} {[id(x) for x in closed.consts]}"
