"""Settings of virtual nodes, which share one device and one process."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping


@dataclasses.dataclass(frozen=True)
class Simulated:
    """Virtual nodes of one device, for tests and laptops: ``Session(engine=Simulated(8))``.

    A step runs under ``jax.vmap(step, axis_name=session.node_axis)``, with the same formulas in the
    same order as between real nodes.

    Args:
        nodes: P, at least 1.
        exchange_steps: the steps that an exchange takes, as ``delay="auto"`` sees it; or a table
            ``{step: steps}`` of those that start at these steps; all others take 1.
        faults: ``{(node, step): value}`` puts ``value`` (NaN, inf) in the first number of that
            node's snapshot of that step.

    Raises:
        ValueError: a setting is out of its range.

    Example:
        >>> import jdaso
        >>> with jdaso.Session(engine=jdaso.Simulated(nodes=4)) as session:
        ...     print(session.num_nodes)
        4
    """

    nodes: int
    exchange_steps: int | Mapping[int, int] = 1
    faults: Mapping[tuple[int, int], float] | None = None

    def __post_init__(self) -> None:
        if isinstance(self.nodes, bool) or not isinstance(self.nodes, int) or self.nodes < 1:
            raise ValueError(
                f"Simulated needs the number of virtual nodes, at least 1, got {self.nodes!r}."
            )
        given = self.exchange_steps
        times = given.values() if isinstance(given, Mapping) else [given]
        if wrong := [steps for steps in times if not steps >= 1]:
            raise ValueError(f"exchange_steps must be at least 1, got {wrong[0]}.")
