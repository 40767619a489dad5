"""The nodes that hold an array: this one, the open session's, or others that a thread chose."""

from __future__ import annotations

import contextlib
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol, runtime_checkable

import jax
import numpy as np

from .._mpi.arrays import Ranges
from .._nodes.exit import open_members
from .._session import Session
from ._connected import Connected
from ._layout import Shape


class _NodesOfThread(threading.local):
    """The nodes of a thread's arrays; None: the session's."""

    def __init__(self) -> None:
        self.world: World | None = None


_thread = _NodesOfThread()


@runtime_checkable
class World(Protocol):
    """The nodes of arrays. All nodes call each method together, with matching shapes.

    Attributes:
        node: this node's number.
        nodes: the number of nodes, P.
    """

    node: int
    nodes: int

    def reduce(self, x: jax.Array, operation: str) -> jax.Array:
        """Returns the sum, prod, min or max of all nodes' arrays, which have one shape."""
        ...

    def gather(self, x: jax.Array, counts: Sequence[int], axis: int = 0) -> jax.Array:
        """Returns all nodes' rows of an axis, in the order of nodes."""
        ...

    def trade(self, sent: Sequence[Any], shapes: Sequence[Shape]) -> list[Any]:
        """Sends an array to each node; returns those that they sent here, of these shapes.

        The arrays are of NumPy or JAX; what is returned may be memory of the given ones.
        """
        ...

    def move(self, x: jax.Array, sent: Ranges, shape: Shape, received: Ranges) -> jax.Array:
        """Sends a part of an array to each node; returns an array of the parts received.

        Args:
            x: the array.
            sent: the part of `x` for each node.
            shape: of the result.
            received: the place in the result of the part that each node sends.
        """
        ...

    def start_shift(self, x: jax.Array, shape: Shape) -> Callable[[], jax.Array]:
        """Starts to send an array to the node before this one; returns a wait for the next one's.

        Args:
            x: the array.
            shape: of the array that the next node sends.
        """
        ...

    def numbers(self, own: np.ndarray) -> np.ndarray:
        """Returns the whole numbers of all nodes, ``[nodes, n]``, in 64 bits, on the host."""
        ...

    def sums(self, own: np.ndarray) -> np.ndarray:
        """Returns the sums of all nodes' whole numbers, ``[n]``, in 64 bits, on the host."""
        ...

    def texts(self, what: str, text: str) -> list[str]:
        """Returns the texts of all nodes."""
        ...


class Alone:
    """One node, which communicates with no other."""

    node, nodes = 0, 1

    def reduce(self, x: jax.Array, operation: str) -> jax.Array:
        """Returns the array."""
        return x

    def gather(self, x: jax.Array, counts: Sequence[int], axis: int = 0) -> jax.Array:
        """Returns the array."""
        return x

    def trade(self, sent: Sequence[Any], shapes: Sequence[Shape]) -> list[Any]:
        """Returns the arrays."""
        return list(sent)

    def move(self, x: jax.Array, sent: Ranges, shape: Shape, received: Ranges) -> jax.Array:
        """Returns the array."""
        return x

    def start_shift(self, x: jax.Array, shape: Shape) -> Callable[[], jax.Array]:
        """Returns the array."""
        return lambda: x

    def numbers(self, own: np.ndarray) -> np.ndarray:
        """Returns the numbers as one row."""
        return np.asarray(own, np.int64)[None]

    def sums(self, own: np.ndarray) -> np.ndarray:
        """Returns the numbers."""
        return np.asarray(own, np.int64)

    def texts(self, what: str, text: str) -> list[str]:
        """Returns the text."""
        return [text]


ALONE = Alone()
"""The world of a process without a session, or with a session of one node."""


_worlds: weakref.WeakKeyDictionary[Any, World] = weakref.WeakKeyDictionary()


@contextlib.contextmanager
def using(at: World) -> Iterator[None]:
    """Puts new arrays of this thread on these nodes, whatever session is open."""
    before, _thread.world = _thread.world, at
    try:
        yield
    finally:
        _thread.world = before


def world() -> World:
    """Returns the world of `using`, else of the last session if it is still open, else `ALONE`."""
    if _thread.world is not None:
        return _thread.world
    sessions = [one for one in open_members() if isinstance(one, Session)]
    if not sessions or not sessions[-1].sends:
        return ALONE
    session = sessions[-1]
    session.require_usable()
    if session not in _worlds:
        _worlds[session] = Connected(session)
    return _worlds[session]
