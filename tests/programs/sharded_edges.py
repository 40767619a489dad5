"""Divided parameters in less usual ways, on two nodes of four devices: ``python sharded_edges.py``.

Prints ``node N: end`` where all was as it should be.
"""

import sys
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

compiled_once.share()
PHASES = {"total_steps": 16, "warmup_steps": 3, "cooldown_steps": 3, "sync_every": 4, "delay": 2}


def mesh_of(session, **sizes):
    kinds = (AxisType.Auto,) * len(sizes)
    about = {"devices": session.devices, "axis_types": kinds}
    return jax.make_mesh(tuple(sizes.values()), tuple(sizes), **about)


def numbers(shapes, seed):
    random = np.random.default_rng(seed)
    some = {name: shape for name, shape in shapes.items() if shape is not None}
    found = {name: random.normal(size=shape).astype(np.float32) for name, shape in some.items()}
    return dict.fromkeys(shapes) | found


def place(tree, mesh, specs):
    put = lambda name, x: None if x is None else jax.device_put(x, NamedSharding(mesh, specs[name]))  # noqa: E731
    return {name: put(name, x) for name, x in tree.items()}


def step_of(tx):
    def step(params, state, aim):
        grads = jax.tree.map(lambda p, a: p - a, params, aim)
        updates, state = tx.update(grads, state, params)
        return optax.apply_updates(params, updates), state

    return step


def inside(mesh, specs, tx, step):
    """`tx.init` and a step inside `jax.shard_map`, of SGD, whose state has no arrays."""

    def mapped(function, given, gives):
        about = {"mesh": mesh, "in_specs": given, "out_specs": gives, "check_vma": False}
        return jax.jit(jax.shard_map(function, **about))

    return mapped(tx.init, (specs,), P()), mapped(step, (specs, P(), specs), (specs, P()))


def undivided(session, shapes, **about):
    """The parameters after each update where every device has all of them."""
    tx = jdaso.daso(optax.sgd(0.1), phases=jdaso.Phases(**PHASES, **about), session=session)
    params, aim = numbers(shapes, 0), numbers(shapes, 1 + session.node)
    state, step, seen = tx.init(params), jax.jit(step_of(tx)), []
    for _ in range(PHASES["total_steps"]):
        params, state = step(params, state, aim)
        seen.append(jax.tree.map(np.asarray, params))
    return seen


def fragments(session):
    """A fragment without a divided leaf, and a tree without any: all devices call the host."""
    mesh = mesh_of(session, model=4)
    for shapes, specs in (
        ({"embed": (300, 80), "up": (32, 64)}, {"embed": P(), "up": P(None, "model")}),
        ({"bias": (300, 80), "frozen": None}, {"bias": P(), "frozen": P("model")}),
    ):
        phases = jdaso.Phases(**PHASES, fragments=4)
        tx = jdaso.daso(optax.sgd(0.1), phases=phases, session=session, sharded=specs)
        init, step = inside(mesh, specs, tx, step_of(tx))
        params, aim = (place(numbers(shapes, k), mesh, specs) for k in (0, 1 + session.node))
        state = init(params)
        for n, wanted in enumerate(undivided(session, shapes, fragments=4)):
            params, state = step(params, state, aim)
            if n in (2, PHASES["total_steps"] - 1):
                for name in {"embed", "up", "bias"} & params.keys():
                    x = params[name]
                    np.testing.assert_allclose(x, wanted[name], atol=1e-5, err_msg=name)


def stacked(session):
    """`finalize` of shards and copies on two axes, stacked as a `shard_map` gives them."""
    mesh = mesh_of(session, data=2, model=2)
    sharded, each = {"w": P("model"), "b": P()}, P(("data", "model"))
    about = {"session": session, "sharded": sharded, "local_axis": "data"}
    tx = jdaso.daso(optax.sgd(0.1), phases=jdaso.Phases(**PHASES), **about)
    whole, aims = ({"w": (8, 3), "b": (5,)} for _ in range(2))
    whole, aims = numbers(whole, 0), numbers(aims, 1 + session.node)

    def of_devices(tree):
        halves = tree["w"].reshape(2, 4, 3)
        return {"w": np.concatenate([halves, halves]), "b": np.stack([tree["b"]] * 4)}

    first = lambda tree: jax.tree.map(lambda x: x[0], tree)  # noqa: E731
    more = lambda tree: jax.tree.map(lambda x: x[None], tree)  # noqa: E731

    def mapped(function, count):
        inner = lambda *given: more(function(*map(first, given)))  # noqa: E731
        specs = {"in_specs": (each,) * count, "out_specs": each}
        return jax.jit(jax.shard_map(inner, mesh=mesh, check_vma=False, **specs))

    params, aim = of_devices(whole), of_devices(aims)
    state, step = mapped(tx.init, 1)(params), mapped(step_of(tx), 3)
    shapes = {"w": (8, 3), "b": (5,)}
    for n, wanted in enumerate(undivided(session, shapes)):
        params, state = step(params, state, aim)
        if n == 8:  # with an exchange in flight
            assert int(np.max(np.asarray(state.ticket))) > 0
            found = jdaso.finalize(params, state, session)
            assert not np.allclose(found["w"][0], found["w"][1])
            for name, x in of_devices(jax.tree.map(np.asarray, found_whole(found))).items():
                np.testing.assert_array_equal(found[name], x)
        np.testing.assert_allclose(params["w"], of_devices(wanted)["w"], atol=1e-5)


