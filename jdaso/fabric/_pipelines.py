"""What a step of hybrid parallelism costs: a pipeline's bubble, its messages, and the averages."""

from __future__ import annotations

import dataclasses
import math

from .._exchange import CHUNK_BYTES
from ._model import Fabric, Prediction, Training, predict, predict_synchronous
from ._played import Order, Played, Traffic, chain, play

AVERAGING = ("daso", "synchronous")


@dataclasses.dataclass(frozen=True)
class Hybrid:
    """A model cut into K partitions, and R copies of that pipeline; what `predict_hybrid` takes.

    Attributes:
        order: what each of the K ranks does in a step: ``(backward, stage, microbatch)`` one after
            another, as ``jdaso.pipeline.make_schedule(...).order``.
        forward_seconds: of each stage, for a micro-batch, on its rank.
        backward_seconds: the same.
        traffic: ``(from stage, to stage, bytes)`` for a micro-batch; as much flows back. Skip
            connections have rows of their own. As ``jdaso.pipeline.Plan.traffic``.
        parameters: numbers that each rank holds.
        samples: of a step, of one replica.
        replicas: R.
        averaging: of the replicas of each partition: ``"daso"`` or ``"synchronous"``.
        sync_every: B.
        delay: S.
        wire: format of exchanges; of `"daso"` only, as B and S.
        chunk_bytes: most float32 bytes that travel at once.
        partitions_per_node: ranks of a pipeline that share a node, its link and its memory;
            divides K.

    Raises:
        ValueError: a number is out of its range, or the order does not hold each action once.
    """

    order: Order
    forward_seconds: tuple[float, ...]
    backward_seconds: tuple[float, ...]
    traffic: tuple[tuple[int, int, float], ...]
    parameters: tuple[int, ...]
    samples: int = 1
    replicas: int = 1
    averaging: str = "daso"
    sync_every: int = 4
    delay: int = 4
    wire: str = "bfloat16"
    chunk_bytes: int = CHUNK_BYTES
    partitions_per_node: int = 1

    def __post_init__(self) -> None:
        for name in ("samples", "replicas", "partitions_per_node"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}.")
        if self.averaging not in AVERAGING:
            raise ValueError(
                f"averaging must be one of {', '.join(AVERAGING)}, got {self.averaging!r}."
            )
        if self.partitions % self.partitions_per_node:
            raise ValueError(
                "partitions_per_node must divide the number of partitions, got "
                f"{self.partitions_per_node} for {self.partitions}."
            )
        self._check_stages()
        if len(self.parameters) != self.partitions:
            raise ValueError(
                f"parameters must have one number a rank, got {len(self.parameters)} for "
                f"{self.partitions} ranks."
            )
        self.training(1, 1.0)  # checks B, S and wire

    def _check_stages(self) -> None:
        stages = len(self.forward_seconds)
        if len(self.backward_seconds) != stages:
            raise ValueError(
                f"forward_seconds and backward_seconds must have one number a stage, got {stages} "
                f"and {len(self.backward_seconds)}."
            )
        for seconds in (*self.forward_seconds, *self.backward_seconds):
            if not 0 < seconds < math.inf:
                raise ValueError(f"The seconds of a stage must be above 0, got {seconds}.")
        listed = [tuple(action) for actions in self.order for action in actions]
        times = {(b, s, m) for b in (False, True) for s in range(stages) for m in self._numbers()}
        homes = {(rank, s) for rank, actions in enumerate(self.order) for _, s, _ in actions}
        idle = not all(self.order) or not self.order
        if idle or len(listed) != len(times) or set(listed) != times or len(homes) != stages:
            raise ValueError(
                "order must hold a forward and a backward pass of each micro-batch through each of "
                f"{stages} stages once, a stage's on one rank, and something for each rank."
            )
        for source, target, size in self.traffic:
            if not (0 <= source < target < stages and 0 <= size < math.inf):
                raise ValueError(
                    f"traffic goes from a stage to a later one of {stages}, and its bytes are 0 or "
                    f"more; got {(source, target, size)}."
                )

    def _numbers(self) -> range:
        return range(1 + max((m for actions in self.order for _, _, m in actions), default=-1))

    @classmethod
    def even(
        cls,
        order: Order,
        *,
        step_seconds: float,
        activation_bytes: float,
        parameters: int,
        balance: float = 1.0,
        backward_over_forward: float = 2.0,
        **settings,
    ) -> Hybrid:
        """A model cut into stages of equal cost and equal numbers of parameters.

        Args:
            order: see `Hybrid`.
            step_seconds: that one node needs, by itself, for the samples of one replica's step.
            activation_bytes: from each stage to the next, for a micro-batch.
            parameters: of the whole model.
            balance: cost of the largest stage, the middle one, of the mean; the others share what
                is left. At least 1, less than the number of stages (1 where there is one).
            backward_over_forward: cost of a backward pass, of the forward one's; 3 with `remat`.
            **settings: further attributes.

        Raises:
            ValueError: a number is out of its range.
        """
        ranks = len(order)
        stages = 1 + max((s for actions in order for _, s, _ in actions), default=-1)
        microbatches = 1 + max((m for actions in order for _, _, m in actions), default=-1)
        if not (1 <= balance < stages or balance == stages == 1):
            raise ValueError(
                "balance must be at least 1 and less than the number of stages, got "
                f"{balance} for {stages}."
            )
        if not 0 < step_seconds < math.inf:
            raise ValueError(f"step_seconds must be above 0, got {step_seconds}.")
        if not 0 < backward_over_forward < math.inf:
            raise ValueError(f"backward_over_forward must be above 0, got {backward_over_forward}.")
        if parameters < ranks:
            raise ValueError(f"parameters must be at least one a rank, got {parameters}.")
        mean = step_seconds * settings.get("partitions_per_node", 1) / (stages * microbatches)
        rest = (stages - balance) / max(1, stages - 1)
        costs = [mean * (balance if s == stages // 2 else rest) for s in range(stages)]
        forward = 1 / (1 + backward_over_forward)
        return cls(
            order=order,
            forward_seconds=tuple(forward * cost for cost in costs),
            backward_seconds=tuple((1 - forward) * cost for cost in costs),
            traffic=chain(stages, activation_bytes),
            parameters=tuple(
                parameters // ranks + (rank < parameters % ranks) for rank in range(ranks)
            ),
            **settings,
        )

    @property
    def partitions(self) -> int:
        """K."""
        return len(self.order)

    @property
    def nodes(self) -> int:
        """K R over the partitions that share a node."""
        return self.partitions * self.replicas // self.partitions_per_node

    @property
    def work_seconds(self) -> float:
        """That all ranks of one pipeline compute in a step, together."""
        return len(self._numbers()) * (sum(self.forward_seconds) + sum(self.backward_seconds))

    def training(self, parameters: int, step_seconds: float) -> Training:
        """A node's part of it, as the model of exchanges sees it."""
        return Training(
            max(1, parameters),
            step_seconds,
            self.sync_every,
            self.delay,
            self.wire,
            self.chunk_bytes,
        )

    def play(self, fabric: Fabric | None = None) -> list[list[Played]]:
        """When each action of a step begins and ends, without the averages."""
        return play(
            self.order,
            self.forward_seconds,
            self.backward_seconds,
            self.traffic,
            fabric=fabric,
            partitions_per_node=self.partitions_per_node,
        )


@dataclasses.dataclass(frozen=True)
class HybridPrediction:
    """What a step of hybrid parallelism takes, in the mean over a cycle; seconds.

    ``step = compute + bubble + exposed activations + exposed averages``

    Attributes:
        compute_seconds: of a rank, in the mean over ranks.
        bubble_seconds: for which a rank has nothing to do: the pipeline fills and empties, and
            stages are not of equal cost.
        activations_seconds: which messages between stages add to that.
        averaging_seconds: which the averages of replicas add to that, packing and merging included.
        bytes_per_step: that the node which sends most sends over its link.
        samples_per_second: of all replicas.
        one_node: speed, that of one node which computes alone being 1.
        data_parallel: speed, that of synchronous data parallelism on as many nodes, with as many
            samples a step, being 1.
    """

    compute_seconds: float
    bubble_seconds: float
    activations_seconds: float
    averaging_seconds: float
    bytes_per_step: float
    samples_per_second: float
    one_node: float
    data_parallel: float

    @property
    def step_seconds(self) -> float:
        """All in all."""
        return self.compute_seconds + self.bubble_seconds + self.exposed_seconds

    @property
    def exposed_seconds(self) -> float:
        """For which a step waits for the network."""
        return self.activations_seconds + self.averaging_seconds

    @property
    def bubble_share(self) -> float:
        """Of a step without a network: ``1 - M / (M + (K - 1) / V)`` where stages are equal."""
        return self.bubble_seconds / (self.compute_seconds + self.bubble_seconds)


def predict_hybrid(
    fabric: Fabric, hybrid: Hybrid, *, behind_backward: float = 0.0
) -> HybridPrediction:
    """A step of pipelines whose replicas are averaged.

    The pipeline is played through (`play`). Rank k is at work from its first action to its last,
    ``span_k`` long, and begins the next step where it was in this one; so a step takes
    ``max_k (span_k + average_k)``. Only the ranks that begin first and end last wait for the whole
    of an average; the others' lies in their bubble. Of `jdaso.daso` it is what S steps of the
    pipeline do not hide, with packing and merging. The partitions of one node are averaged one
    after another over its link.

    Left out: memory, cores that run slower on smaller batches or where several ranks share a node,
    shared bottlenecks behind the nodes' links, jitter within a pipeline, packing of activations on
    CPUs, parameters that stages share, the optimizer, and a batch's way to the first and last
    stage.

    Args:
        fabric: the cluster; its nodes must be `hybrid.nodes`.
        hybrid: what is trained.
        behind_backward: for the data parallelism that it is compared with, see
            `predict_synchronous`.

    Raises:
        ValueError: the cluster has another number of nodes; the order does not end.

    Reference:
        The bubble: GPipe (arXiv 1811.06965), section 2.3; Megatron-LM (arXiv 2104.04473), section
        2.2. Averages of each partition's replicas: HyPar-Flow (arXiv 1911.05146).

    Example:
        >>> from jdaso.fabric import Fabric, Hybrid, predict_hybrid
        >>> from jdaso.pipeline import make_schedule
        >>> hybrid = Hybrid.even(
        ...     make_schedule("1f1b", 4, 12).order, step_seconds=1.0, activation_bytes=0.0,
        ...     parameters=1000)
        >>> found = predict_hybrid(Fabric(4, 10e9, latency_seconds=0.0), hybrid)
        >>> round(found.bubble_share, 3)  # 1 - 12 / (12 + 4 - 1)
        0.2
    """
    if fabric.nodes != hybrid.nodes:
        raise ValueError(
            f"{hybrid.replicas} pipelines of {hybrid.partitions} partitions, "
            f"{hybrid.partitions_per_node} a node, need {hybrid.nodes} nodes, got {fabric.nodes}."
        )
    compute = hybrid.work_seconds / hybrid.partitions
    free = max(_spans(hybrid, hybrid.play()))
    spans = _spans(hybrid, hybrid.play(fabric))
    pipeline = max(max(spans), free)  # a late message can hurry nobody; rounding can
    averaged = _averages(fabric, hybrid, spans, pipeline)
    after = [found.handling_seconds + found.exposed_seconds for found in averaged]
    step = max(pipeline, *(span + more for span, more in zip(spans, after, strict=True)))
    whole = hybrid.training(sum(hybrid.parameters), compute)
    data = predict_synchronous(fabric, whole, behind_backward=behind_backward)
    sent = zip(averaged, _sent(hybrid), strict=True)
    return HybridPrediction(
        compute_seconds=compute,
        bubble_seconds=max(0.0, free - compute),
        activations_seconds=pipeline - free,
        averaging_seconds=step - pipeline,
        bytes_per_step=max(found.bytes_per_step + size for found, size in sent),
        samples_per_second=hybrid.replicas * hybrid.samples / step,
        one_node=hybrid.replicas * hybrid.work_seconds / hybrid.partitions_per_node / step,
        data_parallel=data.step_seconds / step,
    )


def _nodes_of_a_pipeline(hybrid: Hybrid) -> list[range]:
    """The ranks of each."""
    each = hybrid.partitions_per_node
    return [range(first, first + each) for first in range(0, hybrid.partitions, each)]


def _spans(hybrid: Hybrid, played: list[list[Played]]) -> list[float]:
    """Seconds from the first action to the last one's end, of each node of a pipeline."""
    return [
        max(played[rank][-1].end_seconds for rank in ranks)
        - min(played[rank][0].begin_seconds for rank in ranks)
        for ranks in _nodes_of_a_pipeline(hybrid)
    ]


def _averages(
    fabric: Fabric, hybrid: Hybrid, spans: list[float], pipeline: float
) -> list[Prediction]:
    """The step of each node of a pipeline, its averages over R replicas included."""
    group = dataclasses.replace(fabric, nodes=hybrid.replicas)
    found = []
    for ranks, span in zip(_nodes_of_a_pipeline(hybrid), spans, strict=True):
        held = sum(hybrid.parameters[rank] for rank in ranks)
        if hybrid.averaging == "daso":
            found.append(predict(group, hybrid.training(held, pipeline)))
        else:
            found.append(predict_synchronous(group, hybrid.training(held, span)))
    return found


def _sent(hybrid: Hybrid) -> list[float]:
    """Bytes of activations and their gradients that each node sends to others in a step."""
    each, microbatches = hybrid.partitions_per_node, len(hybrid._numbers())
    home = {s: rank // each for rank, actions in enumerate(hybrid.order) for _, s, _ in actions}
    sent = [0.0] * (hybrid.partitions // each)
    for source, target, size in map(Traffic._make, hybrid.traffic):
        if home[source] != home[target]:
            sent[home[source]] += microbatches * size
            sent[home[target]] += microbatches * size
    return sent
