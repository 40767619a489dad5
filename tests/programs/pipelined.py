"""Pipelines against one process: ``mpiexec -n 4 python pipelined.py day`` (or night, or all).

Nodes work in groups, several at once: each group trains a model in its own session, which it uses
again for all its cases, and compares with what one process makes of the joined batches. Node 0 of
each group prints a line a case: how far they part, as a share of what rounding explains.
"""

import contextlib
import functools
import itertools
import sys
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).parents[1] / "lib"))

import compiled_once
import jax
import jax.numpy as jnp
import numpy as np
import optax
import rounding
from pipeline_models import SMALL

import jdaso

STEPS, SAMPLES, RATE, MOMENTUM = 5, 12, 0.05, 0.9
DASO = jdaso.Phases(8, warmup_steps=1, cooldown_steps=2, sync_every=2, delay=1)


class Case(NamedTuple):
    """A training run: model, cut, and the run it is compared with.

    Attributes:
        model: its name in `SMALL`.
        partitions: K.
        replicas: R.
        schedule: see `jdaso.fit`; "interleaved" with two stages a node.
        microbatches: M of a replica's share of `SAMPLES`.
        about: the comparison: "joined" batches; "accumulated" gradients of the same
            micro-batches; "daso", with replicas that are not cut; "bfloat16", roughly.
        settings: further ones of `jdaso.fit`.
    """

    model: str
    partitions: int
    replicas: int
    schedule: str
    microbatches: int
    about: str = "joined"
    settings: Mapping[str, Any] = {}

    @property
    def reference(self):
        """Arguments of `in_one_process`."""
        if self.about == "accumulated":
            return self.model, self.replicas, self.microbatches
        return (self.model,)

    def __str__(self) -> str:
        more = "".join(f" {key}={value}" for key, value in self.settings.items())
        return (
            f"{self.model} K={self.partitions} R={self.replicas} {self.schedule} "
            f"M={self.microbatches} {self.about}{more}"
        )


# Each round: how the nodes are grouped, and what each group does.
DASO_AND_REMAT = {"phases": DASO, "remat": True}
DAY = {
    4: [
        ((4,), [Case("unet", 2, 2, "interleaved", 3)]),
        # 6 samples of a replica in 4 micro-batches: 2, 2, 1 and 1.
        ((4,), [Case("transformer_scan", 2, 2, "1f1b", 4, "daso", DASO_AND_REMAT)]),
        (
            (2, 2),
            [
                Case("transformer_dropout", 2, 1, "1f1b", 5, "accumulated"),
                Case("transformer_dropout", 1, 2, "gpipe", 3, "accumulated"),
            ],
        ),
    ],
}
# XLA's level 0 makes NaN of the U-Net's recomputed group norms (jaxlib 0.10.2); level 2 does not.
OPTIMIZED = {4: [((4,), [Case("unet", 2, 2, "interleaved", 3, settings={"remat": True})])]}
NIGHT = {
    4: [
        ((4,), [Case("vgg16", 4, 1, "interleaved", 4)]),
        ((4,), [Case("resnet", 2, 2, "gpipe", 3)]),
        # 12 samples in 5 micro-batches: 3, 3, 2, 2 and 2.
        ((3, 1), [Case("resnet", 3, 1, "interleaved", 5), Case("vgg16", 1, 1, "1f1b", 5)]),
        ((4,), [Case("resnet_scan", 4, 1, "1f1b", 4)]),
        (
            (2, 2),
            [
                Case("resnet_scan", 2, 1, "gpipe", 6, settings={"remat": True}),
                Case("vgg16", 1, 2, "gpipe", 2),
            ],
        ),
        ((4,), [Case("transformer", 4, 1, "gpipe", 4)]),
        (
            (3, 1),
            [
                Case("transformer_remat", 3, 1, "1f1b", 4),
                Case("transformer_scan_remat", 1, 1, "interleaved", 4),
            ],
        ),
        ((4,), [Case("unet", 4, 1, "1f1b", 4)]),
        ((4,), [Case("unet", 2, 2, "1f1b", 3, "daso", {"phases": DASO})]),
        ((4,), [Case("unet", 2, 2, "interleaved", 3, "bfloat16", {"wire": "bfloat16"})]),
        ((4,), [Case("resnet_batch_norm", 2, 2, "1f1b", 3, "accumulated")]),
    ],
    8: [
        ((8,), [Case("transformer_scan", 4, 2, "1f1b", 6)]),
        ((6, 2), [Case("unet", 3, 2, "interleaved", 3), Case("unet", 2, 1, "gpipe", 4)]),
    ],
}


