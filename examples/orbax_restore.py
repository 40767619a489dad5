"""Orbax: a trained model is saved once, and any later script restores it; here the same one.

mpiexec -n 2 python examples/orbax_restore.py FOLDER     # trains, saves
mpiexec -n 2 python examples/orbax_restore.py FOLDER     # restores, continues

With two ranks for each node, which hold the parameters in parts (and may restore the same folder):

mpiexec -n 4 python examples/orbax_restore.py FOLDER 2

For an interrupted run, exchange in flight included, use jdaso.checkpoint: this example is for
finished models that others read.
"""

import sys
import zlib
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
import orbax.checkpoint as ocp
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

import jdaso

STEPS, BATCH = 200, 64
SHAPES = {"w1": (2, 64), "b1": (64,), "w2": (64, 1)}
SPECS = {"w1": P(None, "local"), "b1": P("local"), "w2": P("local")}  # a part for each device


def loss_of(params, x, y):
    return jnp.mean((jnp.tanh(x @ params["w1"] + params["b1"]) @ params["w2"] - y) ** 2)


def init(key):
    a, b = jax.random.split(key)
    w1, w2 = jax.random.normal(a, SHAPES["w1"]), jax.random.normal(b, SHAPES["w2"]) / 8
    return {"w1": w1, "b1": jnp.zeros(SHAPES["b1"]), "w2": w2}


def checksum(params, whole):
    params = jax.jit(lambda x: x, out_shardings=whole)(params)  # for inspection
    return zlib.crc32(b"".join(np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(params)))


ranks_per_node = int(sys.argv[2]) if sys.argv[2:] else 1
with jdaso.Session(ranks_per_node=ranks_per_node) as session:
    folder = Path(sys.argv[1]).absolute() / "model"
    whole = NamedSharding(session.mesh, P())
    placed = {name: NamedSharding(session.mesh, spec) for name, spec in SPECS.items()}
    session.agree("look for a checkpoint", [("whether it is there", str(folder.exists()))])
    if folder.exists():  # all ranks of every node read; to Orbax each node is alone
        like = {k: jax.ShapeDtypeStruct(SHAPES[k], jnp.float32, sharding=placed[k]) for k in SHAPES}
        with ocp.StandardCheckpointer() as checkpointer:
            params = checkpointer.restore(folder, like)
        print(f"node {session.node}: restored {checksum(params, whole):08x}")
    else:
        params = jax.jit(init, out_shardings=placed)(jax.random.key(0))
    params = jdaso.broadcast(params, session)

    phases = jdaso.Phases(STEPS, warmup_steps=20, cooldown_steps=20, sync_every=4, delay=2)
    tx = jdaso.daso(optax.adam(1e-2), phases=phases, session=session)
    opt_state = tx.init(params)

    @jax.jit
    def step(params, opt_state, x, y):
        loss, grads = jax.value_and_grad(loss_of)(params, x, y)
        updates, opt_state = tx.update(grads, opt_state, params, value=loss)
        return optax.apply_updates(params, updates), opt_state, loss

    losses, random = [], np.random.default_rng(session.node)
    for _ in range(STEPS):
        x = jax.device_put(random.uniform(-2, 2, (BATCH, 2)).astype(np.float32), whole)
        params, opt_state, loss = step(params, opt_state, x, jnp.sin(x[:, :1]) * jnp.cos(x[:, 1:]))
        losses.append(float(loss))

    params = jdaso.finalize(params, opt_state, session)  # before saving: the same on all nodes
    if session.node == 0:  # all ranks of one node write; other nodes would interfere
        with ocp.StandardCheckpointer() as checkpointer:
            checkpointer.save(folder, params, force=True)
    jdaso.mean(jnp.zeros(()), session)  # no node ends before the model is written
    print(
        f"node {session.node}: loss {losses[0]:.4f} -> {losses[-1]:.4f}, "
        f"parameters {checksum(params, whole):08x}"
    )
