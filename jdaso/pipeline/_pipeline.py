"""A plan at work: micro-batches flow through the stages, and replicas are averaged."""

from __future__ import annotations

from collections import defaultdict
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from .._daso import daso
from .._phases import Phases
from .._session import Session
from .._synchronous import synchronous
from .._types import PyTree
from ._compiled import WIRES, CompiledStage, Edge, edge_of
from ._grid import Grid
from ._mail import Address, Mail
from ._plan import Plan
from ._schedule import Action, make_schedule
from ._whole import Whole

_WINDOW = 4
"""Of so many actions ahead a rank begins to receive what they need."""


class PipelineState(NamedTuple):
    """What a rank of a pipeline carries from step to step."""

    params: PyTree  # those that this rank holds; see `Holding`
    opt_state: optax.OptState  # of these


class StepResult(NamedTuple):
    """What a step tells, on every rank of a pipeline."""

    loss: np.ndarray  # the mean over this pipeline's batch, before the update
    aux: PyTree  # floats: the mean over micro-batches, weighted by samples; integers: the sum


class Pipeline:
    """Trains a plan's model: K ranks are a pipeline, R pipelines are replicas of each other.

    Node ``n`` is partition ``n % K`` of replica ``n // K``. One step takes the micro-batches
    through the stages in the order of a `Schedule`, sums their gradients, and updates each rank's
    own parameters. These are averaged with those of the same partition of the other replicas by
    `jdaso.synchronous` or, with `phases`, by `jdaso.daso`; each partition begins as soon as its own
    last backward pass is done.

    Args:
        plan: from `partition`; the same on all nodes.
        optimizer: any optax transformation. What it sums or compares over all parameters, as a
            global norm, is summed over all partitions.
        session: ``plan.num_partitions`` times R nodes.
        schedule: ``"gpipe"``, ``"1f1b"`` or ``"interleaved"``; see `make_schedule`.
        phases: of `jdaso.daso` between replicas; None for `jdaso.synchronous`.
        wire: in what activations and their gradients travel: ``"float32"``, as they are, or
            ``"bfloat16"`` where they are float32.
        remat: whether a stage keeps of a micro-batch only what it was given, and computes the rest
            again for the backward pass.
        settings: of `jdaso.daso` or `jdaso.synchronous`, as ``wire`` or ``merge``.

    Raises:
        ValueError: the nodes are not K times R; a setting is unknown.
        NodeError: the nodes hold different plans.

    On failure: what another node does wrong, and a node that dies or is stuck, raises `NodeError`
    on all nodes; the others wait no longer than the session's limit.
    """

    def __init__(
        self,
        plan: Plan,
        optimizer: optax.GradientTransformation,
        *,
        session: Session,
        schedule: str = "1f1b",
        phases: Phases | None = None,
        wire: str = "float32",
        remat: bool = False,
        settings: dict[str, Any] | None = None,
    ):
        if wire not in WIRES:
            raise ValueError(f"wire must be one of {', '.join(WIRES)}, got {wire!r}.")
        self.plan, self.session = plan, session
        self.schedule = make_schedule(
            schedule, plan.num_partitions, plan.num_microbatches, plan.chunks
        )
        self.grid = Grid.of(session, plan.num_partitions)
        facts = [("the plan", plan.digest()), ("schedule", schedule), ("wire", wire)]
        session.agree("make a pipeline", [*facts, ("remat", str(remat))])
        self._mail = Mail(session)
        self.replicas = self.grid.replicas()
        self._rank = self.grid.partition
        self._stages = {
            size: self._compile(size, wire, remat) for size in set(plan.microbatches.sizes)
        }
        self._tags = _tags(plan)
        inner = optimizer
        if plan.num_partitions > 1:
            gather = self.grid.gatherer()
            inner = Whole(optimizer, plan.holding, self._rank, gather).transformation
        if self.replicas.num_nodes == 1:
            self._tx = optax.with_extra_args_support(inner)
        elif phases is None:
            self._tx = synchronous(inner, session=self.replicas, **(settings or {}))
        else:
            self._tx = daso(inner, phases=phases, session=self.replicas, **(settings or {}))
        self._update = jax.jit(self._update_params, donate_argnums=(0, 1))
        self._step = 0

    def _compile(self, size: int, wire: str, remat: bool) -> dict[int, CompiledStage]:
        part, compiled = self.plan.parts[size], {}
        for stage in part.stages:
            if stage.number % self.plan.num_partitions == self._rank:
                edges = self._edges(size, wire)
                received = [edges[var] for made in stage.receives.values() for var in made]
                sent = [edges[var] for var in _sent(stage.sends)]
                compiled[stage.number] = CompiledStage(
                    part.program, stage, received, sent, remat=remat
                )
        return compiled

    def _edges(self, size: int, wire: str) -> dict[Any, Edge]:
        part = self.plan.parts[size]
        return {
            var: edge_of(var, var in part.line.backward, wire)
            for stage in part.stages
            for made in stage.receives.values()
            for var in made
        }

    def init(self, params: PyTree) -> PipelineState:
        """The state of the first step.

        Args:
            params: the whole tree, the same on all nodes (`jdaso.broadcast`).
        """
        leaves = jax.tree.leaves(params)
        own = self._placed(self.plan.holding.own(leaves, self._rank))
        return PipelineState(own, self._tx.init(own))

    def step(self, state: PipelineState, batch: PyTree) -> tuple[PipelineState, StepResult]:
        """One update; all nodes call it together.

        Args:
            state: of the step before; given up.
            batch: this replica's samples, the same on all ranks of a pipeline.
        """
        self.session.require_usable()
        sums, result = self.value_and_grad(state.params, batch)
        grads = self.plan.holding.join(sums, self._rank, jnp)
        params, opt_state = self._update(
            state.params, state.opt_state, grads, jnp.asarray(result.loss, jnp.float32)
        )
        self._step += 1
        return PipelineState(params, opt_state), result

    def _update_params(self, params: PyTree, opt_state: Any, grads: PyTree, loss: Any) -> Any:
        updates, opt_state = self._tx.update(grads, opt_state, params, value=loss)
        return optax.apply_updates(params, updates), opt_state

    def value_and_grad(
        self, params: PyTree, batch: PyTree
    ) -> tuple[dict[int, jax.Array], StepResult]:
        """Gradients of the units that this rank holds, and what the loss says."""
        run = _Run(self, params, batch)
        for at, action in enumerate(self.schedule.order[self._rank]):
            run.expect(self.schedule.order[self._rank][at : at + _WINDOW])
            run.do(action)
        return run.finish()

    def gather(self, tree: PyTree) -> PyTree:
        """The whole tree on every rank, from one like `PipelineState.params`, as NumPy arrays."""
        holding, mail = self.plan.holding, self._mail
        units: dict[int, Any] = dict(holding.split(tree, self._rank))
        others = [rank for rank in range(self.plan.num_partitions) if rank != self._rank]
        for k, unit in enumerate(holding.units):
            tag = self._tags["unit", k]
            if k in units:
                units[k] = np.asarray(units[k])
                for rank in others:
                    mail.send(self.grid.address(rank, tag), units[k])
            else:
                at = self.grid.address(holding.owner(unit), tag)
                mail.expect(at, holding.unit_shape(unit), holding.dtypes[unit.leaf])
                units[k] = mail.take(at, "waits for parameters")
        mail.drain()
        leaves = []
        for leaf in range(len(holding.shapes)):
            mine = [units[k] for k, unit in enumerate(holding.units) if unit.leaf == leaf]
            array = mine[0] if len(mine) == 1 else np.concatenate(mine)
            leaves.append(array.reshape(()) if leaf in holding.scalars else array)
        return jax.tree.unflatten(holding.tree, leaves)

    def _placed(self, tree: PyTree) -> PyTree:
        return jax.tree.map(self._place, tree)

    def _place(self, array: Any) -> jax.Array:
        """On this node's devices, the same on each."""
        devices = self.session.devices
        if len(devices) == 1:
            return jnp.asarray(array)
        spec = jax.sharding.PartitionSpec()
        return jax.device_put(array, jax.sharding.NamedSharding(self.session.mesh, spec))

    def _place_samples(self, array: Any, size: int) -> jax.Array:
        """On this node's devices, samples shared out where they can be."""
        devices = self.session.devices
        if len(devices) == 1 or np.ndim(array) == 0 or np.shape(array)[0] != size:
            return self._place(array)
        if size % len(devices):
            return self._place(array)
        spec = jax.sharding.PartitionSpec("local")
        return jax.device_put(array, jax.sharding.NamedSharding(self.session.mesh, spec))


