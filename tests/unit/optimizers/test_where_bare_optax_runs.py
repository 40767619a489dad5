"""What bare optax takes, jdaso takes: debug flags, no jit, None gradients, Explicit meshes.

On virtual nodes, whose exchange is in the step itself; and on the pieces that real nodes use.
"""

import contextlib
from types import SimpleNamespace
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import NamedSharding, PartitionSpec
from played import Members

import jdaso
from jdaso import _header
from jdaso._agreement import require_own_devices
from jdaso._compat import _refuse_other_processes, host_call
from jdaso._explicit import placed_like, replicated
from jdaso._packing import BARE, describe, layout_of, pack, to_leaves
from jdaso._schedule import NO_MEAN_LOSS, mean_of_untold

STEPS = 8
PHASES = jdaso.Phases.plateau(STEPS, 2, 2, 3, max_sync_every=2, patience=1)
MAKERS = {
    "daso": lambda inner, session: jdaso.daso(inner, phases=PHASES, session=session),
    "daso-outer-int8": lambda inner, session: jdaso.daso(
        inner,
        phases=PHASES,
        session=session,
        wire="int8",
        merge=jdaso.outer(optax.sgd(0.7, momentum=0.9)),
    ),
    "synchronous-int8": lambda inner, session: jdaso.synchronous(
        inner, session=session, wire="int8"
    ),
}
every_maker = pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)


@contextlib.contextmanager
def both_flags():
    with jax.debug_nans(True), jax.debug_infs(True):
        yield


def run(make, params, gradient, *, inner=None, steps=STEPS, jit=True, value=False):
    """Parameters and state of two virtual nodes after all steps, from equal parameters."""
    with jdaso.Session(engine="simulated", num_nodes=2) as session:
        tx = make(inner or optax.adam(1e-2), session)

        def step(params, state):
            node = jax.lax.axis_index(session.node_axis)
            loss = {"value": 1.0 + node} if value else {}
            updates, state = tx.update(gradient(params, node), state, params, **loss)
            new = jax.tree.map(
                lambda u, p: p if u is None else optax.apply_updates(p, u),
                updates,
                params,
                is_leaf=lambda x: x is None,
            )
            return new, state

        each = jax.vmap(step, axis_name=session.node_axis)
        init = jax.vmap(tx.init, axis_name=session.node_axis)
        params = jax.tree.map(lambda x: jnp.stack([x, x]), params)
        state = (jax.jit(init) if jit else init)(params)
        each = jax.jit(each) if jit else each
        for _ in range(steps):
            params, state = each(params, state)
        return params, state


# Debug flags, and no jit.


@every_maker
@pytest.mark.parametrize("value", [False, True])
def test_neither_state_nor_step_holds_what_the_debug_flags_refuse(make, value):
    params = {"w": jnp.ones(3), "b": jnp.full(5, 0.5, jnp.bfloat16)}
    with both_flags():
        params, state = run(
            make, params, lambda p, node: jax.tree.map(lambda x: x - node, p), value=value
        )
    for leaf in jax.tree.leaves((params, state)):
        assert np.isfinite(np.asarray(leaf, np.float64)).all()


def test_each_operation_is_sound_too():
    """As JAX runs them where it looks for a NaN of the user: one by one."""
    inner = optax.chain(optax.sgd(0.1), jdaso.reduce_on_plateau(2))
    with both_flags(), jax.disable_jit():
        params, _ = run(
            MAKERS["daso"],
            {"w": jnp.ones(3)},
            lambda p, node: {"w": p["w"] - node},
            inner=inner,
            steps=4,
            jit=False,
            value=True,
        )
    jitted, _ = run(
        MAKERS["daso"],
        {"w": jnp.ones(3)},
        lambda p, node: {"w": p["w"] - node},
        inner=inner,
        steps=4,
        value=True,
    )
    np.testing.assert_allclose(params["w"], jitted["w"], rtol=1e-6)


