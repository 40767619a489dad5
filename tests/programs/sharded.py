"""Parameters that are divided over a node's four devices: ``python sharded.py CASE [NIGHT]``.

CASE is a layout of `LAYOUTS`, with ``,explicit`` for a mesh with Explicit axes, ``,shard_map`` for
a step inside `jax.shard_map`, ``,jitted`` for an ``init`` inside `jax.jit`, ``,ranks`` for nodes of
two ranks that drive half of the devices each; or the name of a function below. ``moves`` takes a
folder in place of NIGHT. Every row trains divided and undivided parameters. Gradients are computed
element by element, so that the differences come from exchanges. Prints ``node N: end`` where all
was as it should be, and before that the bits of the last parameters.
"""

import re
import sys
import zlib
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "lib"))

import compiled_once
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import jdaso
from jdaso.checkpoint import Checkpoints

compiled_once.share()

LAYOUT, *MODES = sys.argv[1].split(",")
NIGHT = len(sys.argv) > 2
RANKS = 2 if "ranks" in MODES else 1
TOTAL, END = 26, 23  # finalize is called after update END, and the run goes on
PHASES = {"total_steps": TOTAL, "warmup_steps": 3, "cooldown_steps": 5, "sync_every": 4, "delay": 2}
OUTER = jdaso.outer(optax.sgd(0.7, momentum=0.3))
DAY = ("sgd", "int8", "corrected", 2) if "shard_map" in MODES else ("adam", "float32", OUTER, 1)
NIGHTLY = [  # inner optimizer, wire, merge, fragments
    ("adam", "float32", "corrected", 1),
    ("sgd", "float32", "paper", 1),
    ("sgd", "float32", "corrected", 2),
    ("sgd", "bfloat16", "corrected", 2),
    ("adam", "int8", OUTER, 1),
    ("sgd", "int4", "corrected", 1),
    DAY,
]
INNER = {"adam": optax.adam(0.05), "sgd": optax.sgd(0.05, momentum=0.9)}
FARTHEST = {"float32": 1e-5, "bfloat16": 0.02, "int8": 0.02, "int4": 0.4}
"""The largest difference at the end between a run with divided parameters and one without: shards
have blocks and fragments of their own. With linear gradients and SGD the mean is the same."""

SHAPES = {
    "a": ((64, 48), jnp.float32),
    "b": ((32, 16, 4), jnp.bfloat16),
    "c": ((96,), jnp.float32),
    "d": ((7,), jnp.float32),  # cannot be divided
    "e": ((16, 8), jnp.complex64),
    "n": ((), jnp.float32),
}
LAYOUTS = {
    "rows": ({"d": 4}, {"a": P("d"), "b": P("d"), "c": P("d"), "e": P("d")}),
    "columns": ({"d": 4}, {"a": P(None, "d"), "b": P(None, None, "d"), "c": P("d")}),
    "data_model": (
        {"data": 2, "model": 2},
        {"a": P("data", "model"), "b": P("model"), "c": P(("model", "data")), "e": P(None, "data")},
    ),
    "copies": ({"data": 2, "model": 2}, {"a": P(None, "model"), "b": P("model"), "c": P("model")}),
}


def mesh_of(session, layout):
    sizes, specs = LAYOUTS[layout]
    kind = AxisType.Explicit if "explicit" in MODES else AxisType.Auto
    about = {"devices": session.devices, "axis_types": (kind,) * len(sizes)}
    return jax.make_mesh(tuple(sizes.values()), tuple(sizes), **about), specs


def numbers(seed, inner):
    random = np.random.default_rng(seed)
    found = {}
    for name, (shape, dtype) in SHAPES.items():
        x = random.normal(size=shape)
        if dtype == jnp.complex64:
            x = x + 1j * random.normal(size=shape)
        found[name] = jnp.asarray(x).astype(dtype)
    if inner == "adam":  # XLA rounds its complex arithmetic as the shape of an array wants it
        del found["e"]
    return found


