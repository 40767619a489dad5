"""Memory of a node that exchanges 24 MB at every step: ``... memory_held.py ENGINE MERGE WIRE``.

Each node prints a line of JSON: "heaps" of malloc in MB; "held" after 10 exchanges in times of the
parameters; "growth" in MB over 19 more, and "heap's growth" over the last 10 of them: blocks do not
fit each other exactly, and it takes some exchanges until there is room for all.
"""

import json
import sys
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import optax

import jdaso

sys.path.insert(0, str(Path(__file__).parents[1] / "lib"))
from malloc import heaps, used_megabytes

MEGABYTES = 24


def used_at_rest(session, exchanges):
    """Megabytes in use once so many exchanges have been completed, and XLA's threads have let go.

    No event shows the latter: the number must stay the same for a second.
    """
    limit = time.monotonic() + 20.0
    while session.stats.exchanges < exchanges:
        assert time.monotonic() < limit, session.stats
        time.sleep(0.01)
    used, since = used_megabytes(), time.monotonic()
    while (now := time.monotonic()) < min(since + 1.0, limit):
        time.sleep(0.01)
        if abs((new := used_megabytes()) - used) > 0.1:
            used, since = new, now
    return used_megabytes()


def main(engine, merge, wire):
    with jdaso.Session(engine=engine) as session:
        phases = jdaso.Phases(40, sync_every=1, delay=1)
        tx = jdaso.daso(optax.sgd(1e-3), phases=phases, session=session, merge=merge, wire=wire)

        @jax.jit
        def step(params, state):
            updates, state = tx.update(params, state, params)
            return optax.apply_updates(params, updates), state

        begin = used_megabytes()
        params = jnp.ones(MEGABYTES * 2**18)
        state, used, heap = tx.init(params), [], []
        for n in range(30):
            params, state = jax.block_until_ready(step(params, state))
            if n in (10, 29):
                used.append(used_at_rest(session, n + 1))
            if n in (19, 29):
                heap.append(sum(heaps()))
        jdaso.finalize(params, state, session)
        held, growth = (used[0] - begin) / MEGABYTES, used[1] - used[0]
        found = {"heaps": heaps(), "held": held, "growth": growth}
        print(json.dumps(found | {"heap's growth": heap[1] - heap[0]}) + "\n", end="", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
