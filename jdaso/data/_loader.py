"""Batches on the devices: each node's share of one stream of samples."""

from __future__ import annotations

import operator
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any, SupportsIndex

import jax

from .._jax.types import PyTree
from .._session import Session
from ._ahead import Ahead
from ._arrays import as_source
from ._batches import Batches, Transform, places_of_rank
from ._order import LARGEST, Order
from ._reading import LoadingError

_WHAT = "make a loader"


class Loader:
    """Batches of a source, put on this node's devices ahead of time.

    All nodes read one stream of samples (`Order`). With global batch G, P nodes and step t counted
    from 0, node p takes::

        sample(t G + p G / P),  ...,  sample(t G + (p + 1) G / P - 1)

    and its devices equal parts of that, in order; each rank of a node reads for its own devices. So
    step t sees the same samples in the same order for any P, every sample comes once per epoch, and
    all batches have one shape. A batch may span two epochs. With `epochs` E the last batch is
    filled up with the next samples of the stream; `weights` marks them.

    Threads read the next batches and put them on the devices. At most ``workers + prefetch`` of
    this node's batches are in memory besides those taken. All nodes create the loader together.

    Args:
        source: a `Source`; a dict or tuple of arrays, or one array; or an object with ``__len__``
            and ``__getitem__``, such as a list of samples.
        batch_size: G, samples per step on all nodes together: a multiple of P times the local
            devices.
        session: the nodes.
        seed: seed of the order and of `transform`.
        epochs: E; endless if None.
        shuffle: whether each epoch is permuted.
        shuffle_block: number of neighbours that are shuffled as a block; see `Order`.
        transform: ``(sample, random) -> sample``, for one sample as a tree of NumPy arrays.
            `random` is a `numpy.random.Generator` for the sample's place in the stream, so that its
            numbers do not depend on P. The transform runs in threads: NumPy and Pillow do most of
            their work without Python's lock, loops in Python do not. Work that the devices can do
            belongs in the step.
        weights: whether to yield ``(batch, weights)``, with float32 ``[G / P]``: 1, or 0 for
            samples beyond the last epoch.
        share: ``(p, P)`` if it differs from ``session.share()``: the replica and the number of
            replicas, if a model is cut (``(session.node // K, session.num_nodes // K)`` for K
            partitions).
        workers: threads that read, one batch each.
        prefetch: the maximum number of batches on the devices besides those taken; at least 2.
        timeout_seconds: the longest wait for a batch.

    Attributes:
        order: the stream's `Order`.
        batch_size: G.
        waited_seconds: total time that the loop has waited for batches.

    Raises:
        ValueError: on all nodes; G cannot be divided equally, or a number is out of range.
        NodeError: the nodes' sources or settings differ.
        ImportError: `shuffle` is set, but grain is not installed.
        TypeError: `source` cannot be a source, or a number is not whole.

    On failure: an unreadable batch raises `LoadingError` in the call that requests it, with sample,
    step and reason; the next call reads it again.

    Example:
        >>> import jdaso, numpy as np
        >>> from jdaso.data import Loader
        >>> with jdaso.Session() as session:
        ...     loader = Loader(np.arange(6), 4, session, epochs=2)
        ...     sizes = [batch.shape for batch in loader]
        >>> sizes
        [(4,), (4,), (4,)]
    """

    def __init__(
        self,
        source: Any,
        batch_size: SupportsIndex,
        session: Session,
        *,
        seed: SupportsIndex = 0,
        epochs: SupportsIndex | None = None,
        shuffle: bool = True,
        shuffle_block: int = 1,
        transform: Transform | None = None,
        weights: bool = False,
        share: tuple[SupportsIndex, SupportsIndex] | None = None,
        workers: SupportsIndex = 2,
        prefetch: SupportsIndex = 2,
        timeout_seconds: float = 600.0,
    ):
        # Virtual nodes share one process, which takes the batches of all of them.
        if share is None:
            share = (0, 1) if session.simulated else session.share()
        try:
            samples = as_source(source)
            block = _whole("shuffle_block", shuffle_block, 1)
            self.order = Order(len(samples), _whole("seed", seed), bool(shuffle), block)
            batch_size = _whole("batch_size", batch_size)  # `_agree` checks that it is above 0
            epochs = None if epochs is None else _whole("epochs", epochs, 1)
            workers, prefetch = _whole("workers", workers, 1), _whole("prefetch", prefetch, 2)
            if not timeout_seconds > 0:
                raise ValueError(f"timeout_seconds must be above 0, got {timeout_seconds}.")
        except Exception as error:
            text = f"{type(error).__name__}: {error}"
            session.all_ranks.everyone(_WHAT, text)  # the other nodes are in `_agree`
            raise
        self.batch_size, self.epochs = batch_size, epochs
        self._session = session
        self._timeout_seconds = min(timeout_seconds, threading.TIMEOUT_MAX)
        self._workers, self._prefetch = workers, prefetch
        share = self._agree(share, getattr(samples, "own_node", None))
        places = places_of_rank(share, session.devices, batch_size)
        self._end = sys.maxsize if epochs is None else epochs * self.order.num_samples
        self._prefix = lambda position: session.topology.prefix(position // batch_size)
        self._batches = Batches(
            samples, self.order, places, self._end, transform, weights, self._prefix
        )
        self._sharding: Any = session.devices[0]
        if len(session.devices) > 1:
            parts = jax.sharding.PartitionSpec("local")
            self._sharding = jax.sharding.NamedSharding(session.mesh, parts)
        self._position = 0
        self._ahead: Ahead | None = None
        self._closed = False
        self.waited_seconds = 0.0

    def __len__(self) -> int:
        """The number of batches from the start to the end.

        Raises:
            TypeError: the loader is endless.
        """
        if self.epochs is None:
            raise TypeError("This loader has no end, and so no length. Give it epochs=...")
        return -(-self.epochs * self.order.num_samples // self.batch_size)

    def __iter__(self) -> Iterator[PyTree]:
        """Returns the loader itself, which continues at its position."""
        return self

    def __next__(self) -> PyTree:
        """Returns the next batch, on the devices."""
        if self._closed or self._session.closed:
            raise RuntimeError(
                "This loader was closed, perhaps with its session. Make another one."
            )
        if self._steps_left() < 1:
            raise StopIteration
        if self._ahead is None:
            self._ahead = self._read_ahead()
        begin = time.perf_counter()
        try:
            batch = self._ahead.take(self._timeout_seconds)
        except TimeoutError:
            self._stop()
            raise LoadingError(
                f"{self._prefix(self._position)} No batch came within {self._timeout_seconds:g} s. "
                "Check for a file system that hangs, or give a longer timeout_seconds."
            ) from None
        except BaseException:  # also one that is none of `Exception`, as libraries in Rust raise
            self._stop()
            raise
        finally:
            self.waited_seconds += time.perf_counter() - begin
        self._position += self.batch_size
        if self._steps_left() < 1:
            self._stop()
        return batch

    @property
    def epoch(self) -> int:
        """The epoch in which the next batch begins, counted from 0."""
        return self._position // self.order.num_samples

    def state(self) -> dict[str, int]:
        """Returns the loader's position: a tree of integers, the same on all nodes.

        The position belongs in a checkpoint, and counts the samples that all nodes together have
        taken, without those read ahead.
        """
        return {"position": self._position, "order": self.order.fingerprint}

    def restore(self, state: Mapping[str, SupportsIndex]) -> None:
        """Continues where a loader was, on any number of nodes and with any batch size.

        Args:
            state: returned by `state`.

        Raises:
            ValueError: the state belongs to another order (other data, seed or shuffling), or is
                not from a loader.
        """
        if not {"order", "position"} <= set(state):
            raise ValueError(
                'A loader\'s position has the keys "order" and "position", as Loader.state() gives '
                f"it; got {list(state)}."
            )
        if int(state["order"]) & LARGEST != self.order.fingerprint:
            raise ValueError(
                "This position is of a loader with another number of samples, seed or shuffling; "
                f"here is {self.order}. Restore with the settings that it was saved with."
            )
        self._stop()
        self._position = int(state["position"])

    def seek(self, step: int) -> None:
        """Moves to the batch of a step, counted from 0 at the start of the stream."""
        if step < 0:
            raise ValueError(f"step must be at least 0, got {step}.")
        self._stop()
        self._position = step * self.batch_size

    def skip_batches(self, count: int) -> None:
        """Moves over the next batches without reading them."""
        if count < 0:
            raise ValueError(f"count must be at least 0, got {count}. To go back, use seek.")
        self._stop()
        self._position += count * self.batch_size

    def close(self) -> None:
        """Ends the threads; the session calls this at its end if nothing else did."""
        self._closed = True
        self._stop()

    def _on_closing(self, after_error: bool) -> None:
        self.close()

    def _agree(self, share: Any, own: int | None) -> tuple[int, int]:
        """Checks that all nodes read one stream, and that each can share out its part.

        Args:
            share: see `Loader`.
            own: the node whose own samples the source has; None if all nodes have the same.

        Returns:
            `share`, as a tuple of two integers.
        """
        devices, said = len(self._session.devices), ""
        try:
            part, parts = map(operator.index, share)
        except (TypeError, ValueError):
            part, parts = 0, 0
        unit = max(parts, 1) * devices
        if not 0 <= part < parts:
            said = f"share must be (p, P) with 0 <= p < P, got {share}."
        elif own is not None and parts > 1:
            said = (
                f"The source has the samples of this node only, and share={share} would leave out "
                "those of the other parts. Give share=(0, 1), and the batch size of a node."
            )
        elif self.batch_size < 1 or self.batch_size % unit:
            below = max(self.batch_size // unit, 1) * unit
            near = f"{below}" + f" or {below + unit}" * (self.batch_size > unit)
            said = (
                f"batch_size counts all nodes together and must be a multiple of {unit} ({parts} "
                f"nodes times {devices} local devices), got {self.batch_size}. Take {near}."
            )
        for text in self._session.all_ranks.everyone(_WHAT, said):
            if text:
                raise ValueError(text)
        facts = {"batch_size": self.batch_size, "epochs": self.epochs, "order": self.order}
        facts["number of parts"] = parts
        self._session.agree(_WHAT, [(name, str(x)) for name, x in facts.items()])
        return part, parts

    def _steps_left(self) -> int:
        return -(-(self._end - self._position) // self.batch_size)

    def _read_ahead(self) -> Ahead:
        """Starts to read this node's batches from the position on.

        Only while threads read does the session hold the loader, and with it the source.
        """
        start, size = self._position, self.batch_size
        ahead = Ahead(
            lambda k: self._batches.read(start + k * size),
            self._put,
            self._steps_left(),
            self._workers,
            self._prefetch,
        )
        self._session.hooks.on_close(self._on_closing)
        return ahead

    def _put(self, batch: PyTree) -> PyTree:
        if not self._session.joined:
            return jax.block_until_ready(jax.device_put(batch, self._sharding))
        put = partial(jax.make_array_from_process_local_data, self._sharding)
        return jax.block_until_ready(jax.tree.map(put, batch))

    def _stop(self) -> None:
        if self._ahead is not None:
            self._ahead.close()
            self._ahead = None
            self._session.hooks.forget_close(self._on_closing)


def _whole(name: str, value: Any, least: int | None = None) -> int:
    """Returns a number of the loader's arguments as an integer; raises if it is none."""
    try:
        number = operator.index(value)
    except TypeError:
        raise TypeError(f"{name} must be a whole number, got {value!r}. Give an int.") from None
    if least is not None and number < least:
        raise ValueError(f"{name} must be at least {least}, got {number}.")
    return number