def step_of(tx):
    def step(params, state, aim):
        grads = jax.tree.map(lambda p, a: p - a, params, aim)
        updates, state = tx.update(grads, state, params, value=1.0)
        return optax.apply_updates(params, updates), state

    return step


def train(session, row, mesh=None, specs=None):
    """Returns the parameters, those that `finalize` gives, and all after each update."""
    inner, wire, merge, fragments = row
    phases = jdaso.Phases(fragments=fragments, **PHASES)
    about = {"wire": wire, "merge": merge, "chunk_bytes": 4096, "session": session}
    params, aim = (numbers(seed, inner) for seed in (0, 1 + session.node))
    of_leaf = {name: (specs or {}).get(name, P()) for name in params}
    if mesh is not None:
        divided = lambda x, spec: jax.device_put(x, NamedSharding(mesh, spec))  # noqa: E731
        params, aim = (jax.tree.map(divided, x, of_leaf) for x in (params, aim))
    if mesh is not None and "shard_map" in MODES:
        copies = "data" if LAYOUT == "copies" else None
        about |= {"sharded": of_leaf, "local_axis": copies}
        tx = jdaso.daso(INNER[inner], phases=phases, **about)
        init, step = mapped(tx, step_of(tx), mesh, of_leaf, INNER[inner], params)
        state = init(params)
    elif mesh is not None and "jitted" in MODES:
        jax.set_mesh(mesh)
        tx = jdaso.daso(INNER[inner], phases=phases, sharded=of_leaf, **about)
        state, step = jax.jit(tx.init)(params), jax.jit(step_of(tx))
    else:
        tx = jdaso.daso(INNER[inner], phases=phases, **about)
        state, step = tx.init(params), jax.jit(step_of(tx))
    seen = []
    ended = None
    for n in range(TOTAL):
        params, state = step(params, state, aim)
        seen.append(jax.tree.map(parts_of, (params, state.inner)))
        if n + 1 == END:
            ended = jdaso.finalize(params, state, session)
    return params, ended, seen


class Parts:
    """The parts of an array that this rank has."""

    def __init__(self, x):
        self.of_place = {str(shard.index): (shard.index, np.asarray(shard.data)) for shard in x}

    def of(self, x):
        """The same parts of another array that this rank has all of."""
        (whole,) = (data for _, data in x.of_place.values())
        return [(mine, whole[index]) for index, mine in self.of_place.values()]


def parts_of(x):
    return Parts(jnp.asarray(x).addressable_shards)


def digest(tree):
    """The bits of a leaf that each rank has all of."""
    (shard, *_) = tree["d"].addressable_shards
    return f"{zlib.crc32(np.asarray(shard.data).tobytes()):08x}"


def mapped(tx, step, mesh, specs, inner, params):
    """`tx.init` and a step inside `jax.shard_map`."""
    plain = jax.eval_shape(inner.init, params)
    of_inner = optax.tree_utils.tree_map_params(
        inner, lambda _, spec: spec, plain, specs, transform_non_params=lambda _: P()
    )
    fields = jdaso.DasoState._fields  # the state's structure does not depend on shards
    of_state = jdaso.DasoState(**dict.fromkeys(fields, P()))._replace(inner=of_inner)

    def inside(function, given, gives):
        about = {"mesh": mesh, "in_specs": given, "out_specs": gives, "check_vma": False}
        return jax.jit(jax.shard_map(function, **about))

    return (
        inside(tx.init, (specs,), of_state),
        inside(step, (specs, of_state, specs), (specs, of_state)),
    )


