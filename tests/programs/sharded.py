"""Parameters that are divided over a node's four devices: ``python sharded.py LAYOUT``.

Trains with every merge and wire, divided and not, and compares the two. Gradients are computed
element by element, so that all differences come from exchanges. Prints ``node N: end`` where all
was as it should be.
"""

import sys

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import jdaso

LAYOUT = sys.argv[1]
PHASES = {"total_steps": 26, "warmup_steps": 3, "cooldown_steps": 5, "sync_every": 4, "delay": 2}
OUTER = jdaso.outer(optax.sgd(0.7, momentum=0.3))
ROWS = [  # optimizer, wire, merge, fragments
    ("adam", "float32", "corrected", 1),
    ("adam", "float32", "paper", 1),
    ("sgd", "float32", OUTER, 1),
    ("adam", "float32", "corrected", 2),
    ("sgd", "bfloat16", "corrected", 2),
    ("adam", "int8", OUTER, 1),
    ("sgd", "int4", "corrected", 1),
]
INNER = {"adam": optax.adam(0.05), "sgd": optax.sgd(0.05, momentum=0.9)}
SHAPES = {
    "a": ((64, 48), jnp.float32),
    "b": ((32, 16, 4), jnp.bfloat16),
    "c": ((96,), jnp.float32),
    "d": ((7,), jnp.float32),  # cannot be divided
    "e": ((16, 8), jnp.complex64),
    "n": ((), jnp.float32),
}
LAYOUTS = {
    "rows": ((("d", 4),), {"a": P("d"), "b": P("d"), "c": P("d"), "e": P("d")}),
    "columns": ((("d", 4),), {"a": P(None, "d"), "b": P(None, None, "d"), "c": P("d")}),
    "data_model": (
        (("data", 2), ("model", 2)),
        {"a": P("data", "model"), "b": P("model"), "c": P(("model", "data")), "e": P(None, "data")},
    ),
}


def mesh_of(session):
    kind, _, explicit = LAYOUT.partition(",")
    axes, specs = LAYOUTS[kind]
    each = AxisType.Explicit if explicit else AxisType.Auto
    names, sizes = zip(*axes, strict=True)
    mesh = jax.make_mesh(sizes, names, devices=session.devices, axis_types=(each,) * len(names))
    return mesh, specs


def numbers(seed):
    random = np.random.default_rng(seed)
    found = {}
    for name, (shape, dtype) in SHAPES.items():
        x = random.normal(size=shape)
        if dtype == jnp.complex64:
            x = x + 1j * random.normal(size=shape)
        found[name] = jnp.asarray(x).astype(dtype)
    return found


def train(session, inner, wire, merge, fragments, place):
    phases = jdaso.Phases(fragments=fragments, **PHASES)
    about = {"wire": wire, "merge": merge, "chunk_bytes": 4096}
    tx = jdaso.daso(INNER[inner], phases=phases, session=session, **about)
    params, aim = (
        {k: place(x, k) for k, x in numbers(seed).items()} for seed in (0, 1 + session.node)
    )
    if inner == "adam":  # whose complex numbers XLA rounds as the shape of the array wants it
        del params["e"], aim["e"]
    state = tx.init(params)

    @jax.jit
    def step(params, state, aim):
        grads = jax.tree.map(lambda p, a: p - a, params, aim)
        updates, state = tx.update(grads, state, params, value=1.0)
        return optax.apply_updates(params, updates), state

    seen = []
    for _ in range(PHASES["total_steps"] - 3):
        params, state = step(params, state, aim)
        seen.append(jax.tree.map(np.asarray, (params, state.inner)))
    ended = jdaso.finalize(params, state, session)
    for _ in range(3):
        params, state = step(params, state, aim)
        seen.append(jax.tree.map(np.asarray, (params, state.inner)))
    return params, ended, seen


with jdaso.Session(timeout_seconds=60) as session:
    mesh, specs = mesh_of(session)

    def divided(x, name):
        return jax.device_put(x, NamedSharding(mesh, specs.get(name, P())))

    for row in ROWS:
        params, ended, seen = train(session, *row, divided)
        for name, x in {**params, **{f"{k} at the end": v for k, v in ended.items()}}.items():
            wanted = NamedSharding(mesh, specs.get(name[0], P()))
            assert x.sharding.is_equivalent_to(wanted, x.ndim), (row, name, x.sharding)
        _, ended_whole, expected = train(session, *row, lambda x, name: x)
        exact = row[1] == "float32" and row[3] == 1
        for n, (mine, other) in enumerate(zip(seen, expected, strict=True)):
            for (path, x), y in zip(
                jax.tree_util.tree_leaves_with_path(mine), jax.tree.leaves(other), strict=True
            ):
                about = f"{row} update {n} {jax.tree_util.keystr(path)}"
                if exact:
                    np.testing.assert_array_equal(x, y, err_msg=about)
        diffs = [
            np.abs(np.asarray(x) - np.asarray(y)).max()
            for x, y in zip(jax.tree.leaves(ended), jax.tree.leaves(ended_whole))
        ]
        print(row, diffs, flush=True)
    print(f"node {session.node}: end", flush=True)
