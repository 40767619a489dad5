"""Ideas to come nearer to synchronous training, in a sketch, before any is built.

    python benchmarks/accuracy/ideas.py [--quick] [--nodes 4] [--seeds 3] [--every 4] [--epochs 6]
        [--ideas "as jdaso" ...] [--name ideas]

The small transformer of the Jargon File, AdamW, virtual nodes in plain JAX: B fragments (of whole
leaves), merged one step late by the rule "corrected" in float32, a tenth of the run as warm-up and
as cool-down. The sketch "as jdaso" does what `jdaso.daso` does and ends within the spread of its
seeds. "behind": points of accuracy below synchronous training, the mean over seeds.
"""

import argparse
import math
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.tree import map as tree_map

from benchmarks.lib import harness
from benchmarks.lib.tasks import text, warm_cosine
from jdaso._rules import second_moments

PEAK, B1, B2, EPSILON, DECAY = 6e-3, 0.9, 0.999, 1e-8, 1e-3
"""Settings of AdamW."""


class Idea(NamedTuple):
    """Differences from what jdaso does."""

    synchronous: bool = False
    own_moments: bool = False  # each node's own second moments
    first_every: int = 0  # cycles between late means of the first moments; 0: never
    second_every: int = 0  # ... of the second moments
    plain_embeddings: bool = False  # a merge drops a table's progress since the snapshot
    apart: bool = False  # a merge goes to the mean direction with the mean norm, leaf by leaf
    keep: float = 1.0  # share of the first moments that is left at a merge
    damped: int = 0  # cycles over which the weight of a merge grows to 1
    measured_noise: bool = False  # P in the second moments, from the progress of nodes


IDEAS = {
    "synchronous": Idea(synchronous=True),
    "as jdaso": Idea(),
    "own second moments": Idea(own_moments=True),
    "late means of m, every cycle": Idea(first_every=1),
    "late means of m and v, 3 and 6 cycles (DES-LOC)": Idea(first_every=3, second_every=6),
    "the same, own second moments": Idea(own_moments=True, first_every=3, second_every=6),
    "late means of m and v, every cycle": Idea(first_every=1, second_every=1),
    "embeddings: plain mean": Idea(plain_embeddings=True),
    "norm and direction apart": Idea(apart=True),
    "m is 0 after a merge": Idea(keep=0.0),
    "half of m after a merge": Idea(keep=0.5),
    "first merges damped, 4 cycles": Idea(damped=4),
    "first merges damped, 16 cycles": Idea(damped=16),
    "noise measured": Idea(measured_noise=True),
}