def diverged(session):
    """`finalize` of copies that have diverged, with specs whose axis has one device."""
    mesh, each = mesh_of(session, data=4, model=1), P(("data", "model"))
    about = {"sharded": {"w": P("model"), "b": P()}, "local_axis": "data", "session": session}
    phases = jdaso.Phases(40, 3, 3, sync_every=4, delay=1, local_every=3)
    tx = jdaso.daso(optax.sgd(0.1), phases=phases, **about)

    def mapped(function, count):
        first = lambda tree: jax.tree.map(lambda x: x[0], tree)  # noqa: E731
        inner = lambda *given: jax.tree.map(lambda x: x[None], function(*map(first, given)))  # noqa: E731
        specs = {"in_specs": (each,) * count, "out_specs": each}
        return jax.jit(jax.shard_map(inner, mesh=mesh, check_vma=False, **specs))

    shapes = {"w": (4, 3), "b": (5,)}
    params = jax.tree.map(lambda x: np.stack([x] * 4), numbers(shapes, 0))
    aim = numbers({name: (4, *shape) for name, shape in shapes.items()}, 1 + session.node)
    state, step = mapped(tx.init, 1)(params), mapped(step_of(tx), 3)
    for _ in range(30):
        params, state = jax.block_until_ready(step(params, state, aim))
        apart = int(np.max(np.asarray(state.drift))) > 0
        if apart and not np.asarray(state.ticket).any():
            break
    assert apart and np.ptp(np.asarray(params["w"]), axis=0).max() > 0.01
    found = jdaso.finalize(params, state, session)
    wanted = jdaso.mean({name: np.mean(x, 0) for name, x in params.items()}, session)
    for name, x in found.items():
        np.testing.assert_allclose(x, np.stack([wanted[name]] * 4), atol=1e-6, err_msg=name)


def found_whole(stack):
    return {"w": np.concatenate([stack["w"][0], stack["w"][1]]), "b": stack["b"][0]}


def injected(session):
    """An optimizer that is made anew in each trace knows how `init`'s parameters are divided."""
    placed = NamedSharding(session.mesh, P("local"))
    params = jax.device_put({"w": jnp.ones((16, 8)), "v": jnp.ones(8)}, placed)

    def anew(inner):
        def make(rate):
            return jdaso.daso(inner(rate), phases=jdaso.Phases(**PHASES), session=session)

        return optax.inject_hyperparams(make)(rate=0.01)

    for inner in (optax.adam, optax.lion):
        tx = anew(inner)
        state, step, mine = tx.init(params), jax.jit(step_of(tx)), params
        aim = jax.tree.map(lambda x: x * (2 + session.node), params)
        for _ in range(PHASES["total_steps"]):
            mine, state = jax.block_until_ready(step(mine, state, aim))
        assert all(x.sharding.is_equivalent_to(placed, x.ndim) for x in mine.values())
    known = [x.placement for x in session.optimizers.completions.values()]
    assert len(known) >= 4 and all(x is not None and all(x.divisions) for x in known[-2:]), known


def losses(session):
    """The loss of a node is the mean of its devices', along axes of `sharded=` too."""
    mesh, specs = mesh_of(session, data=4), {"w": P("data"), "b": P()}

    def keeps(updates, state, params=None, *, value, **_):
        return jax.tree.map(jnp.zeros_like, updates), jnp.stack([*state[1:], value])

    inner = optax.GradientTransformationExtraArgs(lambda _: jnp.zeros(2), keeps)
    for make in (
        lambda: jdaso.daso(inner, phases=jdaso.Phases(**PHASES), session=session, sharded=specs),
        lambda: jdaso.synchronous(inner, session=session, sharded=specs),
    ):
        tx = make()

        def step(params, state, aim, tx=tx):
            loss = 10.0 * session.node + jax.lax.axis_index("data").astype(jnp.float32)
            _, state = tx.update(aim, state, params, value=loss)
            return params, state

        init, step = inside(mesh, specs, tx, step)
        params = place({"w": np.ones((4, 2)), "b": np.ones(3)}, mesh, specs)
        state = init(params)
        for _ in range(2):
            params, state = step(params, state, params)
        values = np.unique([np.asarray(x.data) for x in state.inner.addressable_shards])
        assert values[-1] == 6.5, values  # of all devices of both nodes


CASES = {case.__name__: case for case in (fragments, stacked, diverged, injected, losses)}


if __name__ == "__main__":
    with jdaso.Session(timeout_seconds=60) as session:
        for name in sys.argv[1:] or CASES:
            CASES[name](session)
        print(f"node {session.node}: end\n", end="", flush=True)
