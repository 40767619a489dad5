"""The cost of each equation of a program, as the compiler counts it."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.extend.core import ClosedJaxpr, JaxprEqn, Var

from .equations import REMAT, bytes_of, derivative_of, function_of, is_inexact
from .program import Program
from .signature import Signatures

FLOPS_PER_BYTE = 4.0
"""The operations that take as long as moving one byte, used to add the two up.

The compiler counts each equation's bytes as if it were not fused with the next, which on most
machines (10 to 300 FLOPs per byte) is several times what is really moved.
"""


class Cost(NamedTuple):
    """Work of some equations in one micro-batch."""

    flops: float = 0.0  # forward
    backward_flops: float = 0.0
    bytes: float = 0.0  # read and written, forward
    backward_bytes: float = 0.0

    @property
    def forward(self) -> float:
        """The forward cost in FLOPs: the operations, plus the bytes at `FLOPS_PER_BYTE`."""
        return self.flops + FLOPS_PER_BYTE * self.bytes

    @property
    def backward(self) -> float:
        """The same for the backward pass."""
        return self.backward_flops + FLOPS_PER_BYTE * self.backward_bytes

    @property
    def total(self) -> float:
        """Forward and backward."""
        return self.forward + self.backward


def sum_costs(costs: Sequence[Cost]) -> Cost:
    """Returns the sum of several costs."""
    return Cost(*np.sum(np.array([*costs, Cost()]), axis=0).tolist())


_KNOWN: dict[str, Cost] = {}
"""Costs by kind of equation, for all plans of the process: a kind is a text without identities."""


class Costs:
    """Costs of equations; the compiler is asked once in a process for each kind of equation."""

    def __init__(self) -> None:
        self._signatures = Signatures(identities=False)

    def of(self, eqn: JaxprEqn) -> Cost:
        """Returns the cost of one equation."""
        kind = self._kind(eqn)
        if kind not in _KNOWN:
            _KNOWN[kind] = self._ask(eqn)
        return _KNOWN[kind]

    def _ask(self, eqn: JaxprEqn) -> Cost:
        """Asks the compiler; of a scan it counts only one iteration, so asks for the body."""
        about = eqn.params
        if eqn.primitive.name not in ("scan", *REMAT):
            return _cost(eqn)
        body = about["jaxpr"].jaxpr if isinstance(about["jaxpr"], ClosedJaxpr) else about["jaxpr"]
        once = sum_costs([self.of(inner) for inner in body.eqns])
        if eqn.primitive.name == "scan":
            return Cost(*(about["length"] * x for x in once))
        again = once.backward_flops + once.flops, once.backward_bytes + once.bytes
        return once._replace(backward_flops=again[0], backward_bytes=again[1])

    def of_program(self, program: Program) -> list[Cost]:
        """Returns the cost of each equation of a program."""
        return [self.of(eqn) for eqn in program.eqns]

    def _kind(self, eqn: JaxprEqn) -> str:
        avals = [str(atom.aval) for atom in eqn.invars]
        text = f"{eqn.primitive.name} {self._signatures.about(eqn)} {avals}"
        return hashlib.sha256(text.encode()).hexdigest()


def _cost(eqn: JaxprEqn) -> Cost:
    backward, structs, cotangents = derivative_of(eqn)
    ins = list(dict.fromkeys(atom for atom in eqn.invars if isinstance(atom, Var)))
    run = function_of([eqn], ins, eqn.outvars)
    moved = float(sum(bytes_of(var) for var in (*ins, *eqn.outvars)))
    flops, size = _analysis(jax.jit(run), moved, *structs)
    if not cotangents or not any(is_inexact(var) for var in ins):
        return Cost(flops, 0.0, size, 0.0)
    try:
        both, both_size = _analysis(jax.jit(backward), 2 * moved, structs, cotangents)
    except (NotImplementedError, TypeError, ValueError):  # the equation has no derivative
        return Cost(flops, 0.0, size, 0.0)
    return Cost(flops, both, size, both_size)


def _analysis(function: Any, moved: float, *args: Any) -> tuple[float, float]:
    about = function.lower(*args).cost_analysis() or {}
    flops, size = about.get("flops", 0.0), about.get("bytes accessed", moved)
    return max(0.0, flops) if math.isfinite(flops) else 0.0, max(0.0, size)