def test_what_is_not_known_is_finite_and_stays_unknown():
    with both_flags():
        known, unknown = _header.sum_of_loss(2.0, 3.0), _header.sum_of_loss(None, 512.0)
        assert float(known) == 6 and np.isfinite(unknown)
        total = _header.add_losses(_header.add_losses(known, unknown), known)
        assert not _header.is_known(total) and np.isfinite(total)
        assert float(_header.sum_of_loss(None, 0.0)) == 0  # who weighs nothing hides nothing
        heads = jnp.stack(
            [
                # The bits of this checksum are those of a NaN.
                _header.header(step=1, loss_sum=x, loss_weight=3.0, checksum=_header.LEFT_OUT)
                for x in (known, total)
            ]
        )
        sums, weights = _header.loss_words(heads)
    assert sums.tolist() == [6, 0] and weights.tolist() == [3, 0]
    assert not _header.is_known(_header.sum_of_loss(np.nan, 1.0))


def test_a_mean_loss_that_nobody_told_is_a_number_only_where_nan_is_refused():
    assert np.isnan(mean_of_untold(jnp.zeros(2)))
    with both_flags():
        assert mean_of_untold(jnp.zeros(2)) == np.float32(NO_MEAN_LOSS)


def test_a_call_of_the_host_needs_no_jit():
    """And it copies what it gives, as a compiled step does: the host writes there again."""
    memory = np.ones(4, np.float32)
    shape = jax.ShapeDtypeStruct((4,), jnp.float32)
    for context in (contextlib.nullcontext(), jax.disable_jit()):
        with context:
            memory[:] = 1
            got = host_call(lambda x: memory, shape, jnp.zeros(()))
            memory[:] = 7
            np.testing.assert_array_equal(got, np.ones(4))


# None, leaves that are no arrays, bare arrays.


@every_maker
def test_a_gradient_that_is_none_leaves_its_leaf_alone(make):
    """The others become what they are without it; the state keeps its tree."""
    trained = {"w": jnp.linspace(0, 1, 300)}
    params = {**trained, "frozen": jnp.full(4, 0.25), "table": jnp.arange(3), "many": [jnp.ones(2)]}

    def gradient(p, node):
        return {"w": p["w"] - node, "frozen": None, "table": None, "many": None}

    inner = optax.sgd(0.1)
    got, state = run(make, params, gradient, inner=inner, steps=2)
    again, later = run(make, params, gradient, inner=inner)
    assert jax.tree.structure(state) == jax.tree.structure(later)
    assert jax.tree.map(jnp.shape, state) == jax.tree.map(jnp.shape, later)
    for name in ("frozen", "table", "many"):
        both = jax.tree.map(lambda x: jnp.stack([x, x]), params[name])
        jax.tree.map(np.testing.assert_array_equal, again[name], both)
    alone, _ = run(make, trained, lambda p, node: {"w": p["w"] - node}, inner=inner)
    np.testing.assert_allclose(again["w"], alone["w"], rtol=1e-6)


@pytest.mark.parametrize(
    ("leaf", "said"),
    [
        (jax.nn.relu, "custom_jvp"),
        ("float32", "str ('float32')"),
        (np.str_("relu"), "relu"),
        (jnp.float32, "jax.numpy.float32"),
        (np.float32, "numpy.float32"),
        (np.dtype("int8"), "int8"),
        (np.array([object()]), "an array of object"),
        (np.zeros(2, "datetime64[s]"), "datetime64"),
    ],
)
@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
def test_a_leaf_that_is_no_array_is_named(leaf, said, make):
    with jdaso.Session(engine="simulated", num_nodes=2) as session:
        tx = make(optax.sgd(0.1), session)
        params = {"w": jnp.ones(3)}

        def step(params):
            state = tx.init(params)
            return tx.update(params, state, {**params, "act": leaf})

        with pytest.raises(TypeError) as error:
            jax.vmap(step, axis_name=session.node_axis, axis_size=2, in_axes=None)(params)
    assert "Leaf ['act'] is" in str(error.value) and said in str(error.value)
    assert "equinox.filter" in str(error.value)


