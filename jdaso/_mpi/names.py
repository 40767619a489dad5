"""Names of ranks in messages: a node's only rank is called by its node."""

from __future__ import annotations

from collections.abc import Iterable


def name_of(rank: int, ranks_per_node: int, host: str = "") -> str:
    """The name of one rank, with its host: ``node 3``, ``node 1 (rank 3, host b)``."""
    about = [f"rank {rank}"] * (ranks_per_node > 1) + [f"host {host}"] * bool(host)
    return f"node {rank // ranks_per_node}" + (f" ({', '.join(about)})" if about else "")


def names_of(ranks: Iterable[int], ranks_per_node: int) -> str:
    """The names of several ranks: ``nodes 1, 3``."""
    ranks = sorted(ranks)
    if ranks_per_node > 1 or len(ranks) < 2:
        return ", ".join(name_of(rank, ranks_per_node) for rank in ranks)
    return f"nodes {', '.join(map(str, ranks))}"
