"""The contract of a gradient transformation, as optax holds its own optimizers to it.

One table: every transformation of jdaso joins, alone (one node), on virtual nodes, and inside a
local axis. After optax/contrib/_common_test.py, and what users build around an optimizer besides.
"""

import contextlib
import dataclasses
import functools
import itertools
import logging
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from nights import nightly, rows

import jdaso

PHASES = jdaso.Phases(total_steps=24, warmup_steps=4, cooldown_steps=6, sync_every=4, delay=2)
SYNCHRONOUS, DASO = jdaso.synchronous, functools.partial(jdaso.daso, phases=PHASES)


class Nodes:
    """Runs functions on all nodes (or devices) of a case. Arguments and results carry one first
    axis for them, where there is more than one."""

    def __init__(self, axis_name=None, size=1):
        self.axis_name, self.size = axis_name, size

    def __call__(self, f):
        names = dict(axis_name=self.axis_name, axis_size=self.size)
        return f if self.axis_name is None else jax.vmap(f, **names)

    def spread(self, tree):
        """The same value for every node."""
        if self.axis_name is None:
            return tree
        return jax.tree.map(lambda x: jnp.stack([jnp.asarray(x)] * self.size), tree)

    def first(self, tree):
        """Returns the first node's values."""
        return tree if self.axis_name is None else jax.tree.map(lambda x: x[0], tree)


@dataclasses.dataclass(frozen=True)
class Case:
    """One row of the table: a transformation and where it runs."""

    name: str
    make: Callable  # (inner, session) -> transformation
    nodes: int  # 1: one real node; more: virtual ones
    axis: str | None = None  # a local axis of two devices

    @contextlib.contextmanager
    def opened(self, inner):
        """The transformation, and the nodes to run it on."""
        with self.session() as (session, each):
            yield self.make(inner, session), each

    @contextlib.contextmanager
    def session(self):
        """The session, and the nodes."""
        virtual = dict(engine=jdaso.Simulated(self.nodes)) if self.nodes > 1 else {}
        with jdaso.Session(**virtual) as session:
            if self.nodes > 1:
                yield session, Nodes(session.node_axis, self.nodes)
            else:
                yield session, Nodes(self.axis, 2) if self.axis else Nodes()

    @property
    def exact(self):
        """Returns whether nodes that all do the same give the result of a single node.

        Not with a narrow wire, which rounds; nor if stale parameters, or an outer optimizer, pull a
        node that has nothing to learn from the others.
        """
        return self.nodes == 1 or self.name in ("daso-P3", "synchronous-P3")


def _daso(**settings):
    return lambda inner, session: DASO(inner, session=session, **settings)


def _synchronous(**settings):
    return lambda inner, session: SYNCHRONOUS(inner, session=session, **settings)


def _nesterov():
    return jdaso.outer(optax.sgd(0.7, momentum=0.9, nesterov=True))


SETTINGS = {
    # Equal gradients on all nodes are no noise, which shared second moments take them for.
    "daso": _daso(second_moments="own"),
    "daso-paper": _daso(merge="paper", blocking="parameters"),
    "daso-outer-int8": _daso(merge=_nesterov(), wire="int8"),  # every field of the state is in use
    "synchronous": _synchronous(),
    "synchronous-bfloat16": _synchronous(wire="bfloat16"),
}
CASES = [
    Case(f"{name}-P{nodes}", make, nodes) for name, make in SETTINGS.items() for nodes in (1, 3)
]
CASES += [
    Case("local_mean", lambda inner, _: optax.chain(jdaso.local_mean("local"), inner), 1, "local"),
    Case("daso-local-axis", _daso(local_axis="local"), 1, "local"),
    Case("synchronous-local-axis", _synchronous(local_axis="local"), 1, "local"),
]
ALONE = [case for case in CASES if case.nodes == 1]
WITH_LOSS = [case for case in CASES if case.name != "local_mean"]

