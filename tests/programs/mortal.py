"""Runs whose nodes fail one by one: ``mpiexec --with-ft ulfm ... python mortal.py CASE KILLS ...``.

KILLS is ``NODE@STEP,...``: that node is killed before its update of that step; as ``NODE@flight``
with its first exchange in flight. Each node that lives to the end prints ``NODE end JSON``.
"""

import json
import logging
import os
import signal
import sys
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax

import jdaso
from jdaso.checkpoint import Checkpoints

sys.path.insert(0, str(Path(__file__).parent))
from mortal_problem import COOLDOWN, DELAY, EVERY, RATE, START, STEPS, WARMUP, gradients

PHASES = jdaso.Phases(STEPS, WARMUP, COOLDOWN, EVERY, DELAY)
CASE, KILLS, *MORE = sys.argv[1:]


def kills_of(node):
    return [when for who, when in (x.split("@") for x in KILLS.split(",") if x) if int(who) == node]


def die_if_it_is_time(session, step, state):
    for when in kills_of(session.node):
        if when == str(step) or (when == "flight" and bool(state.ticket.any())):
            os.kill(os.getpid(), signal.SIGKILL)


def train(session, tx, after=lambda step, params, state: None, begin=None):
    """Parameters, state, and the longest that a step took after the first few."""
    grads = gradients(session.num_nodes)

    @jax.jit
    def update(params, state, grad, value):
        updates, state = tx.update({"w": grad}, state, params, value=value)
        return optax.apply_updates(params, updates), state

    params = {"w": jnp.asarray(START)}
    params, state, first = begin or (params, tx.init(params), 0)
    longest = 0.0
    for n in range(first, STEPS):
        die_if_it_is_time(session, n, state)
        start = time.monotonic()
        value = jnp.float32(session.node)
        grad = jnp.asarray(grads[n, session.node])
        params, state = jax.block_until_ready(update(params, state, grad, value))
        longest = max(longest, time.monotonic() - start) if n > first + 2 else 0.0
        time.sleep(0.02)
        after(n + 1, params, state)
    return params, state, longest


def optimizer(session, merge="corrected", wire="float32", inner=None):
    inner = inner or optax.sgd(RATE)
    rule = jdaso.outer(optax.sgd(1.0)) if merge == "outer" else merge
    return jdaso.daso(inner, phases=PHASES, session=session, merge=rule, wire=wire)


def numbers(session):
    """The parameters after all updates, and what else the living can do together."""
    params, state, longest = train(session, optimizer(session, *MORE))
    done = {"held": np.asarray(params["w"]).tolist(), "longest": longest}
    done["final"] = np.asarray(jdaso.finalize(params, state, session)["w"]).tobytes().hex()
    done["mean"] = float(jdaso.mean(jnp.float32(session.node), session))
    done["share"], done["living"] = session.share(), session.living
    done["given"] = float(jdaso.broadcast(jnp.float32(session.node), session))
    return done


def synchronous(session):
    tx = jdaso.synchronous(optax.adam(RATE), session=session, blocking=MORE[0])
    grads = gradients(session.num_nodes)
    params = {"w": jnp.asarray(START)}
    state = tx.init(params)

    @jax.jit
    def update(params, state, grad):
        updates, state = tx.update({"w": grad}, state, params)
        return optax.apply_updates(params, updates), state

    for n in range(STEPS):
        if str(n) in kills_of(session.node):
            os.kill(os.getpid(), signal.SIGKILL)
        grad = jnp.asarray(grads[n, session.node])
        params, state = jax.block_until_ready(update(params, state, grad))
    final = np.asarray(params["w"])
    return {"final": final.tobytes().hex(), "count": int(state.inner[0].count)}


def counts(session):
    """Integers of an inner state, which are node 0's, without node 0."""
    params, state, _ = train(session, optimizer(session, inner=optax.adam(1e-3)))
    final = np.asarray(params["w"])
    return {"final": final.tobytes().hex(), "count": int(state.inner[0].count)}


def until_asked(session):
    """This node has been asked at which step it can stop; it passes none until all agree."""
    stopping, limit = session.control.detector.stopping, time.monotonic() + 20.0
    while not (stopping._holds or stopping._stop):
        assert time.monotonic() < limit, "nobody asks"
        time.sleep(0.01)


