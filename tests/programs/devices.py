"""Runs on nodes of two devices each: ``python devices.py CASE ENGINE``.

Prints ``node N: end`` where all was as it should be.
"""

import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import PartitionSpec as P

import jdaso
from jdaso._exchange.make import exchange_of, late_of
from jdaso._exchange.replicated import Common
from jdaso._payload.header import header
from jdaso._payload.layout import layout_of
from jdaso._rules.merge import merge_of

sys.path.insert(0, str(Path(__file__).parents[1] / "lib"))

import compiled_once
import reference
import training

compiled_once.share()

CASE, ENGINE = sys.argv[1], sys.argv[2]
DEVICES, AXIS = 2, "local"
TOTAL, WARMUP, COOLDOWN, SYNC_EVERY, DELAY = 18, 3, 5, 4, 3
SIZE, CHUNK_BYTES = 4000, 2048  # eight chunks for two nodes: every device sends some


def stacked(tree):
    """One copy a device."""
    return jax.tree.map(lambda x: jnp.stack([x] * DEVICES), tree)


def first(tree):
    return jax.tree.map(lambda x: np.asarray(x[0]), tree)


def over_devices(session, step):
    """`step` of one device as a step of all, every argument and result ``[devices, ...]``."""
    if CASE == "pmap":
        return jax.pmap(step, axis_name=AXIS)

    def one(*args):
        out = step(*jax.tree.map(lambda x: x[0], args))
        return jax.tree.map(lambda x: x[None], out)

    spec = P(AXIS)
    return jax.jit(
        jax.shard_map(one, mesh=session.mesh, in_specs=spec, out_specs=spec, check_vma=False)
    )


def owner(places, nodes):
    """Returns the node that sums each element: within each chunk one row of a block per node."""
    row = CHUNK_BYTES // 4 // nodes
    return places // row % nodes


def match_the_reference(session, merge, wire="float32"):
    """Every update of this node, and the same bits on both of its devices."""
    problem = reference.Quadratic(TOTAL, session.num_nodes, SIZE)
    rule, inner = training.OPTIMIZERS["sgd"]
    tx = jdaso.daso(
        inner(),
        phases=jdaso.Phases(TOTAL, WARMUP, COOLDOWN, SYNC_EVERY, DELAY),
        session=session,
        local_axis=AXIS,
        wire=wire,
        merge=training.merge_of(merge),
        chunk_bytes=CHUNK_BYTES,
    )
    curvature = jnp.asarray(problem.curvature)
    assert len(layout_of(problem.x0, session.num_nodes, CHUNK_BYTES).widths) == 8

    def step(x, state, pull):
        updates, state = tx.update(curvature * x - pull, state, x)
        return optax.apply_updates(x, updates), state

    step = over_devices(session, step)
    # The devices pull apart; their mean is what the node pulls.
    offsets = np.random.default_rng(9).normal(size=(TOTAL, SIZE)).astype(np.float32)
    pulls = problem.pull[:, session.node]
    x = jnp.asarray(problem.x0)
    x, state = stacked(x), stacked(tx.init(x))
    history, momenta = [], []
    for n in range(TOTAL):
        x, state = step(x, state, np.stack([pulls[n] + offsets[n], pulls[n] - offsets[n]]))
        both = np.asarray(x)
        np.testing.assert_array_equal(both[0], both[1], err_msg=f"devices after update {n}")
        history.append(both[0])
        momenta.append(training.floats(first(state.inner)))
    history = np.stack(history)
    momenta = {name: np.stack([m[name] for m in momenta]) for name in momenta[0]}
    trace = reference.daso(
        problem.x0,
        problem.gradient(),
        nodes=session.num_nodes,
        inner=rule,
        total=TOTAL,
        warmup=WARMUP,
        cooldown=COOLDOWN,
        sync_every=SYNC_EVERY,
        delay=DELAY,
        merge=merge,
        outer=training.OUTER[0],
        wire=wire,
        owners=owner,
        stopped=training.stopped(history, COOLDOWN),
    )
    training.assert_matches(history, momenta, trace, node=session.node)


