"""The description of pipelines and their replicas that `predict_hybrid` takes."""

from __future__ import annotations

import dataclasses
import math

from ..._exchange.exchange import CHUNK_BYTES
from .play import Order, Played, chain, play
from .settings import Fabric, Training

AVERAGING = ("daso", "synchronous")


@dataclasses.dataclass(frozen=True)
class Hybrid:
    """A model cut into K partitions, and R replicas of that pipeline, for `predict_hybrid`.

    Attributes:
        order: actions of each of the K ranks in a step: ``(backward, stage, microbatch)`` in
            order, as in ``jdaso.pipeline.make_schedule(...).order``.
        forward_seconds: of each stage, for a micro-batch, on its rank.
        backward_seconds: the same for the backward pass.
        traffic: ``(from stage, to stage, bytes)`` for a micro-batch; as much flows back. Skip
            connections have rows of their own. Same as ``jdaso.pipeline.Plan.traffic``.
        parameters: numbers that each rank holds.
        samples: samples per step of one replica.
        replicas: R.
        averaging: of each partition's replicas: ``"daso"`` or ``"synchronous"``.
        sync_every: B.
        delay: S.
        wire: format of exchanges; like B, S and F only used by ``"daso"``.
        chunk_bytes: the most float32 bytes sent at once.
        partitions_per_node: ranks of a pipeline that share a node, its link and its memory;
            divides K.
        fragments: F, or ``"auto"``, which is 1 in pipelines.

    Raises:
        ValueError: a number is out of range, or the order does not hold each action once.
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
    fragments: int | str = "auto"

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
        self.training(1, 1.0)  # checks B, S, F and wire

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
        times = {
            (b, s, m)
            for b in (False, True)
            for s in range(stages)
            for m in range(self.microbatches)
        }
        homes = {(rank, s) for rank, actions in enumerate(self.order) for _, s, _ in actions}
        idle = not all(self.order) or not self.order
        if idle or len(listed) != len(times) or set(listed) != times or len(homes) != stages:
            raise ValueError(
                "order must hold a forward and a backward pass of each micro-batch through each of "
                f"{stages} stages once, each stage on one rank, and something for each rank."
            )
        for source, target, size in self.traffic:
            if not (0 <= source < target < stages and 0 <= size < math.inf):
                raise ValueError(
                    f"traffic goes from a stage to a later one of {stages}, and its bytes are 0 or "
                    f"more; got {(source, target, size)}."
                )

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
        """Makes a model cut into stages of equal cost and equal numbers of parameters.

        Args:
            order: see `Hybrid`.
            step_seconds: time that one node alone needs for the samples of one replica's step.
            activation_bytes: from each stage to the next, for a micro-batch.
            parameters: of the whole model.
            balance: cost of the largest stage, the middle one, relative to the mean; the others
                share the rest equally. At least 1, and less than the number of stages (1 if there
                is one).
            backward_over_forward: cost of a backward pass relative to the forward one; 3 with
                `remat`.
            **settings: further attributes.

        Raises:
            ValueError: a number is out of range.
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
    def microbatches(self) -> int:
        """M."""
        return 1 + max((m for actions in self.order for _, _, m in actions), default=-1)

    @property
    def nodes(self) -> int:
        """The number of nodes: K R, divided by the partitions that share a node."""
        return self.partitions * self.replicas // self.partitions_per_node

    @property
    def work_seconds(self) -> float:
        """The time that all ranks of one pipeline compute in a step, together."""
        return self.microbatches * (sum(self.forward_seconds) + sum(self.backward_seconds))

    def training(self, parameters: int, step_seconds: float) -> Training:
        """Returns a node's part of the training, for the model of exchanges."""
        return Training(
            max(1, parameters),
            step_seconds,
            self.sync_every,
            self.delay,
            self.wire,
            self.chunk_bytes,
            self.fragments,
        )

    def play(self, fabric: Fabric | None = None) -> list[list[Played]]:
        """Returns the start and end of each action of a step, without the averages."""
        return play(
            self.order,
            self.forward_seconds,
            self.backward_seconds,
            self.traffic,
            fabric=fabric,
            partitions_per_node=self.partitions_per_node,
        )
