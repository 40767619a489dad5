"""A pipeline's ranks as threads of one process: the real `Run`, `Whole` and `Holding`, no MPI."""

import queue
import threading

import jax
import jax.numpy as jnp
import numpy as np

from jdaso.pipeline._mail import Address
from jdaso.pipeline._run import Place, Run
from jdaso.pipeline._schedule import make_schedule
from jdaso.pipeline._work import Work

PATIENCE_SECONDS = 60.0


class Post:
    """What is on its way. It is stricter than MPI: nothing may be sent that nobody takes."""

    def __init__(self):
        self.failed = threading.Event()
        self._boxes, self._lock = {}, threading.Lock()

    def box(self, sender, receiver, tag):
        with self._lock:
            return self._boxes.setdefault((sender, receiver, tag), queue.Queue())

    def assert_empty(self):
        left = [key for key, box in self._boxes.items() if not box.empty()]
        assert not left, f"sent and never taken: {left}"


class InProcessMail:
    """`Mail` of one rank."""

    def __init__(self, post, rank):
        self._post, self._rank = post, rank
        self._coming = {}

    def send(self, address, array):
        assert address.node != self._rank, "a message to oneself"
        self._post.box(self._rank, address.node, address.tag).put(np.array(array))

    def expect(self, address, shape, dtype):
        assert address not in self._coming, f"{address} is expected already"
        self._coming[address] = tuple(shape), np.dtype(dtype)

    def expects(self, address):
        return address in self._coming

    def take(self, address, what):
        shape, dtype = self._coming.pop(address)
        box = self._post.box(address.node, self._rank, address.tag)
        for _ in range(int(PATIENCE_SECONDS / 0.05)):
            try:
                array = box.get(timeout=0.05)
            except queue.Empty:
                if self._post.failed.is_set():
                    raise InterruptedError("another rank failed") from None
                continue
            assert (array.shape, array.dtype) == (shape, dtype), (array, shape, dtype)
            return array
        raise TimeoutError(f"rank {self._rank} {what} from {address}")

    def drain(self):
        assert not self._coming, f"expected and never taken: {self._coming}"


def on_threads(ranks, function):
    """What ``function(rank, failed)`` gives on each rank; the first error of any is raised."""
    results, errors, failed = [None] * ranks, [], threading.Event()

    def call(rank):
        try:
            results[rank] = function(rank, failed)
        except BaseException as error:
            errors.append(error)
            failed.set()

    threads = [threading.Thread(target=call, args=(rank,), daemon=True) for rank in range(ranks)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(2 * PATIENCE_SECONDS)
        assert not thread.is_alive(), "a rank waits for ever"
    real = [error for error in errors if not isinstance(error, InterruptedError)]
    for error in real or errors:
        raise error
    return results


def run(plan, params, batch, *, schedule="1f1b", state=None, wire="float32", remat=False):
    """One pass of a batch: on each rank its result, its sums of gradients and its model's state."""
    ranks, holding = plan.num_partitions, plan.holding
    order = make_schedule(schedule, ranks, plan.num_microbatches, plan.chunks).order
    works = [Work(plan, rank, wire, remat=remat) for rank in range(ranks)]
    post = Post()

    def step(rank, failed):
        post.failed = failed
        own = jax.tree.map(jnp.asarray, holding.own(jax.tree.leaves(params), rank))
        leaves, tree = jax.tree.flatten(state)
        held = works[rank].states_held
        kept = [x if k in held else x.reshape(-1)[:0] for k, x in enumerate(leaves)]
        place = Place(rank, Address, jax.device_put, lambda array, size: jnp.asarray(array))
        one = Run(
            works[rank],
            InProcessMail(post, rank),
            place,
            own,
            jax.tree.unflatten(tree, kept),
            batch,
        )
        one.follow(order[rank])
        grads = one.gradients()
        return one.result(), grads, one.state()

    results = on_threads(ranks, step)
    post.assert_empty()
    return results


def loss_and_gradients(plan, params, batch, **settings):
    """The loss, the auxiliary output and the whole tree of gradients; all ranks tell the same."""
    results = run(plan, params, batch, **settings)
    units = {}
    for rank, (_, grads, _) in enumerate(results):
        assert sorted(grads) == plan.holding.owned_by(rank)
        assert not units.keys() & grads.keys(), "two ranks hold the same"
        units |= {k: np.asarray(x) for k, x in grads.items()}
        jax.tree.map(np.testing.assert_array_equal, results[0][0], results[rank][0])
    return results[0][0].loss, results[0][0].aux, plan.holding.whole(units)


def expected(loss_fn, params, batch, microbatches):
    """The same by `jax.value_and_grad` on each micro-batch, weighted by samples.

    `loss_fn` returns ``(loss, aux)``; of whole numbers in aux it is the sum, as `StepResult` says.
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


class Together:
    """`gather` of ranks that are threads: each waits for all, and gets the numbers of all."""

    def __init__(self, ranks):
        self._barrier = threading.Barrier(ranks, timeout=PATIENCE_SECONDS)
        self._words = [None] * ranks
        self.messages = 0

    def gatherer(self, rank):
        def gather(words):
            self._words[rank] = np.array(words)
            self._barrier.wait()
            shapes = {words.shape for words in self._words}
            assert len(shapes) == 1, f"ranks send different numbers of words: {shapes}"
            everyone = np.stack(self._words)
            self._barrier.wait()
            if rank == 0:
                self.messages += 1
            return everyone

        return gather

    def abort(self):
        self._barrier.abort()
