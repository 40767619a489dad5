"""Memory after many exchanges: 300 of 100 MB leave it where it was after the tenth.

    python benchmarks/memory.py [--quick]

Two nodes train one array of that size and exchange it at every step. "held" is resident memory,
read from the kernel after malloc has given back what it keeps for later (`malloc_trim`); the mark
is that it grows by at most 2 % from the tenth exchange to the end. "resident" is read before that:
as threads meet in new ways, malloc keeps one more buffer now and then (jdaso lets it keep 2 GiB).
"""

import argparse
import ctypes
import os
import time
from pathlib import Path

import _report
import jax
import jax.numpy as jnp
import optax

import jdaso

EXCHANGES, MEGABYTES = 300, 100
QUICK_EXCHANGES, QUICK_MEGABYTES = 40, 10
EARLY = 10
MARK = 0.02


def held_megabytes():
    getattr(ctypes.CDLL(None), "malloc_trim", lambda _: None)(0)  # glibc has it
    return resident_megabytes()


def resident_megabytes():
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def measure(engine, wire, exchanges, megabytes):
    with jdaso.Session(engine=engine) as session:
        phases = jdaso.Phases(exchanges + 2, sync_every=1, delay=1)
        tx = jdaso.daso(optax.sgd(1e-3), phases=phases, session=session, wire=wire)
        params = jnp.ones(int(megabytes * 2**18))
        state = tx.init(params)

        def step(params, state):
            updates, state = tx.update(params, state, params)
            return optax.apply_updates(params, updates), state

        step = jax.jit(step, donate_argnums=(0, 1))
        seen, begin = [], time.perf_counter()
        for n in range(exchanges + 1):
            params, state = step(params, state)
            jax.block_until_ready((params, state))
            seen.append(resident_megabytes())
            if n == EARLY:
                early = held_megabytes()
        seconds = time.perf_counter() - begin
        late = held_megabytes()
        jdaso.finalize(params, state, session)
        done = session.stats.exchanges
    return session.node, {
        "engine": engine,
        "wire": wire,
        "exchanges": done,
        "MB each": megabytes,
        "held after 10": early,
        "held at the end": late,
        "resident after 10": seen[EARLY],
        "resident at the end": seen[-1],
        "most": max(seen[EARLY:]),
        "growth": f"{(late - early) / early:+.2%}",
        "within mark": "yes" if late <= early * (1 + MARK) else "no",
        "seconds": seconds,
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--engine", default="mpi4jax")
    parser.add_argument("--wire", default="float32")
    options = parser.parse_args()
    exchanges = QUICK_EXCHANGES if options.quick else EXCHANGES
    megabytes = QUICK_MEGABYTES if options.quick else MEGABYTES
    if _report.is_rank():
        node, row = measure(options.engine, options.wire, exchanges, megabytes)
        if node == 0:
            _report.give(row)
        return
    flags = ["--quick"] * options.quick + ["--engine", options.engine, "--wire", options.wire]
    row = _report.launch(__file__, flags, 2)
    _report.report("memory", [row])
    if row["within mark"] == "no" and not options.quick:  # small exchanges: JAX still warms up
        raise SystemExit("memory grew by more than the mark")


if __name__ == "__main__":
    main()