class _Run:
    """One pass of all micro-batches of a batch."""

    def __init__(self, pipeline: Pipeline, params: PyTree, batch: PyTree):
        self._pipe, self._plan = pipeline, pipeline.plan
        self._mail, self._tags = pipeline._mail, pipeline._tags
        self._rank, self._ranks = pipeline._rank, self._plan.num_partitions
        self._mail.step = pipeline._step
        self._leaves = self._plan.microbatches.check(batch)
        self._sizes = self._plan.microbatches.sizes
        self._weights = self._plan.microbatches.weights()
        self._residuals: dict[tuple[int, int], Any] = {}
        self._given: dict[int, list[Any]] = defaultdict(list)
        # What stages of this rank hand to each other: by stages, micro-batch and direction.
        self._handed: dict[Any, list[Any]] = {}
        holding = self._plan.holding
        self._units: dict[int, Any] = dict(holding.split(params, self._rank))
        for k in holding.owned_by(self._rank):
            for rank in holding.borrowers(holding.units[k]):
                self._mail.send(self._at(rank, ("lend", k)), self._units[k])
        self._borrowed = [k for k in holding.used_by(self._rank) if k not in self._units]
        for k in self._borrowed:
            unit = holding.units[k]
            at = self._at(holding.owner(unit), ("lend", k))
            self._mail.expect(at, holding.unit_shape(unit), holding.dtypes[unit.leaf])
        self._bound: dict[int, tuple[list[Any], list[list[tuple[int, int, int]]]]] = {}
        self._sums: dict[int, list[Any]] = {}

    def _at(self, rank: int, key: Any) -> Address:
        return self._pipe.grid.address(rank, self._tags[key])

    def _compiled(self, action: Action) -> CompiledStage:
        return self._pipe._stages[self._sizes[action.microbatch]][action.stage]

    def expect(self, actions: tuple[Action, ...]) -> None:
        """Begins to receive what these will need."""
        for action in actions:
            for node_stage, edges in self._inputs(action).items():
                for k, edge in enumerate(edges):
                    at = self._address(action, node_stage, k)
                    if at is not None and not self._mail.expects(at):
                        self._mail.expect(at, edge.shape, edge.dtype)

    def _inputs(self, action: Action) -> dict[int, list[Edge]]:
        """What an action needs of which stage."""
        compiled = self._compiled(action)
        if not action.backward:
            return compiled.received_from
        return {user: [e for e in edges if e.backward] for user, edges in compiled.sent_to.items()}

    def _address(self, action: Action, stage: int, k: int) -> Address | None:
        """Where the k-th thing comes from that an action needs of a stage; None: from here."""
        if stage % self._ranks == self._rank:
            return None
        first, last = sorted((stage, action.stage))
        key = ("edge", action.backward, first, last, k, action.microbatch)
        return self._at(stage % self._ranks, key)

    def _receive(self, action: Action) -> dict[int, list[Any]]:
        got: dict[int, list[Any]] = {}
        for stage, edges in self._inputs(action).items():
            if stage % self._ranks == self._rank:
                got[stage] = self._handed.pop((action.backward, stage, *action[1:]))
                continue
            got[stage] = []
            for k in range(len(edges)):
                at = self._address(action, stage, k)
                assert at is not None
                what = f"waits for what {action} needs of stage {stage}"
                array = self._mail.take(at, what)
                size = self._sizes[action.microbatch]
                got[stage].append(self._pipe._place_samples(array, size))
        return got

    def _send(self, action: Action, stage: int, arrays: list[Any]) -> None:
        """Hands results of an action to another stage."""
        back, own, m = action
        if stage % self._ranks == self._rank:
            self._handed[back, own, stage, m] = arrays
            return
        first, last = sorted((stage, own))
        for k, array in enumerate(arrays):
            key = ("edge", back, first, last, k, m)
            self._mail.send(self._at(stage % self._ranks, key), array)

    def do(self, action: Action) -> None:
        """Computes one action, once what it needs is there."""
        got = self._receive(action)
        if action.backward:
            self._do_backward(action, got)
        else:
            self._do_forward(action, got)

    def _do_forward(self, action: Action, got: dict[int, list[Any]]) -> None:
        compiled, m = self._compiled(action), action.microbatch
        received = [x for maker in compiled.received_from for x in got[maker]]
        cut = self._plan.microbatches.part
        place, size = self._pipe._place_samples, self._sizes[m]
        batch = [place(cut(self._leaves[k], m), size) for k in compiled.stage.batch]
        pieces = self._pieces(action.stage, compiled)
        sent, given, residuals = compiled.forward(pieces, received, batch)
        for user, at in compiled.places_of_sent.items():
            self._send(action, user, [sent[k] for k in at])
        for k, value in zip(compiled.stage.gives, given, strict=True):
            self._given[k].append(value)
        if compiled.has_backward:
            self._residuals[action.stage, m] = residuals

    def _do_backward(self, action: Action, got: dict[int, list[Any]]) -> None:
        compiled, m = self._compiled(action), action.microbatch
        if not compiled.has_backward:
            return
        cotangents = [[] for _ in compiled.back_out]
        for user, arrays in got.items():
            for edge, array in zip(compiled.back_places[user], arrays, strict=True):
                cotangents[edge].append(array)
        residuals = self._residuals.pop((action.stage, m))
        sums = self._sums.get(action.stage)
        if sums is None:
            sums = [self._pipe._place(jnp.zeros(s.shape, s.dtype)) for s in compiled.piece_structs]
        self._sums[action.stage], flowing = compiled.backward(
            residuals, cotangents, self._weights[m], sums
        )
        flow = iter(flowing)
        for maker, edges in compiled.received_from.items():
            self._send(action, maker, [next(flow) for edge in edges if edge.backward])

    def _pieces(self, stage: int, compiled: CompiledStage) -> list[Any]:
        """The parameters of a stage; those of other ranks are waited for at their first use."""
        if stage not in self._bound:
            holding, rows = self._plan.holding, []
            for k in self._borrowed:
                at = self._at(holding.owner(holding.units[k]), ("lend", k))
                if self._mail.expects(at) and stage in _on_rank(
                    holding.units[k], self._rank, self._ranks
                ):
                    what = f"waits for parameters of stage {holding.units[k].users[0]}"
                    self._units[k] = self._pipe._place(self._mail.take(at, what))
            spans = []
            for piece in compiled.stage.pieces.values():
                found, span = [], []
                for k, unit in enumerate(holding.units):
                    end = unit.end if piece.end is None else min(unit.end, piece.end)
                    begin = max(unit.begin, piece.begin)
                    if unit.leaf == piece.leaf and k in self._units and begin < end:
                        cut = slice(begin - unit.begin, end - unit.begin)
                        whole = cut == slice(0, unit.end - unit.begin)
                        found.append(self._units[k] if whole else self._units[k][cut])
                        span.append((k, cut.start, cut.stop))
                array = found[0] if len(found) == 1 else jnp.concatenate(found)
                rows.append(array.reshape(()) if piece.leaf in holding.scalars else array)
                spans.append(span)
            self._bound[stage] = rows, spans
        return self._bound[stage][0]

    def finish(self) -> tuple[dict[int, jax.Array], StepResult]:
        """Sums of gradients of the units held here, and what the loss says."""
        holding, grads = self._plan.holding, {}
        for stage, sums in sorted(self._sums.items()):
            for total, span in zip(sums, self._bound[stage][1], strict=True):
                total, row = jnp.atleast_1d(total), 0
                for k, begin, end in span:
                    unit = holding.units[k]
                    alone = len(span) == 1
                    part = total if alone else total[row : row + end - begin]
                    row += end - begin
                    if (begin, end) == (0, unit.end - unit.begin):
                        grads[k] = part if k not in grads else grads[k] + part
                    else:
                        whole = grads.get(k)
                        if whole is None:
                            whole = jnp.zeros(holding.unit_shape(unit), holding.dtypes[unit.leaf])
                        grads[k] = whole.at[begin:end].add(part)
        for k in self._borrowed:
            self._mail.send(self._at(holding.owner(holding.units[k]), ("grad", k)), grads.pop(k))
        for k in holding.owned_by(self._rank):
            unit = holding.units[k]
            shape, dtype = holding.unit_shape(unit), holding.dtypes[unit.leaf]
            if k not in grads:  # nothing uses it
                grads[k] = self._pipe._place(jnp.zeros(shape, dtype))
            addresses = [self._at(rank, ("grad", k)) for rank in holding.borrowers(unit)]
            for at in addresses:
                self._mail.expect(at, shape, dtype)
            for at in addresses:
                grads[k] = grads[k] + self._mail.take(at, "waits for gradients of tied parameters")
        result = self._result()
        self._mail.drain()
        return grads, result

    def _result(self) -> StepResult:
        """The loss and the auxiliary output, on every rank."""
        plan, values = self._plan, {}
        part = plan.parts[max(plan.parts)]
        others = [rank for rank in range(self._ranks) if rank != self._rank]
        for stage in part.stages:
            for k in stage.gives:
                giver = stage.number % self._ranks
                if giver == self._rank:
                    values[k] = _mean(self._given[k], self._sizes)
                    for rank in others:
                        self._mail.send(self._at(rank, ("out", k)), values[k])
                else:
                    aval = part.program.outs[k].aval
                    at = self._at(giver, ("out", k))
                    self._mail.expect(at, aval.shape, aval.dtype)
                    values[k] = self._mail.take(at, f"waits for the loss of stage {stage.number}")
        leaves = [values[k] for k in range(1, len(part.program.outs))]
        aux = None if plan.aux is None else jax.tree.unflatten(plan.aux, leaves)
        return StepResult(values[0], aux)