def compare(row, mine, others):
    """Compares what two runs have seen after each update; the last is compared for all wires."""
    exact = row[1] == "float32" and row[3] == 1
    for n, pair in enumerate(zip(mine, others, strict=True)):
        leaves = (jax.tree_util.tree_leaves_with_path(x) for x in pair)
        for (path, x), (_, y) in zip(*leaves, strict=True):
            about = f"{row}, update {n}, {jax.tree_util.keystr(path)}"
            for part, other in x.of(y):
                if exact:
                    np.testing.assert_array_equal(part, other, err_msg=about)
                elif n == TOTAL - 1 and path[0].idx == 0:
                    far = np.abs(part.astype(np.complex128) - other.astype(np.complex128)).max()
                    scale = 4 if part.dtype == jnp.bfloat16 else 1
                    assert far <= scale * FARTHEST[row[1]], (about, far)


def trains(session):
    mesh, specs = mesh_of(session, LAYOUT)
    for row in NIGHTLY if NIGHT else [DAY]:
        params, ended, seen = train(session, row, mesh, specs)
        for tree in (params, ended):
            for name, x in tree.items():
                wanted = NamedSharding(mesh, specs.get(name, P()))
                assert x.sharding.is_equivalent_to(wanted, x.ndim), (row, name, x.sharding)
        compare(row, seen, train(session, row)[2])
        print(f"node {session.node}: bits {digest(params)} of {row[1]}\n", end="", flush=True)


def counts(session):
    """The number of fragments follows from whole leaves, also inside `shard_map`."""
    specs = {"w": P(None, "d"), "v": P("d")}
    mesh = jax.make_mesh((4,), ("d",), devices=session.devices, axis_types=(AxisType.Auto,))
    phases, inner, ends = jdaso.Phases(**PHASES), INNER["sgd"], []
    for divided in (False, True):
        params = {"w": jnp.ones((16, 4096)), "v": jnp.ones(4096)}  # 0.28 MB, 0.07 a device
        about = {"phases": phases, "session": session, "sharded": specs if divided else None}
        tx = jdaso.daso(inner, **about)
        init, step = tx.init, jax.jit(step_of(tx))
        if divided:
            place = lambda x, spec: jax.device_put(x, NamedSharding(mesh, spec))  # noqa: E731
            params = jax.tree.map(place, params, specs)
            init, step = mapped(tx, step, mesh, specs, inner, params)
        aim = jax.tree.map(lambda x: x * (2 + session.node), params)
        state = init(params)
        while not state.ticket.any():
            params, state = step(params, state, aim)
        assert state.ticket.shape == (2,), state.ticket
        ends.append(jax.tree.map(np.asarray, jdaso.finalize(params, state, session)))
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-6), *ends)


def orders(session):
    """Two optimizers in one step, whose programs differ in a constant on each node.

    XLA then orders what is independent differently, and runs it in that order.
    """
    mesh = jax.make_mesh((4,), ("d",), devices=session.devices, axis_types=(AxisType.Auto,))
    about = {"phases": jdaso.Phases(12, 4, 4, sync_every=2, delay=1), "session": session}
    txs = [jdaso.daso(optax.adam(1e-2), name=name, **about) for name in ("first", "second")]
    params = {"w": jnp.ones((64, 33)), "b": jnp.ones(8)}
    both = [jax.device_put(params, NamedSharding(mesh, P("d"))) for _ in txs]
    states = [tx.init(params) for tx, params in zip(txs, both, strict=True)]

    @jax.jit
    def step(both, states, n):
        found = []
        for k, (tx, params, state) in enumerate(zip(txs, both, states, strict=True)):
            key = jax.random.fold_in(jax.random.key(session.node), n + 1000 * k)
            noisy = lambda x, y, key=key: x - y + 0.1 * jax.random.normal(key, x.shape)  # noqa: E731
            grads = jax.tree.map(noisy, params, both[1 - k])
            updates, state = tx.update(grads, state, params, value=1.0)
            found.append((optax.apply_updates(params, updates), state))
        return tuple(zip(*found, strict=True))

    for n in range(12):
        both, states = map(list, step(both, states, n))
    jax.block_until_ready(both)


