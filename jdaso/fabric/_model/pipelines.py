"""The cost of a step of hybrid parallelism: a pipeline's bubble, its messages, the averages."""

from __future__ import annotations

import dataclasses

from .exchange import Prediction, predict, predict_synchronous
from .hybrid import Hybrid
from .play import Played, Traffic
from .settings import Fabric


@dataclasses.dataclass(frozen=True)
class HybridPrediction:
    """The predicted time of a step of hybrid parallelism, in seconds, averaged over a cycle.

    ``step = compute + bubble + exposed activations + exposed averages``

    Attributes:
        compute_seconds: of a rank, averaged over ranks.
        bubble_seconds: time that a rank idles: the pipeline fills and empties, and stages are not
            of equal cost.
        activations_seconds: time that messages between stages add to that.
        averaging_seconds: time that the averages of replicas add to that, with packing and merging.
        bytes_per_step: bytes that the node with the most traffic sends over its link.
        samples_per_second: of all replicas.
        one_node: speed relative to one node that computes alone.
        data_parallel: speed relative to synchronous data parallelism on as many nodes with as many
            samples per step.
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
        """Total time of a step."""
        return self.compute_seconds + self.bubble_seconds + self.exposed_seconds

    @property
    def exposed_seconds(self) -> float:
        """Time that a step waits for the network."""
        return self.activations_seconds + self.averaging_seconds

    @property
    def bubble_share(self) -> float:
        """The bubble without a network: ``1 - M / (M + (K - 1) / V)`` if stages are equal."""
        return self.bubble_seconds / (self.compute_seconds + self.bubble_seconds)


def predict_hybrid(
    fabric: Fabric, hybrid: Hybrid, *, behind_backward: float = 0.0
) -> HybridPrediction:
    """Predicts a step of pipelines whose replicas are averaged.

    The pipeline is simulated (`play`). Rank k works from its first action to its last,
    ``span_k`` long, and begins the next step at the same phase; so a step takes
    ``max_k (span_k + average_k)``. Only the ranks that begin first and end last wait for the whole
    of an average; for the others it lies in their bubble. For `jdaso.daso` the average is the part
    that S steps of the pipeline do not hide, plus packing and merging. The partitions of one node
    are averaged one after another over its link.

    Not modelled: memory, cores that run slower on smaller batches or when several ranks share a
    node, shared bottlenecks behind the nodes' links, jitter within a pipeline, packing of
    activations on CPUs, parameters that stages share, the optimizer, and the transfer of a batch to
    the first and last stage.

    Args:
        fabric: the cluster; its nodes must be `hybrid.nodes`.
        hybrid: the training.
        behind_backward: for the data parallelism that the result is compared with; see
            `predict_synchronous`.

    Raises:
        ValueError: the cluster has another number of nodes; the order deadlocks.

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
    pipeline = max(max(spans), free)  # a message cannot speed up a rank, but rounding can
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
    """Returns the ranks of each node of a pipeline."""
    each = hybrid.partitions_per_node
    return [range(first, first + each) for first in range(0, hybrid.partitions, each)]


def _spans(hybrid: Hybrid, played: list[list[Played]]) -> list[float]:
    """Returns seconds from the first action to the last one's end, for each node of a pipeline."""
    return [
        max(played[rank][-1].end_seconds for rank in ranks)
        - min(played[rank][0].begin_seconds for rank in ranks)
        for ranks in _nodes_of_a_pipeline(hybrid)
    ]


def _averages(
    fabric: Fabric, hybrid: Hybrid, spans: list[float], pipeline: float
) -> list[Prediction]:
    """Returns the predicted step of each node of a pipeline, with averages over R replicas."""
    group = dataclasses.replace(fabric, nodes=hybrid.replicas)
    found = []
    for ranks, span in zip(_nodes_of_a_pipeline(hybrid), spans, strict=True):
        held = sum(hybrid.parameters[rank] for rank in ranks)
        if hybrid.averaging == "daso":
            training = hybrid.training(held, pipeline)
            if training.fragments == "auto":  # between the replicas of a partition
                training = dataclasses.replace(training, fragments=1)
            found.append(predict(group, training))
        else:
            found.append(predict_synchronous(group, hybrid.training(held, span)))
    return found


def _sent(hybrid: Hybrid) -> list[float]:
    """Returns bytes of activations and gradients that each node sends to others in a step."""
    each, microbatches = hybrid.partitions_per_node, hybrid.microbatches
    home = {s: rank // each for rank, actions in enumerate(hybrid.order) for _, s, _ in actions}
    sent = [0.0] * (hybrid.partitions // each)
    for source, target, size in map(Traffic._make, hybrid.traffic):
        if home[source] != home[target]:
            sent[home[source]] += microbatches * size
            sent[home[target]] += microbatches * size
    return sent