def deal(params, fragments, every):
    """A tree like `params`: by how many steps the exchanges of each leaf are shifted."""
    leaves, tree = jax.tree.flatten(params)
    load, shift = [0] * fragments, [0] * len(leaves)
    for k in sorted(range(len(leaves)), key=lambda k: -leaves[k].size):
        least = load.index(min(load))
        shift[k], load[least] = least * (every // fragments), load[least] + leaves[k].size
    return jax.tree.unflatten(tree, shift)


def mean(tree):
    """The mean of the nodes, on each of them."""
    return tree_map(lambda x: jnp.broadcast_to(x.mean(0), x.shape), tree)


def where(condition, yes, no):
    return tree_map(lambda a, b: jnp.where(condition, a, b), yes, no)


def by_leaf(condition, yes, no):
    """`condition` is a tree of flags."""
    return tree_map(jnp.where, condition, yes, no)


def per_node(x, reduce):
    """One number for each node, of a leaf ``[nodes, ...]``, in its shape."""
    return reduce(x, tuple(range(1, x.ndim)), keepdims=True)


def apart(x):
    """The mean direction of the nodes' leaves, with their mean norm."""
    norm = jnp.sqrt(per_node(jnp.square(x), jnp.sum))
    whole = jnp.broadcast_to(x.mean(0), x.shape)
    return whole * norm.mean(0) / (jnp.sqrt(per_node(jnp.square(whole), jnp.sum)) + 1e-12)


def independent(progress, nodes):
    """The number of independent estimates that progress is like: 1 (all alike) to P (noise)."""
    together = jnp.square(progress.mean(0)).sum()
    alone = jnp.square(progress).sum() / len(progress)
    return jnp.clip(alone / (together + 1e-30), 1, nodes)


def trained(task, idea, nodes, every, epochs, seeds):
    """Loss and accuracy at the end of a run, for each seed; all seeds run side by side."""
    orders = [[task.order(epoch, nodes, seed) for epoch in range(epochs)] for seed in seeds]
    batches = jnp.asarray([np.concatenate(order) for order in orders])
    total = batches.shape[1]
    warmup, cooldown = total // 10, total - total // 10
    if idea.synchronous:
        warmup, cooldown = total, total + 1
    rate = warm_cosine(PEAK, total)
    grads_of = jax.vmap(jax.grad(task.loss), in_axes=(0, None, 0))

    def step(state, given):
        n, arrays, chosen = given
        blocking, since = (n < warmup) | (n >= cooldown), n - warmup
        cycling = ~blocking
        grads = grads_of(state["x"], arrays, chosen)
        grads = where(blocking, mean(grads), grads)
        m = tree_map(lambda m, g: B1 * m + (1 - B1) * g, state["m"], grads)
        v = tree_map(lambda v, g: B2 * v + (1 - B2) * g * g, state["v"], grads)

        def divisor(v, m, like):
            v, m = v / (1 - B2 ** (n + 1)), m / (1 - B1 ** (n + 1))
            shared = v if idea.own_moments else second_moments.shared(v, m, like, B1)
            return jnp.sqrt(jnp.where(blocking, v, shared)) + EPSILON

        def becoming(function, v, m, like):
            """Second moments before the next step, as functions of those with the right scale."""
            first, second = 1 - B1 ** (n + 1), 1 - B2 ** (n + 1)
            return second * function(v / second, m / first, like, B1)

        def moved(x, m, v, like):
            return x - rate(n) * (m / (1 - B1 ** (n + 1)) / divisor(v, m, like) + DECAY * x)

        x = tree_map(moved, state["x"], m, v, state["like"])

        def due(late, cycles=1):
            """Flags of the leaves whose exchange started `late` steps ago."""
            period = every * cycles
            begun = lambda o: (since >= late + o) & ((since - late - o) % period == 0)  # noqa: E731
            return tree_map(lambda o: cycling & begun(o), shift)

        sent, merging, starting = state["sent"], due(1), due(0)
        got = tree_map(apart, sent) if idea.apart else mean(sent)
        weight = jnp.clip((since // every + 1) / max(idea.damped, 1), 0, 1) if idea.damped else 1.0
        merged = tree_map(lambda x, got, sent: x + weight * (got - sent), x, got, sent)
        if idea.plain_embeddings:
            merged |= {table: got[table] for table in ("characters", "places")}
        x = by_leaf(merging, merged, x)
        if idea.keep < 1:
            m = by_leaf(merging, tree_map(lambda m: idea.keep * m, m), m)
        if idea.measured_noise:
            progress = tree_map(jnp.subtract, sent, state["merged"])
            seen = tree_map(partial(independent, nodes=nodes), progress)
            seen = tree_map(lambda old, new: 0.8 * old + 0.2 * new, state["like"], seen)
            state["like"] = by_leaf(merging, seen, state["like"])
            state["merged"] = by_leaf(merging, got, where(since < 0, x, state["merged"]))
        moments = {"m": m, "v": v}
        for name, cycles in (("m", idea.first_every), ("v", idea.second_every)):
            if cycles:
                old = state["sent " + name]
                late = tree_map(lambda x, o: x + o.mean(0) - o, moments[name], old)
                late = tree_map(jnp.abs, late) if name == "v" else late
                moments[name] = by_leaf(due(1, cycles), late, moments[name])
                state["sent " + name] = by_leaf(due(0, cycles), moments[name], old)
        sent = by_leaf(starting, x, sent)
        m, v, last = moments["m"], moments["v"], n == cooldown - 1
        if not idea.own_moments:
            for when, function in (
                (n == warmup - 1, second_moments.own_of),
                (last, second_moments.shared),
            ):
                v = where(when, tree_map(partial(becoming, function), v, m, state["like"]), v)
        x, m, v = (where(last, mean(t), t) for t in (x, m, v))
        return {**state, "x": x, "m": m, "v": v, "sent": sent}, None

    def run(params, arrays, batches):
        x = tree_map(lambda p: jnp.broadcast_to(p, (nodes, *p.shape)), params)
        zero = tree_map(jnp.zeros_like, x)
        state = {"x": x, "sent": x, "merged": x, "m": zero, "v": zero}
        state |= {"sent m": zero, "sent v": zero}
        state["like"] = tree_map(lambda p: jnp.float32(nodes), params)
        body = lambda s, given: step(s, (given[0], arrays, given[1]))  # noqa: E731
        x = jax.lax.scan(body, state, (jnp.arange(total), batches))[0]["x"]
        return tree_map(lambda a: a.mean(0), x)

    each = [task.init(jax.random.key(seed)) for seed in seeds]
    shift = deal(each[0], min(every, 4), every)
    params = tree_map(lambda *leaves: jnp.stack(leaves), *each)
    params = jax.jit(jax.vmap(run, in_axes=(0, None, 0)))(params, task.arrays, batches)
    scores = [task.score(tree_map(lambda a: a[k], params)) for k in range(len(each))]  # noqa: B023
    return [{name: float(value) for name, value in score.items()} for score in scores]


def measure(options):
    """A row an idea."""
    task = text(2_000, 64) if options.quick else text()
    rows, base = [], math.nan
    for name in options.ideas:
        sizes = options.nodes, options.every, options.epochs
        scores = trained(task, IDEAS[name], *sizes, range(options.seeds))
        accuracy = [100 * score["accuracy"] for score in scores]
        base = np.mean(accuracy) if IDEAS[name].synchronous else base
        row = {"idea": name, "accuracy": float(np.mean(accuracy))}
        row |= {"spread": float(np.std(accuracy)), "behind": float(base - row["accuracy"])}
        rows.append(row | {"loss": float(np.mean([score["loss"] for score in scores]))})
        print(rows[-1], flush=True)
    return rows


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--nodes", type=int, default=4)
    parser.add_argument("--every", type=int, default=4, help="B, a multiple of 4, or 1")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--ideas", nargs="*", default=list(IDEAS), choices=list(IDEAS))
    parser.add_argument("--name", default="ideas", help="of the JSON file")
    options = parser.parse_args()
    if options.quick:
        options.seeds, options.epochs = 1, 1
    about = {key: getattr(options, key) for key in ("nodes", "every", "seeds", "epochs")}
    harness.report(options.name, measure(options), **about)


if __name__ == "__main__":
    main()
