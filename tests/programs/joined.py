"""A run on nodes of two ranks: ``python joined.py FOLDER STEPS [RANK STEP]``.

Trains AdamW with fragments on a sharded and a replicated parameter, saves every fifth step, and
goes on from what is saved. That rank is killed before that step. Prints the bits of the end.
"""

import os
import signal
import sys
import zlib
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "lib"))

import compiled_once
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

import jdaso
from jdaso.checkpoint import Checkpoints
from jdaso.data import Loader

compiled_once.share()

FOLDER, STEPS = sys.argv[1], int(sys.argv[2])
FAULT = tuple(map(int, sys.argv[3:5]))
PHASES = jdaso.Phases(STEPS, warmup_steps=4, cooldown_steps=4, sync_every=4, delay=2, fragments=2)

with jdaso.Session(ranks_per_node=2, timeout_seconds=60) as session:
    random = np.random.default_rng(0)

    def put(x, spec):
        placed = NamedSharding(session.mesh, spec)
        return jax.make_array_from_callback(np.shape(x), placed, lambda place: x[place])

    params = {
        "w": put(random.normal(size=(64, 32)).astype(np.float32), P("local")),
        "b": put(random.normal(size=(32, 7)).astype(np.float32), P()),
    }
    tx = jdaso.daso(optax.adamw(1e-2), phases=PHASES, wire="int8", session=session)
    state = tx.init(params)

    def loss_of(params, x):
        return jnp.mean((jnp.tanh(x @ params["w"]) @ params["b"] - 1) ** 2)

    @jax.jit
    def step(params, state, x):
        loss, grads = jax.value_and_grad(loss_of)(params, x)
        updates, state = tx.update(grads, state, params, value=loss)
        return optax.apply_updates(params, updates), state, loss

    loader = Loader(np.arange(48), 16, session, epochs=1)
    samples = [int(x) for batch in loader for s in batch.addressable_shards for x in s.data]
    print(f"rank {session.topology.rank}: samples {samples};", flush=True)
    checkpoints = Checkpoints(FOLDER, session)
    (params, state), begun = checkpoints.restore((params, state))
    print(f"rank {session.topology.rank}: begins at {begun}", flush=True)
    for n in range(begun, STEPS):
        if FAULT == (session.topology.rank, n):
            print(f"rank {session.topology.rank}: dies at {n}", flush=True)
            os.kill(os.getpid(), signal.SIGKILL)
        of_step = np.random.default_rng((session.node, n))
        x = put(of_step.normal(size=(16, 64)).astype(np.float32), P("local"))
        params, state, loss = step(params, state, x)
        if n % 3 == 0:
            float(loss)
        if (n + 1) % 5 == 0 and n + 1 < STEPS:
            checkpoints.save(n + 1, (params, state))
    ended = jdaso.finalize(params, state, session)
    bits = 0
    for x in jax.tree.leaves(ended):
        for shard in x.addressable_shards:
            bits = zlib.crc32(np.asarray(shard.data).tobytes(), bits)
    print(f"rank {session.topology.rank}: bits {bits:08x}", flush=True)
