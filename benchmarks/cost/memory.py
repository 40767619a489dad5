"""Memory after many exchanges: 300 of 100 MB leave it where it was after the tenth.

    python benchmarks/cost/memory.py [--quick]

Two nodes train one array of that size and exchange it at every step. Resident memory is read from
the kernel with nothing under way; the mark is a growth of at most 2 % from the tenth exchange on.
"In use" is the memory that malloc has given out and not got back. Resident memory beyond that is
free, and depends on where malloc finds room.
"""

import argparse
import itertools
import os
import sys
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import optax

import jdaso
from benchmarks.lib import harness

sys.path.insert(0, str(Path(__file__).parents[2] / "tests" / "lib"))
from malloc import used_megabytes

EXCHANGES, MEGABYTES = 300, 100
QUICK_EXCHANGES, QUICK_MEGABYTES = 40, 10
EARLY = 10
MARK = 0.02
REST_SECONDS = 1.0


def resident_megabytes():
    time.sleep(REST_SECONDS)
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


def measure(engine, wire, exchanges, megabytes):
    with jdaso.Session(engine=engine) as session:
        phases = jdaso.Phases(exchanges + 2, sync_every=1, delay=1)
        tx = jdaso.daso(optax.sgd(1e-3), phases=phases, session=session, wire=wire)
        params = jnp.ones(int(megabytes * 250_000))
        state = tx.init(params)

        def step(params, state):
            updates, state = tx.update(params, state, params)
            return optax.apply_updates(params, updates), state

        step = jax.jit(step, donate_argnums=(0, 1))
        early, early_used, begin = 0.0, 0.0, time.perf_counter()
        for n in range(exchanges + 1):
            params, state = jax.block_until_ready(step(params, state))
            if n == EARLY:
                early, early_used = resident_megabytes(), used_megabytes()
        seconds = time.perf_counter() - begin - REST_SECONDS
        late, late_used = resident_megabytes(), used_megabytes()
        jdaso.finalize(params, state, session)
        done = session.stats.exchanges
    return session.node, {
        "engine": engine,
        "wire": wire,
        "exchanges": done,
        "MB each": megabytes,
        "MB after 10": early,
        "MB at the end": late,
        "growth": f"{(late - early) / early:+.2%}",
        "in use after 10": early_used,
        "in use at the end": late_used,
        "within mark": "yes" if late <= early * (1 + MARK) else "no",
        "seconds": seconds,
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--engines", nargs="+", default=["mpi4jax", "mpi4py"])
    parser.add_argument("--wires", nargs="+", default=["float32", "int8"])
    options = parser.parse_args()
    exchanges = QUICK_EXCHANGES if options.quick else EXCHANGES
    megabytes = QUICK_MEGABYTES if options.quick else MEGABYTES
    if harness.is_rank():
        node, row = measure(*options.engines, *options.wires, exchanges, megabytes)
        if node == 0:
            harness.give(row)
        return
    rows = []
    pairs = itertools.product(options.engines, options.wires)
    if options.quick:
        pairs = zip(options.engines, options.wires, strict=False)
    for engine, wire in pairs:  # processes of their own
        flags = ["--quick"] * options.quick + ["--engines", engine, "--wires", wire]
        rows.append(harness.launch(__file__, flags, 2))
    harness.report("memory", rows)
    grew = any(row["within mark"] == "no" for row in rows)
    if grew and not options.quick:  # small exchanges: JAX still warms up
        raise SystemExit("memory grew by more than the mark")


if __name__ == "__main__":
    main()
