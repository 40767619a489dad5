"""Runs a plan: micro-batches flow through the stages, and replicas are averaged."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from .._jax.types import PyTree
from .._nodes.mail import Mail
from .._rules.phases import Phases
from .._session import Session
from .._session.ending import await_steps
from ._abandoned import abandon, close_abandoned
from ._averaged import averaged, check_settings
from ._optimizer.whole import WholeOptimizer
from ._parts import Partitions
from ._plan.measured import example
from ._plan.plan import Plan
from ._run.compiled import WIRES
from ._run.evaluations import Evaluations
from ._run.gatherer import Gatherer
from ._run.given import require_alike, require_common
from ._run.grid import Grid
from ._run.nonempty import NonEmpty
from ._run.own_devices import OwnDevices
from ._run.place import RankPlace
from ._run.run import BatchRun, StepResult
from ._run.work import StageWork
from ._schedule import Action, make_schedule
from ._state import PipelineState


class Pipeline:
    """Trains a plan's model: K ranks are a pipeline, R pipelines are replicas of each other.

    Node ``n`` is partition ``n % K`` of replica ``n // K``. One step takes the micro-batches
    through the stages in the order of a `Schedule`, sums their gradients, and updates each rank's
    own parameters. These are averaged with the same partition of the other replicas by
    `jdaso.synchronous` or, with `phases`, by `jdaso.daso`; each partition starts its exchange as
    soon as its own last backward pass is done.

    Args:
        plan: from `partition`; the same on all nodes.
        optimizer: any optax transformation; its updates equal those of one process that holds all
            parameters (`WholeOptimizer` explains how, and what it refuses).
        session: ``plan.num_partitions`` times R nodes.
        schedule: ``"gpipe"``, ``"1f1b"`` or ``"interleaved"``; see `make_schedule`.
        phases: those of `jdaso.daso` between replicas; None for `jdaso.synchronous`. Here
            ``fragments="auto"`` is 1: partitions differ in size, and checkpoints must fit another
            number of them.
        wire: format of activations and their gradients on the network: ``"float32"`` sends them as
            they are, ``"bfloat16"`` narrows those that are float32.
        remat: whether a stage keeps only its inputs for a micro-batch and recomputes the rest in
            the backward pass.
        settings: further arguments of `jdaso.daso` or `jdaso.synchronous`, such as
            ``{"wire": "bfloat16"}``.

    Raises:
        ValueError: the nodes are not K times R; a setting is unknown.
        NodeError: the nodes hold different plans.

    On failure: an error on another node, or a node that failed or is stuck, raises `NodeError` on
    all nodes; none waits longer than the session's limit.
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
        settings: Mapping[str, Any] | None = None,
    ):
        session.require_usable()
        if wire not in WIRES:
            raise ValueError(f"wire must be one of {', '.join(WIRES)}, got {wire!r}.")
        check_settings(settings or {}, phases)
        self.plan, self.session = plan, session
        self.schedule = make_schedule(
            schedule, plan.num_partitions, plan.num_microbatches, plan.chunks
        )
        self.grid = Grid.of(session, plan.num_partitions)
        facts = [("the plan", plan.digest()), ("schedule", schedule), ("wire", wire)]
        session.agree("make a pipeline", [*facts, ("remat", str(remat))])
        close_abandoned(session)
        record = partial(session.timeline.record, "wait", lane="messages")
        self._mail = Mail(session.control, record, alone=plan.num_partitions == 1)
        session.hooks.on_close(self._mail.close)
        self.replicas = self.grid.replicas()
        self._steps, self._compared, self._closed = 0, False, False
        self._last: Any = None
        rank = self.grid.partition
        self._devices = OwnDevices(session)
        self._place = RankPlace(
            rank, self.grid.address, self._devices.put, self._devices.put_samples
        )
        self._work = StageWork(plan, rank, wire, remat=remat)
        self._evaluations = Evaluations(plan, self.grid, wire)
        self._gather = Gatherer(self.grid)
        inner = WholeOptimizer(optimizer, plan.holding, rank, self._gather).transformation
        self._tx = averaged(inner, phases, settings or {}, self)
        self._update = NonEmpty(self._update_params)

    def init(self, params: PyTree, state: PyTree = None) -> PipelineState:
        """Returns the state for the first step.

        Args:
            params: the whole tree, the same on all nodes (`jdaso.broadcast`).
            state: the model's whole state, the same on all nodes; if the plan has one.

        Raises:
            ValueError: `params` or `state` differ from the plan's in structure, shape or dtype.
        """
        require_alike("params", self.plan.holding.whole_structs(), params)
        require_alike("state", self.plan.state, state)
        mine = self.plan.holding.own(jax.tree.leaves(params), self._place.rank)
        mine = jax.tree.map(self._devices.put_copy, mine)
        leaves, tree = jax.tree.flatten(state)
        leaves = [x if isinstance(x, jax.Array) else np.asarray(x) for x in leaves]
        held = self._work.states_held
        kept = [
            self._devices.put_copy(x if k in held else x.reshape(-1)[:0])
            for k, x in enumerate(leaves)
        ]
        with jax.debug_nans(False), jax.debug_infs(False):  # the model runs on ones
            self._compile()
        return PipelineState(mine, self._tx.init(mine), jax.tree.unflatten(tree, kept))

    def step(self, state: PipelineState, batch: PyTree) -> tuple[PipelineState, StepResult]:
        """Computes one update; all nodes call this together.

        Args:
            state: returned by the previous step; its buffers are donated.
            batch: this replica's samples, the same on all ranks of a pipeline.

        Raises:
            ValueError: the batch differs from the plan's in structure, shape or dtype.
            NodeError: a node failed, or the nodes differ; in the first step also: ranks of a
                pipeline were given different samples. While replicas are averaged, the error
                is, as everywhere, a `jax.errors.JaxRuntimeError` or a ValueError with its text.
        """
        self._require_open()
        self.compare_samples(batch)
        self._mail.begin_step(self._steps)
        run = BatchRun(self._work, self._mail, self._place, state.params, state.state, batch)
        run.follow(self.schedule.order[self._place.rank])
        grads = self.plan.holding.join(run.gradients(), self._place.rank, jnp)
        result = run.result()
        loss = jnp.asarray(result.loss, jnp.float32)
        params, opt_state = self._update((state.params, state.opt_state), (grads, loss))
        self._steps += 1
        results = [x for x in jax.tree.leaves((params, opt_state)) if x.size]
        self._last = min(results, key=np.size, default=None)  # `close` waits for it
        return PipelineState(params, opt_state, run.state()), result

    def compare_samples(self, batch: PyTree) -> None:
        """Compares what the ranks of each pipeline were given, once; all nodes call this together.

        The first `step` does so too. `jdaso.fit` compares earlier, where all nodes have a batch.

        Raises:
            ValueError: the batch differs from the plan's in structure, shape or dtype.
            NodeError: on all nodes; ranks of a pipeline have different samples.
        """
        if not self._compared:
            require_common(self.grid, self.plan.microbatches, batch)
            self._compared = True

    def evaluate(
        self, state: PipelineState, batch: PyTree, loss_fn: Callable[..., Any] | None = None
    ) -> StepResult:
        """Computes the loss of a batch, forward only; all nodes call this together.

        Args:
            state: of the last step.
            batch: any number of samples, equally many on all nodes; the same on all ranks of a
                pipeline.
            loss_fn: another function of the same parameters (and state), such as the model without
                dropout; if None, the plan's own. The programs of the last 8 functions and shapes
                are kept: give the same function again, not a new lambda.

        Raises:
            NodeError: the nodes gave batches of different shapes; at the first batch of a shape
                also: ranks of a pipeline were given different samples.
        """
        self._require_open()
        work = self._evaluations.of(loss_fn or self.plan.loss_fn, batch)
        microbatches, own = range(work.plan.num_microbatches), sorted(work.stages)
        run = BatchRun(work, self._mail, self._place, state.params, state.state, batch)
        run.follow([Action(False, stage, m) for m in microbatches for stage in own])
        return run.result()

    def close(self) -> None:
        """Ends the pipeline's messages and frees its communicators; all nodes call this together.

        A ``with`` block calls this. Otherwise both last as long as the session: MPI has some
        thousand communicators, and a pipeline takes two.
        """
        if self._closed or self.session.closed:
            return
        self.session.require_usable()
        self._closed = True
        steps = "the steps of a pipeline that it closes"
        await_steps(self.session.control, self.session.devices, steps, logging.DEBUG)
        self.session.agree("close a pipeline", [])
        self._mail.free()
        self._gather.free()
        self.session.hooks.forget_close(self._mail.close)

    def abandon(self) -> None:
        """Leaves the pipeline, after an error, to the next one of the session, which closes it."""
        abandon(self, self.session)

    def __enter__(self) -> Pipeline:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: Any, trace: Any) -> None:
        if kind is None:
            self.close()
        else:  # the other nodes may have no error
            self.abandon()

    def _require_open(self) -> None:
        self.session.require_usable()
        if self._closed:
            raise RuntimeError("This pipeline was closed. Make another one of the same plan.")

    @property
    def parts(self) -> Partitions:
        """The parts in which `jdaso.checkpoint` saves and reads the states."""
        return Partitions(self.plan.holding, self.grid, self.replicas, self._go_on_at)

    def _go_on_at(self, step: int) -> None:
        self._steps = step  # messages name it

    def gather(self, params: PyTree) -> PyTree:
        """Returns the whole tree, as NumPy, from `PipelineState.params` or a tree like it.

        All ranks of a pipeline call this together.

        Raises:
            ValueError: on all of them, if a leaf has another shape or dtype than the parameter.
        """
        self._require_open()
        holding, mail, tags = self.plan.holding, self._mail, self._work.tags
        unlike = holding.unlike(params, self._place.rank)
        # A step in flight may gather numbers, also on a rank whose own results are empty.
        await_steps(
            self.session.control, self.session.devices, "the steps before it", logging.DEBUG
        )
        if (wrong := self._gather(np.array([bool(unlike)]))).any():
            other = (
                f"Partition {np.argmax(wrong)} gave a tree unlike its parameters; see its error."
            )
            raise ValueError(unlike or other)
        rank, ranks = self._place.rank, range(self.plan.num_partitions)
        units = {k: np.asarray(x) for k, x in holding.split(params, rank).items()}
        for k, array in units.items():
            for other in ranks:
                if other != rank:
                    mail.send(self.grid.address(other, tags["unit", k]), array)
        for k, unit in enumerate(holding.units):
            if k not in units:
                at = self.grid.address(holding.owner(unit), tags["unit", k])
                mail.expect(at, holding.unit_shape(unit), holding.dtypes[unit.leaf])
                units[k] = mail.take(at, "waits for parameters of other partitions")
        mail.drain()
        return holding.whole(units)

    def gather_state(self, state: PyTree) -> PyTree:
        """Returns the model's whole state, as NumPy, from `PipelineState.state`."""
        self._require_open()
        leaves, tree = jax.tree.flatten(state)
        mail, rank, tags = self._mail, self._place.rank, self._work.tags
        structs = jax.tree.leaves(self.plan.state)
        holders = {k: stage.number for stage in self.plan.stages for k in stage.state}
        whole = []
        for k, (leaf, struct) in enumerate(zip(leaves, structs, strict=True)):
            holder = holders[k] % self.plan.num_partitions
            if holder == rank:
                whole.append(np.asarray(leaf))
                for other in range(self.plan.num_partitions):
                    if other != rank:
                        mail.send(self.grid.address(other, tags["state", k]), whole[k])
            else:
                at = self.grid.address(holder, tags["state", k])
                mail.expect(at, struct.shape, struct.dtype)
                whole.append(mail.take(at, "waits for the model's state of other partitions"))
        mail.drain()
        return jax.tree.unflatten(tree, whole)

    def _update_params(self, given_up: Any, kept: Any) -> tuple[PyTree, optax.OptState]:
        (params, opt_state), (grads, loss) = given_up, kept
        updates, opt_state = self._tx.update(grads, opt_state, params, value=loss)
        return optax.apply_updates(params, updates), opt_state

    def _compile(self) -> None:
        """Compiles all passes on all nodes at once; otherwise each would wait for the last."""
        for size, stages in self._work.by_size.items():
            for compiled in stages.values():

                def make(struct: jax.ShapeDtypeStruct, size: int = size) -> Any:
                    return self._devices.put_samples(example(struct), size)

                pieces, *rest = compiled.arguments(make)
                pieces = [self._devices.put(piece) for piece in pieces]
                *_, residuals = compiled.forward(pieces, *rest)
                if compiled.has_backward:
                    cotangents = compiled.cotangents(make)
                    sums = self._work.sum_structs(compiled)
                    sums = [self._devices.put(example(struct)) for struct in sums]
                    weight = self.plan.microbatches.weights()[0]
                    jax.block_until_ready(compiled.backward(residuals, cotangents, weight, sums))
