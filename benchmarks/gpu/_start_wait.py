"""Part `start_wait`: the time that a start and a wait add to a step, beside the bytes' copy.

Two ranks, engine `instant` (nothing is sent; all else is done). A cycle is four steps: the first
starts an exchange, the third merges it once its result is there, and in two nothing is due. The
cost of a start is its step less those of its cycle in which nothing is due. A start takes the
parameters to the host, a merge brings a change of float32 numbers: with any wire 4 bytes each way.
"""

import math
import time
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax

import jdaso
from benchmarks.gpu import _part
from benchmarks.gpu._copies import Bound, Copies
from benchmarks.gpu._models import gpt2_shapes, resnet50_shapes
from benchmarks.lib import harness

SYNC_EVERY, DELAY = 4, 2
CYCLES, BRIEF_CYCLES, QUICK_CYCLES = 30, 10, 3
WIRES = ("float32", "bfloat16")
NUMBER_BYTES = 4
PATIENCE_SECONDS = 120.0


def models(quick):
    if quick:
        return {"small GPT-2": gpt2_shapes(width=64, layers=1, tokens=1000)}
    return {"ResNet-50": resnet50_shapes(), "GPT-2": gpt2_shapes()}


class Loop:
    """A training loop whose gradients cost nothing."""

    def __init__(self, shapes, wire, session):
        self.session, self.n = session, 0
        # One fragment: with several nearly every step starts one, and none has nothing due.
        phases = jdaso.Phases(10**6, sync_every=SYNC_EVERY, delay=DELAY, fragments=1)
        self.tx = jdaso.daso(
            optax.sgd(1e-3), phases=phases, session=session, wire=wire, merge="corrected"
        )
        self.params = jax.tree.map(lambda s: jnp.full(s.shape, 0.5, s.dtype), shapes)
        self.state = self.tx.init(self.params)
        self.step = jax.jit(self._step, donate_argnums=(0, 1))

    def _step(self, params, state, scale):
        grads = jax.tree.map(lambda x: scale * x, params)
        updates, state = self.tx.update(grads, state, params)
        return optax.apply_updates(params, updates), state

    def __call__(self):
        """One step; its seconds. The result of an exchange in flight is there before it."""
        self._until_there()
        begin = time.perf_counter()
        self.params, self.state = self.step(self.params, self.state, np.float32(1e-3))
        jax.block_until_ready((self.params, self.state))
        self.n += 1
        return time.perf_counter() - begin

    def _until_there(self):
        started = -(-self.n // SYNC_EVERY)
        stop = time.monotonic() + PATIENCE_SECONDS
        while self.session.stats.exchanges < started:
            if time.monotonic() > stop:
                raise TimeoutError(f"An exchange took more than {PATIENCE_SECONDS:g} s.")
            time.sleep(1e-3)


def measure(loop, bound, cycles, found):
    """Milliseconds that a start and a wait add, cycle after cycle."""
    for _ in range(cycles):
        start, first, wait, second = (1e3 * loop() for _ in range(SYNC_EVERY))
        bound.measure()
        found["nothing"].append((first + second) / 2)
        found["start"].append(start - found["nothing"][-1])
        found["wait"].append(wait - found["nothing"][-1])


def row(name, wire, shapes, bound, found, nbytes):
    ms = {key: harness.median(times) for key, times in found.items()}
    out, into = min(bound.out_ms.values()), min(bound.in_ms.values())
    return {
        "model": name,
        "parameters": sum(math.prod(s.shape) for s in jax.tree.leaves(shapes)),
        "leaves": len(jax.tree.leaves(shapes)),
        "wire": wire,
        "MB": nbytes / 1e6,
        "nothing ms": ms["nothing"],
        "start ms": ms["start"],
        **{f"out {way} ms": value for way, value in bound.out_ms.items()},
        "start / out": ms["start"] / out,
        "wait ms": ms["wait"],
        **{f"in {way} ms": value for way, value in bound.in_ms.items()},
        "wait / in": ms["wait"] / into,
    }


def main():
    options = _part.options()
    _part.share_gpus()
    cycles = options.pick(CYCLES, BRIEF_CYCLES, QUICK_CYCLES)
    from mpi4py import MPI

    rows = _part.Rows(MPI.COMM_WORLD.Get_rank())
    for name, shapes in models(options.quick).items():
        numbers = sum(math.prod(s.shape) for s in jax.tree.leaves(shapes))
        for wire in WIRES:
            with jdaso.Session(engine="instant") as session:
                device = _part.require(options)
                nbytes = NUMBER_BYTES * numbers
                loop = Loop(shapes, wire, session)
                for _ in range(2 * SYNC_EVERY):  # compiles; both ranks open the channel
                    loop()
                found = {"nothing": [], "start": [], "wait": []}
                bound = Bound(Copies(device, nbytes)) if session.node == 0 else None
                work = partial(measure, loop, bound, cycles, found)
                _part.on_first(MPI.COMM_WORLD, work)
                if bound is not None:
                    rows.add(**row(name, wire, shapes, bound, found, nbytes))


if __name__ == "__main__":
    main()
