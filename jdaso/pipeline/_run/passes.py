"""The compiled forward and backward pass of equations."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial, reduce
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.core import JaxprEqn, Var

from .._plan.equations import Atom, bytes_of, function_of, is_inexact, struct_of


class StagePasses:
    """Forward and backward pass of equations, for arrays of the equations' shapes.

    Residuals that are arguments of the forward pass (parameters, results of other equations, the
    batch) are not returned by the forward pass but kept as they are, so parameters are kept only
    once for all micro-batches.

    Attributes:
        back_in: indices of the `ins` that gradients flow back to.
        back_out: indices of the `outs` that gradients come back for.
        has_backward: whether there is a backward pass.
        residual_bytes: bytes of residuals that the forward pass makes.

    Args:
        eqns: the equations.
        pieces: parameters that they use.
        ins: results of other equations that they use.
        rest: all else that they use: states, batch, constants.
        outs: their results that other equations use.
        given: results for the caller: the loss, states, auxiliary output.
        backward: variables that depend on parameters.
        loss: index of the loss in `given`; None if it is not there.
        remat: whether the backward pass recomputes the forward pass.
        train: whether there will be a backward pass.
    """

    def __init__(
        self,
        eqns: Sequence[JaxprEqn],
        *,
        pieces: Sequence[Var],
        ins: Sequence[Var],
        rest: Sequence[Var],
        outs: Sequence[Var],
        given: Sequence[Atom],
        backward: frozenset[Var],
        loss: int | None,
        remat: bool,
        train: bool,
    ):
        run = function_of(eqns, [*pieces, *ins, *rest], [*outs, *given])
        self._run = jax.checkpoint(run) if remat else run
        self.back_in = [k for k, var in enumerate(ins) if var in backward and is_inexact(var)]
        self.back_out = [k for k, var in enumerate(outs) if var in backward and is_inexact(var)]
        self._loss = None if loss is None else len(outs) + loss
        self._counts = len(pieces), len(ins), len(outs)
        self.structs = [struct_of(var) for var in (*pieces, *ins, *rest)]
        self.out_structs = [struct_of(atom) for atom in (*outs, *given)]
        self._train = train
        self.has_backward = train and (bool(pieces) or bool(self.back_in))
        self._trace()

    def _forward(self, *given: Any) -> Any:
        held, rest = list(given[: self._counts[0]]), list(given[self._counts[0] :])

        def differentiable(held: Any, flowing: Any) -> Any:
            whole = list(rest)
            for k, x in zip(self.back_in, flowing, strict=True):
                whole[k] = x
            made = self._run(*held, *whole)
            main = [made[k] for k in self.back_out]
            return main if self._loss is None else [*main, made[self._loss]], made

        flowing = [rest[k] for k in self.back_in]
        if not self.has_backward:
            return differentiable(held, flowing)[1], ()
        _, pull, made = jax.vjp(differentiable, held, flowing, has_aux=True)
        return made, pull

    def _trace(self) -> None:
        closed, shapes = jax.make_jaxpr(self._forward, return_shape=True)(*self.structs)
        made, pull = shapes
        leaves, tree = jax.tree.flatten(pull)
        at = {id(var): k for k, var in enumerate(closed.jaxpr.invars)}
        results = closed.jaxpr.outvars
        # For each residual, the index of its argument, or -1 if the forward pass makes it.
        self._origin = [at.get(id(var), -1) for var in results[len(made) :]]
        origins = list(zip(results[len(made) :], leaves, self._origin, strict=True))
        self.residual_bytes = sum(bytes_of(leaf) for _, leaf, k in origins if k < 0)
        outs = [*results[: len(made)], *(var for var, _, k in origins if k < 0)]
        ins = [*closed.jaxpr.constvars, *closed.jaxpr.invars]
        run = function_of(closed.jaxpr.eqns, ins, outs)
        self._compiled_forward = jax.jit(partial(run, *closed.consts))

        def backward(residuals: Any, cotangents: Any, weight: Any, sums: Any) -> Any:
            main = []
            for k, each in zip(self.back_out, cotangents, strict=True):
                struct = self.out_structs[k]
                zeros = jnp.zeros(struct.shape, struct.dtype)
                main.append(reduce(jnp.add, each) if each else zeros)
            if self._loss is not None:
                main.append(jnp.ones((), self.out_structs[self._loss].dtype))
            grads, flowing = jax.tree.unflatten(tree, residuals)(main)
            return jax.tree.map(partial(_added, weight), sums, grads), flowing

        self._compiled_backward = jax.jit(backward, donate_argnums=3)

    def forward(self, *args: Any) -> tuple[list[jax.Array], list[jax.Array], list[Any]]:
        """Returns the results for other equations, those for the caller, and the residuals."""
        made = self._compiled_forward(*args)
        outs, results = self._counts[2], len(self.out_structs)
        new = iter(made[results:])
        kept = [args[k] if k >= 0 else next(new) for k in self._origin]
        return list(made[:outs]), list(made[outs:results]), kept

    def backward(
        self, residuals: Sequence[Any], cotangents: Any, weight: Any, sums: Any
    ) -> tuple[list[jax.Array], list[jax.Array]]:
        """Adds these gradients to the sums; returns the sums and the cotangents of `back_in`.

        Args:
            residuals: from the forward pass.
            cotangents: for each of `back_out`, the cotangents from all its users.
            weight: this micro-batch's share of the loss.
            sums: gradients so far, one for each piece, which may be of a wider dtype; their buffers
                are donated.
        """
        return self._compiled_backward(list(residuals), cotangents, weight, list(sums))


def _added(weight: Any, total: jax.Array, grad: jax.Array) -> jax.Array:
    """The sum; a loss in bfloat16 could not hold the weight."""
    return total + weight * grad.astype(total.dtype)
