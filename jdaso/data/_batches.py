"""One rank's part of each batch: the rows of its samples, transformed."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from .._jax.types import PyTree
from ._arrays import Source, stacked
from ._order import Order
from ._reading import LoadingError

Transform = Callable[[PyTree, np.random.Generator], PyTree]


class Part(NamedTuple):
    """The place of a rank's samples in a batch: of a node's equal part, those of its own devices.

    Attributes:
        node, num_nodes: p and P.
        first: the place of the rank's first device in its node; JAX counts the devices of one rank
            after those of another.
        devices, all_devices: the device counts of rank and node.
    """

    node: int
    num_nodes: int
    first: int
    devices: int
    all_devices: int

    def range(self, batch_size: int) -> range:
        """The places of the rank's samples in a batch."""
        each = batch_size // self.num_nodes // self.all_devices
        begin = (self.node * self.all_devices + self.first) * each
        return range(begin, begin + each * self.devices)


def devices_of_rank(devices: Sequence[Any]) -> tuple[int, int, int]:
    """The place of this rank's first device in its node, and the device counts of rank and node."""
    own = [k for k, device in enumerate(devices) if device.process_index == jax.process_index()]
    return own[0], len(own), len(devices)


@dataclasses.dataclass(frozen=True)
class Batches:
    """Reads a rank's part of any batch of a stream; any number of threads at once.

    Attributes:
        source: the samples.
        order: their order.
        places: the places of the rank's samples in a batch.
        end: the number of samples in the stream.
        transform: see `Loader`.
        weights: whether weights are read too.
        prefix: begins an error about the batch at a position.
    """

    source: Source
    order: Order
    places: range
    end: int
    transform: Transform | None
    weights: bool
    prefix: Callable[[int], str]

    def read(self, position: int) -> PyTree:
        """Reads the rank's part of the batch that begins at `position`.

        Raises:
            LoadingError: the source or the transform failed; the error names the sample.
        """
        begin, size = position + self.places.start, len(self.places)
        indices = self.order.samples(begin, begin + size)
        batch = self._rows(position, indices)
        if self.transform is not None:
            batch = self._transformed(position, begin, indices, batch, self.transform)
        if not self.weights:
            return batch
        return batch, (np.arange(begin, begin + size) < self.end).astype(np.float32)

    def _rows(self, position: int, indices: np.ndarray) -> PyTree:
        try:
            batch = self.source.rows(indices)
        except Exception as error:
            raise self._explained(position, indices, error) from error
        lengths = {np.shape(x)[:1] for x in jax.tree.leaves(batch)}
        if lengths != {indices.shape}:
            raise LoadingError(
                f"{self.prefix(position)} The source was asked for {len(indices)} samples and gave "
                f"arrays with {sorted(lengths)} rows. Its rows(indices) must give one row for each "
                "index."
            )
        return batch

    def _explained(self, position: int, indices: np.ndarray, error: Exception) -> LoadingError:
        """Returns an error that names the sample that failed, found by reading one by one."""
        which = f"{len(indices)} samples together"
        for sample in indices:
            try:
                self.source.rows(np.array([sample], np.int64))
            except Exception as alone:
                which, error = f"sample {sample}", alone
                break
        return LoadingError(
            f"{self.prefix(position)} Reading {which} failed: {type(error).__name__}: {error}"
        )

    def _transformed(
        self, position: int, begin: int, indices: np.ndarray, batch: PyTree, transform: Transform
    ) -> PyTree:
        found = []
        for k, sample in enumerate(indices):
            key = np.array([self.order.seed % 2**64, begin + k], np.uint64)
            random = np.random.Generator(np.random.Philox(key=key))
            try:
                found.append(transform(jax.tree.map(lambda x, k=k: x[k], batch), random))
            except Exception as error:
                raise LoadingError(
                    f"{self.prefix(position)} The transform of sample {sample} failed: "
                    f"{type(error).__name__}: {error}"
                ) from error
            if not jax.tree.leaves(found[-1]):
                raise LoadingError(
                    f"{self.prefix(position)} The transform of sample {sample} gave "
                    f"{found[-1]!r}, no arrays. It must return the sample."
                )
        try:
            return stacked(found)
        except ValueError as error:
            raise LoadingError(
                f"{self.prefix(position)} The transform of samples {indices[0]} to {indices[-1]} "
                f"gave samples that cannot be stacked: {error}. It must return equal trees, shapes "
                "and keys for all."
            ) from error