# With one node `daso` returns before it looks at merge or wire: these run the lines of "daso-P1".
AS_OTHERS = ("daso-paper-P1", "daso-outer-int8-P1", "synchronous-bfloat16-P1")
# The merge rule and the wire of these are compared with the reference (test_against_reference.py).
BY_NIGHT = (*AS_OTHERS, "daso-paper-P3", "synchronous-bfloat16-P3", "synchronous-local-axis")
every_case = pytest.mark.parametrize(
    "case",
    rows(CASES, [case for case in CASES if case.name not in BY_NIGHT]),
    ids=lambda case: case.name,
)
# Tests of wrappers take one case of each path of ours; the rest are products.
PATHS = ("daso-P1", "daso-P3", "synchronous-P3", "local_mean", "daso-local-axis")
FULL = "daso-outer-int8-P3"


def on_each_path(*more):
    """The cases of `PATHS` and the named ones by day."""
    day = [case for case in CASES if case.name in PATHS + more]
    return pytest.mark.parametrize("case", rows(CASES, day), ids=lambda case: case.name)


some_cases = pytest.mark.parametrize(
    "case",
    [case for case in CASES if case.name in ("daso-P1", "daso-P3", "synchronous-P3", "local_mean")],
    ids=lambda case: case.name,
)

SOME = ("daso-P3", "synchronous-P3", "daso-local-axis")


def with_each(name, plain, others):
    """Every case with the plain one; some with the others too, which one place of ours handles."""
    found = []
    for case, other in itertools.product(CASES, [plain, *others]):
        day = case.name not in BY_NIGHT if other is plain else case.name in SOME
        marks = [] if day else [nightly]
        found.append(pytest.param(case, other, id=f"{case.name}-{other}", marks=marks))
    return pytest.mark.parametrize(("case", name), found)


EPS = float(np.finfo(np.float32).eps)


def parabola(dtype=jnp.float32):
    start, end = jnp.array([-1.0, 10.0, 1.0], dtype), jnp.array([1.0, -1.0, 1.0], dtype)
    return start, end, lambda x: jnp.sum(jnp.abs(x - end) ** 2)


def tree_problem():
    """Parameters of several shapes and a loss with gradients of all of them."""
    params = {
        "empty": jnp.zeros((0, 3)),
        "matrix": jnp.linspace(-1, 1, 6).reshape(2, 3),
        "nested": [jnp.float32(0.5), (jnp.arange(4.0),)],
    }

    def loss(p):
        square = sum(jnp.sum((x - 0.3) ** 2) for x in jax.tree.leaves(p))
        return square + jnp.sum(p["matrix"]) * p["nested"][0]

    return params, loss


def trained(tx, params, loss, steps, each=Nodes(), **extra):  # noqa: B008
    """Returns all parameters on the way (of the first node), by one scan."""

    def step(carry, _):
        params, state = carry
        value, grads = jax.value_and_grad(loss, allow_int=True)(params)
        grads = jax.tree.map(
            lambda g, p: jnp.zeros_like(p) if g.dtype == jax.dtypes.float0 else g, grads, params
        )
        updates, state = tx.update(grads, state, params, value=value, **extra)
        params = optax.apply_updates(params, updates)
        return (params, state), params

    run = lambda p: jax.lax.scan(step, (p, tx.init(p)), length=steps)[1]  # noqa: E731
    return each.first(jax.jit(each(run))(each.spread(params)))


def bare(inner):
    return optax.with_extra_args_support(inner)


def assert_close(actual, desired, steps=1):
    """Compares within float32 rounding: all nodes do the same, so that merges only round."""
    assert jax.tree.structure(actual) == jax.tree.structure(desired)
    for got, want in zip(jax.tree.leaves(actual), jax.tree.leaves(desired), strict=True):
        assert got.dtype == want.dtype and got.shape == want.shape
        largest = np.max(np.abs(want), initial=0)
        np.testing.assert_allclose(got, want, rtol=0, atol=16 * steps * EPS * largest)


def compare(case, actual, expected, steps):
    """Runs `assert_close` if the case equals the inner optimizer; else: finite, and alike."""
    if case.exact:
        assert_close(actual, expected, steps)
        return
    for got, want in zip(jax.tree.leaves(actual), jax.tree.leaves(expected), strict=True):
        assert got.dtype == want.dtype and got.shape == want.shape
        assert np.isfinite(got).all()


def assert_same_bits(actual, desired):
    assert jax.tree.structure(actual) == jax.tree.structure(desired)
    for got, want in zip(jax.tree.leaves(actual), jax.tree.leaves(desired), strict=True):
        assert got.dtype == want.dtype and got.shape == want.shape
        np.testing.assert_array_equal(got, want)


