"""Part `hidden`: the share of an exchange that ResNet-50 hides, in float32 and bfloat16.

Two ranks. "link" is the engine `instant` with the time that a ring would take on a link of 10
Gbit/s: only the device and the host's copies are real. "hidden" is what the session says; it counts
time in callbacks, and on a GPU not the copies that XLA makes around them. "hidden by the clock" has
those: 1 - (time a cycle is longer than bare) / (time of its exchanges).
"""

import time

import jax.numpy as jnp

from benchmarks.gpu import _part
from benchmarks.gpu._models import SMALL_RESNET, ResNet, Training
from benchmarks.lib.harness import median
from benchmarks.lib.methods import Cell, Method
from jdaso._engines import make
from jdaso._engines.instant import Instant

METHODS = ("bare", "instant", "daso float32 corrected", "daso bfloat16 corrected", "synchronous")
BRIEF_METHODS = ("bare", "instant", "daso bfloat16 corrected", "synchronous")
QUICK_METHODS = ("bare", "instant", "daso float32 corrected")
DTYPES = (jnp.bfloat16, jnp.float32)
SYNC_EVERY, DELAY = 4, 3
ROUNDS = 3
LINK_BYTES_PER_SECOND = 10e9 / 8


class OnLink(Instant):
    """Takes the time in which a ring's bytes cross the link, and sends nothing."""

    def __call__(self, rows, place, headed):
        nodes = len(rows)
        time.sleep(2 * (nodes - 1) / nodes * rows.nbytes / LINK_BYTES_PER_SECOND)
        return super().__call__(rows, place, headed)


def cell_of(options, dtype):
    if options.quick:
        training = Training(ResNet(**SMALL_RESNET, dtype=dtype), batch=4, size=32)
        return Cell(training, SYNC_EVERY, DELAY, "mpi4py", "bfloat16", warm=1, cycles=2)
    training = Training(ResNet(dtype=dtype), batch=64, size=224)
    cycles = options.pick(15, 8, 2)
    return Cell(training, SYNC_EVERY, DELAY, "mpi4py", "bfloat16", warm=2, cycles=cycles)


def hidden_share(found, bare_seconds, sync_every):
    """1 - (time a cycle is longer than bare) / (time of its exchanges), within 0..1."""
    longer_ms = 1e3 * (found["seconds"] - bare_seconds) * sync_every
    exchanges_ms = found["exchanges a cycle"] * found["exchange ms"]
    return min(max(1 - longer_ms / exchanges_ms, 0.0), 1.0)


def measure(cell, methods, rounds, barrier, options):
    """A row for each method: medians of rounds, in which they are taken in turn."""
    made = [Method(name, cell) for name in methods]
    _part.require(options)
    found = [[method.round(0.0, barrier) for method in made] for _ in range(rounds)]
    for method in reversed(made):
        method.session.close()
    for k, name in enumerate(methods):
        pairs = [(row[k], row[0]["seconds"]) for row in found]  # with bare's of the same round
        row = {
            "method": "link" if name == "instant" else name,
            "parameters": found[0][k]["parameters"],
            "step ms": 1e3 * median(one["seconds"] for one, _ in pairs),
            "of bare": median(bare / one["seconds"] for one, bare in pairs),
        }
        if "exchange ms" in found[0][k]:
            row["exchange ms"] = median(one["exchange ms"] for one, _ in pairs)
            row["hidden"] = median(one["hidden"] for one, _ in pairs)
            row["hidden by the clock"] = median(
                hidden_share(one, bare, cell.sync_every) for one, bare in pairs
            )
        yield row


def main():
    options = _part.options()
    _part.share_gpus()
    make.Instant = OnLink
    from mpi4py import MPI

    comm = MPI.COMM_WORLD
    rows = _part.Rows(comm.Get_rank())
    methods = options.pick(METHODS, BRIEF_METHODS, QUICK_METHODS)
    rounds = options.pick(ROUNDS, ROUNDS, 1)
    for dtype in options.pick(DTYPES, DTYPES[:1], DTYPES):
        cell = cell_of(options, dtype)
        for row in measure(cell, methods, rounds, comm.Barrier, options):
            rows.add(compute=jnp.dtype(dtype).name, **row)


if __name__ == "__main__":
    main()
