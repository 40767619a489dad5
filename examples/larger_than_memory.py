"""A file of which only the rows of the next batches are in memory; its position is in a checkpoint.

mpiexec -n 2 python examples/larger_than_memory.py [FOLDER]

FOLDER is on a file system that all nodes share; without it a temporary folder is used, on one host.
Started again with the same FOLDER, on any number of nodes, the run continues where it stopped.
"""

import os
import shutil
import sys
import tempfile
import zlib
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax

import jdaso
from jdaso.checkpoint import Checkpoints
from jdaso.data import Loader, Npy

STEPS = 200
BATCH = 256  # on all nodes together
SAMPLES = 20_000


def write(folder):
    """Stands in for existing data: written piece by piece, too."""
    random = np.random.default_rng(0)
    shapes = {"x": (SAMPLES, 64), "y": (SAMPLES, 1)}
    files = {
        name: np.lib.format.open_memmap(folder / f"{name}.part", "w+", np.float32, shape)
        for name, shape in shapes.items()
    }
    for begin in range(0, SAMPLES, 1000):
        x = random.normal(size=(1000, 64))
        files["x"][begin : begin + 1000] = x
        files["y"][begin : begin + 1000] = np.sin(x[:, :1]) + x[:, 1:2]
    for name, array in files.items():  # y.npy comes last: it marks the data as complete
        array.flush()
        (folder / f"{name}.part").rename(folder / f"{name}.npy")


def loss_of(params, batch):
    hidden = jnp.tanh(batch["x"] @ params["w1"])
    return jnp.mean((hidden @ params["w2"] - batch["y"]) ** 2)


with jdaso.Session() as session:
    run = int(jdaso.broadcast(jnp.int32(os.getpid()), session))  # the same number on all nodes
    temporary = Path(tempfile.gettempdir()) / f"larger-than-memory-{run}"
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else temporary
    if session.node == 0 and not (folder / "y.npy").exists():
        folder.mkdir(parents=True, exist_ok=True)
        write(folder)
    checkpoints = Checkpoints(folder / "checkpoints", session, every_steps=100)  # all wait here

    source = Npy({"x": folder / "x.npy", "y": folder / "y.npy"})
    loader = Loader(source, BATCH, session, seed=1)

    phases = jdaso.Phases(STEPS, warmup_steps=20, cooldown_steps=20, sync_every=4, delay=2)
    tx = jdaso.daso(optax.adam(1e-2), phases=phases, session=session)
    a, b = jax.random.split(jax.random.key(0))
    params = {"w1": jax.random.normal(a, (64, 32)) / 8, "w2": jax.random.normal(b, (32, 1)) / 6}
    state = {"params": params, "optimizer": tx.init(params), "data": loader.state()}
    state, begin = checkpoints.restore(state)
    loader.restore(state["data"])

    @jax.jit
    def step(params, opt_state, batch):
        loss, grads = jax.value_and_grad(loss_of)(params, batch)
        updates, opt_state = tx.update(grads, opt_state, params, value=loss)
        return optax.apply_updates(params, updates), opt_state, loss

    losses = []
    for number in range(begin, STEPS):
        params, opt_state, loss = step(state["params"], state["optimizer"], next(loader))
        losses.append(float(loss))
        state = {"params": params, "optimizer": opt_state, "data": loader.state()}
        checkpoints.after(number + 1, state)

    params = jdaso.finalize(state["params"], state["optimizer"], session)
    checksum = zlib.crc32(b"".join(np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(params)))
    first, last = (losses[0], losses[-1]) if losses else (0.0, 0.0)
    print(
        f"node {session.node}: loss {first:.3f} -> {last:.3f}, waited for data "
        f"{loader.waited_seconds:.1f} s, parameters {checksum:08x}"
    )
if session.node == 0:
    shutil.rmtree(temporary, ignore_errors=True)
