"""A run on nodes of two ranks: ``python joined.py FOLDER STEPS [NAME=VALUE ...] [RANK STEP]``.

Trains AdamW with fragments on a sharded and a replicated parameter, saves every fifth step, and
goes on from what is saved. That rank is killed before that step, in the first launch of the job.
Settings are ``engine=mpi4py``, ``wire=int8``, and ``dies=RANK,SECONDS``: the kernel ends that rank
so many seconds after its imports. Compares what `Reader` finds in the last checkpoint with the mean
over the nodes. Prints the bits of the end.
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
from jdaso.checkpoint import Checkpoints, Reader
from jdaso.data import Loader

compiled_once.share()

FOLDER, STEPS = sys.argv[1], int(sys.argv[2])
GIVEN = {"engine": "mpi4py", "wire": "int8", "dies": ""}
GIVEN |= dict(x.split("=") for x in sys.argv[3:] if "=" in x)
FAULT = tuple(int(x) for x in sys.argv[3:] if "=" not in x)
PHASES = jdaso.Phases(STEPS, warmup_steps=4, cooldown_steps=4, sync_every=4, delay=2, fragments=2)

if GIVEN["dies"]:
    doomed, seconds = GIVEN["dies"].split(",")
    if doomed == os.environ.get("PMI_RANK", os.environ.get("OMPI_COMM_WORLD_RANK")):
        signal.setitimer(signal.ITIMER_REAL, float(seconds))  # the kernel ends it then


def parts_of(tree):
    """The parts of arrays that this rank has."""
    shards = [shard for x in jax.tree.leaves(tree) for shard in x.addressable_shards]
    return [np.asarray(shard.data) for shard in shards]


def say(session, text):
    print(f"rank {session.topology.rank}: {text}\n", end="", flush=True)


def compare_with_reader(session, folder, step, params):
    """Compares what `Reader` finds of a step with the mean over the nodes."""
    (found,), at = Reader(folder, session).restore((params,))
    assert at == step, (at, step)
    for mine, read in zip(parts_of(params), parts_of(found), strict=True):
        rows = session.control.allgather("compare a checkpoint", mine).astype(np.float64)
        np.testing.assert_array_equal(read, rows.mean(0).astype(np.float32))


with jdaso.Session(engine=GIVEN["engine"], ranks_per_node=2, timeout_seconds=60) as session:
    random = np.random.default_rng(0)

    def put(x, spec):
        placed = NamedSharding(session.mesh, spec)
        return jax.make_array_from_callback(np.shape(x), placed, lambda place: x[place])

    params = {
        "w": put(random.normal(size=(64, 32)).astype(np.float32), P("local")),
        "b": put(random.normal(size=(32, 7)).astype(np.float32), P()),
    }
    tx = jdaso.daso(optax.adamw(1e-2), phases=PHASES, wire=GIVEN["wire"], session=session)
    state = tx.init(params)

    def loss_of(params, x):
        return jnp.mean((jnp.tanh(x @ params["w"]) @ params["b"] - 1) ** 2)

    @jax.jit
    def step(params, state, x):
        loss, grads = jax.value_and_grad(loss_of)(params, x)
        updates, state = tx.update(grads, state, params, value=loss)
        return optax.apply_updates(params, updates), state, loss

    loader = Loader(np.arange(48), 24, session, epochs=1)
    samples = [int(x) for batch in loader for s in batch.addressable_shards for x in s.data]
    say(session, f"samples {samples};")
    checkpoints = Checkpoints(FOLDER, session)
    (params, state), begun = checkpoints.restore((params, state))
    say(session, f"begins at {begun}")
    saved = begun, params
    for n in range(begun, STEPS):
        if not begun and FAULT == (session.topology.rank, n):
            say(session, f"dies at {n}")
            os.kill(os.getpid(), signal.SIGKILL)
        of_step = np.random.default_rng((session.node, n))
        x = put(of_step.normal(size=(16, 64)).astype(np.float32), P("local"))
        params, state, loss = step(params, state, x)
        if n % 3 == 0:
            float(loss)
        if (n + 1) % 5 == 0 and n + 1 < STEPS:
            checkpoints.save(n + 1, (params, state))
            saved = n + 1, params
    ended = jdaso.finalize(params, state, session)
    checkpoints.wait()
    compare_with_reader(session, FOLDER, *saved)
    bits = 0
    for part in parts_of(ended):
        bits = zlib.crc32(part.tobytes(), bits)
    say(session, f"bits {bits:08x}")