class Compilations(logging.Handler):
    """Counts what JAX compiles."""

    def __init__(self):
        super().__init__()
        self.count = 0

    def emit(self, record):
        self.count += "Finished XLA compilation" in record.getMessage()

    def __enter__(self):
        self.stack = contextlib.ExitStack()
        self.stack.enter_context(jax.log_compiles())
        logger = logging.getLogger("jax")
        logger.addHandler(self)
        self.stack.callback(logger.removeHandler, self)
        return self

    def __exit__(self, *args):
        self.stack.close()


# Requirements of optax on its own optimizers.


@every_case
def test_accepts_extra_args_and_compiles_once(case):
    start, _, loss = parabola()
    with case.opened(optax.sgd(0.01)) as (tx, each):

        @jax.jit
        @each
        def step(params, state):
            value, grads = jax.value_and_grad(loss)(params)
            updates, state = tx.update(grads, state, params, value=value, nobody_expects=1)
            return optax.apply_updates(params, updates), state

        params = each.spread(start)
        state = jax.jit(each(tx.init))(params)
        params, state = step(params, state)
        with Compilations() as compilations:
            for _ in range(PHASES.total_steps + 2):  # through all phases, and past their end
                params, state = step(params, state)
    assert compilations.count == 0
    assert step._cache_size() == 1


@pytest.mark.parametrize(
    "case",
    rows(WITH_LOSS, [case for case in WITH_LOSS if case.name not in BY_NIGHT]),
    ids=lambda case: case.name,
)
def test_extra_args_reach_the_inner_optimizer(case):
    """`value`, the nodes' mean and everything else, at every update of every phase."""
    seen = []

    def update(updates, state, params=None, **extra):
        seen.append(sorted(extra))
        return jax.tree.map(lambda g: -extra["scale"] * g, updates), state

    inner = optax.GradientTransformationExtraArgs(lambda p: optax.EmptyState(), update)
    start, _, loss = parabola()
    with case.opened(inner) as (tx, each):
        params = trained(tx, start, loss, 24, each, scale=0.125)
    assert seen and all(x == ["mean_loss", "scale", "value"] for x in seen)
    compare(case, params, trained(bare(optax.sgd(0.125)), start, loss, 24), 24)


@on_each_path(FULL)
def test_converges(case):
    start, end, loss = parabola()
    with case.opened(optax.sgd(0.1)) as (tx, each):
        params = trained(tx, start, loss, 100, each)
    np.testing.assert_allclose(params[-1], end, rtol=3e-2, atol=3e-2)


@pytest.mark.users_compiler
@every_case
def test_does_what_the_inner_optimizer_does(case):
    """Equal gradients give the same result: bitwise with one node, to rounding with several."""
    params, loss = tree_problem()
    inner = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(1e-2))
    expected = trained(bare(inner), params, loss, 28)
    with case.opened(inner) as (tx, each):
        actual = trained(tx, params, loss, 28, each)
    if case.nodes == 1 and case.axis is None:
        assert_same_bits(actual, expected)
    else:
        compare(case, actual, expected, 28)


@pytest.mark.parametrize(
    "inner",
    [
        optax.sgd(0.1, momentum=0.9),
        optax.sgd(optax.cosine_decay_schedule(0.1, 24), momentum=0.9, nesterov=True),
        optax.adamw(1e-2),
        optax.lion(1e-2),
        optax.rmsprop(1e-2, momentum=0.9),
        optax.adafactor(1e-2),
        optax.lamb(1e-2),
    ],
    ids=["momentum", "schedule", "adamw", "lion", "rmsprop", "adafactor", "lamb"],
)
def test_one_node_is_bitwise_the_inner_optimizer(inner):
    params, loss = tree_problem()
    expected = trained(bare(inner), params, loss, 28)
    for case in ALONE:
        if case.axis is None:
            with case.opened(inner) as (tx, each):
                assert_same_bits(trained(tx, params, loss, 28, each), expected)


