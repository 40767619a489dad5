"""jdaso runs where bare optax does: debug flags, no jit, None gradients, Explicit meshes.

On virtual nodes, whose exchange is in the step itself; and on the parts that real nodes use.
"""

import contextlib
import itertools
from types import SimpleNamespace
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import NamedSharding, PartitionSpec
from nights import rows
from played import Members

import jdaso
from jdaso._exchange.collectives import require_own_devices
from jdaso._jax.host_call import _refuse_other_processes, host_call
from jdaso._nodes import compare
from jdaso._payload import header, words
from jdaso._payload.chunks import pack
from jdaso._payload.explicit import alike, on_its_mesh, placed_like, replicated
from jdaso._payload.layout import BARE, describe, layout_of
from jdaso._payload.trees import to_leaves
from jdaso._rules.loss import mean_of_untold
from jdaso._rules.state import NO_MEAN_LOSS

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
    with jdaso.Session(engine=jdaso.Simulated(2)) as session:
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
    """JAX runs operations one by one to find a user's NaN."""
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
        known, unknown = header.sum_of_loss(2.0, 3.0), header.sum_of_loss(None, 512.0)
        assert float(known) == 6 and np.isfinite(unknown)
        total = header.add_losses(header.add_losses(known, unknown), known)
        assert not header.is_known(total) and np.isfinite(total)
        assert float(header.sum_of_loss(None, 0.0)) == 0  # who weighs nothing hides nothing
        heads = jnp.stack(
            [
                # The bits of this checksum are those of a NaN.
                header.header(step=1, loss_sum=x, loss_weight=3.0, checksum=words.LEFT_OUT)
                for x in (known, total)
            ]
        )
        sums, weights = header.loss_words(heads)
    assert sums.tolist() == [6, 0] and weights.tolist() == [3, 0]
    assert not header.is_known(header.sum_of_loss(np.nan, 1.0))


def test_an_unknown_mean_loss_is_a_number_only_where_nan_is_refused():
    assert np.isnan(mean_of_untold(jnp.zeros(2)))
    with both_flags():
        assert mean_of_untold(jnp.zeros(2)) == np.float32(NO_MEAN_LOSS)


def test_a_call_of_the_host_needs_no_jit():
    """The call copies its results, as a compiled step does: the host reuses the memory."""
    memory = np.ones(4, np.float32)
    shape = jax.ShapeDtypeStruct((4,), jnp.float32)
    for context in (contextlib.nullcontext(), jax.disable_jit()):
        with context:
            memory[:] = 1
            got = host_call(lambda x: memory, shape, jnp.zeros(()))
            memory[:] = 7
            np.testing.assert_array_equal(got, np.ones(4))


@pytest.mark.parametrize("blocking", ["gradients", "parameters"])
@pytest.mark.parametrize("name", ["daso", "synchronous"])
def test_gradients_narrower_than_their_parameters(name, blocking):
    """Updates of bfloat16 round a merge to 8 bits: the nodes never met, and memory was blamed."""
    phases = jdaso.Phases(STEPS, 1, 4, sync_every=2, delay=1)
    settings = {"daso": {"phases": phases}, "synchronous": {}}[name]

    def make(inner, session):
        return getattr(jdaso, name)(inner, session=session, blocking=blocking, **settings)

    start = jnp.asarray(np.random.default_rng(0).normal(size=300), jnp.float32)
    gradient = lambda p, node: {"w": (p["w"] - 3.3 * node).astype(jnp.bfloat16)}  # noqa: E731
    got, _ = run(make, {"w": start}, gradient, inner=optax.sgd(0.1))
    assert got["w"].dtype == jnp.float32
    np.testing.assert_array_equal(got["w"][0], got["w"][1])
    kept = 0.9**STEPS  # of the distance to the mean of the nodes' targets; gradients have 8 bits
    rtol = STEPS * 2.0**-8
    np.testing.assert_allclose(got["w"][0], 1.65 + kept * (start - 1.65), rtol=rtol, atol=rtol)


# None, leaves that are no arrays, bare arrays.


