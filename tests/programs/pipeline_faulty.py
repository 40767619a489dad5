"""A small fit over partitions in which something may be wrong: ``python pipeline_faulty.py CASE``.

Prints ``NODE SECONDS ERROR TEXT`` on a node that met an error, ``NODE end`` on one that did not.
"""

import contextlib
import itertools
import os
import signal
import sys
import time
from functools import partial

import jax.numpy as jnp
import numpy as np
import optax

import jdaso

CASE = sys.argv[1]
STEPS, FAULT_STEP, WIDTH = 8, 4, 8
TIMEOUT_SECONDS = 40.0 if CASE.startswith("short") else 6.0  # nobody waits for the first
EVERYONES = {
    "auto": {"num_partitions": "auto", "strategy": "hybrid"},
    "evaluation": {"strategy": "hybrid", "num_partitions": 1},
    "nested": {"strategy": "data"},
    "again": {"strategy": "data"},
    "short_data": {"strategy": "data"},
    "short_caught_data": {"strategy": "data"},
    "short_replica": {"strategy": "hybrid", "num_partitions": 2},
    "stuck_replica": {"strategy": "hybrid", "num_partitions": 2},
}


def loss_fn(params, batch):
    x, y = batch
    for w in params["w"]:
        x = jnp.tanh(x @ w)
    return jnp.mean((x - y) ** 2)


def batches(node):
    for step in range(STEPS):
        if CASE == "stuck_replica" and node >= 2 and step == FAULT_STEP:
            time.sleep(90)
        if node == 1 and step == FAULT_STEP:
            if CASE == "raise":
                raise KeyError("boom")
            if CASE == "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            if CASE == "stuck":
                time.sleep(90)
            if CASE.startswith("short"):
                return
        if CASE in ("nested", "again"):  # in each step one node waits for the other
            time.sleep(0.3 * ((node + step) % 2))
        random = np.random.default_rng(step)
        x, y = random.standard_normal((2, 12, WIDTH)).astype(np.float32)
        if CASE == "shapes" and node == 1 and step == FAULT_STEP:
            x = x[:-1]
        yield x, y


def meet():
    """Waits for the other nodes, which have an error too while this one stays in its session."""
    from mpi4py import MPI

    request, until = MPI.COMM_WORLD.Ibarrier(), time.monotonic() + 15
    while not request.Test():
        if time.monotonic() > until:
            raise TimeoutError("the others have no error")
        time.sleep(0.01)


def unreadable():
    raise OSError("The file system was away.")
    yield


def main(session):
    node = session.node
    params = {"w": [np.eye(WIDTH, dtype=np.float32)] * 6}
    options = {"strategy": "model", "num_microbatches": 4} | EVERYONES.get(CASE, {})
    if CASE == "auto":  # a node has too little memory for all of the model
        example, few = next(iter(batches(node))), {"num_partitions": 1, "num_microbatches": 4}
        whole = jdaso.pipeline.partition(loss_fn, params, example, **few)
        (need,) = whole.memory(optimizer=optax.sgd(0.1))
        have = need.total - 1
        jdaso.pipeline._plan.partition.available_bytes = lambda devices: have

        def count(step, result, pipeline, state):
            print(f"\n{node} K={pipeline.plan.num_partitions}\n", end="", flush=True)

        options["on_step"] = count
    optimizer = optax.sgd(0.1)
    if CASE == "mid_step" and node == 1:

        def die(step, *_):
            if step == FAULT_STEP:  # while the others are in the next step
                signal.setitimer(signal.ITIMER_REAL, 1e-3)

        signal.signal(signal.SIGALRM, lambda *_: os.kill(os.getpid(), signal.SIGKILL))
        options["on_step"] = die
    if CASE == "stuck_replica":  # who waits for a stage yields to it where it waits for a replica

        def hears(step, result, pipeline, state):
            inner = pipeline.replicas.control.known
            assert inner.waiting is session.control.known.waiting, "not told"

        options["on_step"] = hears
    if CASE == "evaluation":

        def evaluate(step, result, pipeline, state):
            _, ys = batch = next(batches(node))
            size = len(ys) - 2 * node
            pipeline.evaluate(state, tuple(x[:size] for x in batch))

        options["on_step"] = evaluate
    fit = partial(jdaso.fit, loss_fn, params, optimizer, session=session, **options)
    if CASE in ("six", "short_restored"):  # at step 6, where one node now has 4 batches
        fit = partial(fit, folder=sys.argv[2], every_steps=6)
    if CASE == "six":
        fit(itertools.islice(batches(node), 6))
        return
    if CASE == "nested":  # a shorter loop in a step of this one

        def probe(step, *_):
            if step == 1:
                jdaso.fit(loss_fn, params, optimizer, list(batches(node))[:3], session=session)

        fit = partial(fit, on_step=probe)
    if CASE.startswith("short_caught"):  # a program that goes on in the same session
        for _ in range(2):
            try:
                fit(batches(node))
            except jdaso.NodeError as error:
                caught = error
            meet()
        raise caught
    if CASE == "again":  # one node's data fails once, before anybody waits
        with contextlib.suppress(OSError):
            if node == 0:
                fit(unreadable())
        fit(list(batches(node))[:3])
    fit(batches(node))


if __name__ == "__main__":
    begin, node = time.monotonic(), -1
    try:
        on_death = "shrink" if CASE == "shrink" else "end"
        with jdaso.Session(timeout_seconds=TIMEOUT_SECONDS, on_death=on_death) as session:
            node = session.node
            begin = time.monotonic()
            main(session)
        print(f"\n{node} end\n", end="", flush=True)  # in one write
    except Exception as error:
        text = " ".join(str(error).split())[-3000:]  # a pipe takes no more than 4096 bytes as one
        seconds = time.monotonic() - begin
        print(f"\n{node} {seconds:.1f} {type(error).__name__} {text}\n", end="", flush=True)
        raise
