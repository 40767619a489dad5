"""Detects equations that compute the same results under other names."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Literal, Var

from ..._payload.layout import text_of
from .equations import Atom, derivative_of, is_key

_PLAIN = (bool, int, float, complex, str, bytes, type(None), np.dtype)


class Signatures:
    """Texts that are equal only for equations that compute the same results.

    (Different texts do not prove that the equations differ.) Names of variables do not matter. An
    array held inside an equation counts by its bits, a function by its identity.

    Args:
        derivatives: whether equal texts must also mean equal derivatives: a function may have a
            custom derivative, which is hidden wherever it is called, in a loop, a branch or a
            checkpoint.
        identities: whether a function counts by its identity. If not, by its type alone: such texts
            mean the same after the functions are gone, and in every process.
    """

    def __init__(self, *, derivatives: bool = True, identities: bool = True):
        self._derivatives, self._identities = derivatives, identities
        self._known: dict[Any, tuple[Any, str]] = {}  # keeps the objects, and so their ids
        self._forward = self
        if derivatives:
            self._forward = Signatures(derivatives=False, identities=identities)

    def of(self, eqns: Sequence[JaxprEqn], ins: Sequence[Var], outs: Sequence[Atom]) -> str:
        """Returns the text of equations that compute `outs` from `ins`."""
        names: dict[Var, str] = {}

        def name(atom: Atom) -> str:
            if isinstance(atom, Literal):
                return f"{self._text(atom.val)}:{atom.aval}"
            return names.setdefault(atom, f"v{len(names)}")

        lines = [" ".join(f"{name(var)}:{var.aval}" for var in ins)]
        for eqn in eqns:
            used, made = [name(a) for a in eqn.invars], [f"{name(v)}:{v.aval}" for v in eqn.outvars]
            lines.append(f"{made} = {eqn.primitive.name}{self.about(eqn)} {used} {eqn.ctx}")
        lines.append(" ".join(name(atom) for atom in outs))
        return hashlib.sha256("\n".join(lines).encode()).hexdigest()

    def about(self, eqn: JaxprEqn) -> str:
        """Returns the text of an equation's parameters."""
        if not eqn.primitive.name.startswith("custom_"):
            return self._text(eqn.params)
        plain = {k: v for k, v in eqn.params.items() if _is_plain(v)}
        rules = [eqn.params[k] for k in sorted(eqn.params.keys() - plain.keys())]
        about = self._text(plain)
        if not (rules and self._derivatives):
            return about
        return f"{about} {self._derivative(eqn, rules)}"

    def _derivative(self, eqn: JaxprEqn, rules: Sequence[Any]) -> str:
        """Returns the text of an equation's own derivative."""
        avals = tuple(str(atom.aval) for atom in (*eqn.invars, *eqn.outvars))
        key = "derivative", avals, tuple(id(rule) for rule in rules)
        if key not in self._known:
            function, args, cotangents = derivative_of(eqn)
            try:
                closed = jax.make_jaxpr(function)(args, cotangents)
                self._known[key] = rules, self._forward._text(closed)
            except Exception:  # a user's rule may raise anything, and may never be needed
                self._known[key] = rules, str(key if self._identities else avals)
        return self._known[key][1]

    def _text(self, value: Any) -> str:
        if isinstance(value, dict):
            return str([(key, self._text(x)) for key, x in sorted(value.items())])
        if isinstance(value, tuple | list):
            return f"{type(value).__name__}({', '.join(self._text(x) for x in value)})"
        if isinstance(value, _PLAIN):
            return repr(value)
        if isinstance(value, np.ndarray | np.generic):
            bits = hashlib.sha256(np.ascontiguousarray(value).tobytes()).hexdigest()
            return f"{value.dtype}{value.shape}{bits}"
        if id(value) not in self._known:
            self._known[id(value)] = value, self._of_object(value)
        return self._known[id(value)][1]

    def _of_object(self, value: Any) -> str:
        if isinstance(value, ClosedJaxpr):
            return f"{self._text(value.jaxpr)} {self._text(list(value.consts))}"
        if isinstance(value, Jaxpr):
            return self.of(value.eqns, [*value.constvars, *value.invars], value.outvars)
        if hasattr(value, "__array__") and not is_key(value):
            return self._text(np.asarray(value))
        if hasattr(value, "__array__") or callable(value):
            return f"{type(value).__name__} {id(value) if self._identities else ''}"
        return str(value) if self._identities else text_of(value)


def _is_plain(value: Any) -> bool:
    """Returns whether a value's text describes it completely; that of a function does not."""
    if isinstance(value, tuple | list):
        return all(map(_is_plain, value))
    return isinstance(value, (*_PLAIN, Jaxpr, ClosedJaxpr))
