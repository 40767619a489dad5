"""What jdaso itself costs: on one node, and in cycling steps in which nothing is due.

    python benchmarks/overhead.py [--quick]

Both steps of a pair compute the same and run in turn in one process. Mark: at most 2 % more.
"""

import argparse
import time

import _report
import jax
import jax.numpy as jnp
import numpy as np
import optax

import jdaso

STEP_SECONDS = 0.010
WIDTH, LAYERS, LEAVES = 256, 3, 24  # about 200 k parameters in the network, and small leaves
REPEATS, QUICK_REPEATS = 400, 60


def loss_of(params, x, turns):
    def turn(_, y):
        for w in params["layers"]:
            y = jnp.tanh(y @ w)
        return y

    small = sum(jnp.sum(leaf**2) for leaf in params["small"])
    # A loop whose length is known only at run time: differentiated at its last turn.
    y = jax.lax.stop_gradient(jax.lax.fori_loop(0, turns, turn, x))
    return jnp.mean(turn(0, y) ** 2) + 1e-6 * small


def make_step(tx):
    @jax.jit
    def step(params, state, x, turns):
        loss, grads = jax.value_and_grad(loss_of)(params, x, turns)
        updates, state = tx.update(grads, state, params, value=loss)
        return optax.apply_updates(params, updates), state

    return step


class Loop:
    """One training loop, taken a step at a time."""

    def __init__(self, tx, params):
        self.params, self.state, self.step = params, tx.init(params), make_step(tx)
        self.x, self.turns = np.ones((64, WIDTH), np.float32), np.int32(1)

    def __call__(self):
        self.params, self.state = self.step(self.params, self.state, self.x, self.turns)
        jax.block_until_ready((self.params, self.state))


def measure(repeats):
    keys = jax.random.split(jax.random.key(0), LAYERS)
    params = {
        "layers": [jax.random.normal(key, (WIDTH, WIDTH)) / 16 for key in keys],
        "small": [jnp.ones(64) for _ in range(LEAVES)],
    }
    inner = optax.with_extra_args_support(optax.adam(1e-4))
    phases = jdaso.Phases(10**9, sync_every=10**6, delay=1)
    with jdaso.Session(engine="mpi4py") as session:
        tx = jdaso.daso(optax.adam(1e-4), phases=phases, session=session)
        loops = Loop(inner, params), Loop(tx, params)
        for _ in range(3):  # start and merge are over when this ends
            for loop in loops:
                loop()
        if session.node == 0:  # the other nodes wait for this one in finalize
            begin = time.perf_counter()
            loops[0].turns = np.int32(200)
            loops[0]()
            turns = np.int32(max(200 * STEP_SECONDS / (time.perf_counter() - begin), 1))
            for loop in loops:
                loop.turns = turns
            bare, ours = _report.interleaved(loops, repeats)
        if session.node != 0:
            loops[1].state = loops[1].state._replace(step=loops[1].state.step + repeats)
        jdaso.finalize(loops[1].params, loops[1].state, session)
        if session.node != 0:
            return None
    ratios = [b / a for a, b in zip(bare, ours, strict=True)]
    return {
        "nodes": session.num_nodes,
        "inner alone ms": _report.median(bare) * 1e3,
        "jdaso ms": _report.median(ours) * 1e3,
        "ratio of medians": round(_report.median(ours) / _report.median(bare), 4),
        "median of ratios": round(_report.median(ratios), 4),
        "ratio of minima": round(min(ours) / min(bare), 4),
        "compiled": f"{loops[0].step._cache_size()} and {loops[1].step._cache_size()}",
    }


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true")
    arguments = parser.parse_args()
    repeats = QUICK_REPEATS if arguments.quick else REPEATS
    if _report.is_rank():
        result = measure(repeats)
        if result is not None:
            _report.give(result)
    else:
        flags = ["--quick"] * arguments.quick
        rows = [_report.launch(__file__, flags, ranks) for ranks in (1, 2)]
        _report.report("overhead", rows, repeats=repeats)