def fails(session):
    """Numbers of one device of node 1 that are not finite: all devices of both nodes raise."""
    phases = jdaso.Phases(20, warmup_steps=2, cooldown_steps=2, sync_every=2, delay=1)
    for spec in (P(), P("local")):
        tx = jdaso.daso(optax.sgd(0.1), phases=phases, session=session)
        params = {"w": jax.device_put(jnp.ones((8, 8)), NamedSharding(session.mesh, spec))}
        state, step = tx.init(params), jax.jit(step_of(tx))
        seen = ""
        for n in range(10):
            rows = np.zeros((8, 1), np.float32)
            rows[0] = np.nan if n == 3 and session.node == 1 else 0
            aim = {"w": params["w"] * rows}
            try:
                params, state = step(params, state, aim)
                jax.block_until_ready(params)
            except jax.errors.JaxRuntimeError as error:
                seen = str(error)
                break
        assert n > 3 and "not finite" in seen and "node 1, leaf ['w']" in seen, (spec, n, seen)
    if RANKS > 1:
        ranks_differ(session)


def ranks_differ(session):
    """Means of leaves that ranks have for themselves; meshes in which node 1 has another order."""
    devices, rank = session.devices, session.topology.rank
    whole = jax.device_put(jnp.arange(3), NamedSharding(session.mesh, P()))
    found = jdaso.mean({"of_rank": float(rank), "of_node": whole}, session)
    assert found["of_rank"] == np.float32(1.5) and found["of_node"] is not None, found
    mesh = jax.make_mesh((4,), ("d",), devices=devices[::-1] if session.node else devices)
    placed = NamedSharding(mesh, P("d"))
    params = {"a": jax.make_array_from_callback((8,), placed, lambda at: np.arange(8.0)[at])}
    tx = jdaso.daso(optax.sgd(0.1), phases=jdaso.Phases(**PHASES), session=session)
    mixed = {"a": np.arange(3) if session.node else whole}
    order, alone = "on node 1 (rank 2), and in shards", "in shards that begin at"
    for call, words in (
        (lambda: jdaso.broadcast(params, session), order),
        (lambda: jdaso.mean(params, session), order),
        (lambda: tx.init(params), order),
        (lambda: jdaso.broadcast(mixed, session), alone),
    ):
        try:
            call()
        except jdaso.NodeError as error:
            assert "Leaf ['a'] lies" in str(error) and words in str(error), error
        else:
            raise AssertionError("no error")


def refuses(session):
    """Divisions in which the nodes differ, and specs that do not fit: errors on both nodes."""
    mesh, specs = mesh_of(session, "rows")
    other = NamedSharding(mesh, (P(None, "d"), P("d"))[session.node])
    whole = NamedSharding(mesh, P())
    params = {"a": jax.device_put(numbers(0, "sgd")["a"], other)}

    def state_of(params):
        return jax.device_put(params["a"], (whole, NamedSharding(mesh, P("d")))[session.node])

    own = optax.GradientTransformation(state_of, lambda g, s, p: (g, s))
    alike = {"a": jax.device_put(params["a"], whole)}
    phases = jdaso.Phases(**PHASES)
    settings = {"phases": phases, "session": session}
    wrong = {"a": P("d" if session.node else "z")}
    refused = [
        (jdaso.NodeError, "the division of leaf ['a']", lambda: jdaso.mean(params, session)),
        (
            jdaso.NodeError,
            "the division of leaf ['a']",
            lambda: jdaso.finalize(params, optax.EmptyState(), session),
        ),
        (
            jdaso.NodeError,
            "the division of leaf ['a']",
            lambda: jdaso.daso(optax.sgd(0.1), **settings).init(params),
        ),
        (
            jdaso.NodeError,
            "of the inner state",
            lambda: jdaso.synchronous(own, session=session).init(alike),
        ),
        (
            jdaso.NodeError,
            "over axis 'z', which is not bound here; the axes are 'd'",
            lambda: jdaso.daso(optax.sgd(0.1), sharded=wrong, **settings).init(alike),
        ),
        (
            ValueError,
            "cannot be divided into 4 equal parts",
            lambda: jdaso.daso(optax.sgd(0.1), sharded=P("d"), **settings).init(jnp.ones(7)),
        ),
    ]
    with jax.set_mesh(mesh):
        for kind, text, call in refused:
            try:
                call()
            except kind as error:
                assert text in str(error), (text, error)
            else:
                raise AssertionError(f"no error with {text!r}")


