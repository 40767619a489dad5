"""The cost of jdaso itself: on one node, and in cycling steps in which no exchange is due.

    python benchmarks/cost/overhead.py [--quick]

All steps compute the same, including the loss. They run in turn in one process, some steps of each
at a time, as a training loop repeats its program; the ratio is the median over neighbours. Mark: at
most 2 % more. Once with steps that donate parameters and state to the next, and once with steps
that do not, so that XLA copies arrays they leave unchanged. On two nodes node 0 measures and the
other waits. Shown beside jdaso are its parts: the inner optimizer with its gradients, its updates
and its state passed through conditions that never hold, with a host call that never runs, and with
as many scalars in its state.
"""

import argparse
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax

import jdaso
from benchmarks.lib import harness
from jdaso._jax.host_call import host_call

STEP_SECONDS = 0.010
WIDTH, LAYERS, SMALL_LEAVES = 256, 3, 9  # about 200 k parameters
REPEATS, QUICK_REPEATS = 400, 20
MARK = 1.02
SOME = 5  # steps at a time


def loss_of(params, x, turns):
    def turn(_, y):
        for w in params["layers"]:
            y = jnp.tanh(y @ w)
        return y

    small = sum(jnp.sum(leaf**2) for leaf in params["small"])
    # A loop whose length is known only at run time: differentiated at its last turn.
    y = jax.lax.stop_gradient(jax.lax.fori_loop(0, turns, turn, x))
    return jnp.mean(turn(0, y) ** 2) + 1e-6 * small


def make_step(tx, donate):
    @partial(jax.jit, donate_argnums=(0, 1) if donate else ())
    def step(params, state, x, turns):
        loss, grads = jax.value_and_grad(loss_of)(params, x, turns)
        updates, state = tx.update(grads, state, params, value=loss)
        return optax.apply_updates(params, updates), state, loss

    return step


class Loop:
    """One training loop, taken a step at a time."""

    def __init__(self, tx, params, donate):
        self.params = jax.tree.map(jnp.copy, params)
        self.state, self.step = tx.init(params), make_step(tx, donate)
        self.x, self.turns = np.ones((64, WIDTH), np.float32), np.int32(1)

    def __call__(self):
        self.params, self.state, loss = self.step(self.params, self.state, self.x, self.turns)
        jax.block_until_ready((self.params, self.state, loss))


def some(loop):
    for _ in range(SOME):
        loop()


def never(step, yes, no):
    return jax.lax.cond(step == 10**9, yes, lambda: no)


def made_of(inner, *, calls, scalars):
    """`inner` in conditions that never hold, and the rest of jdaso if nothing is due."""

    def init(params):
        return jnp.int32(0), tuple(jnp.int32(n) for n in range(scalars)), inner.init(params)

    def update(updates, state, params, **extra):
        step, numbers, inner_state = state
        double = lambda tree: jax.tree.map(lambda x: 2 * x, tree)  # noqa: E731
        updates = never(step, lambda: double(updates), updates)
        new = inner.update(updates, inner_state, params, **extra)
        updates, inner_state = never(step, lambda: double(new), new)
        if calls:
            one = jax.ShapeDtypeStruct((), jnp.int32)
            step += never(step, lambda: host_call(np.int32, one, step), jnp.int32(0))
        return updates, (step + 1, tuple(n + 1 for n in numbers), inner_state)

    return optax.GradientTransformationExtraArgs(init, update)


def measure(repeats, donate):
    keys = jax.random.split(jax.random.key(0), LAYERS)
    params = {
        "layers": [jax.random.normal(key, (WIDTH, WIDTH)) / 16 for key in keys],
        "small": [jnp.ones(64) for _ in range(SMALL_LEAVES)],
    }
    inner = optax.with_extra_args_support(optax.adam(1e-4))
    phases = jdaso.Phases(10**9, sync_every=10**6, delay=1)
    with jdaso.Session(engine="mpi4py") as session:
        tx = jdaso.daso(inner, phases=phases, session=session)
        conditions = made_of(inner, calls=False, scalars=0)
        calls = made_of(inner, calls=True, scalars=0)
        parts = made_of(inner, calls=True, scalars=len(jax.tree.leaves(tx.init(()))))
        loops = [Loop(each, params, donate) for each in (inner, conditions, calls, parts, tx)]
        ours = loops[-1]
        for _ in range(3):  # the one exchange starts and is merged
            for loop in loops:
                loop()
        if session.node > 0:  # waits in finalize for node 0, which alone goes on
            ours.state = ours.state._replace(step=ours.state.step + repeats)
            jdaso.finalize(ours.params, ours.state, session)
            return None
        loops[0].turns = np.int32(100)
        seconds = min(harness.interleaved(loops[:1], 10)[0])
        for loop in loops:
            loop.turns = np.int32(max(100 * STEP_SECONDS / seconds, 1))
        times = harness.interleaved([partial(some, loop) for loop in loops], repeats // SOME)
        jdaso.finalize(ours.params, ours.state, session)
    row = {
        "nodes": session.num_nodes,
        "donated": "yes" if donate else "no",
        "leaves": len(jax.tree.leaves(params)),
    }
    names = ("alone", "conditions", "host call", "scalars", "jdaso")
    for name, seconds in zip(names, times, strict=True):
        row[f"{name} ms"] = harness.median(seconds) * 1e3 / SOME
    for name, seconds in zip(names[1:], times[1:], strict=True):
        ratios = [a / b for a, b in zip(seconds, times[0], strict=True)]
        row[f"{name} / alone"] = round(harness.median(ratios), 3)
    more = [a - b for a, b in zip(times[-1], times[0], strict=True)]
    row["more us"] = harness.median(more) * 1e6 / SOME
    row["of minima"] = round(min(times[-1]) / min(times[0]), 3)
    row["within mark"] = "yes" if row["jdaso / alone"] <= MARK else "no"
    row["compiled"] = ", ".join(str(loop.step._cache_size()) for loop in loops)
    return row


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--donate", action="store_true")
    arguments = parser.parse_args()
    repeats = QUICK_REPEATS if arguments.quick else REPEATS
    if harness.is_rank():
        result = measure(repeats, arguments.donate)
        if result is not None:
            harness.give(result)
    else:
        flags = ["--quick"] * arguments.quick
        rows = [
            harness.launch(__file__, [*flags, *donate], ranks)
            for ranks in (1, 2)
            for donate in ([], ["--donate"])
        ]
        harness.report("overhead", rows, repeats=repeats)
        if not arguments.quick and any(row["within mark"] == "no" for row in rows):
            raise SystemExit("a step costs more than the mark")