def finalize_what_has_parted(session):
    """Devices that have parted, and an exchange in flight: no gradient of anybody is lost.

    Whole numbers and merge "corrected": in the end minus the sum over steps of their mean, exactly.
    """
    phases = jdaso.Phases(100, 0, 0, sync_every=4, delay=3, local_every=3)
    tx = jdaso.daso(
        optax.sgd(1.0), phases=phases, session=session, local_axis=AXIS, merge="corrected"
    )

    def step(x, state, gradient):
        updates, state = tx.update(gradient, state, x)
        return optax.apply_updates(x, updates), state

    step = over_devices(session, step)
    shape = (12, session.num_nodes, DEVICES, 3)
    gradients = np.random.default_rng(0).integers(-8, 8, size=shape).astype(np.float32)
    seen = 0
    for stop in range(1, len(gradients) + 1):
        x = jnp.zeros(3)
        x, state = stacked(x), stacked(tx.init(x))
        for n in range(stop):
            x, state = step(x, state, gradients[n, session.node])
        seen += int(state.drift[0]) > 0 and bool(state.ticket.any())
        final = np.asarray(jdaso.finalize(x, state, session))
        everything = -gradients[:stop].mean((1, 2)).sum(0)
        np.testing.assert_array_equal(final, np.stack([everything] * DEVICES), err_msg=str(stop))
    assert seen >= 2, "no stop had both"


def senders_go_round(session):
    """Exchange n is sent by device n: each device sends its own number here."""
    leaf = jnp.zeros(CHUNK_BYTES // 4)
    exchange = exchange_of([leaf], session, local_axis=AXIS, chunk_bytes=CHUNK_BYTES)
    late = late_of(exchange, merge_of("paper"), list, checks=False)

    def step(n):
        mine = (leaf + jax.lax.axis_index(AXIS),)
        about = {"step": n, "before": jnp.int32(0), "weight": None, "turn": n}
        ticket, held = late.start(late.empty(1), mine, header(step=n), **about)
        found, _ = late.wait(held, ticket, jnp.int32(1), n, Common((), False))
        return found.change[0][0]

    step = over_devices(session, step)
    for n in range(2 * DEVICES):
        sent = np.asarray(step(stacked(jnp.int32(n))))
        np.testing.assert_array_equal(sent, [n % DEVICES] * DEVICES)


def a_flip_on_one_device_is_found(session):
    """The error names the node: its devices hold what no other node does."""
    phases = jdaso.Phases(TOTAL, 6, 4, SYNC_EVERY, DELAY)
    tx = jdaso.daso(optax.sgd(0.1), phases=phases, session=session, local_axis=AXIS)

    def step(x, state, gradient):
        updates, state = tx.update(gradient, state, x)
        return optax.apply_updates(x, updates), state

    step, x = over_devices(session, step), jnp.ones(SIZE)
    x, state = stacked(x), stacked(tx.init(x))
    for n in range(5):
        if n == 3 and session.node == 1:
            words = np.array(x)
            words[1].view(np.uint32)[7] ^= 1 << 20
            x = jnp.asarray(words)
        try:
            with session.told():
                x, state = jax.block_until_ready(step(x, state, jnp.ones((DEVICES, SIZE))))
        except jdaso.NodeError as error:
            assert n == 3 and "same: node 1 in params." in str(error), (n, str(error))
            return
    raise AssertionError("it was not found")


with jdaso.Session(engine=ENGINE, timeout_seconds=100) as session:
    assert len(session.devices) == DEVICES
    if CASE == "local_every":
        finalize_what_has_parted(session)
    elif CASE == "drift":
        a_flip_on_one_device_is_found(session)
    elif CASE == "senders":
        senders_go_round(session)
    elif CASE == "pmap":
        match_the_reference(session, "paper")
    else:
        match_the_reference(session, CASE, *sys.argv[3:])
    print(f"node {session.node}: end\n", end="", flush=True)