def drifts(session):
    """A bit that flips in one device's copy of a shard, inside `jax.shard_map`."""
    mesh, specs = mesh_of(session, "copies")
    specs = {name: specs.get(name, P()) for name in ("a", "d")}
    inner, about = optax.sgd(0.1), {"session": session, "sharded": specs, "local_axis": "data"}
    tx = jdaso.daso(inner, phases=jdaso.Phases(20, warmup_steps=20, cooldown_steps=0), **about)
    params = {k: x for k, x in numbers(0, "adam").items() if k in specs}
    params = {k: jax.device_put(x, NamedSharding(mesh, specs[k])) for k, x in params.items()}
    init, step = mapped(tx, step_of(tx), mesh, specs, inner, params)
    state = init(params)
    for n in range(6):
        if n == 4 and session.node == 1 and session.topology.place == 0:
            shards = [(np.array(x.data), x.device) for x in params["a"].addressable_shards]
            shards[-1][0].view(np.uint32)[0, 0] ^= 1
            put = [jax.device_put(*shard) for shard in shards]
            sharding = params["a"].sharding
            params["a"] = jax.make_array_from_single_device_arrays((64, 48), sharding, put)
        try:
            params, state = step(params, state, params)
            jax.block_until_ready(params)
        except jax.errors.JaxRuntimeError as error:
            assert n == 4 and "params['a']" in str(error), (n, error)
            return
    raise AssertionError("no error")


def differ(session):
    """Gradients of a parameter that all devices hold, and that differ between these."""
    mesh, _ = mesh_of(session, "rows")
    specs = {"a": P("d"), "d": P()}
    inner, phases = optax.sgd(0.1), jdaso.Phases(20, warmup_steps=4, cooldown_steps=2)
    tx = jdaso.daso(inner, phases=phases, session=session, sharded=specs)
    params = {
        k: jax.device_put(numbers(0, "adam")[k], NamedSharding(mesh, specs[k])) for k in specs
    }

    def step(params, state, aim):
        grads = {"a": aim["a"], "d": aim["d"] + jax.lax.axis_index("d")}
        updates, state = tx.update(grads, state, params)
        return optax.apply_updates(params, updates), state

    init, step = mapped(tx, step, mesh, specs, inner, params)
    try:
        jax.block_until_ready(step(params, init(params), params))
    except jax.errors.JaxRuntimeError as error:
        assert "different copies of leaf ['d']" in str(error), error
    else:
        raise AssertionError("no error")


