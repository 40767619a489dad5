"""Two nodes of two devices that record what they do: ``python traced.py FOLDER [kill]``.

Prints the hidden share in `Stats`, and whether a trace changes the result.
"""

import json
import os
import signal
import sys
import time
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import PartitionSpec as P

import jdaso
from jdaso.checkpoint import Checkpoints
from jdaso.traces._writer import path_of

FOLDER, KILL = sys.argv[1], sys.argv[2:] == ["kill"]
AXIS, STEPS = "local", 16


def until_written(session, step):
    """A step's event is in the file of this node, with all events before it."""
    limit = time.monotonic() + 20.0
    while ("step", step) not in [(row.get("name"), row.get("step")) for row in written(session)]:
        assert time.monotonic() < limit, "it is not written"
        time.sleep(0.05)


def written(session):
    lines = path_of(FOLDER, session.node).read_text().split("\n")
    return map(json.loads, lines[:-1])  # the last one may not be whole


def train(session, keep=False):
    phases = jdaso.Phases(STEPS, 2, 3, sync_every=4, delay=2, fragments=1)
    tx = jdaso.daso(
        optax.adam(1e-2), phases=phases, session=session, local_axis=AXIS, chunk_bytes=2**16
    )

    @jax.jit
    @partial(
        jax.shard_map,
        mesh=session.mesh,
        in_specs=(P(), P(), P(AXIS)),
        out_specs=P(),
        check_vma=False,
    )
    def step(w, state, x):
        loss, g = jax.value_and_grad(lambda w: jnp.mean(jnp.tanh(x @ w["a"]) ** 2))(w)
        updates, state = tx.update(g, state, w, value=loss)
        return optax.apply_updates(w, updates), state

    w = {"a": jnp.full((256, 256), 0.01), "b": jnp.ones(40_000)}
    state, x = tx.init(w), np.random.default_rng(session.node).normal(size=(64, 256))
    for n in range(STEPS):
        begin = time.perf_counter()
        w, state = jax.block_until_ready(step(w, state, x.astype(np.float32)))
        session.timeline.record("step", n, begin)
        if KILL and n == 9 and session.node == 1:
            until_written(session, n)
            os.kill(os.getpid(), signal.SIGKILL)
    if keep:
        saved = Checkpoints(FOLDER + "/checkpoints", session)
        saved.save(STEPS, (w, state))
        saved.wait()
    return jax.tree.map(np.asarray, jdaso.finalize(w, state, session))


with jdaso.Session(trace=FOLDER, timeout_seconds=100) as session:
    traced = train(session, keep=True)
    print(f"node {session.node}: hidden {session.stats.hidden_share:.9f}", flush=True)
with jdaso.Session(timeout_seconds=100) as session:
    plain = train(session)
for name in plain:
    np.testing.assert_array_equal(traced[name], plain[name])
print("the same bits", flush=True)
