"""The compiled forward and backward pass of a stage."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from functools import partial, reduce
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.core import Var

from ._program import Program, bytes_of, function_of, struct_of
from ._stage import Stage

WIRES = {"float32": None, "bfloat16": jnp.bfloat16}


@dataclasses.dataclass(frozen=True)
class Edge:
    """A result that another stage uses.

    Attributes:
        var: the variable.
        backward: whether a gradient comes back for it.
        dtype: in which it travels.
    """

    var: Var
    backward: bool
    dtype: Any

    @property
    def struct(self) -> jax.ShapeDtypeStruct:
        """Shape and dtype of what travels."""
        return jax.ShapeDtypeStruct(struct_of(self.var).shape, self.dtype)


def edge_of(var: Var, flows_back: bool, wire: str) -> Edge:
    """How a variable travels: float32 in the wire's format, all else as it is."""
    dtype = jnp.dtype(struct_of(var).dtype)
    back = flows_back and jnp.issubdtype(dtype, jnp.floating)
    narrow = WIRES[wire] if dtype == jnp.float32 else None
    return Edge(var, back, jnp.dtype(narrow or dtype))


class CompiledStage:
    """Forward and backward passes of one stage for micro-batches of one size.

    ``forward(pieces, received, batch) -> (sent, given, residuals)`` and
    ``backward(residuals, held, cotangents, loss weight, sums) -> (sums, cotangents)``. Residuals
    that the forward pass was given (parameters, what it received, the batch) are no results of
    it: they are kept as they are, and parameters once for all micro-batches.

    Args:
        program: all of the loss.
        stage: the part.
        received: what comes from other stages.
        sent: what others use.
        remat: whether to keep only what the stage was given, and to compute the rest again in the
            backward pass.
        train: whether there is a backward pass.
    """

    def __init__(
        self,
        program: Program,
        stage: Stage,
        received: Sequence[Edge],
        sent: Sequence[Edge],
        *,
        remat: bool = False,
        train: bool = True,
    ):
        self.stage = stage
        edges = {edge.var: edge for edge in (*received, *sent)}
        numbers = {edge.var: k for k, edge in enumerate(sent)}
        self.received_from = {
            maker: [edges[var] for var in made] for maker, made in stage.receives.items()
        }
        self.sent_to = {user: [edges[var] for var in made] for user, made in stage.sends.items()}
        self.places_of_sent = {
            user: [numbers[var] for var in made] for user, made in stage.sends.items()
        }
        consts = list(program.consts)
        self._consts = [jnp.asarray(program.consts[var]) for var in consts]
        batch = [program.batch[leaf] for leaf in stage.batch]
        states = [program.state[leaf] for leaf in stage.state]
        ins = [*stage.pieces, *(edge.var for edge in received), *states, *batch, *consts]
        outs = [*(edge.var for edge in sent), *(program.outs[k] for k in stage.gives)]
        run = function_of(stage.eqns, ins, outs)
        if remat:
            run = jax.checkpoint(run)
        back_in = [k for k, edge in enumerate(received) if edge.backward]
        back_out = [k for k, edge in enumerate(sent) if edge.backward]
        self.back_out = [sent[k] for k in back_out]
        order = {edge.var: k for k, edge in enumerate(self.back_out)}
        # By user: which of the results that gradients come back for it sends gradients of.
        self.back_places = {
            user: [order[edge.var] for edge in to if edge.backward]
            for user, to in self.sent_to.items()
        }
        self.piece_structs = [struct_of(var) for var in stage.pieces]
        loss_at = len(sent) + stage.gives.index(0) if 0 in stage.gives else None
        count = len(stage.pieces), len(received)

        def forward(*given: Any) -> Any:
            pieces, rest = list(given[: count[0]]), list(given[count[0] :])
            rest[: count[1]] = [
                x.astype(struct_of(edge.var).dtype) for x, edge in zip(rest, received, strict=False)
            ]

            def differentiable(held: Any, flowing: Any) -> Any:
                whole = list(rest)
                for k, x in zip(back_in, flowing, strict=True):
                    whole[k] = x
                made = list(run(*held, *whole))
                main = [made[k] for k in back_out] + (
                    [made[loss_at]] if loss_at is not None else []
                )
                return main, made

            flowing = [rest[k] for k in back_in]
            if train:
                _, pull, made = jax.vjp(differentiable, pieces, flowing, has_aux=True)
            else:
                (_, made), pull = differentiable(pieces, flowing), ()
            made[: len(sent)] = [x.astype(edge.dtype) for x, edge in zip(made, sent, strict=False)]
            return made, pull

        def backward(pull: Any, cotangents: Any, weight: Any, sums: Any) -> Any:
            main = [
                reduce(jnp.add, (x.astype(struct_of(sent[k].var).dtype) for x in each))
                for k, each in zip(back_out, cotangents, strict=True)
            ]
            if loss_at is not None:
                main.append(jnp.asarray(weight, struct_of(outs[loss_at]).dtype))
            pieces, flowing = pull(main)
            flowing = [x.astype(received[k].dtype) for k, x in zip(back_in, flowing, strict=True)]
            return jax.tree.map(jnp.add, sums, pieces), flowing

        self._forward, self._backward_function = forward, backward
        self._structs = [struct_of(var) for var in ins]
        for k, edge in enumerate(received):
            self._structs[count[0] + k] = edge.struct
        self._counts, self._sent = count, len(sent)
        self.has_backward = train and (bool(stage.pieces) or bool(back_in))
        self._trace()

    def _trace(self) -> None:
        closed, shapes = jax.make_jaxpr(self._forward, return_shape=True)(*self._structs)
        made, pull = shapes
        leaves, self._pull = jax.tree.flatten(pull)
        at = {id(var): k for k, var in enumerate(closed.jaxpr.invars)}
        residuals = closed.jaxpr.outvars[len(made) :]
        # Of each residual: which of the arguments it is, or -1 where the forward pass makes it.
        self._origin = [at.get(id(var), -1) for var in residuals]
        new = [var for var, k in zip(residuals, self._origin, strict=True) if k < 0]
        self.residual_bytes = sum(
            bytes_of(leaf) for leaf, k in zip(leaves, self._origin, strict=True) if k < 0
        )
        outvars = [*closed.jaxpr.outvars[: len(made)], *new]
        run = function_of(
            closed.jaxpr.eqns, [*closed.jaxpr.constvars, *closed.jaxpr.invars], outvars
        )
        self._program = jax.jit(partial(run, *closed.consts))
        self._made = len(made)

        def backward(residuals: Any, cotangents: Any, weight: Any, sums: Any) -> Any:
            pull = jax.tree.unflatten(self._pull, residuals)
            return self._backward_function(pull, cotangents, weight, sums)

        self._backward = jax.jit(backward, donate_argnums=3)

    @property
    def received_bytes(self) -> int:
        """What comes from other stages, for one micro-batch."""
        edges = [edge for made in self.received_from.values() for edge in made]
        return sum(bytes_of(edge.struct) for edge in edges)

    def arguments(self, make: Callable[[jax.ShapeDtypeStruct], Any]) -> list[list[Any]]:
        """Arguments of `forward`, made of their shapes and dtypes."""
        pieces, received = self._counts
        states = len(self.stage.state)
        edges = [0, pieces, pieces + received, pieces + received + states]
        edges.append(edges[-1] + len(self.stage.batch))
        made = [make(struct) for struct in self._structs[: edges[-1]]]
        return [made[begin:end] for begin, end in zip(edges, edges[1:], strict=False)]

    def cotangents(self, make: Callable[[jax.ShapeDtypeStruct], Any]) -> tuple[Any, list[Any]]:
        """Cotangents and sums of gradients for `backward`, made in the same way."""
        counts = [0] * len(self.back_out)
        for places in self.back_places.values():
            for k in places:
                counts[k] += 1
        pairs = zip(self.back_out, counts, strict=True)
        cotangents = [[make(edge.struct)] * count for edge, count in pairs]
        return cotangents, [make(struct) for struct in self.piece_structs]

    def forward(
        self,
        pieces: Sequence[Any],
        received: Sequence[Any],
        state: Sequence[Any],
        batch: Sequence[Any],
    ) -> tuple[list[jax.Array], list[jax.Array], list[Any]]:
        """What is sent, what is given, and what the backward pass needs."""
        args = [*pieces, *received, *state, *batch, *self._consts]
        outs = self._program(*args)
        new = iter(outs[self._made :])
        kept = [args[k] if k >= 0 else next(new) for k in self._origin]
        return outs[: self._sent], outs[self._sent : self._made], kept

    def backward(
        self, residuals: Sequence[Any], cotangents: Any, weight: Any, sums: Any
    ) -> tuple[Any, list[jax.Array]]:
        """Sums of gradients with this micro-batch's added, and what flows back to other stages.

        Args:
            residuals: of its forward pass.
            cotangents: of each result that gradients come back for, those of all its users.
            weight: this micro-batch's share of the loss.
            sums: so far, one for each piece; given up.
        """
        return self._backward(list(residuals), cotangents, weight, list(sums))