def all_rounds(nodes):
    """Every model with every schedule in each form that so many nodes have: an hour on 2 cores."""
    plain = [name for name in SMALL if name not in ("resnet_batch_norm", "transformer_dropout")]
    for n, name in itertools.product(range(3), plain):
        a, b, c = (("gpipe", "1f1b", "interleaved")[(n + k) % 3] for k in range(3))
        if nodes == 8:
            yield (8,), [Case(name, 4, 2, a, 3)]
            yield (6, 2), [Case(name, 3, 2, b, 3), Case(name, 2, 1, c, 4)]
            continue
        yield (4,), [Case(name, 4, 1, a, 4)]
        yield (4,), [Case(name, 2, 2, b, 3)]
        yield (3, 1), [Case(name, 3, 1, c, 4), Case(name, 1, 1, a, 4)]
        yield (2, 2), [Case(name, 2, 1, c, 6), Case(name, 1, 2, b, 2)]


@functools.cache
def made(name):
    return SMALL[name]()


def optimizer():
    return optax.sgd(RATE, momentum=MOMENTUM)


def share(batch, replica, replicas):
    """One replica's part of a joined batch; a random key is handled separately."""
    size = SAMPLES // replicas

    def cut(x):
        if not x.shape:
            return x if replicas == 1 else jax.random.fold_in(x, 1000 + replica)
        return x[replica * size : (replica + 1) * size]

    return jax.tree.map(cut, batch)


def parts(batch, number):
    """Micro-batches as jdaso.pipeline says: sizes differ by one at most, keys are folded."""
    leaves, tree = jax.tree.flatten(batch)
    samples = next(len(x) for x in leaves if x.shape)
    for m, rows in enumerate(np.array_split(np.arange(samples), number)):
        part = [x[rows] if x.shape else jax.random.fold_in(x, m) for x in leaves]
        yield len(rows), jax.tree.unflatten(tree, part)


def in_one_process(name, replicas=1, microbatches=None):
    """Losses, parameters, auxiliary outputs and states after each step, without jdaso.

    Of joined batches or, with `microbatches`, of gradients accumulated over the micro-batches that
    the replicas have, each replica with a state of its own.
    """
    model = made(name)
    params, state = jax.tree.map(jnp.asarray, (model.init(0), model.init_state()))
    opt_state, states = optimizer().init(params), [state] * replicas

    @jax.jit
    def gradients(params, state, batch):
        def loss_of(params):
            args = (params, batch) if state is None else (params, state, batch)
            out = model.loss_fn(*args)
            loss, aux = out if isinstance(out, tuple) else (out, None)
            return loss, aux if state is not None else (None, aux)

        return jax.value_and_grad(loss_of, has_aux=True)(params)

    losses, auxes = [], []
    for step in range(STEPS):
        batch, total, grads = model.batch(SAMPLES, step), 0.0, None
        for replica in range(replicas):
            mine = batch if microbatches is None else share(batch, replica, replicas)
            each = [(SAMPLES, mine)] if microbatches is None else parts(mine, microbatches)
            for size, part in each:
                (loss, (states[replica], aux)), more = gradients(params, states[replica], part)
                total += float(loss) * size / SAMPLES
                more = jax.tree.map(lambda g, s=size: g * np.float32(s / SAMPLES), more)
                grads = more if grads is None else jax.tree.map(jnp.add, grads, more)
        losses.append(total)
        auxes.append(aux)
        updates, opt_state = optimizer().update(grads, opt_state, params)
        params = optax.apply_updates(params, updates)
    state = jax.tree.map(lambda *x: sum(x) / len(x), *states)
    return jax.tree.map(np.asarray, (losses, params, auxes, state))


@functools.cache
def sums(name):
    """Additions on the longest way through the gradient of a joined batch."""
    model = made(name)
    args = model.init(0), model.init_state(), model.batch(SAMPLES, 0)
    args = tuple(x for x in args if x is not None)

    def loss_of(*args):
        out = model.loss_fn(*args)
        return out[0] if isinstance(out, tuple) else out

    return rounding.additions(jax.grad(loss_of), *args)


def through_pipelines(case, session, steps=STEPS, **settings):
    """The same through `jdaso.fit`; with the auxiliary outputs of this node's replica."""
    model, auxes = made(case.model), []
    replica = session.node // case.partitions
    result = jdaso.fit(
        model.loss_fn,
        model.init(0),
        optimizer(),
        [share(model.batch(SAMPLES, step), replica, case.replicas) for step in range(steps)],
        session=session,
        strategy="hybrid",
        num_partitions=case.partitions,
        num_replicas=case.replicas,
        num_microbatches=case.microbatches,
        schedule=case.schedule,
        chunks=2 if case.schedule == "interleaved" else 1,
        state=model.init_state(),
        on_step=lambda number, step, pipeline, state: auxes.append(step.aux),
        **(dict(case.settings) | settings),
    )
    return result, auxes


