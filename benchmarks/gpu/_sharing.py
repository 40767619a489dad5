"""Part `sharing`: two ranks on one GPU, each engine and wire; do they get the right numbers?

Gradients are constant and differ between the ranks. The merge "corrected" keeps the mean over nodes
of the parameters whatever the delay, so after T steps of SGD and `finalize` every node holds
``x - rate * T * mean(gradient)``: `finalize` adds the remaining error feedback of the wire.
"""

from importlib.util import find_spec

import jax
import jax.numpy as jnp
import numpy as np
import optax

import jdaso
from benchmarks.gpu import _part

ENGINES = ("mpi4py", "mpi4jax") if find_spec("mpi4jax") else ("mpi4py",)
WIRES = ("float32", "bfloat16", "int8", "int4")
QUICK_WIRES = ("float32", "int4")
SIZE, QUICK_SIZE = 10_000_000, 10_000
STEPS, RATE = 13, 0.125
TOLERANCE = 1e-4
"""Bound for numbers about 1: float32 rounding of 13 steps, merges and means is below 1e-5."""


def train(session, wire, size):
    """Parameters of this node after `finalize`, and what they should be."""
    nodes = session.num_nodes
    phases = jdaso.Phases(total_steps=10**6, sync_every=4, delay=2)
    tx = jdaso.daso(optax.sgd(RATE), phases=phases, session=session, wire=wire, merge="corrected")
    params = {"w": jnp.linspace(0.5, 1.5, size), "b": jnp.ones(3)}
    grads = jax.tree.map(lambda x: jnp.full(x.shape, 0.1 * (1 + session.node)), params)

    @jax.jit
    def step(params, state):
        updates, state = tx.update(grads, state, params)
        return optax.apply_updates(params, updates), state

    first, state = jax.tree.map(np.array, params), tx.init(params)
    for _ in range(STEPS):
        params, state = step(params, state)
    params = jdaso.finalize(params, state, session)
    moved = RATE * STEPS * 0.1 * (1 + nodes) / 2
    return jax.tree.map(np.array, params), jax.tree.map(lambda x: x - moved, first)


def check(engine, wire, size, comm, options):
    with jdaso.Session(engine=engine) as session:
        device = _part.require(options)
        mean = jdaso.mean(jnp.full(5, 1.0 + session.node), session)
        got, expected = train(session, wire, size)
        off = max(float(np.abs(got[k] - expected[k]).max()) for k in got)
        equal = len(set(comm.allgather(b"".join(got[k].tobytes() for k in sorted(got))))) == 1
        kinds = comm.allgather(f"{device.device_kind} {device.id}")
        right = np.array_equal(mean, np.full(5, (1 + session.num_nodes) / 2, np.float32))
    return {
        "engine": engine,
        "wire": wire,
        "devices": ", ".join(kinds),
        "mean right": "yes" if right else "no",
        "off by": off,
        "nodes equal": "yes" if equal else "no",
        "right": "yes" if right and equal and off <= TOLERANCE else "no",
    }


def main():
    options = _part.options()
    _part.share_gpus()
    from mpi4py import MPI

    comm = MPI.COMM_WORLD
    rows = _part.Rows(comm.Get_rank())
    size = options.pick(SIZE, SIZE, QUICK_SIZE)
    for engine in ENGINES:
        for wire in options.pick(WIRES, WIRES, QUICK_WIRES):
            rows.add(**check(engine, wire, size, comm, options))


if __name__ == "__main__":
    main()
