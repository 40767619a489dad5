"""The order of samples: a function of the seed alone, for any number of nodes."""

from __future__ import annotations

import dataclasses
import functools
import zlib

import numpy as np

from .._base.extras import needs

LARGEST = 2**31 - 1
"""The largest checksum."""

_ROUNDS = 4
_SMALL = 2**16
"""Size below which the cipher, which is called until its result is in range, would be slow."""

_SAMPLED = 16


@dataclasses.dataclass(frozen=True)
class Order:
    """One endless stream of samples, epoch after epoch.

    With N samples, epoch e is a permutation ``pi_e`` of 0..N-1, a function of ``(seed, e)``, and
    the stream is::

        sample(n) = pi_e(i),   e = n // N,  i = n mod N,   n = 0, 1, 2, ...

    Every sample comes once per epoch, and nothing is dropped: if N is not a multiple of the batch,
    a batch spans two epochs. ``pi_e`` is not stored: grain's `index_shuffle`, a block cipher,
    computes each value separately. (It would be slow for up to 65536 samples, for which NumPy's
    `permutation` is kept instead.)

    With ``block = b``, the samples are shuffled in blocks of b neighbours in the file: the order of
    the blocks, and of the samples inside each. (The last block may be shorter.) This is for files
    that are read block by block, such as HDF5's chunks. Samples of a block stay together, so
    neighbours in the file should not resemble each other.

    Args:
        num_samples: N.
        seed: at least 0; the same on all nodes.
        shuffle: whether epochs are permuted; else ``pi_e(i) = i``.
        block: b.

    Raises:
        ValueError: a number is out of range.
        ImportError: `shuffle` is set, but grain is not installed.

    Example:
        >>> from jdaso.data import Order
        >>> order = Order(5, seed=0)
        >>> sorted(order.samples(0, 5).tolist()), sorted(order.samples(5, 10).tolist())
        ([0, 1, 2, 3, 4], [0, 1, 2, 3, 4])
    """

    num_samples: int
    seed: int = 0
    shuffle: bool = True
    block: int = 1

    def __post_init__(self):
        for name, value, least in (
            ("num_samples", self.num_samples, 1),
            ("seed", self.seed, 0),
            ("block", self.block, 1),
        ):
            if value < least:
                raise ValueError(f"{name} must be at least {least}, got {value}.")
        if self.shuffle:
            needs("grain", "Shuffling", "data")

    def samples(self, begin: int, end: int) -> np.ndarray:
        """Returns the samples at positions `begin` to `end` (excluded) of the stream, int64."""
        if not self.shuffle:
            return np.arange(begin, end, dtype=np.int64) % self.num_samples
        return np.fromiter(map(self._sample, range(begin, end)), np.int64, end - begin)

    @property
    def fingerprint(self) -> int:
        """A checksum of the order, its N, seed and shuffling, which an int32 can hold."""
        first = self.samples(0, min(_SAMPLED, self.num_samples))
        text = f"{dataclasses.astuple(self)} {first.tolist()}"
        return zlib.crc32(text.encode()) & LARGEST

    def _sample(self, position: int) -> int:
        epoch, i = divmod(position, self.num_samples)
        if self.block == 1:
            return _permuted(i, self.num_samples, self.seed, epoch)
        b, short = self.block, self.num_samples % self.block
        full = self.num_samples // b
        # The short block, if there is one, is placed at random among the full ones.
        begin = b * (_seed_of(self.seed, epoch, full) % (full + 1)) if short else self.num_samples
        if begin <= i < begin + short:
            block, inside, size = full, i - begin, short
        else:
            place, inside = divmod(i if i < begin else i - short, b)
            block, size = _permuted(place, full, self.seed, epoch), b
        return block * b + _permuted(inside, size, self.seed, epoch, block)


def _permuted(i: int, size: int, *seeds: int) -> int:
    """Returns the image of i under a permutation of 0..size-1."""
    if size <= _SMALL:
        return int(_table(size, *seeds)[i])
    from grain.experimental import index_shuffle  # pyright: ignore[reportMissingImports]

    # For 2**k + 1 numbers grain 0.2.18 returns one twice and another never: so one number more is
    # permuted, and left out.
    last = size - 1 if (size - 1) & (size - 2) else size
    i = index_shuffle(i, max_index=last, seed=_seed_of(*seeds), rounds=_ROUNDS)
    while i >= size:
        i = index_shuffle(i, max_index=last, seed=_seed_of(*seeds), rounds=_ROUNDS)
    return i


@functools.lru_cache(maxsize=64)
def _table(size: int, *seeds: int) -> np.ndarray:
    return np.random.default_rng(seeds).permutation(size)


@functools.lru_cache(maxsize=64)
def _seed_of(*seeds: int) -> int:
    """Returns 32 well mixed bits."""
    return int(np.random.SeedSequence(seeds).generate_state(1)[0])
