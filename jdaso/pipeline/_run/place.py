"""The place of a rank in its pipeline, and the messages that it sends and receives."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol, runtime_checkable

import jax
import numpy as np

from ..._nodes.mail import Address


class RankPlace(NamedTuple):
    """The place of a rank in its pipeline, and of its arrays on devices.

    Attributes:
        rank: the rank in the pipeline.
        address: maps (rank, tag) to the address of a message from or to that rank.
        put: puts a tree of arrays on this node's devices, the same on each.
        put_samples: the same, but shares out the samples, whose number is the second argument.
    """

    rank: int
    address: Callable[[int, int], Address]
    put: Callable[[Any], jax.Array]
    put_samples: Callable[[Any, int], jax.Array]


@runtime_checkable
class Post(Protocol):
    """Sends and receives arrays; see `Mail`."""

    def send(self, address: Address, array: Any) -> None:
        """Sends an array."""
        ...

    def expect(self, address: Address, shape: Sequence[int], dtype: Any) -> None:
        """Starts to receive an array."""
        ...

    def expects(self, address: Address) -> bool:
        """Returns whether an array is being received from `address`."""
        ...

    def take(self, address: Address, what: str) -> np.ndarray:
        """Waits for an expected array and returns it."""
        ...

    def drain(self) -> None:
        """Waits until all arrays have been sent."""
        ...
