"""Divides examples in memory among the nodes.

`batches` is a pure function: every node computes its own share without communication, and all nodes
get the same number of batches. One more batch on one node would leave it waiting for an exchange
that the others never start. If nodes have different amounts of data of their own, `evened`
compensates for it.
"""

from collections.abc import Callable, Collection, Iterator, Mapping
from typing import TypeVar

import numpy as np

from .._mpi.names import names_of
from .._session import Session

Batch = TypeVar("Batch")


def batches(
    num_examples: int, batch_size: int, *, node: int, num_nodes: int, epoch: int, seed: int = 0
) -> np.ndarray:
    """Returns this node's share of one epoch's examples.

    All nodes draw the same permutation, a function of `seed` and `epoch`. Step k takes its k-th
    ``num_nodes * batch_size`` examples, and node p the p-th part of those. The remainder that does
    not fill a batch on every node is left out; it differs from epoch to epoch.

    Args:
        num_examples: examples in the whole training set.
        batch_size: examples in one batch of one node.
        node: ``session.node``; if nodes may fail, the first value of ``session.share()``.
        num_nodes: ``session.num_nodes``, or the second value of ``session.share()``.
        epoch: counted from 0.
        seed: the same on all nodes.

    Returns:
        The indices of this node's examples, int64 ``[num_batches, batch_size]``, with
        ``num_batches = num_examples // (num_nodes * batch_size)`` on every node.

    Raises:
        ValueError: there is not one batch for each node, or a number is out of range.
    """
    if batch_size < 1 or not 0 <= node < num_nodes:
        raise ValueError(
            f"batch_size must be at least 1 and node from 0 to num_nodes - 1, got {batch_size=}, "
            f"{node=}, {num_nodes=}. Pass node=session.node, num_nodes=session.num_nodes."
        )
    num_batches = num_examples // (num_nodes * batch_size)
    if num_batches == 0:
        raise ValueError(
            f"{num_examples} examples do not fill one batch of {batch_size} on each of "
            f"{num_nodes} nodes. Take smaller batches or fewer nodes."
        )
    order = np.random.default_rng([seed, epoch]).permutation(num_examples)
    order = order[: num_batches * num_nodes * batch_size]
    return order.reshape(num_batches, num_nodes, batch_size)[:, node]


def evened(
    batches: Collection[Batch], session: Session, weigh: Callable[[Batch], float] = lambda batch: 1
) -> Iterator[tuple[Batch, float]]:
    """Yields this node's batches with weights, the same number on all nodes.

    A node that has run out gets its last batch again, with weight 0, until all nodes are done:
    ``tx.update(grads, opt_state, params, weight=weight)`` then lets it take part without effect.
    All nodes call this together; they agree once on the largest number, before the first batch.

    Args:
        batches: an iterable with a length, at least one.
        session: the nodes.
        weigh: returns the weight of a batch, such as its number of samples: `len` for a list of
            samples or an array, ``lambda batch: len(batch[0])`` for a tuple of arrays. With several
            ranks in a node, the number of samples of the whole node: its ranks must agree.

    Yields:
        A batch and its weight.

    Raises:
        NodeError: on all nodes; a node has no batch at all.
        TypeError: `batches` has no length.
        ValueError: `batches` yields fewer than its length; `weigh` is `len`, and a batch is a tuple
            or a mapping, of which it counts the parts.

    Example:
        >>> import jdaso, jdaso.data
        >>> with jdaso.Session() as session:
        ...     for batch, weight in jdaso.data.evened([[1, 2], [3]], session, weigh=len):
        ...         print(batch, weight)
        [1, 2] 2
        [3] 1
    """
    if not hasattr(batches, "__len__"):
        raise TypeError(
            f"evened needs batches with a length, got {type(batches).__name__}: the nodes agree on "
            "the largest number before the first. Give a list, or an object with __len__ and "
            "__iter__."
        )
    own = len(batches)
    counts = session.all_ranks.allgather("count batches", np.array([own]))[:, 0].tolist()
    if not all(counts):
        empty = [rank for rank, count in enumerate(counts) if not count]
        raise session.control.error(
            f"No batches on {names_of(empty, session.ranks_per_node)}, and {max(counts)} on "
            "another. Give each node at least "
            "one: a node without data has nothing to compute its part of a step from."
        )
    of_nodes = np.reshape(counts, (-1, session.ranks_per_node))
    if (apart := np.flatnonzero(of_nodes.min(1) != of_nodes.max(1))).size:
        raise session.control.error(
            f"The ranks of node {apart[0]} have {of_nodes[apart[0]].tolist()} batches. They are "
            "one node, and go through the same steps: give all of them the same number."
        )
    taken, batch = 0, None
    for taken, batch in enumerate(batches, start=1):
        if weigh is len:
            _check_length_counts_samples(batch)
        yield batch, weigh(batch)
        if taken == own:
            break
    if batch is None or taken < own:
        raise ValueError(f"The length of batches is {own}, but it yielded only {taken}.")
    for _ in range(max(counts) - own):
        yield batch, 0.0


def _check_length_counts_samples(batch: object) -> None:
    """Raises if the length of a batch is its number of parts, such as images and labels."""
    if not isinstance(batch, tuple | Mapping):
        return
    part = 0 if isinstance(batch, tuple) else next(iter(batch), "x")
    raise ValueError(
        f"weigh=len counts the parts of a batch that is a {type(batch).__name__}, not its samples: "
        f"got {len(batch)} parts. Give weigh=lambda batch: len(batch[{part!r}])."
    )