def test_what_is_an_array_of_numbers_is_taken():
    for leaf in (
        1,
        2.5,
        True,
        1j,
        np.float32(1),
        jax.random.key(0),
        jax.ShapeDtypeStruct((3,), int),
    ):
        describe([leaf, np.zeros(2, jnp.bfloat16), np.zeros(2, jax.dtypes.float0)])


def test_a_bare_array_has_a_name():
    (leaf,) = describe(jnp.ones(3))
    assert leaf.path == BARE
    heads = np.zeros((2, _header.HEADER), np.int32)
    heads[:, _header.WEIGHT] = np.float32(1).view(np.int32)
    heads[1, _header.BAD_LEAF] = 1
    assert f"node 1, leaf {BARE}." in _header.complaint(heads, (leaf.path,))


# Meshes with Explicit axes.


@pytest.fixture
def mesh():
    return jax.make_mesh((1,), ("data",), axis_types=(jax.sharding.AxisType.Explicit,))


@pytest.mark.parametrize("context", [False, True])
@every_maker
def test_explicit_meshes(mesh, make, context):
    sharded = NamedSharding(mesh, PartitionSpec(None, "data"))
    params = {"w": jax.device_put(jnp.ones((4, 8)), sharded), "b": jnp.ones(3)}
    gradient = lambda p, node: jax.tree.map(lambda x: x - node, p)  # noqa: E731
    with jax.set_mesh(mesh) if context else contextlib.nullcontext():
        got, state = run(make, params, gradient)
    assert got["w"].sharding.spec[-1] == "data"
    plain, _ = run(make, jax.tree.map(np.asarray, params), gradient)
    np.testing.assert_allclose(got["w"], plain["w"], rtol=1e-6)


@pytest.mark.parametrize("jit", [False, True])
def test_what_is_in_parts_is_packed_and_put_back(mesh, jit):
    sharded = NamedSharding(mesh, PartitionSpec("data", None))
    x = jax.device_put(jnp.arange(32.0).reshape(8, 4), sharded)

    def there_and_back(x):
        leaves = to_leaves({"x": x})
        (chunk,) = pack(layout_of({"x": x}, 1, 2**20), leaves)
        assert not any(jax.typeof(replicated(x)).sharding.spec)
        return placed_like(chunk.reshape(-1)[: x.size].reshape(x.shape), x)

    got = (jax.jit(there_and_back) if jit else there_and_back)(x)
    np.testing.assert_array_equal(got, x)
    assert got.sharding.spec == PartitionSpec("data", None)


# Ranks that are one jax.distributed world.


def test_what_spans_processes_is_refused():
    prefix = Members(topology=SimpleNamespace(prefix=lambda: "[node 1 of 2]"))
    spread = mock.patch("jdaso._agreement.spans_processes", lambda x: x.ndim == 2)
    tree = {"a": jnp.ones(2), "w": jnp.ones((2, 2))}
    with spread, pytest.raises(jdaso.NodeError, match=r"\[node 1 of 2\] Leaf \['w'\] lies on"):
        require_own_devices(prefix, tree)
    require_own_devices(prefix, tree)
    here, there = jax.devices()[0], SimpleNamespace(process_index=jax.process_index() + 1)
    _refuse_other_processes(SimpleNamespace(device_assignment=(here,)))
    with pytest.raises(ValueError, match=r"jax\.distributed"):
        _refuse_other_processes(SimpleNamespace(device_assignment=(here, there)))
    shards = SimpleNamespace(mesh=SimpleNamespace(devices=np.array([here, there])))
    with pytest.raises(ValueError, match=r"jax\.distributed"):
        _refuse_other_processes(shards)
