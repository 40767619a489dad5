"""A stage as compiled programs."""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Callable, Sequence
from functools import reduce
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.extend.core import Var

from .._plan.equations import bytes_of, is_inexact, is_key, struct_of
from .._plan.line import Line
from .._plan.signature import Signatures
from .._plan.stage import Stage
from .passes import StagePasses

WIRES = {"float32": None, "bfloat16": jnp.bfloat16}


@dataclasses.dataclass(frozen=True)
class Edge:
    """A result that another stage uses.

    Attributes:
        var: the variable.
        backward: whether a gradient comes back for it.
        dtype: the dtype in which it is sent.
    """

    var: Var
    backward: bool
    dtype: Any

    @property
    def struct(self) -> jax.ShapeDtypeStruct:
        """Shape and dtype of the array that is sent."""
        shape = jax.eval_shape(self.pack, struct_of(self.var)).shape
        return jax.ShapeDtypeStruct(shape, self.dtype)

    def pack(self, x: Any) -> Any:
        """Returns the array to send; random keys are sent as their numbers."""
        if self._is_key:
            return jax.random.key_data(x)
        return x if x.dtype == self.dtype else x.astype(self.dtype)

    def unpack(self, x: Any) -> Any:
        """Undoes `pack`: returns an array of the variable's own dtype."""
        struct = struct_of(self.var)
        if not self._is_key:
            return x if x.dtype == struct.dtype else x.astype(struct.dtype)
        impl: list[Any] = []
        jax.eval_shape(lambda key: impl.append(jax.random.key_impl(key)), struct)
        return jax.random.wrap_key_data(x, impl=impl[0])

    @property
    def _is_key(self) -> bool:
        return is_key(struct_of(self.var))


def edge_of(var: Var, line: Line, wire: str) -> Edge:
    """Returns how a variable is sent: float32 in the wire's format, all else unchanged."""
    if is_key(struct_of(var)):
        return Edge(var, False, jnp.dtype(jnp.uint32))
    dtype = jnp.dtype(struct_of(var).dtype)
    narrow = WIRES[wire] if dtype == jnp.float32 else None
    return Edge(var, var in line.backward and is_inexact(var), jnp.dtype(narrow or dtype))


class Compiler:
    """Makes passes; passes that compute the same results are compiled once.

    Args:
        remat: see `StagePasses`.
        train: see `StagePasses`.
    """

    def __init__(self, *, remat: bool = False, train: bool = True):
        self._options = {"remat": remat, "train": train}
        self._known: dict[str, StagePasses] = {}
        self._signatures = Signatures(derivatives=train)

    def passes(self, line: Line, part: Stage) -> StagePasses:
        """Returns the passes of a stage, or of a part of a stage."""
        program = line.program
        pieces, ins = list(part.pieces), [var for made in part.receives.values() for var in made]
        rest = [
            *(program.state[k] for k in part.state),
            *(program.batch[k] for k in part.batch),
            *program.consts,
        ]
        outs, given = part.all_sent, [program.outs[k] for k in part.gives]
        loss = part.gives.index(0) if 0 in part.gives else None
        flows = [var in line.backward for var in (*ins, *outs)]
        text = self._signatures.of(part.eqns, [*pieces, *ins, *rest], [*outs, *given])
        key = f"{len(pieces)} {len(ins)} {len(outs)} {loss} {flows}\n{text}"
        if key not in self._known:
            self._known[key] = StagePasses(
                part.eqns,
                pieces=pieces,
                ins=ins,
                rest=rest,
                outs=outs,
                given=given,
                backward=line.backward,
                loss=loss,
                **self._options,
            )
        return self._known[key]


class _Segment(NamedTuple):
    """A part of a stage that is compiled separately."""

    part: Stage
    passes: StagePasses
    pieces: list[int]  # indices into the stage's pieces
    ins: list[Var]
    outs: list[Var]