def test_a_leaf_that_cannot_be_cut_so_finely_has_fewer_fragments():
    """The longest axis has 6 rows: 4 fragments cannot be about equal, 2 can."""
    params = {"w": jnp.zeros((6,) * 8)}
    with jdaso.Session(engine=jdaso.Simulated(2)) as session:
        auto, four = (jdaso.Phases(24, fragments=fragments) for fragments in ("auto", 4))
        state = jdaso.daso(optax.sgd(0.1), phases=auto, session=session).init(params)
        assert state.ticket.shape == (2,)
        with pytest.raises(ValueError, match=r"cannot be divided into fragments=4.* differ by 5 %"):
            jdaso.daso(optax.sgd(0.1), phases=four, session=session).init(params)


@pytest.mark.parametrize("dtype", ["float8_e4m3fn", "float4_e2m1fn"])
def test_parameters_that_jax_does_not_widen_are_refused(dtype):
    with jdaso.Session(engine=jdaso.Simulated(2)) as session:
        tx = jdaso.daso(optax.sgd(0.1), phases=jdaso.Phases(9), session=session)
        with pytest.raises(ValueError, match=rf"of {dtype} \(leaf \['w'\]\).*bfloat16"):
            tx.init({"w": jnp.ones(3, dtype)})


@every_case
def test_params_like_state_can_be_mapped(case):
    """`optax.tree.map_params`, by which users shard and offload optimizer states."""
    params, _ = tree_problem()
    with case.opened(optax.adamw(1e-2)) as (tx, each):
        state = jax.jit(each(tx.init))(each.spread(params))
        assert_same_bits(each(lambda s: optax.tree.map_params(tx, lambda v: v, s))(state), state)


@pytest.mark.parametrize("fragments", [1, 2])
@pytest.mark.parametrize("merge", ["corrected", _nesterov()], ids=["corrected", "outer"])
def test_params_like_state_of_many_chunks_can_be_mapped(merge, fragments):
    """State kept between exchanges is shaped like pieces of the parameters, for any chunks."""
    params = {"a": jnp.ones((3, 5000)), "b": jnp.ones(7)}
    with jdaso.Session(engine=jdaso.Simulated(3)) as session:
        settings = dict(session=session, wire="int8", chunk_bytes=4096)
        phases = jdaso.Phases(24, fragments=fragments)
        tx = jdaso.daso(optax.adam(1e-2), merge=merge, phases=phases, **settings)
        state = tx.init(params)
        mapped = optax.tree.map_params(tx, lambda x: x + 1, state)
        np.testing.assert_array_equal(mapped.inner[0].mu["a"], params["a"])
        assert len(state.held) == fragments
        for name in ("anchor", "snapshot", "error"):
            before, after = (
                jax.tree.leaves([getattr(x, name) for x in s.held]) for s in (state, mapped)
            )
            assert sum(x.size for x in after) == 15_007
            for x, y in zip(before, after, strict=True):
                np.testing.assert_array_equal(x, 0)
                np.testing.assert_array_equal(y, 1)
        tx = SYNCHRONOUS(optax.adam(1e-2), **settings)
        mapped = optax.tree.map_params(tx, lambda x: x + 1, tx.init(params))
        np.testing.assert_array_equal(mapped.inner[0].nu["b"], params["b"])
        jax.tree.map(np.testing.assert_array_equal, mapped.error, params)


def test_an_inner_state_with_a_random_key():
    """Nodes have their own noise while cycling; node 0's key from the exact mean on."""
    params, loss = tree_problem()
    inner = optax.chain(optax.add_noise(0.01, 0.5, jax.random.key(3)), optax.sgd(0.05))
    with jdaso.Session(engine=jdaso.Simulated(3)) as session:
        tx, each = DASO(inner, session=session), Nodes(session.node_axis, 3)

        def step(carry, _):
            params, state = carry
            updates, state = tx.update(jax.grad(loss)(params), state, params)
            return (optax.apply_updates(params, updates), state), None

        def run(params):
            (params, state), _ = jax.lax.scan(step, (params, tx.init(params)), length=24)
            return params, jax.random.key_data(state.inner[0].rng_key)

        params, keys = jax.jit(each(run))(each.spread(params))
    for leaf in (*jax.tree.leaves(params), keys):
        np.testing.assert_array_equal(leaf, np.broadcast_to(leaf[:1], leaf.shape))
        assert np.isfinite(leaf).all()


