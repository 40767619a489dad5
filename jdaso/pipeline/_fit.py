"""One call that trains a model with data, model or hybrid parallelism."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
import optax

from .._base.errors import NodeError, summary
from .._exchange.collectives import broadcast, mean
from .._jax.types import PyTree
from .._optimizers.finalize import finalize
from .._rules.phases import Phases
from .._session import Session
from ..checkpoint import Checkpoints
from ._pipeline import Pipeline
from ._plan.partition import partition
from ._run.run import StepResult
from ._state import PipelineState

log = logging.getLogger("jdaso")

STRATEGIES = ("data", "model", "hybrid")


class FitResult(NamedTuple):
    """The result of `fit`, on every node."""

    params: PyTree  # the whole tree, the same on all nodes, as NumPy arrays
    opt_state: optax.OptState  # for the parameters that this node holds
    # The model's whole state: floats averaged over replicas, others the first replica's; or None.
    state: PyTree
    history: np.ndarray  # float32 [steps made]: the loss of each step, averaged over replicas


def fit(
    loss_fn: Callable[..., Any],
    params: PyTree,
    optimizer: optax.GradientTransformation,
    data: Iterable[PyTree],
    *,
    session: Session,
    strategy: str = "data",
    num_partitions: int | str = 1,
    num_replicas: int | None = None,
    num_microbatches: int | None = None,
    phases: Phases | None = None,
    schedule: str = "1f1b",
    chunks: int = 1,
    state: PyTree = None,
    boundaries: Sequence[int | str] | None = None,
    wire: str = "float32",
    remat: bool = False,
    settings: Mapping[str, Any] | None = None,
    folder: str | Path | None = None,
    every_steps: int = 1000,
    on_step: Callable[[int, StepResult, Pipeline, PipelineState], None] | None = None,
) -> FitResult:
    """Trains any JAX model over all nodes: replicas, partitions, or replicas of partitions.

    =============  ===============================  ==========================================
    ``strategy``   a node holds                     sent between nodes
    =============  ===============================  ==========================================
    ``"data"``     the whole model                  gradients, or parameters (`phases`)
    ``"model"``    one of P partitions              activations and their gradients
    ``"hybrid"``   one of K partitions, P / K       both
                   nodes each
    =============  ===============================  ==========================================

    With P = K R nodes, node n is partition ``n % K`` of replica ``n // K``. Without `phases` the
    update equals that of one process that is given all replicas' batches joined; with `phases` it
    is that of `jdaso.daso`.

    Args:
        loss_fn: ``(params, batch) -> loss`` or ``(loss, aux)``, as for `jax.value_and_grad`; the
            function is traced, never changed. The loss is a mean over the samples of the batch.
            With a `state`: ``(params, state, batch) -> (loss, (state, aux))``.
        params: tree of floating-point arrays, the same on all nodes (`jdaso.broadcast`).
        optimizer: any optax transformation.
        data: batches of equal shapes, one per step, the share of this node's replica: the same on
            all nodes of a pipeline, and equally many on all nodes.
        session: the nodes to train on.
        strategy: see above.
        num_partitions: K; for ``"model"``, 1 means all nodes; ``"hybrid"`` also accepts ``"auto"``,
            the fewest that divide the number of nodes and fit into their memory.
        num_replicas: R; if given, it is checked against the number of nodes.
        num_microbatches: M, the micro-batches per batch; if None, 1 for ``"data"``, else 4 K.
        phases: those of `jdaso.daso` between replicas; if None, `jdaso.synchronous` is used.
        schedule: ``"gpipe"``, ``"1f1b"`` or ``"interleaved"``.
        chunks: V, stages per node; at least 2 for ``"interleaved"``.
        state: the model's state, such as the running means of batch normalization.
        boundaries: where to cut; see `jdaso.pipeline.partition`.
        wire: format of activations between stages: ``"float32"`` or ``"bfloat16"``.
        remat: whether to recompute activations in the backward pass.
        settings: further arguments of `jdaso.daso` or `jdaso.synchronous`.
        folder: for `jdaso.checkpoint.Checkpoints`, one for each `fit` of a session. A restarted run
            continues from the newest one and skips the batches that it has seen, counted from
            where `data` is now; `jdaso.data.Loader` skips them without reading. None saves nothing.
        every_steps: steps between saves.
        on_step: called after each step with its number, its loss and auxiliary output, the pipeline
            and its state, for calls like ``pipeline.evaluate(state, batch)``.

    Returns:
        See `FitResult`.

    Raises:
        ValueError: the strategy does not fit the nodes; a setting is out of range; the batch or
            the loss cannot be cut.
        TypeError: the loss is not a floating-point scalar, or a parameter is not floating-point.
        NodeError: a node failed, or the nodes differ, for instance in their number of batches.
        CheckpointError: the folder cannot be used.
        Stopped: the run was asked to stop; its state is saved.

    On failure: all nodes raise; see `Pipeline`.

    Reference:
        HyPar-Flow (arXiv 1911.05146), section 6.1, for Keras models.

    Example:
        >>> import jax.numpy as jnp, jdaso, optax
        >>> def loss_fn(params, batch):
        ...     return jnp.mean((batch @ params["w"]) ** 2)
        >>> with jdaso.Session() as session:
        ...     params, batches = {"w": jnp.ones((2, 2))}, [jnp.ones((4, 2))] * 3
        ...     result = jdaso.fit(loss_fn, params, optax.sgd(0.1), batches, session=session)
        >>> result.history.shape
        (3,)
    """
    partitions = _partitions(session, strategy, num_partitions, num_replicas)
    if num_microbatches is None and partitions == 1:
        num_microbatches = 1
    fits = {"optimizer": optimizer, "schedule": schedule, "remat": remat, "session": session}
    pipeline = position = checkpoints = None
    begin = made = 0
    losses: list[np.ndarray] = []
    batches = session.control.known.batches
    numbered = enumerate(data)

    def abandoned(kind: Any, *_: Any) -> None:
        if kind is not None and pipeline is not None:
            pipeline.abandon()

    with contextlib.ExitStack() as stack:
        stack.push(abandoned)
        stack.enter_context(batches.loop())
        stack.enter_context(_error_on_all_nodes(session))
        while (numbered_batch := next(numbered, None)) is not None:
            number, batch = numbered_batch
            made = number + 1
            if pipeline is None:
                plan = partition(
                    loss_fn,
                    params,
                    batch,
                    num_partitions=partitions,
                    num_microbatches=num_microbatches,
                    chunks=chunks,
                    state=state,
                    boundaries=boundaries,
                    **(fits if partitions == "auto" else {}),
                )
                if session.node == 0 and plan.num_partitions > 1:
                    log.info("%s The model's partitions:\n%s", session.topology.prefix(), plan)
                pipeline = Pipeline(
                    plan,
                    optimizer,
                    session=session,
                    schedule=schedule,
                    phases=phases,
                    wire=wire,
                    remat=remat,
                    settings=settings,
                )
                stack.enter_context(pipeline.replicas.told())
                pipeline.compare_samples(batch)  # later a node may be out of data
                position = pipeline.init(params, state)
                if folder is not None:
                    checkpoints = Checkpoints(folder, pipeline, every_steps=every_steps)
                    position, begin = checkpoints.restore(position)
                batches.begin()
                if begin and (skip_batches := _skipping(data)) is not None:
                    skip_batches(begin - number - 1)
                    numbered, made = enumerate(data, begin), begin
                    continue
            if number < begin:
                continue
            assert position is not None
            batches.begin_step(number)
            since = time.perf_counter()
            position, result = pipeline.step(position, batch)
            session.timeline.record("step", number, since)
            losses.append(result.loss)
            if on_step is not None:
                on_step(number, result, pipeline, position)
            if checkpoints is not None:
                checkpoints.after(made, position)
        if pipeline is None or position is None:
            raise ValueError(
                "data gave no batch. Give fit an iterable of batches, one per step, or, if data is "
                "a loader at its end, call its seek(0) first."
            )
        jax.block_until_ready(position)  # a step may wait for a node whose data has ended
        batches.end(made)
    session.agree("end a fit", [("the number of batches", str(len(losses)))])
    replicas, own, states = pipeline.replicas, position.params, position.state
    history = np.asarray(losses, np.float32)
    if replicas.num_nodes > 1:
        if phases is not None:
            own = finalize(own, position.opt_state, replicas)
        history = np.asarray(mean(jax.numpy.asarray(history), replicas))
        if jax.tree.leaves(states):
            states = broadcast(mean(states, replicas), replicas)  # integers have no mean
    whole = pipeline.gather(own)
    states = None if state is None else pipeline.gather_state(states)
    pipeline.close()
    return FitResult(whole, position.opt_state, states, history)


@contextlib.contextmanager
def _error_on_all_nodes(session: Session) -> Iterator[None]:
    """Ends the session's work on all nodes if this one waited for a node whose data has ended.

    That node compares numbers of batches meanwhile. It would wait there as long as the program
    here, which may catch the error, leaves the session open.
    """
    try:
        yield
    except NodeError as error:
        if session.control.known.batches.why_in_vain("waits") is not None:
            session.control.give_up(error)
            session.fail(summary(error))
        raise


def _partitions(
    session: Session, strategy: str, num_partitions: int | str, num_replicas: int | None
) -> int | str:
    """Returns K, or ``"auto"``; raises if the strategy does not fit the nodes."""
    nodes = session.num_nodes
    if strategy not in STRATEGIES:
        raise ValueError(f"strategy must be one of {', '.join(STRATEGIES)}, got {strategy!r}.")
    if num_partitions == "auto":
        if strategy != "hybrid" or num_replicas is not None:
            raise ValueError(
                'num_partitions="auto" leaves the number of replicas open: use strategy="hybrid" '
                f"without num_replicas, got {strategy=}, {num_replicas=}."
            )
        return "auto"
    if not isinstance(num_partitions, int | np.integer) or num_partitions < 1:
        raise ValueError(
            f'num_partitions must be a number, at least 1, or "auto", got {num_partitions!r}.'
        )
    partitions = nodes if strategy == "model" and num_partitions == 1 else num_partitions
    if strategy == "data" and partitions != 1:
        raise ValueError(
            f'strategy="data" holds the whole model on each node, got {num_partitions=}. Use '
            'strategy="hybrid" for partitions that are replicated.'
        )
    if strategy == "model" and partitions != nodes:
        raise ValueError(
            f'strategy="model" has one partition a node, got {num_partitions=} for {nodes} nodes. '
            f'Start {num_partitions} nodes (mpiexec -n {num_partitions}), or use "hybrid".'
        )
    replicas = nodes // partitions if num_replicas is None else num_replicas
    if partitions * replicas != nodes:
        raise ValueError(
            f"num_partitions times num_replicas must be the number of nodes, got {partitions} "
            f"times {replicas} for {nodes} nodes. Start {partitions * max(replicas, 1)} "
            f"(mpiexec -n {partitions * max(replicas, 1)}), or change one of them."
        )
    return partitions


def _skipping(data: Any) -> Callable[[int], Any] | None:
    """The method of an iterator, such as `jdaso.data.Loader`, that moves over its next batches."""
    found = getattr(data, "skip_batches", None)
    return found if callable(found) and hasattr(data, "__next__") else None
