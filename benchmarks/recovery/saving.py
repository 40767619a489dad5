"""The cost of a save for the loop: steps with regular saves, beside steps without.

    python benchmarks/recovery/saving.py [--quick] [--nodes 2] [--parameters 100e6] [--step-ms 500]
        [--every 60]

A step is daso around Adam on all parameters, then a pause in which the cores of the host are free,
as while an accelerator computes. Runs of `every` steps follow one another, alternately with one
save and with none. "call" is the time that `Checkpoints.save` blocks the loop, "written" the time
until all is on disk, "costs" the extra time of a run with a save. The mark is 5 % at 100 M
parameters.
"""

import argparse
import shutil
import tempfile
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import optax

import jdaso
from benchmarks.lib import harness
from jdaso.checkpoint import Checkpoints

MARK = 0.05


def measure(given, folder):
    with jdaso.Session() as session:
        total = given.every * (2 * given.rounds + 1)
        phases = jdaso.Phases(total, sync_every=4, delay=4)
        tx = jdaso.daso(optax.adam(1e-3), phases=phases, session=session)
        leaves = 32
        params = {f"w{k}": jnp.ones(int(given.parameters) // leaves) for k in range(leaves)}
        state = tx.init(params)

        def step(params, state):
            updates, state = tx.update(params, state, params)
            return optax.apply_updates(params, updates), state

        step = jax.jit(step, donate_argnums=(0, 1))
        checkpoints = Checkpoints(folder, session, keep_last=1)

        def run(first, saves):
            nonlocal params, state
            calls, written = 0.0, 0.0
            begin = time.perf_counter()
            for k in range(given.every):
                params, state = jax.block_until_ready(step(params, state))
                time.sleep(given.step_ms / 1000)
                if saves and k == 0:
                    before = time.perf_counter()
                    checkpoints.save(first + k + 1, {"params": params, "optimizer": state})
                    calls, writer = time.perf_counter() - before, checkpoints._saver._writer
                if saves and not written and not writer.is_alive():
                    written = time.perf_counter() - before
            seconds = time.perf_counter() - begin
            if saves and not written:  # a save that is longer: what follows must not be with it
                writer.join()
                written = time.perf_counter() - before
            return seconds, calls, written

        run(0, saves=True)  # compiles, and makes the buffers
        plain, saving, calls, written = [], [], [], []
        for n in range(given.rounds):
            first = given.every * (1 + 2 * n)
            plain.append(run(first, saves=False)[0])
            seconds, call, done = run(first + given.every, saves=True)
            saving.append(seconds)
            calls.append(call)
            written.append(done)
        size = sum(x.nbytes for x in jax.tree.leaves((params, state)))
        checkpoints.wait()
        if session.node == 0:
            costs = harness.median(saving) / harness.median(plain) - 1
            row = {"nodes": session.num_nodes, "M": given.parameters / 1e6}
            row |= {"state MB": size / 1e6, "steps a save": given.every}
            row |= {"step ms": 1000 * harness.median(plain) / given.every}
            row |= {"call s": harness.median(calls), "written s": harness.median(written)}
            harness.give({**row, "costs": costs, "held": costs <= MARK})


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--nodes", type=int, default=2)
    parser.add_argument("--parameters", type=float, default=100e6)
    parser.add_argument("--step-ms", type=float, default=500.0)
    parser.add_argument("--every", type=int, default=60)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--folder", type=Path, help="for the checkpoints; a temporary one")
    given = parser.parse_args()
    if given.quick:
        given.parameters, given.step_ms, given.every, given.rounds = 1e6, 20.0, 10, 1
    if harness.is_rank():
        measure(given, given.folder)
        return
    folder = given.folder or Path(tempfile.mkdtemp())
    names = ("nodes", "parameters", "step_ms", "every", "rounds")
    flags = [f"--{name.replace('_', '-')}={getattr(given, name)}" for name in names]
    try:
        row = harness.launch(__file__, [*flags, f"--folder={folder}"], given.nodes)
    finally:
        if given.folder is None:
            shutil.rmtree(folder)
    harness.report("saving", [row], every=given.every)


if __name__ == "__main__":
    main()
