"""One rank's part of each batch: the rows of its samples, transformed."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from .._jax.types import PyTree
from ._arrays import Items, Source, stacked
from ._order import Order
from ._reading import LoadingError

Transform = Callable[[PyTree, np.random.Generator], PyTree]


def places_of_rank(share: tuple[int, int], devices: Sequence[Any], batch_size: int) -> range:
    """The places of this rank's samples in a batch: of a node's equal part, those of its devices.

    JAX counts the devices of one rank after those of another.

    Args:
        share: p and P.
        devices: of this node, in order.
        batch_size: G.
    """
    own = [k for k, device in enumerate(devices) if device.process_index == jax.process_index()]
    (part, parts), all_devices = share, len(devices)
    each = batch_size // parts // all_devices
    begin = (part * all_devices + own[0]) * each
    return range(begin, begin + each * len(own))


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

    @property
    def own_node(self) -> int:
        """The number of the node whose own samples these are; 0 where all nodes have the same."""
        return getattr(self.source, "own_node", None) or 0

    def read(self, position: int) -> PyTree:
        """Reads the rank's part of the batch that begins at `position`.

        Raises:
            LoadingError: the source or the transform failed, and the error names the sample; or
                samples hold no numbers.
        """
        begin, size = position + self.places.start, len(self.places)
        indices = self.order.samples(begin, begin + size)
        batch = self._rows(position, indices)
        if self.transform is not None:
            batch = self._transformed(position, begin, indices, batch, self.transform)
        self._check_numbers(position, batch)
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

    def _check_numbers(self, position: int, batch: PyTree) -> None:
        """Raises if a leaf is text, an object, a time or a record."""
        for path, leaf in jax.tree.leaves_with_path(batch):
            if isinstance(leaf, jax.Array):  # also a random key, which NumPy does not hold
                continue
            dtype = np.asarray(leaf).dtype
            if dtype.kind in "OSUMm" or dtype.type is np.void:  # kind V has bfloat16 too
                raise LoadingError(
                    f"{self.prefix(position)} Samples hold {dtype} at "
                    f"{jax.tree_util.keystr(path) or 'their root'}, and devices take numbers only. "
                    "Leave it out, or turn it into numbers (transform=...)."
                )

    def _explained(self, position: int, indices: np.ndarray, error: Exception) -> LoadingError:
        """Returns an error that names the sample that failed, found by reading one by one."""
        which = f"{len(indices)} samples together"
        for sample in indices:
            try:
                self.source.rows(np.array([sample], np.int64))
            except Exception as alone:
                which, error = f"sample {sample}", alone
                break
        hint = ""
        if isinstance(self.source, Items) and isinstance(self.source.items, list):
            hint = (
                f". A list is a sequence of {len(self.source)} samples; give a tuple or dict of "
                "arrays if its parts are columns."
            )
        return LoadingError(
            f"{self.prefix(position)} Reading {which} failed: {type(error).__name__}: {error}{hint}"
        )

    def _transformed(
        self, position: int, begin: int, indices: np.ndarray, batch: PyTree, transform: Transform
    ) -> PyTree:
        found = []
        for k, sample in enumerate(indices):
            key = np.array([self.order.seed % 2**64, begin + k], np.uint64)
            bits = np.random.Philox(key=key, counter=[0, 0, 0, self.own_node])
            random = np.random.Generator(bits)
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