def libraries(session):
    """Flax nnx and Equinox as they divide models themselves; the launch sees no gathering."""
    import equinox as eqx
    from flax import nnx

    phases = jdaso.Phases(fragments=2, **PHASES)
    split = NamedSharding(session.mesh, P("local", None))
    x = jax.random.normal(jax.random.key(session.node), (8, 16))

    class Model(nnx.Module):
        def __init__(self, rngs):
            init = nnx.with_partitioning(nnx.initializers.lecun_normal(), ("local", None))
            self.up = nnx.Linear(16, 64, use_bias=False, kernel_init=init, rngs=rngs)
            self.down = nnx.Linear(64, 16, kernel_init=init, rngs=rngs)

        def __call__(self, x):
            return self.down(jnp.tanh(self.up(x)))

    @nnx.jit
    def create():
        model = Model(nnx.Rngs(0))
        state = nnx.state(model)
        nnx.update(model, jax.lax.with_sharding_constraint(state, nnx.get_partition_spec(state)))
        return model

    with jax.set_mesh(session.mesh):
        model = create()
        tx = jdaso.daso(optax.adam(1e-2), phases=phases, session=session)
        optimizer = nnx.Optimizer(model, tx, wrt=nnx.Param)

        @nnx.jit
        def step(model, optimizer, x):
            loss, grads = nnx.value_and_grad(lambda m: jnp.mean((m(x) - 1) ** 2))(model)
            optimizer.update(model, grads, value=loss)
            return loss

        losses = [step(model, optimizer, x) for _ in range(TOTAL)]
    assert losses[-1] < 0.5 * losses[0], losses
    assert model.up.kernel[...].sharding.is_equivalent_to(split, 2)

    mlp = eqx.nn.MLP(16, 16, 64, 2, key=jax.random.key(0))
    place = lambda x: jax.device_put(x, split) if eqx.is_array(x) and x.ndim == 2 else x  # noqa: E731
    mlp = jax.tree.map(place, mlp)
    tx = jdaso.daso(optax.adam(1e-2), phases=phases, session=session)
    state = tx.init(eqx.filter(mlp, eqx.is_inexact_array))

    @eqx.filter_jit
    def update(mlp, state, x):
        loss_of = lambda m: jnp.mean((jax.vmap(m)(x) - 1) ** 2)  # noqa: E731
        loss, grads = eqx.filter_value_and_grad(loss_of)(mlp)
        params = eqx.filter(mlp, eqx.is_inexact_array)
        updates, state = tx.update(grads, state, params, value=loss)
        return eqx.apply_updates(mlp, updates), state, loss

    losses = []
    for _ in range(TOTAL):
        mlp, state, loss = update(mlp, state, x)
        losses.append(loss)
    assert losses[-1] < 0.5 * losses[0], losses
    assert mlp.layers[1].weight.sharding.is_equivalent_to(split, 2)


def partly(session):
    """A `shard_map` that leaves an axis to the compiler: fine in a loss, refused in a step."""
    mesh = mesh_of(session, "data_model")[0]
    specs = {"up": P(None, "model"), "down": P("model", None)}
    shapes = {"up": (16, 32), "down": (32, 16)}
    random, own = np.random.default_rng(0), np.random.default_rng(1 + session.node)
    put = lambda x, spec: jax.device_put(x.astype(np.float32), NamedSharding(mesh, spec))  # noqa: E731
    params = {k: put(random.normal(size=x) / 8, specs[k]) for k, x in shapes.items()}
    x = put(own.normal(size=(8, 16)), P("data"))

    def mapped_layers(up, down, x):
        return jax.lax.psum(jnp.tanh(x @ up) @ down, "model")

    about = {"in_specs": (*specs.values(), P()), "out_specs": P(), "axis_names": {"model"}}
    by_hand = jax.shard_map(mapped_layers, mesh=mesh, **about)
    ends = {}
    for name, layers in (("partly", by_hand), ("plain", lambda u, d, x: jnp.tanh(x @ u) @ d)):
        phases = jdaso.Phases(12, warmup_steps=2, cooldown_steps=3, sync_every=2, delay=1)
        tx = jdaso.daso(optax.sgd(0.1), phases=phases, session=session)

        @jax.jit
        def step(params, state, x, tx=tx, layers=layers):
            loss = lambda p: jnp.mean((layers(p["up"], p["down"], x) - 1) ** 2)  # noqa: E731
            value, grads = jax.value_and_grad(loss)(params)
            updates, state = tx.update(grads, state, params, value=value)
            return optax.apply_updates(params, updates), state

        found, state = params, tx.init(params)
        for _ in range(12):
            found, state = step(found, state, x)
        ends[name] = {k: parts_of(y) for k, y in jdaso.finalize(found, state, session).items()}
    for name, of_leaf in ends["plain"].items():
        for place, (_, data) in of_leaf.of_place.items():
            mine = ends["partly"][name].of_place[place][1]
            np.testing.assert_allclose(mine, data, rtol=1e-4, atol=1e-6, err_msg=name)
            moved = np.abs(data - parts_of(params[name]).of_place[place][1]).max()
            assert moved > 0.01, (name, moved)
    step = lambda p, x: tx.update({"w": p + x}, tx.init({"w": p}), {"w": p})[0]["w"]  # noqa: E731
    part = jax.shard_map(step, mesh=mesh, in_specs=(P(), P()), out_specs=P(), axis_names={"data"})
    try:
        jax.jit(part)(params["up"], params["up"])
    except ValueError as error:
        assert "axis_names leave out axis 'model' of size 2" in str(error), error
    else:
        raise AssertionError("no error")