@every_maker
def test_a_gradient_that_is_none_leaves_its_leaf_alone(make):
    """The other leaves become what they are without it; the state keeps its tree."""
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
    with jdaso.Session(engine=jdaso.Simulated(2)) as session:
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
    heads = np.zeros((2, words.HEADER), np.int32)
    heads[:, words.WEIGHT] = np.float32(1).view(np.int32)
    heads[1, words.BAD_LEAF] = 1
    assert f"node 1, leaf {BARE}." in compare.complaint(heads, (leaf.path,))


# Meshes with Explicit axes.


@pytest.fixture
def mesh():
    return jax.make_mesh((1,), ("data",), axis_types=(jax.sharding.AxisType.Explicit,))


@pytest.mark.parametrize(
    ("name", "context"),
    rows(
        itertools.product(MAKERS, [False, True]),
        day=[("daso", True), ("daso-outer-int8", False), ("synchronous-int8", True)],
    ),
)
def test_explicit_meshes(mesh, name, context):
    make = MAKERS[name]
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


@pytest.mark.parametrize("jit", [False, True])
def test_what_is_made_is_on_the_mesh_of_what_is_given(mesh, jit):
    """XLA would place it on one device, or in parts that the next step cannot take.

    With two devices a step hung, or came back with state that JAX refused in the next.
    """
    x = jax.device_put(jnp.ones((8, 4)), NamedSharding(mesh, PartitionSpec("data", None)))

    @on_its_mesh
    def made(*given, other=None):
        return jnp.zeros(2), jax.sharding.get_abstract_mesh()

    make = jax.jit(lambda *x: made(*x)[0]) if jit else lambda *x: made(*x)[0]
    for given in ((x,), (jnp.ones(3), {"w": x})):
        assert make(*given).sharding.mesh == mesh
    assert made(jnp.ones(3), other=[x])[1] == mesh.abstract_mesh
    assert jax.sharding.get_abstract_mesh().empty
    assert made(jnp.ones(3))[1].empty  # nothing is on a mesh
    other = jax.make_mesh((1,), ("mine",))
    with jax.set_mesh(other):  # the user's own stays
        assert made(jnp.ones(3), other=None)[1] == other.abstract_mesh
    auto = jax.make_mesh((1,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
    assert made(jax.device_put(x, NamedSharding(auto, PartitionSpec())))[1].empty


@every_maker
def test_a_state_is_on_the_mesh_of_the_parameters(mesh, make):
    """Prevents recompilation of the second step, and parts of what the host gives."""
    sharded = NamedSharding(mesh, PartitionSpec(None, None, "data"))
    params = {"w": jax.device_put(jnp.ones((2, 4, 8)), sharded)}
    with jdaso.Session(engine=jdaso.Simulated(2)) as session:
        tx = make(optax.adam(1e-2), session)
        first = jax.vmap(tx.init, axis_name=session.node_axis)
        step = jax.vmap(
            lambda p: tx.update(p, tx.init(p), p, value=1.0), axis_name=session.node_axis
        )
        made = [*jax.make_jaxpr(first)(params).out_avals, *jax.make_jaxpr(step)(params).out_avals]
    assert not any(aval.sharding.mesh.empty for aval in made if aval.ndim > 1)


def test_branches_give_equal_shardings(mesh):
    """`cond` needs equal shardings: one branch computes what the other leaves unchanged."""
    x = jax.device_put(jnp.ones((8, 4)), NamedSharding(mesh, PartitionSpec("data", None)))
    made = lambda old: {"x": replicated(old["x"]) + 1}  # noqa: E731
    choose = lambda old: jax.lax.cond(True, lambda: alike(made(old), old), lambda: old)  # noqa: E731
    assert jax.jit(choose)({"x": x})["x"].sharding.spec == PartitionSpec("data", None)


# Ranks that are one jax.distributed world.


def test_what_spans_processes_is_refused():
    prefix = Members(topology=SimpleNamespace(prefix=lambda: "[node 1 of 2]", ranks_per_node=1))
    spread = mock.patch("jdaso._exchange.collectives.spans_processes", lambda x: x.ndim == 2)
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