class CompiledStage:
    """Forward and backward passes of one stage for micro-batches of one size.

    Args:
        line: the line of the whole program.
        stage: the stage.
        parts: the same stage in parts, each compiled separately.
        compiler: makes the programs.
        wire: format in which results are sent between stages.
    """

    def __init__(
        self, line: Line, stage: Stage, parts: Sequence[Stage], compiler: Compiler, wire: str
    ):
        self.stage = stage
        edges = {
            var: edge_of(var, line, wire)
            for made in (*stage.receives.values(), *stage.sends.values())
            for var in made
        }
        self.received_from = {
            maker: [edges[var] for var in made] for maker, made in stage.receives.items()
        }
        self.sent_to = {user: [edges[var] for var in made] for user, made in stage.sends.items()}
        self._received = [edge for made in self.received_from.values() for edge in made]
        self._consts = [jnp.asarray(value) for value in line.program.consts.values()]
        number = {var: k for k, var in enumerate(stage.pieces)}
        self._segments = [
            _Segment(
                part,
                compiler.passes(line, part),
                [number[var] for var in part.pieces],
                [var for made in part.receives.values() for var in made],
                part.all_sent,
            )
            for part in parts
        ]
        self.piece_structs = [struct_of(var) for var in stage.pieces]
        program = line.program
        self._given_structs = {
            "state": [struct_of(program.state[k]) for k in stage.state],
            "batch": [struct_of(program.batch[k]) for k in stage.batch],
        }
        self.has_backward = any(segment.passes.has_backward for segment in self._segments)

    @property
    def residual_bytes(self) -> int:
        """Bytes that the forward pass keeps of a micro-batch for the backward pass."""
        return sum(segment.passes.residual_bytes for segment in self._segments)

    @property
    def received_bytes(self) -> int:
        """Bytes that come from other stages for one micro-batch."""
        return sum(bytes_of(edge.struct) for edge in self._received)

    def arguments(self, make: Callable[[jax.ShapeDtypeStruct], Any]) -> list[Any]:
        """Returns arguments for `forward`, each made from its shape and dtype."""
        received = [make(edge.struct) for edge in self._received]
        given = [[make(struct) for struct in kind] for kind in self._given_structs.values()]
        return [[make(struct) for struct in self.piece_structs], received, *given]

    def cotangents(self, make: Callable[[jax.ShapeDtypeStruct], Any]) -> dict[int, list[Any]]:
        """Returns cotangents for `backward`, made in the same way."""
        return {
            user: [make(edge.struct) for edge in edges if edge.backward]
            for user, edges in self.sent_to.items()
        }

    def forward(
        self,
        pieces: Sequence[Any],
        received: Sequence[Any],
        state: Sequence[Any],
        batch: Sequence[Any],
    ) -> tuple[dict[int, list[jax.Array]], dict[int, jax.Array], list[Any]]:
        """Computes the forward pass of one micro-batch.

        Args:
            pieces: parameters, in the order of ``stage.pieces``.
            received: results of other stages, in the order of ``stage.receives``.
            state: in the order of ``stage.state``.
            batch: in the order of ``stage.batch``.

        Returns:
            The arrays for each stage; the program's results made here, by their numbers;
            residuals.
        """
        env = {edge.var: edge.unpack(x) for edge, x in zip(self._received, received, strict=True)}
        states = dict(zip(self.stage.state, state, strict=True))
        leaves = dict(zip(self.stage.batch, batch, strict=True))
        given, residuals = {}, []
        for part, passes, numbers, ins, outs in self._segments:
            made, results, kept = passes.forward(
                *(pieces[k] for k in numbers),
                *(env[var] for var in ins),
                *(states[k] for k in part.state),
                *(leaves[k] for k in part.batch),
                *self._consts,
            )
            env |= zip(outs, made, strict=True)
            given |= zip(part.gives, results, strict=True)
            residuals.append(kept if passes.has_backward else None)
        sent = {
            user: [edge.pack(env[edge.var]) for edge in edges]
            for user, edges in self.sent_to.items()
        }
        return sent, given, residuals

    def backward(
        self,
        residuals: list[Any],
        cotangents: dict[int, list[Any]],
        weight: Any,
        sums: Sequence[Any],
    ) -> tuple[list[jax.Array], dict[int, list[jax.Array]]]:
        """Computes the backward pass of one micro-batch.

        Args:
            residuals: from its forward pass; the list is emptied.
            cotangents: from each stage that results were sent to, for the results with gradients.
            weight: this micro-batch's share of the loss.
            sums: gradients so far, one for each piece, which may be of a wider dtype; their buffers
                are donated.

        Returns:
            The sums including this micro-batch's gradients, and the cotangents for each stage.
        """
        flowing: dict[Var, list[Any]] = defaultdict(list)
        for user, arrays in cotangents.items():
            edges = [edge for edge in self.sent_to[user] if edge.backward]
            for edge, array in zip(edges, arrays, strict=True):
                flowing[edge.var].append(edge.unpack(array))
        total = list(sums)
        for _, passes, numbers, ins, outs in reversed(self._segments):
            kept = residuals.pop()
            if not passes.has_backward:
                continue
            back = [flowing.pop(outs[k], []) for k in passes.back_out]
            part_sums = [total[k] for k in numbers]
            part_sums, more = passes.backward(kept, back, weight, part_sums)
            for k, x in zip(numbers, part_sums, strict=True):
                total[k] = x
            for k, x in zip(passes.back_in, more, strict=True):
                flowing[ins[k]].append(x)
        return total, {
            maker: [
                edge.pack(reduce(jnp.add, flowing[edge.var])) for edge in edges if edge.backward
            ]
            for maker, edges in self.received_from.items()
        }