@on_each_path(FULL)
def test_can_be_wrapped_in_inject_hyperparams(case):
    params, loss = tree_problem()
    with case.opened(optax.sgd(0.05)) as (tx, each):
        expected = trained(tx, params, loss, 24, each)

    def make(learning_rate, session):
        return case.make(optax.sgd(learning_rate), session)

    with case.session() as (session, each):
        build = functools.partial(make, session=session)
        tx = optax.inject_hyperparams(build)(learning_rate=0.05)
        actual = trained(tx, params, loss, 24, each)
    assert_close(actual, expected, steps=24)


@on_each_path()
def test_can_hold_inject_hyperparams(case):
    """The learning rate in the inner state: averaged with the moments, and the same after."""
    params, loss = tree_problem()
    expected = trained(bare(optax.sgd(0.05)), params, loss, 24)
    with case.opened(optax.inject_hyperparams(optax.sgd)(learning_rate=0.05)) as (tx, each):
        actual = trained(tx, params, loss, 24, each)
    compare(case, actual, expected, 24)


@with_each("dtype", "float32", ["bfloat16"])
def test_preserves_dtype(case, dtype):
    params = jnp.array([1.0, 2.0], dtype)
    with case.opened(optax.sgd(0.1, momentum=0.9)) as (tx, each):
        value, grads = jax.value_and_grad(lambda x: jnp.sum(x**2))(params)
        grads, params = each.spread((grads, params))
        state = jax.jit(each(tx.init))(params)
        updates, _ = jax.jit(each(lambda g, s, p: tx.update(g, s, p, value=value)))(
            grads, state, params
        )
    assert updates.dtype == params.dtype


@with_each("dtype", "float32", ["bfloat16"])
def test_gradient_accumulation(case, dtype):
    """`optax.MultiSteps`: one update of ours for every four of the caller's."""
    params = jnp.array([1.0, 2.0], dtype)
    with case.opened(optax.sgd(0.1)) as (tx, each):
        steps = optax.MultiSteps(tx, every_k_schedule=4)

        def step(carry, _):
            params, state = carry
            updates, state = steps.update(2 * params, state, params)
            params = optax.apply_updates(params, updates)
            return (params, state), params

        def run(params):
            (_, state), seen = jax.lax.scan(step, (params, steps.init(params)), length=8)
            return seen, state.gradient_step

        seen, done = each.first(jax.jit(each(run))(each.spread(params)))
    assert int(done) == 2 and seen.dtype == dtype
    np.testing.assert_array_equal(seen[:3], jnp.stack([params] * 3))
    np.testing.assert_array_equal(seen[3:7], jnp.stack([seen[3]] * 4))
    unit = EPS if dtype == "float32" else 2.0**-8
    np.testing.assert_allclose(seen[3].astype("float32"), [0.8, 1.6], rtol=4 * unit)


@with_each("dtype", "float32", ["float16", "bfloat16", "float64"])
def test_state_is_stable(case, dtype):
    """Shapes, dtypes and weak types, through `cond` and with a loss of another dtype.

    In float16 the usual eps of Adam is 0, and its first step NaN.
    """
    with jax.enable_x64(dtype == "float64"), case.opened(optax.adam(0.1, eps=1e-4)) as (tx, each):
        start, _, loss = parabola(dtype)

        @jax.jit
        @each
        def step(params, state):
            value, grads = jax.value_and_grad(loss)(params)
            value = value.astype(jnp.float16 if dtype != "float16" else jnp.bfloat16)
            updates, state = jax.lax.cond(
                state_is_new(state),
                lambda: tx.update(grads, state, params, value=value),
                lambda: (jnp.zeros_like(params), state),
            )
            return optax.apply_updates(params, updates), state

        params = each.spread(start)
        state = jax.jit(each(tx.init))(params)
        for _ in range(3):
            params, new = step(params, state)
            assert params.dtype == dtype
            assert [x.aval for x in jax.tree.leaves(new)] == [
                x.aval for x in jax.tree.leaves(state)
            ]
            assert jax.tree.structure(new) == jax.tree.structure(state)
            state = new


def state_is_new(state):
    """Returns True on all nodes; JAX traces both branches, whichever XLA keeps."""
    return jnp.array([x.size for x in jax.tree.leaves(state)]).sum() > 0


@on_each_path()
def test_accepts_a_learning_rate_schedule(case):
    start, _, loss = parabola()
    with case.opened(optax.adam(1e-3)) as (tx, each):
        fixed = trained(tx, start, loss, 10, each)
    with case.opened(optax.adam(optax.constant_schedule(1e-3))) as (tx, each):
        scheduled = trained(tx, start, loss, 10, each)
    np.testing.assert_allclose(scheduled, fixed, rtol=1e-6)


