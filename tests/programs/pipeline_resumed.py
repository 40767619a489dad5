"""Trains over partitions, saves and goes on: ``python pipeline_resumed.py FOLDER DO...``.

DO is ``MODEL:NODES:PARTITIONS``: the first NODES ranks train two steps more (or as many as a fourth
word says) in a session of their own, and save into FOLDER/MODEL. Node 0 prints how many steps were
made, and how far the parameters are from those of one process that was never stopped, in units of
the learning rate; each node prints a CheckpointError. Other words for DO change the files between
two runs: see `CHANGES`.
"""

import sys
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "lib"))

import compiled_once
import jax
import jax.numpy as jnp
import numpy as np
import optax
from mpi4py import MPI

import jdaso
from jdaso.checkpoint import CheckpointError

FOLDER, DO = Path(sys.argv[1]), sys.argv[2:]
WIDTH, LAYERS, SAMPLES, PARTS, RATE = 8, 9, 16, 4, 1e-2


def listed(params, batch):
    x, y = batch
    for w in params["w"]:
        x = jnp.tanh(x @ w) * params["scale"]
    return jnp.mean((x @ params["w"][0] - y) ** 2)  # the first is used again


def stacked(params, batch):
    x, y = batch
    x, _ = jax.lax.scan(lambda x, w: (jnp.tanh(x @ w), None), x, params["w"])
    return jnp.mean((x - y) ** 2) * params["scale"]


def normed(params, state, batch):
    """Layers that subtract the mean they have seen so far, as BatchNorm with running means."""
    (x, y), seen = batch, []
    for w, mean in zip(params["w"], state, strict=True):
        x = jnp.tanh(x @ w) * params["scale"]
        seen.append(0.9 * mean + 0.1 * x.mean(0))
        x = x - seen[-1]
    return jnp.mean((x - y) ** 2), (seen, None)


def batch_of(step):
    random = np.random.default_rng(step)
    return tuple(random.standard_normal((2, SAMPLES, WIDTH)).astype(np.float32))


def momentum_in_a_list(rate):
    """Momentum that keeps its averages in a list: a tree unlike that of the parameters."""

    def init(params):
        return [jnp.zeros_like(x) for x in jax.tree.leaves(params)]

    def update(updates, state, params=None):
        leaves, tree = jax.tree.flatten(updates)
        state = [0.9 * mean + x for mean, x in zip(state, leaves, strict=True)]
        return jax.tree.unflatten(tree, [-rate * mean for mean in state]), state

    return optax.GradientTransformation(init, update)


def optimizer_of(model):
    if model == "list_momentum":
        return momentum_in_a_list(RATE)
    if model == "hyperparameters":  # "b1" and "b2" are in its state beside trees of parameters
        return optax.inject_hyperparams(optax.adam)(RATE, b1=0.8, b2=0.99, eps=1e-3)
    return optax.chain(optax.clip_by_global_norm(0.3), optax.sgd(RATE, momentum=0.9))


def train_alone(loss_fn, params, state, optimizer, steps):
    """One process: the micro-batches of each step one after the other."""

    def loss_of(params, state, part):
        if state is None:
            return loss_fn(params, part), None
        loss, (state, _) = loss_fn(params, state, part)
        return loss, state

    gradients, opt_state = jax.grad(loss_of, has_aux=True), optimizer.init(params)
    for step in range(steps):
        sums, size = jax.tree.map(jnp.zeros_like, params), SAMPLES // PARTS
        for k in range(PARTS):
            part = tuple(x[k * size : (k + 1) * size] for x in batch_of(step))
            grads, state = gradients(params, state, part)
            sums = jax.tree.map(lambda a, b: a + b / PARTS, sums, grads)
        updates, opt_state = optimizer.update(sums, opt_state, params)
        params = optax.apply_updates(params, updates)
    return params, state


def main(session, model, partitions, steps):
    random = np.random.default_rng(0)
    layers = list(random.normal(0, 0.4, (LAYERS, WIDTH, WIDTH)).astype(np.float32))
    params, state = {"w": layers, "scale": np.float32(1)}, None
    loss_fn = {"stacked": stacked, "normed": normed}.get(model, listed)
    if model == "stacked":
        params["w"] = np.stack(layers)
    if model == "normed":
        state = [np.zeros(WIDTH, np.float32)] * LAYERS
    optimizer = optimizer_of(model)
    result = jdaso.fit(
        loss_fn,
        params,
        optimizer,
        [batch_of(step) for step in range(steps)],
        session=session,
        strategy="hybrid",  # the replicas have the same batches: how many there are changes nothing
        num_partitions=partitions,
        num_microbatches=PARTS,
        state=state,
        folder=FOLDER / model,
        every_steps=1,
    )
    if session.node == 0:
        expected = train_alone(loss_fn, params, state, optimizer, steps)
        found = (result.params, result.state)
        leaves = zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True)
        off = max(float(np.abs(np.asarray(a) - np.asarray(b)).max()) for a, b in leaves) / RATE
        say(f"{model} {session.num_nodes} {partitions}: {len(result.history)} steps, off {off:.2e}")


def swap_boundaries(folder):
    holding = folder / "partitions-2" / "holding.json"
    holding.write_text(holding.read_text().replace("[0, 1]", "[1, 0]"))


def damage(folder):
    """One bit of what one partition holds."""
    files = [x for x in (folder / "partitions-2" / "1").rglob("node_0/**/*") if x.is_file()]
    largest = max(files, key=lambda file: file.stat().st_size)
    content = bytearray(largest.read_bytes())
    content[len(content) // 2] ^= 0xFF
    largest.write_bytes(content)


CHANGES = {"swap_boundaries": swap_boundaries, "damage": damage}


def say(text):
    """Prints in one write, for the ranks share a terminal."""
    print(f"\n{text}\n", end="", flush=True)


if __name__ == "__main__":
    compiled_once.share()
    world, steps = MPI.COMM_WORLD, Counter()
    for do in DO:
        model, *how = do.split(":")
        world.Barrier()
        if how[0] in CHANGES:
            if world.rank == 0:
                CHANGES[how[0]](FOLDER / model)
            continue
        nodes, partitions, *more = map(int, how)
        steps[model] += more[0] if more else 2
        comm = world.Split(world.rank < nodes, world.rank)
        if world.rank < nodes:
            with jdaso.Session(comm, timeout_seconds=100) as session:
                try:
                    main(session, model, partitions, steps[model])
                except CheckpointError as error:
                    say(f"{model} node {session.node} CheckpointError {error}")
