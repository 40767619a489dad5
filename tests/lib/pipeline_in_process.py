"""A pipeline's ranks as threads: the real `BatchRun`, `WholeOptimizer` and `Holding`, no MPI."""

import jax
import jax.numpy as jnp
import numpy as np
from network import World
from played import play

from jdaso._nodes.mail import Address, Mail
from jdaso.pipeline._run.place import RankPlace
from jdaso.pipeline._run.run import BatchRun
from jdaso.pipeline._run.work import StageWork
from jdaso.pipeline._schedule import make_schedule

COMPILING_SECONDS = 1e6
"""Limit of the clock: computing takes no time on it, but polls of waiting ranks do."""

OF_MAIL = "world.1.0"


class StrictMail(Mail):
    """`Mail` of one rank, which checks that messages are sent as they are expected."""

    def __init__(self, node, kinds):
        super().__init__(node.control, lambda step, begin: None)
        node.closing.append(self.close)
        self._rank, self._kinds = node.number, kinds

    def send(self, address, array):
        assert address.node != self._rank, "a message to oneself"
        kind = tuple(array.shape), np.dtype(array.dtype)
        self._kinds.setdefault((self._rank, *address), []).append(kind)
        super().send(address, array)

    def expect(self, address, shape, dtype):
        assert not self.expects(address), f"{address} is expected already"
        super().expect(address, shape, dtype)

    def take(self, address, what):
        array = super().take(address, what)
        kind = self._kinds[address.node, self._rank, address.tag].pop(0)
        assert (array.shape, array.dtype) == kind, (array, kind)
        return array

    def drain(self):
        super().drain()
        assert not self._coming, f"expected and never taken: {self._coming}"


def together(world, program):
    """Returns the results of ``program(node)`` on each rank; raises the first error of any."""
    outcomes = play(world, program, COMPILING_SECONDS)
    for outcome in sorted(outcomes, key=lambda outcome: outcome.seconds):
        if outcome.error is not None:
            raise outcome.error
    assert all(outcome.fate == "ended" for outcome in outcomes), outcomes
    return [outcome.result for outcome in outcomes]


def run(plan, params, batch, *, schedule="1f1b", state=None, wire="float32", remat=False):
    """One pass of a batch: for each rank its result, its gradient sums and its model's state."""
    ranks, holding = plan.num_partitions, plan.holding
    order = make_schedule(schedule, ranks, plan.num_microbatches, plan.chunks).order
    works = [StageWork(plan, rank, wire, remat=remat) for rank in range(ranks)]
    world, kinds = World(ranks, limit_seconds=COMPILING_SECONDS), {}

    def step(node):
        rank, mail = node.number, StrictMail(node, kinds)
        own = jax.tree.map(jnp.asarray, holding.own(jax.tree.leaves(params), rank))
        leaves, tree = jax.tree.flatten(state)
        held = works[rank].states_held
        kept = [x if k in held else x.reshape(-1)[:0] for k, x in enumerate(leaves)]
        place = RankPlace(rank, Address, jax.device_put, lambda array, size: jnp.asarray(array))
        one = BatchRun(works[rank], mail, place, own, jax.tree.unflatten(tree, kept), batch)
        one.follow(order[rank])
        grads = one.gradients()
        return one.result(), grads, one.state()

    results = together(world, step)
    assert not world.untaken(OF_MAIL), "sent and never taken"
    return results


def loss_and_gradients(plan, params, batch, **settings):
    """The loss, the auxiliary output and the whole tree of gradients; all ranks must agree."""
    results = run(plan, params, batch, **settings)
    units = {}
    for rank, (_, grads, _) in enumerate(results):
        assert sorted(grads) == plan.holding.owned_by(rank)
        assert not units.keys() & grads.keys(), "two ranks hold the same"
        units |= {k: np.asarray(x) for k, x in grads.items()}
        jax.tree.map(np.testing.assert_array_equal, results[0][0], results[rank][0])
    return results[0][0].loss, results[0][0].aux, plan.holding.whole(units)


def expected(loss_fn, params, batch, microbatches):
    """The expected values by `jax.value_and_grad` on each micro-batch, weighted by samples.

    `loss_fn` returns ``(loss, aux)``; integers in aux are summed, as `StepResult` defines.
    """
    leaves, total = jax.tree.leaves(batch), None
    step = jax.jit(jax.value_and_grad(loss_fn, has_aux=True))
    for m, size in enumerate(microbatches.sizes):
        parts = [microbatches.part(jnp.asarray(leaf), m) for leaf in leaves]
        (loss, aux), grads = step(params, jax.tree.unflatten(microbatches.tree, parts))
        share = size / microbatches.samples

        def weigh(x, share=share):
            floats = jnp.issubdtype(x.dtype, jnp.floating)
            return np.asarray(x, np.float64) * share if floats else np.asarray(x)

        made = jax.tree.map(weigh, (loss, aux, grads))
        total = made if total is None else jax.tree.map(lambda a, b: a + b, total, made)
    return total


def gatherer(node):
    """The `gather` of a rank: each waits for all, and gets the numbers of all."""
    comm = node.control.duplicate().comm

    def gather(words):
        everyone = np.empty((comm.Get_size(), *words.shape), words.dtype)
        request = comm.Iallgather(np.ascontiguousarray(words), everyone)
        node.control.wait(request, "gather")
        return everyone

    return gather