# Wrappers that users put around an optimizer.


@on_each_path()
def test_in_a_chain(case):
    params, loss = tree_problem()
    with case.opened(optax.sgd(0.05)) as (tx, each):
        chained = optax.chain(optax.clip(0.5), tx, optax.scale(0.5))
        actual = trained(chained, params, loss, 4, each)  # the warm-up: before anything is merged
    expected = trained(
        bare(optax.chain(optax.clip(0.5), optax.sgd(0.05), optax.scale(0.5))), params, loss, 4
    )
    compare(case, actual, expected, 4)


@on_each_path()
def test_frozen_leaves(case):
    """`optax.masked` inside and around, and `multi_transform`: frozen leaves keep their bits."""
    params, loss = tree_problem()
    labels = {"empty": "train", "matrix": "freeze", "nested": ["train", ("train",)]}
    train = jax.tree.map(lambda label: label == "train", labels)
    freeze = jax.tree.map(lambda label: label == "freeze", labels)
    groups = {"train": optax.adam(0.05), "freeze": optax.set_to_zero()}
    expected = trained(bare(optax.multi_transform(groups, labels)), params, loss, 24)
    assert_same_bits(expected["matrix"][-1], params["matrix"])

    inside = [
        optax.multi_transform(groups, labels),
        optax.chain(
            optax.masked(optax.adam(0.05), train), optax.masked(optax.set_to_zero(), freeze)
        ),
    ]
    for inner in inside:
        with case.opened(inner) as (tx, each):
            check_frozen(case, trained(tx, params, loss, 24, each), expected, params)
    with case.opened(optax.adam(0.05)) as (tx, each):
        around = optax.chain(optax.masked(tx, train), optax.masked(optax.set_to_zero(), freeze))
        check_frozen(case, trained(around, params, loss, 24, each), expected, params)
    with case.opened(optax.adam(0.05)) as (tx, each):
        around = optax.multi_transform({**groups, "train": tx}, labels)
        check_frozen(case, trained(around, params, loss, 24, each), expected, params)


def check_frozen(case, actual, expected, params):
    frozen = np.broadcast_to(params["matrix"], actual["matrix"].shape)
    if case.nodes == 1:
        np.testing.assert_array_equal(actual["matrix"], frozen)
    else:  # a mean of P equal values may round, at each of about ten exchanges
        np.testing.assert_allclose(actual["matrix"], frozen, rtol=0, atol=32 * EPS)
    compare(case, actual, expected, 24)


@every_case
def test_mixed_dtypes(case):
    """float32, bfloat16 and complex leaves are trained; integers, booleans and empty ones stay."""
    params = {
        "single": jnp.arange(3.0) + 1,
        "half": jnp.arange(4.0).astype("bfloat16"),
        "complex": jnp.array([1 + 2j, -3 + 0.5j], "complex64"),
        "int": jnp.array([2**30 + 1, -7]),
        "bool": jnp.array([True, False]),
        "empty": jnp.zeros((0,), "bfloat16"),
    }

    def loss(p):
        return sum(
            jnp.sum(jnp.abs(p[name]).astype("float32") ** 2)
            for name in ("single", "half", "complex")
        )

    # Integers are trained by nobody: their gradients are float0, which `trained` makes zeros.
    def zero_steps(updates, state, params=None):
        del params
        return jax.tree.map(
            lambda g: g if jnp.issubdtype(g.dtype, jnp.inexact) else jnp.zeros_like(g), updates
        ), state

    keep = optax.GradientTransformation(lambda p: optax.EmptyState(), zero_steps)
    floats = jax.tree.map(lambda p: jnp.issubdtype(p.dtype, jnp.inexact), params)
    inner = optax.chain(optax.masked(optax.sgd(0.05, momentum=0.5), floats), keep)

    def descend(updates, state, params=None):  # a complex gradient points along its conjugate
        del params
        return jax.tree.map(lambda g: g.conj() if jnp.iscomplexobj(g) else g, updates), state

    inner = optax.chain(optax.GradientTransformation(lambda p: optax.EmptyState(), descend), inner)
    expected = trained(bare(inner), params, loss, 24)
    with case.opened(inner) as (tx, each):
        actual = trained(tx, params, loss, 24, each)
    for name in ("int", "bool", "empty"):
        assert actual[name].dtype == params[name].dtype
        assert_same_bits(actual[name][-1], params[name])
    for name in ("single", "half", "complex"):
        assert actual[name].dtype == params[name].dtype
        assert np.isfinite(np.asarray(actual[name], "complex64")).all()
        if not case.exact:
            continue  # finished and finite
        unit = 2.0**-8 if name == "half" else EPS
        largest = np.max(np.abs(np.asarray(expected[name], "complex64")))
        np.testing.assert_allclose(
            np.asarray(actual[name], "complex64"),
            np.asarray(expected[name], "complex64"),
            rtol=0,
            atol=24 * 8 * unit * largest,
        )
    assert np.abs(np.asarray(actual["complex"][-1])).max() < 3, "the complex leaf was not trained"


