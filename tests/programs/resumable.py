"""A small run that saves itself, for faults on purpose: ``mpiexec -n 4 python resumable.py ...``.

Its noise is drawn from the node and the step, so that what it ends with does not depend on how
often it was interrupted. Each node prints ``NODE end STEP LOSS DIGEST EXCHANGES MEBIBYTES`` when it
is through: exchanges of this process, and how much its memory grew after the first tenth of it. It
notes in ``folder/at/NODE`` how far it is.
"""

import argparse
import hashlib
import logging
import os
import random
import sys
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax

import jdaso
from jdaso._jax.host_call import STEP_ERRORS
from jdaso.checkpoint import Checkpoints
from jdaso.faults import Faults

sys.path.insert(0, str(Path(__file__).parents[1] / "lib"))

import compiled_once

compiled_once.share()


def options():
    parser = argparse.ArgumentParser()
    add = parser.add_argument
    add("folder", type=Path)
    add("--engine", default="mpi4py")
    add("--wire", default="float32")
    add("--steps", type=int, default=60)
    add("--every-steps", type=int, default=5)
    add("--step-ms", type=float, default=5.0)
    add("--random-ms", type=float, default=0.0, help="more, up to so much; each node its own")
    add("--sync-every", type=int, default=4)
    add("--delay", type=int, default=3)
    add("--size", type=int, default=2000)
    add("--timeout-seconds", type=float)
    add("--on-death", default="end")
    return parser.parse_args()


def resident_mebibytes():
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def main(given):
    settings = {"timeout_seconds": given.timeout_seconds, "on_death": given.on_death}
    with jdaso.Session(engine=given.engine, **settings) as session:
        steps = given.steps
        blocking = steps // 6, steps // 6
        phases = jdaso.Phases(steps, *blocking, given.sync_every, given.delay)
        tx = jdaso.daso(optax.adam(1e-2), phases=phases, session=session, wire=given.wire)
        params = {"a": jnp.zeros(3), "b": jnp.ones(given.size)}
        state = {"params": params, "optimizer": tx.init(params)}
        checkpoints = Checkpoints(given.folder, session, every_steps=given.every_steps)
        faults = Faults(None, session, given.folder / "faults")

        @jax.jit
        def update(params, opt_state, step):
            key = jax.random.fold_in(jax.random.key(session.node), step)
            grads = jax.tree.map(lambda x: x - 1 + jax.random.normal(key, x.shape), params)
            loss = jnp.mean((params["b"] - 1) ** 2)
            updates, opt_state = tx.update(grads, opt_state, params, value=loss)
            return optax.apply_updates(params, updates), opt_state

        state, begin = checkpoints.restore(state)
        chance, grown = random.Random(session.node), 0.0
        (given.folder / "at").mkdir(exist_ok=True)
        at = os.open(given.folder / "at" / str(session.node), os.O_RDWR | os.O_CREAT)
        for step in range(begin, steps):
            os.pwrite(at, f"{step:9}".encode(), 0)
            if step == begin + (steps - begin) // 10:
                grown = -resident_mebibytes()
            params = faults.at(step, state["params"], state["optimizer"])
            params, optimizer = jax.block_until_ready(update(params, state["optimizer"], step))
            state = {"params": params, "optimizer": optimizer}
            time.sleep((given.step_ms + chance.uniform(0, given.random_ms)) / 1000)
            checkpoints.after(step + 1, state)
        params = jdaso.finalize(state["params"], state["optimizer"], session)
        digest = hashlib.sha256(b"".join(np.asarray(x).tobytes() for x in jax.tree.leaves(params)))
        loss = float(jnp.mean((params["b"] - 1) ** 2))
        grown += resident_mebibytes()
        text = f"{session.node} end {int(state['optimizer'].step)} {loss:.6f} {digest.hexdigest()}"
        text += f" {session.stats.exchanges} {grown:.1f}"
        sys.stdout.write(f"{text}\n")
        sys.stdout.flush()


def run(main):
    """Runs a program of drills: its log and its error in lines that begin with these words."""
    logging.basicConfig(format="log: %(message)s")
    for name in ("jax", "absl"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
    try:
        main()
    except (*STEP_ERRORS, jdaso.NodeError) as error:
        text = next((x for x in str(error).splitlines()[::-1] if "[node" in x), str(error))
        sys.stdout.write(f"error: {text}\n")
        raise SystemExit(1) from error


if __name__ == "__main__":
    run(lambda: main(options()))