def saves(session):
    """Saves every 4 steps; prints what it began with and ended with."""
    tx = optimizer(session)
    checkpoints = Checkpoints(MORE[0], session, every_steps=4)
    params = {"w": jnp.asarray(START)}
    like = {"params": params, "state": tx.init(params)}
    restored, first = checkpoints.restore(like)

    def after(step, params, state):
        checkpoints.after(step, {"params": params, "state": state})
        if step == 16 and MORE[1:] == ["cut"]:
            assert bool(state.ticket.any())
            checkpoints.wait()
            print(f"{session.node} end {{}}\n", end="", flush=True)
            os._exit(0)
        if step == 20 and MORE[1:] and MORE[1] != "cut":
            if session.node == int(MORE[1]):  # asked to stop
                os.kill(os.getpid(), signal.SIGUSR1)
            until_asked(session)

    begin = (restored["params"], restored["state"], first)
    params, state, _ = train(session, tx, after, begin)
    jdaso.finalize(params, state, session)
    return {"first": first, "final": np.asarray(params["w"]).tobytes().hex()}


def keys(session):
    """Random keys of an inner state, which differ at first and are to become one node's."""
    inner = optax.chain(optax.add_noise(0.01, 0.1, session.node), optax.sgd(RATE))
    phases = jdaso.Phases(STEPS, 0, COOLDOWN, EVERY, DELAY)  # they would part in a warm-up
    params, state, _ = train(session, jdaso.daso(inner, phases=phases, session=session))
    key = np.asarray(jax.random.key_data(state.inner[0].rng_key)).tolist()
    return {"final": np.asarray(params["w"]).tobytes().hex(), "key": key}


def debts(session):
    """Returns how far a step leaves the common path off its exact one, by the owner of the row."""
    steps, size = 240, 3000
    wire, kind = MORE
    grads = np.random.default_rng(1).normal(size=(3, size)).astype(np.float32)
    if kind == "daso":
        phases = jdaso.Phases(steps + 50, 2, 2, 2, 1)
        tx = jdaso.daso(optax.sgd(1.0), phases=phases, session=session, wire=wire)
    else:
        tx = jdaso.synchronous(optax.sgd(1.0), session=session, wire=wire)
    params = {"w": jnp.zeros(size)}
    state = tx.init(params)

    @jax.jit
    def update(params, state):
        updates, state = tx.update({"w": jnp.asarray(grads)[session.node]}, state, params)
        return optax.apply_updates(params, updates), state

    def path(params, state):
        if kind != "daso":
            return np.asarray(params["w"]).astype(np.float64)
        (completion,) = session.optimizers.completions.values()
        ((versions, _),) = completion.held()
        ((*_, version),) = versions._known.values()  # the common point is in it
        return np.concatenate([np.asarray(x).reshape(-1) for x in version.anchor])[:size].astype(
            float
        )

    for n in range(steps):
        die_if_it_is_time(session, n, None)
        params, state = jax.block_until_ready(update(params, state))
        if n == 39:
            begin, first = path(params, state), int(np.max(getattr(state, "started", state.step)))
    taken = int(np.max(getattr(state, "started", state.step))) - first
    session.share()  # so that all have the same nodes
    right = -grads[list(session.living)].mean(0)
    off = np.abs((path(params, state) - begin) / taken - right).reshape(3, -1)
    return {"off": off.mean(1).tolist()}


def many(session):
    """Exchanges of several chunks, on a second channel too, without a pause."""
    tx = jdaso.daso(optax.sgd(0.1), phases=PHASES, session=session, chunk_bytes=2**14)
    params = {"w": jnp.ones(100_000)}
    state = tx.init(params)

    @jax.jit
    def update(params, state, n):
        noise = jnp.sin(n + jnp.arange(100_000.0) + session.node)
        updates, state = tx.update({"w": noise}, state, params)
        params = optax.apply_updates(params, updates)
        return params, state, jdaso.mean(params["w"][:5], session)

    for n in range(STEPS):
        die_if_it_is_time(session, n, state)
        params, state, _ = jax.block_until_ready(update(params, state, n))
    final = jdaso.finalize(params, state, session)
    return {"final": np.asarray(final["w"]).tobytes().hex()[:64]}


logging.basicConfig(format="log: %(message)s")
ON_DEATH = os.environ.get("ON_DEATH", "shrink")
about = {"on_death": ON_DEATH, "ranks_per_node": int(os.environ.get("RANKS_PER_NODE", 1))}
with jdaso.Session(timeout_seconds=30, **about) as session:
    result = globals()[CASE](session)
    print(f"{session.node} end {json.dumps(result)}\n", end="", flush=True)