@with_each("params", None, [{}, (), {"a": jnp.zeros((0,))}, {"a": jnp.zeros((3, 0)), "b": ()}])
def test_empty_trees_and_leaves(case, params):
    with case.opened(optax.adam(0.1)) as (tx, each):
        if params is None:
            params = [None, None]

        def step(carry, _):
            params, state = carry
            updates, state = tx.update(params, state, params)
            return (optax.apply_updates(params, updates), state), None

        def run(params):
            return jax.lax.scan(step, (params, tx.init(params)), length=8)[0][0]

        assert_same_bits(each.first(jax.jit(each(run))(each.spread(params))), params)


@every_case
def test_under_scan_cond_and_donation(case):
    """A compiled epoch inside a `cond`, its arguments donated, gives what a loop of steps gives."""
    start, _, loss = parabola()
    with case.opened(optax.sgd(0.05, momentum=0.9)) as (tx, each):
        expected = trained(tx, start, loss, 24, each)

        def step(params, state):
            updates, state = tx.update(jax.grad(loss)(params), state, params, value=loss(params))
            return optax.apply_updates(params, updates), state

        def epoch(params, state, train):
            scan = lambda c: jax.lax.scan(lambda c, _: (step(*c), None), c, length=6)[0]  # noqa: E731
            return jax.lax.cond(train, scan, lambda c: c, (params, state))

        epochs = jax.jit(
            lambda params, state, train: each(lambda p, s: epoch(p, s, train))(params, state),
            donate_argnums=(0, 1),
        )
        params = each.spread(jnp.array(start))
        state = jax.jit(each(tx.init))(params)
        for k in range(8):
            params, state = epochs(params, state, k % 2 == 0)
    assert_close(each.first(params), expected[-1], steps=24)


@on_each_path(FULL)
def test_state_survives_a_round_trip_through_numpy(case):
    """A checkpoint does the same to the state; here at every step."""
    start, _, loss = parabola()
    with case.opened(optax.adam(0.05)) as (tx, each):
        expected = trained(tx, start, loss, 24, each)

        @jax.jit
        @each
        def step(params, state):
            updates, state = tx.update(jax.grad(loss)(params), state, params, value=loss(params))
            return optax.apply_updates(params, updates), state

        params = each.spread(start)
        state = jax.jit(each(tx.init))(params)
        for _ in range(24):
            params, state = jax.tree.map(np.asarray, step(params, state))
    assert_close(each.first(params), expected[-1], steps=24)


@pytest.mark.parametrize("make", SETTINGS.values(), ids=SETTINGS)
def test_virtual_nodes_may_be_given_what_vmap_does_not_map(make):
    """Passes ``in_axes=None``: the same values for all nodes, which `vmap` does not batch."""
    with jdaso.Session(engine=jdaso.Simulated(3)) as session:
        tx, x = make(optax.sgd(0.1), session), jnp.ones(3)

        def run():
            updates, _ = tx.update(x, tx.init(x), x)
            return optax.apply_updates(x, updates)

        out = jax.vmap(run, axis_name=session.node_axis, axis_size=3)()
    np.testing.assert_allclose(out, np.full((3, 3), 0.9), rtol=2.0**-8)