def compiles(session):
    """Compiles no gather of a divided leaf; adds at most half a shard to a bare step."""
    split = NamedSharding(session.mesh, P("local"))
    shape = jnp.zeros((512, 512))
    params = {f"w{k}": jax.device_put(shape, split) for k in range(6)}
    x = jax.device_put(jnp.ones((8, 512)), split)
    share = sum(w.addressable_shards[0].data.nbytes for w in params.values())
    phases = jdaso.Phases(fragments=2, **PHASES)

    def about(tx):
        def loss(params, h):
            for w in params.values():
                h = jnp.tanh(h @ w)
            return jnp.mean(h**2)

        def step(params, state, x):
            updates, state = tx.update(jax.grad(loss)(params, x), state, params)
            return optax.apply_updates(params, updates), state

        made = jax.jit(step, donate_argnums=(0, 1)).lower(params, tx.init(params), x).compile()
        gathers = re.findall(r"= f32\[512,512\]\S* all-gather(?:-start)?\(", made.as_text())
        return len(gathers), made.memory_analysis().temp_size_in_bytes

    bare = about(optax.adam(1e-3))
    for wire, merge in (("float32", "corrected"), ("int8", OUTER)):
        settings = {"phases": phases, "session": session, "wire": wire, "merge": merge}
        gathers, nbytes = about(jdaso.daso(optax.adam(1e-3), **settings))
        assert gathers == bare[0] == 6, (wire, gathers, bare)
        # Of 1.5 MB; the rest are the words of headers, phases and tickets.
        assert nbytes - bare[1] <= 0.5 * share + 2**15, (wire, (nbytes - bare[1]) / share)


def moves():
    """A run saved with an exchange in flight goes on with its parameters divided otherwise."""
    row = ("sgd", "float32", OUTER, 1) if RANKS > 1 else ("sgd", "int8", OUTER, 1)
    layouts = ("copies",) if RANKS > 1 else ("rows", "data_model", None)
    ends = {}
    for begin, layout in ((0, "rows"), *((9, layout) for layout in layouts)):
        with jdaso.Session(timeout_seconds=60, ranks_per_node=RANKS) as session:
            params = run_on(session, row, begin, layout)
            if RANKS > 1:
                everywhere = NamedSharding(session.mesh, P())
                params = jax.jit(lambda x: x, out_shardings=everywhere)(params)
                params = jax.tree.map(lambda x: x.addressable_shards[0].data, params)
            ends[begin, layout] = jax.tree.map(np.asarray, params)
    for layout in layouts:
        for name, x in ends[0, "rows"].items():
            about = f"saved by rows, restored by {layout}: {name}"
            far = 0 if layout == "rows" or RANKS > 1 else FARTHEST["int8"]
            np.testing.assert_allclose(ends[9, layout][name], x, rtol=0, atol=far, err_msg=about)


def made(session, row, layout):
    """Returns parameters and state before the first update, the step, and the aim."""
    inner, wire, merge, fragments = row
    phases = jdaso.Phases(fragments=fragments, **PHASES)
    tx = jdaso.daso(INNER[inner], phases=phases, wire=wire, merge=merge, session=session)
    params, aim = (numbers(seed, inner) for seed in (0, 1 + session.node))
    if layout is not None:
        mesh, specs = mesh_of(session, layout)
        placed = {name: NamedSharding(mesh, specs.get(name, P())) for name in params}
        params, aim = (jax.tree.map(jax.device_put, x, placed) for x in (params, aim))
    return params, tx.init(params), jax.jit(step_of(tx)), aim


