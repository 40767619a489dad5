"""Part `alone`: the time that daso adds to a step of ResNet-50 if each rank has its own GPU.

As `hidden`, but one rank computes and the other waits, so that the GPU is not shared. That works as
"link" (see `_hidden`) sends nothing: no rank needs another after the first steps. ``fragments`` is
F; with F = 4 each step starts an exchange and merges one. "calls" is the time of a step in
which calls of the host copy out or wait (`Stats.lost_seconds`).
"""

import os
import time
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.gpu import _part
from benchmarks.gpu._hidden import SYNC_EVERY, OnLink, cell_of
from benchmarks.lib.harness import median
from benchmarks.lib.methods import Method
from jdaso._engines import make

TRACE = "JDASO_GPU_TRACE"
"""A folder for traces of a few steps; none by default."""
ROUNDS, BRIEF_ROUNDS, QUICK_ROUNDS = 9, 5, 2
TRACED_STEPS = 8


class Run:
    """A method's training, round after round."""

    def __init__(self, name: str, fragments: int, cell):
        self.method, self._n = Method(name, cell, fragments), 0
        self._params = self.method.work.params()
        self._state = self.method.tx.init(self._params)

    def __call__(self, steps):
        """Runs steps; returns the seconds of each, and in calls of the host."""
        before, begin = self.method.session.stats.lost_seconds, time.perf_counter()
        for _ in range(steps):
            args = self._params, self._state, np.int32(self._n)
            self._params, self._state, loss = self.method.step(*args)
            loss.block_until_ready()  # as a training loop that looks at its loss
            self._n += 1
        jax.block_until_ready(self._params)
        lost = self.method.session.stats.lost_seconds - before
        return (time.perf_counter() - begin) / steps, lost / steps


def measure(runs, rounds, cycles, found):
    """Rounds in which the runs take turns."""
    for _ in range(rounds):
        for k, run in enumerate(runs):
            found[k].append(run(cycles * SYNC_EVERY))
    if folder := os.environ.get(TRACE):
        for k, run in enumerate(runs):
            with jax.profiler.trace(f"{folder}/{k}", create_perfetto_trace=True):
                run(TRACED_STEPS)


def main():
    options = _part.options()
    _part.share_gpus()
    make.Instant = OnLink
    from mpi4py import MPI

    rows = _part.Rows(MPI.COMM_WORLD.Get_rank())
    cell = cell_of(options, jnp.bfloat16)
    named = [("bare", 1), ("instant", options.pick(4, 4, 2)), ("instant", 1)]
    runs = [Run(name, fragments, cell) for name, fragments in named]
    _part.require(options)
    for run in runs:
        run(cell.warm * SYNC_EVERY)
    found: list[list[tuple[float, float]]] = [[] for _ in runs]
    rounds = options.pick(ROUNDS, BRIEF_ROUNDS, QUICK_ROUNDS)
    work = partial(measure, runs, rounds, cell.cycles, found)
    _part.on_first(MPI.COMM_WORLD, work)
    bare = [seconds for seconds, _ in found[0]]
    for (name, fragments), times in zip(named, found, strict=True) if bare else ():
        rows.add(
            **{"method": "link" if name == "instant" else name, "fragments": fragments},
            **{"step ms": 1e3 * median(seconds for seconds, _ in times)},
            **{"of bare": median(b / s for b, (s, _) in zip(bare, times, strict=True))},
            **{"more ms": 1e3 * median(s - b for b, (s, _) in zip(bare, times, strict=True))},
            **{"calls ms": 1e3 * median(lost for _, lost in times)},
        )
    for run in reversed(runs):
        run.method.session.close()


if __name__ == "__main__":
    main()