@pytest.mark.parametrize("make", SETTINGS.values(), ids=SETTINGS)
def test_params_are_needed(make):
    with jdaso.Session(engine=jdaso.Simulated(2)) as session:
        tx = make(optax.sgd(0.1), session)

        def run(x):
            return tx.update(x, tx.init(x))

        with pytest.raises(ValueError, match=r"params=None.*tx\.update\(grads, state, params\)"):
            jax.vmap(run, axis_name=session.node_axis)(jnp.ones((2, 3)))


@pytest.mark.parametrize("make", [_daso(local_axis="local"), _synchronous(local_axis="local")])
def test_an_axis_that_is_not_bound(make):
    with jdaso.Session() as session:
        tx = make(optax.sgd(0.1), session)
        x = jnp.ones(3)
        with pytest.raises(ValueError, match="local_axis='local' is not bound"):
            tx.update(x, tx.init(x), x)


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (dict(wire="int2"), "wire must be one of .*'int2'"),
        (dict(merge="mean"), "merge must be .*'mean'"),
        (dict(blocking="weights"), "blocking must be .*'weights'"),
        (dict(on_nonfinite="ignore"), "on_nonfinite must be .*'ignore'"),
    ],
    ids=str,
)
def test_bad_settings_of_daso(bad, message):
    with jdaso.Session(engine=jdaso.Simulated(2)) as session:
        with pytest.raises(ValueError, match=message):
            DASO(optax.sgd(0.1), session=session, **bad)


# Flax.


@pytest.fixture(scope="module")
def linen():
    return pytest.importorskip("flax.linen")


@some_cases
def test_train_state(case, linen):
    """`flax.training.train_state.TrainState` with a linen model."""
    from flax.training.train_state import TrainState

    model = linen.Dense(3)
    x = jnp.linspace(-1, 1, 8).reshape(2, 4)
    params = model.init(jax.random.key(0), x)

    def run(tx, params):
        state = TrainState.create(apply_fn=model.apply, params=params, tx=tx)

        def step(state, _):
            loss = lambda p: jnp.mean((state.apply_fn(p, x) - 1) ** 2)  # noqa: E731
            return state.apply_gradients(grads=jax.grad(loss)(state.params)), None

        return jax.lax.scan(step, state, length=24)[0].params

    expected = jax.jit(functools.partial(run, optax.adamw(1e-2)))(params)
    with case.opened(optax.adamw(1e-2)) as (tx, each):
        run_all = jax.jit(each(functools.partial(run, tx)))
        actual = each.first(run_all(each.spread(params)))
    compare(case, actual, expected, 24)


@some_cases
def test_nnx_optimizer(case):
    """`flax.nnx.Optimizer`, the loss handed through as `value=`."""
    nnx = pytest.importorskip("flax.nnx")
    x = jnp.linspace(-1, 1, 8).reshape(2, 4)

    def run(tx, x):
        model = nnx.Linear(4, 3, rngs=nnx.Rngs(0))
        optimizer = nnx.Optimizer(model, bare(tx), wrt=nnx.Param)
        graph, state = nnx.split((model, optimizer))

        def step(state, _):
            model, optimizer = nnx.merge(graph, state)
            loss, grads = nnx.value_and_grad(lambda m: jnp.mean((m(x) - 1) ** 2))(model)
            optimizer.update(model, grads, value=loss)
            return nnx.state((model, optimizer)), None

        model, _ = nnx.merge(graph, jax.lax.scan(step, state, length=10)[0])
        return nnx.to_pure_dict(nnx.state(model, nnx.Param))

    expected = jax.jit(functools.partial(run, optax.adamw(1e-2)))(x)
    with case.opened(optax.adamw(1e-2)) as (tx, each):
        run_all = jax.jit(each(functools.partial(run, tx)))
        actual = each.first(run_all(each.spread(x)))
    compare(case, actual, expected, 10)


def test_the_axis_of_local_mean_averages():
    """Averages unequal gradients of two devices."""
    tx = jdaso.local_mean("local")
    grads = {"a": jnp.array([[1.0, 2.0], [3.0, 6.0]]), "int": jnp.array([[1], [2]])}
    step = jax.vmap(lambda g: tx.update(g, tx.init(g))[0], axis_name="local")
    out = step(grads)
    np.testing.assert_array_equal(out["a"], [[2.0, 4.0], [2.0, 4.0]])
    np.testing.assert_array_equal(out["int"], grads["int"])