def run_on(session, row, begin, layout):
    """Goes on from update `begin`; saves after update 9 if an exchange is in flight there."""
    params, state, step, aim = made(session, row, layout)
    checkpoints = Checkpoints(sys.argv[2], session)
    if begin:
        (params, state), found = checkpoints.restore((params, state))
        assert found == begin
    for n in range(begin, TOTAL):
        params, state = step(params, state, aim)
        if n == 8 and not begin:
            assert int(state.ticket[0]) > 0
            checkpoints.save(n + 1, (params, state))
    return params


SAVED = {
    "exact": ("sgd", "float32", OUTER, 1),
    "paper": ("sgd", "float32", "paper", 1),
    "narrow": ("sgd", "int8", OUTER, 1),
    "pieces": ("sgd", "float32", "corrected", 2),
    "pieces_narrow": ("sgd", "int4", OUTER, 2),
}


def saves(session):
    """Saves the rows of `SAVED` after update 9, with an exchange in flight."""
    for name, row in SAVED.items():
        params, state, step, aim = made(session, row, sys.argv[3])
        with_folder = Checkpoints(f"{sys.argv[2]}/{name}", session)
        for _ in range(9):
            params, state = step(params, state, aim)
        assert int(state.ticket[0]) > 0
        with_folder.save(9, (params, state))
        with_folder.wait()


def restores(session):
    """A state that another launch has saved is restored, and the run goes on as it would have.

    The updates before and after are made here again, on this layout: the same to the last bit, if
    the layout is the one that saved, or if the exchange has no blocks and its fragments no cuts.
    """
    layout, same = sys.argv[3], sys.argv[4] == "same"
    for name, row in SAVED.items():
        params, state, step, aim = made(session, row, layout)
        like = params, state
        for n in range(TOTAL):
            if n == 9:
                then, then_state = jax.tree.map(jnp.copy, (params, state))
            params, state = step(params, state, aim)
        # After the other run's end: a session keeps the late numbers of one run by optimizer.
        jax.block_until_ready((params, state))
        (found, found_state), at = Checkpoints(f"{sys.argv[2]}/{name}", session).restore(like)
        assert at == 9 and found_state.ticket.tolist() == then_state.ticket.tolist()
        far = 0 if same or row[1] == "float32" and row[3] == 1 else FARTHEST[row[1]]
        if not far:
            equal((found, found_state.inner), (then, then_state.inner), about=f"{name} as restored")
        for _ in range(9, TOTAL):
            found, found_state = step(found, found_state, aim)
        equal(found, params, far, f"{name} at the end")


def equal(one, two, far=0, about=""):
    pairs = zip(jax.tree.leaves(one), jax.tree.leaves(two), strict=True)
    for x, y in pairs:
        mine, others = (parts_of(a).of_place for a in (x, y))
        assert mine.keys() == others.keys()
        for place, (_, data) in mine.items():
            other = others[place][1]
            if data.dtype == jnp.bfloat16:
                data, other, near = *(x.astype(np.float32) for x in (data, other)), 4 * far
            else:
                near = far
            np.testing.assert_allclose(data, other, rtol=0, atol=near, err_msg=about)


ALL = (counts, orders, fails, compiles, partly, drifts, differ, refuses, libraries, saves, restores)
CASES = {case.__name__: case for case in ALL}

if LAYOUT == "moves":
    moves()
    print("rank: end", flush=True)
else:
    with jdaso.Session(timeout_seconds=60, ranks_per_node=RANKS) as session:
        CASES.get(LAYOUT, trains)(session)
        print(f"node {session.node}: end", flush=True)