def check(case, session, expected, comm):
    """Returns the shares of the bounds that are used: by the losses and by the parameters."""
    steps = DASO.total_steps if case.about == "daso" else STEPS
    before = session.stats.exchanges
    result, auxes = through_pipelines(case, session, steps)
    if case.about == "daso":  # two in 5 cycling updates with B = 2, of which the last starts none
        assert session.stats.exchanges - before == 2
    recorded = [event.step for event in session.timeline.events if event.name == "step"]
    assert recorded[-steps:] == list(range(steps))
    checksum = zlib.crc32(b"".join(x.tobytes() for x in jax.tree.leaves(result.params)))
    assert len(set(comm.allgather(checksum))) == 1, "nodes ended with different parameters"
    losses, params, reference_auxes, state = expected
    n, start = sums(case.model), made(case.model).init(0)
    wide = 1.0
    if case.about == "bfloat16":
        # Besides, what crosses a cut is rounded once there and once back. Of the K V - 1 cuts a
        # skip crosses, each has its own copy.
        cuts = 2 * case.partitions * (2 if case.schedule == "interleaved" else 1)
        wide = cuts * rounding.unit(jnp.bfloat16) / rounding.unit(np.float32)
        n = 1
    of_losses = [
        abs(float(a) - float(b)) / (wide * rounding.loss_bound(b, n, steps))
        for a, b in zip(result.history, losses, strict=True)
    ]
    bounds = rounding.params_bound(start, params, n, steps)
    pairs = zip(jax.tree.leaves(result.params), jax.tree.leaves(params), bounds, strict=True)
    differences = [(rounding.norm(a - b), wide * bound) for a, b, bound in pairs]
    # A leaf without elements, or that never moves, has the bound 0.
    of_params = [off / bound if off or bound else 0.0 for off, bound in differences]
    if case.replicas == 1 and case.about == "joined" and reference_auxes[0] is not None:
        for got, wanted in zip(auxes, reference_auxes, strict=True):
            assert int(got["right"]) == int(wanted["right"])
            off = abs(float(got["logit"]) - float(wanted["logit"]))
            of_losses.append(off / rounding.loss_bound(wanted["logit"], n, steps))
    if state is not None:  # running means of activations: sums over a batch, layer by layer
        pairs = zip(jax.tree.leaves(result.state), jax.tree.leaves(state), strict=True)
        of_params += [
            rounding.norm(a - b) / rounding.loss_bound(rounding.norm(b), n, steps) for a, b in pairs
        ]
    return np.max(of_losses), np.max(of_params), n  # NaN if one is


def run(session, stack, rounds):
    world = session.topology.comm
    groups = {}
    for sizes, _ in rounds:
        if sizes not in groups:
            own = int(np.searchsorted(np.cumsum(sizes), world.rank, side="right"))
            comm = world.Split(own, world.rank)
            groups[sizes] = own, comm, stack.enter_context(jdaso.Session(comm=comm))
    cases = [case for _, cases in rounds for case in cases]
    wanted = list(dict.fromkeys(case.reference for case in cases if case.about != "daso"))
    mine = {key: in_one_process(*key) for key in wanted[world.rank :: world.size]}
    expected = {key: x for each in world.allgather(mine) for key, x in each.items()}
    for sizes, cases in rounds:
        own, comm, inner = groups[sizes]
        case = cases[own]
        if case.about == "daso":
            _, pair, couple = groups[2, 2]
            alike = case._replace(partitions=1, schedule="gpipe")
            result, _ = through_pipelines(alike, couple, DASO.total_steps)
            reference = list(result.history), result.params, [None], None
        else:
            reference = expected[case.reference]
        loss, params, n = check(case, inner, reference, comm)
        if comm.rank == 0:
            ok = "ok" if loss <= 1 and params <= 1 else "WRONG"  # so is what is not a number
            print(f"{ok}: {case}: loss {loss:.2g}, parameters {params:.2g}, {n} sums", flush=True)


if __name__ == "__main__":
    compiled_once.share()
    with contextlib.ExitStack() as stack:
        session = stack.enter_context(jdaso.Session())
        nodes = session.num_nodes
        when = {"day": DAY.get, "night": NIGHT.get, "optimized": OPTIMIZED.get, "all": all_rounds}
        run(session, stack, list(when[sys.argv[1]](nodes)))
