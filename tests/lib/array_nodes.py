"""Nodes of arrays as threads of this process: the operations between them are exact, and cheap.

`on_nodes(3, function)` calls a function on three nodes and returns what each has returned. A node
that raises ends the others' waits.
"""

import threading
from concurrent.futures import ThreadPoolExecutor

import jax.numpy as jnp
import numpy as np

from jdaso.array import _counting, _world

LIMIT_SECONDS = 60


class Shared:
    """Shared by the threads of one run: a meeting place, and a place for each one's array."""

    def __init__(self, nodes):
        self.barrier, self.given = threading.Barrier(nodes, timeout=LIMIT_SECONDS), [None] * nodes


class Threads:
    """The world of one thread; see `jdaso.array._world.World`."""

    def __init__(self, node, nodes, shared):
        self.node, self.nodes, self._shared = node, nodes, shared

    def _all(self, mine):
        self._shared.given[self.node] = mine
        self._shared.barrier.wait()
        found = list(self._shared.given)
        self._shared.barrier.wait()
        return found

    def reduce(self, x, operation):
        _counting.note(1, 2 * x.nbytes * (self.nodes - 1) / self.nodes)
        both = {"sum": np.add, "prod": np.multiply, "min": _lesser, "max": _greater}[operation]
        found = self._all(np.asarray(x))
        assert len({(one.shape, one.dtype) for one in found}) == 1, "reductions of other shapes"
        total = found[0]
        for one in found[1:]:
            total = both(total, one)
        return jnp.asarray(total).astype(x.dtype)

    def gather(self, x, counts, axis=0):
        _counting.note(1, x.nbytes * (self.nodes - 1))
        found = self._all(np.asarray(x))
        given = [one.shape[axis] for one in found]
        assert given == list(counts), "gathered rows are not those announced"
        return jnp.concatenate(found, axis)

    def trade(self, sent, shapes):
        _counting.note(1, sum(one.nbytes for k, one in enumerate(sent) if k != self.node))
        found = [pieces[self.node] for pieces in self._all([np.asarray(one) for one in sent])]
        assert [one.shape for one in found] == [tuple(s) for s in shapes], "pieces of other shapes"
        return found

    def move(self, x, sent, shape, received):
        _counting.note(1, sent.elements(x.shape, but=self.node) * x.dtype.itemsize)
        found = np.empty(shape, x.dtype)
        for k, (array, parts) in enumerate(self._all((np.asarray(x), sent))):
            place, part = found[received.of(k)], array[parts.of(self.node)]
            assert place.shape == part.shape, "parts of other shapes"
            place[...] = part
        return jnp.asarray(found)

    def start_shift(self, x, shape):
        _counting.note(1, x.nbytes)
        found = self._all(np.asarray(x))[(self.node + 1) % self.nodes]
        assert found.shape == tuple(shape), "a block of another shape"
        return lambda: jnp.asarray(found)

    def numbers(self, own):
        _counting.note(1, 8 * own.size * (self.nodes - 1))
        return np.stack(self._all(np.asarray(own, np.int64)))

    def sums(self, own):
        _counting.note(1, 2 * 8 * own.size * (self.nodes - 1) / self.nodes)
        return np.sum(self._all(np.asarray(own, np.int64)), 0)

    def texts(self, what, text):
        return self._all(text)


def _lesser(a, b):
    """The lesser number as MPI's: for NaN, the result depends on the order."""
    return np.where(a < b, a, b)


def _greater(a, b):
    return np.where(a > b, a, b)


def on_nodes(nodes, function, *arguments):
    """Calls a function on that many nodes at a time; returns a list of their results."""
    shared = Shared(nodes)

    def run(node):
        at = Threads(node, nodes, shared) if nodes > 1 else _world.ALONE
        try:
            with _world.using(at):
                return function(*arguments)
        except BaseException:
            shared.barrier.abort()
            raise

    with ThreadPoolExecutor(nodes) as pool:
        futures = [pool.submit(run, node) for node in range(nodes)]
        errors = [error for error in (one.exception() for one in futures) if error is not None]
    real = [one for one in errors if not isinstance(one, threading.BrokenBarrierError)]
    if errors:
        raise (real or errors)[0]
    return [one.result() for one in futures]
