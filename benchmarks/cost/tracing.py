"""The cost of a trace: steps of a session that records beside steps of one that does not.

    python benchmarks/cost/tracing.py [--quick] [--step-ms 10] [--repeats 300]

Both loops run in one process, some cycles of each at a time, and take turns at going first; all
nodes make the same steps. "ratio" is the median, over pairs of neighbours, of the time with a trace
over that without, "s.e." its standard error (1.25 / sqrt(pairs) times the spread of the middle half
of the pairs). Mark: 1.01. "us a step" is the extra time of a step. On 1 node a trace adds one call
of the host to each step; on 2 nodes also the rows of exchanges and their chunks.
"""

import argparse
import math
import statistics
import tempfile
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax

import jdaso
from benchmarks.cost.overhead import WIDTH, Loop
from benchmarks.lib import harness

SYNC_EVERY, DELAY, SOME = 4, 2, 8
MARK = 1.01


def make_loop(session, turns):
    """Steps of about 200 k parameters, an exchange every four."""
    keys = jax.random.split(jax.random.key(0), 3)
    params = {
        "layers": [jax.random.normal(key, (WIDTH, WIDTH)) / 16 for key in keys],
        "small": [jnp.ones(64) for _ in range(9)],
    }
    phases = jdaso.Phases(10**9, sync_every=SYNC_EVERY, delay=DELAY)
    loop = Loop(jdaso.daso(optax.adam(1e-4), phases=phases, session=session), params, False)
    loop.turns = np.int32(turns)
    return loop


def some(loop):
    for _ in range(SOME):
        loop()


def measure(repeats, step_ms):
    with tempfile.TemporaryDirectory() as folder:
        sessions = [jdaso.Session(), jdaso.Session(trace=folder)]
        loops = [make_loop(session, 100) for session in sessions]
        for loop in loops:
            some(loop)
        seconds = statistics.median(harness.interleaved([partial(some, loops[0])], 5)[0]) / SOME
        turns = int(jdaso.broadcast(jnp.int32(100 * step_ms / 1e3 / seconds), sessions[0]))
        for loop in loops:
            loop.turns = np.int32(max(turns, 1))
        pairs = []
        for number in range(repeats):
            order = (0, 1) if number % 2 else (1, 0)
            times = harness.interleaved([partial(some, loops[k]) for k in order], 1)
            pairs.append(dict(zip(order, (times[0][0], times[1][0]), strict=True)))
        for loop, session in zip(loops, sessions, strict=True):
            jdaso.finalize(loop.params, loop.state, session)
        size = sessions[1].recorder.path.stat().st_size
        for session in reversed(sessions):
            session.close()
    ratios = [pair[1] / pair[0] for pair in pairs]
    low, ratio, high = statistics.quantiles(ratios, n=4)
    step = statistics.median(pair[0] for pair in pairs) / SOME
    return {
        "node": sessions[0].node,
        "nodes": sessions[0].num_nodes,
        "step ms": 1e3 * step,
        "pairs": len(pairs),
        "ratio": round(ratio, 4),
        "s.e.": round(1.25 * (high - low) / 1.349 / math.sqrt(len(pairs)), 4),
        "us a step": 1e6 * step * (ratio - 1),
        "KB a step": size / 1e3 / (len(pairs) + 1) / SOME,
        "within mark": "yes" if ratio < MARK else "no",
    }


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--step-ms", type=float, default=10.0)
    parser.add_argument("--repeats", type=int, default=300)
    options = parser.parse_args()
    if options.quick:
        options.repeats = 6
    if harness.is_rank():
        result = measure(options.repeats, options.step_ms)
        if result["node"] == 0:
            harness.give(result)
    else:
        flags = ["--step-ms", options.step_ms, "--repeats", options.repeats]
        rows = [harness.launch(__file__, flags, ranks) for ranks in (1, 2)]
        harness.report("tracing", rows, step_ms=options.step_ms)
