"""Parameters as `jax.pmap` keeps them: ``python stacked.py RANKS [copies]``, RANKS of a node.

Each device has a shard of `w` and a copy of `b`, or copies of both. The same numbers are trained
under plain `jit`; after each update, and after `finalize` with an exchange in flight, both have the
same bits. Prints ``end``.
"""

import sys

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import PartitionSpec as P

import jdaso

RANKS, COPIES = int(sys.argv[1]), "copies" in sys.argv
PHASES = jdaso.Phases(20, warmup_steps=3, cooldown_steps=3, sync_every=4, delay=2)
STEPS = 9  # an exchange is in flight


def step_of(tx):
    def step(params, state, aim):
        grads = jax.tree.map(lambda p, a: p - a, params, aim)
        updates, state = tx.update(grads, state, params)
        return optax.apply_updates(params, updates), state

    return step


with jdaso.Session(timeout_seconds=60, ranks_per_node=RANKS) as session:
    about = {"local_axis": "d"} if COPIES else {"sharded": {"w": P("d"), "b": P()}}
    devices, own = len(session.devices), jax.local_device_count()
    first = own * session.topology.place  # the number of this rank's first device

    def numbers(seed):
        random = np.random.default_rng(seed)
        shapes = {"w": (8 if COPIES else 8 * devices, 3), "b": (5,)}
        return {name: random.normal(size=x).astype(np.float32) for name, x in shapes.items()}

    def stacked(tree):
        def of(name, x):
            if COPIES or name == "b":
                return np.stack([x] * own)
            return x.reshape(devices, -1, 3)[first : first + own]

        return {name: of(name, x) for name, x in tree.items()}

    whole, whole_aim = numbers(0), numbers(1 + session.node)
    params, aim = stacked(whole), stacked(whole_aim)
    tx = jdaso.daso(optax.adam(0.05), phases=PHASES, session=session, **about)
    state = jax.pmap(tx.init, axis_name="d")(params)
    step = jax.pmap(step_of(tx), axis_name="d")
    replicated = jax.NamedSharding(session.mesh, P())
    place = lambda x: jax.make_array_from_callback(x.shape, replicated, lambda at: x[at])  # noqa: E731
    whole, whole_aim = (jax.tree.map(place, x) for x in (whole, whole_aim))
    plain = jdaso.daso(optax.adam(0.05), phases=PHASES, session=session, name="plain")
    plain_state, plain_step = plain.init(whole), jax.jit(step_of(plain))

    def compare(found, wanted, when):
        local = {name: np.asarray(x.addressable_shards[0].data) for name, x in wanted.items()}
        for name, x in stacked(local).items():
            assert jnp.shape(found[name]) == x.shape, (when, name, jnp.shape(found[name]))
            np.testing.assert_array_equal(np.asarray(found[name]), x, err_msg=f"{when} {name}")

    for n in range(STEPS):
        params, state = step(params, state, aim)
        whole, plain_state = plain_step(whole, plain_state, whole_aim)
        compare(params, whole, f"update {n}")
    assert int(np.max(np.asarray(plain_state.ticket))) > 0
    ended = jdaso.finalize(params, state, session)
    compare(ended, jdaso.finalize(whole, plain_state, session), "finalize")
    print(f"rank {session.topology.rank}: end", flush=True)