def _mean(values: list[Any], sizes: tuple[int, ...]) -> np.ndarray:
    """Of micro-batches: of floats the mean, weighted by samples; of integers the sum."""
    arrays = [np.asarray(value) for value in values]
    dtype = arrays[0].dtype
    if dtype == np.bool_:
        return np.logical_or.reduce(arrays)
    if not jnp.issubdtype(dtype, jnp.floating):
        return np.asarray(sum(arrays), dtype)
    shares = [np.float64(size / sum(sizes)) for size in sizes]
    return np.asarray(
        sum(s * a.astype(np.float64) for s, a in zip(shares, arrays, strict=True)), dtype
    )


def _sent(sends: dict[int, tuple[Any, ...]]) -> list[Any]:
    return list(dict.fromkeys(var for variables in sends.values() for var in variables))


def _on_rank(unit: Any, rank: int, ranks: int) -> list[int]:
    return [stage for stage in unit.users if stage % ranks == rank]


def _tags(plan: Plan) -> dict[Any, int]:
    """A number for each message of a step; all nodes count them in the same order."""
    keys: list[Any] = []
    for stage in plan.stages:
        for maker, variables in stage.receives.items():
            keys += [
                ("edge", back, maker, stage.number, k, m)
                for back in (False, True)
                for k in range(len(variables))
                for m in range(plan.num_microbatches)
            ]
    for k in range(len(plan.holding.units)):
        keys += [("lend", k), ("grad", k), ("unit", k)]
    outs = len(plan.parts[max(plan.parts)].program.outs)
    keys += [("out", k) for k in range(outs)]
    return {key: number for number, key in enumerate(keys)}
