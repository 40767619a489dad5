"""Laws of the merge rules."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import jdaso
from jdaso._payload.wire.bfloat16 import BFloat16
from jdaso._rules import merge as _merge

pytestmark = pytest.mark.strict_dtypes

EPS = np.finfo(np.float32).eps
RULES = ("paper", "corrected", jdaso.outer(optax.sgd(1.0)), jdaso.outer(optax.sgd(0.7, 0.9, True)))
NAMES = ("paper", "corrected", "outer(sgd)", "outer(nesterov)")

node_counts = st.integers(1, 9)
ages = st.integers(1, 12)
# Zero, or large enough that no intermediate number is subnormal: XLA may flush those to zero.
sizes = st.floats(2.0**-100, 100, width=32)
values = st.one_of(st.just(0.0), sizes, sizes.map(lambda size: -size))
vectors = st.lists(values, min_size=9, max_size=9).map(lambda v: np.array(v, np.float32))


def merge(rule, x, snapshots, *, anchor, age, node=0):
    """Returns the merge on node `node` of `snapshots`, one vector per node, and the target."""
    rule = _merge.merge_of(rule)
    outer = rule.init((jnp.asarray(anchor),))
    mean = jnp.asarray(sum(snapshots[1:], start=snapshots[0])) / len(snapshots)
    (target,), _ = rule.target((mean,), (jnp.asarray(anchor),), outer)
    change = target - snapshots[node] if rule.keeps_progress else target
    nodes = jnp.float32(len(snapshots))
    (merged,) = rule.merge((jnp.asarray(x),), (change,), nodes, jnp.float32(age))
    return np.asarray(merged), np.asarray(target)


@pytest.mark.parametrize("rule", RULES, ids=NAMES)
@settings(max_examples=30, deadline=None)
@given(value=vectors, nodes=node_counts, age=ages)
def test_a_value_common_to_all_is_kept(rule, value, nodes, age):
    """All nodes hold the value, sent it, and it was the common point before."""
    merged, anchor = merge(rule, value, [value] * nodes, anchor=value, age=age)
    # The sum over P nodes is rounded P - 1 times, the formula three times more.
    bound = (nodes + 3) * EPS * np.abs(value)
    assert np.all(np.abs(merged - value) <= bound)
    assert np.all(np.abs(anchor - value) <= 2 * bound)  # Nesterov moves by up to 1.33 of a slope


@settings(max_examples=30, deadline=None)
@given(x=vectors, other=vectors, nodes=st.integers(2, 9), age=ages)
def test_paper_weighs_by_age(x, other, nodes, age):
    """Merges to ``(2a x + sum) / (2a + P)``: fresh parameters weigh 2a, each stale copy 1."""
    merged, _ = merge("paper", x, [other] * nodes, anchor=x, age=age)
    wide, copies = x.astype(np.float64), other.astype(np.float64)
    expected = (2 * age * wide + nodes * copies) / (2 * age + nodes)
    largest = np.maximum(np.abs(x), np.abs(other))
    assert np.all(np.abs(merged - expected) <= (nodes + 4) * EPS * largest)


def test_paper_at_64_nodes_keeps_three_percent():
    merged, _ = merge(
        "paper", np.ones(1, np.float32), [np.zeros(1, np.float32)] * 64, anchor=np.zeros(1), age=1
    )
    np.testing.assert_allclose(merged, 2 / 66, atol=EPS)  # of x = 1


@settings(max_examples=30, deadline=None)
@given(sent=st.lists(vectors, min_size=2, max_size=5), progress=vectors, age=ages)
def test_corrected_keeps_all_local_progress(sent, progress, age):
    """A node that moved by d since the snapshot ends at mean + d, at any age."""
    for node in range(len(sent)):
        x = sent[node] + progress
        merged, _ = merge("corrected", x, sent, anchor=x, age=age, node=node)
        wide = np.array(sent, np.float64)
        expected = wide.mean(0) + (x.astype(np.float64) - wide[node])
        largest = np.max(np.abs(wide), 0) + np.abs(x)
        assert np.all(np.abs(merged - expected) <= (len(sent) + 4) * EPS * largest)


@settings(max_examples=30, deadline=None)
@given(
    sent=st.lists(vectors, min_size=2, max_size=5),
    progress=st.lists(vectors, min_size=5, max_size=5),
    age=ages,
)
def test_corrected_keeps_the_mean_over_nodes(sent, progress, age):
    """A merge keeps every average: mean of the merged = mean of the parameters before."""
    xs = [s + d for s, d in zip(sent, progress, strict=False)]
    merged = [merge("corrected", x, sent, anchor=x, age=age, node=p)[0] for p, x in enumerate(xs)]
    largest = np.max(np.abs(sent), 0) + np.max(np.abs(xs), 0)
    error = np.mean(merged, 0, dtype=np.float64) - np.mean(xs, 0, dtype=np.float64)
    assert np.all(np.abs(error) <= (len(sent) + 4) * EPS * largest)


@settings(max_examples=30, deadline=None)
@given(x=vectors, sent=st.lists(vectors, min_size=2, max_size=5), anchor=vectors, age=ages)
def test_outer_sgd_of_rate_one_is_corrected(x, sent, anchor, age):
    corrected, mean = merge("corrected", x, sent, anchor=anchor, age=age)
    outer, moved = merge(jdaso.outer(optax.sgd(1.0)), x, sent, anchor=anchor, age=age)
    largest = np.abs(x) + np.abs(anchor) + np.max(np.abs(sent), 0)
    assert np.all(np.abs(outer - corrected) <= 8 * EPS * largest)
    assert np.all(np.abs(moved - mean) <= 8 * EPS * largest)


def test_outer_moves_the_anchor_against_the_slope():
    """Slope = anchor - mean; Nesterov's first step is -rate * (1 + momentum) * slope."""
    anchor, sent = np.full(1, 2.0, np.float32), [np.zeros(1, np.float32), np.ones(1, np.float32)]
    x = np.full(1, 5.0, np.float32)
    merged, moved = merge(RULES[3], x, sent, anchor=anchor, age=3, node=1)
    np.testing.assert_allclose(moved, 2.0 - 0.7 * 1.9 * (2.0 - 0.5), atol=4 * EPS * 2.0)
    np.testing.assert_allclose(merged, x + moved - 1.0, rtol=4 * EPS)


def test_merges_compute_in_float32_and_compile():
    for rule in RULES:
        rule = _merge.merge_of(rule)
        leaf, number = (jax.ShapeDtypeStruct(shape, jnp.float32) for shape in ((3,), ()))
        outer = jax.eval_shape(rule.init, (leaf,))
        target, _ = jax.eval_shape(rule.target, (leaf,), (leaf,), outer)
        merged = jax.eval_shape(rule.merge, (leaf,), (leaf,), number, number)
        assert {x.dtype for x in (*merged, *target)} == {jnp.dtype("float32")}


def test_unknown_merge():
    with pytest.raises(ValueError, match=r'"corrected", "paper" or jdaso.outer.*, got \'mean\''):
        with jdaso.Session(engine=jdaso.Simulated(2)) as session:
            jdaso.daso(optax.sgd(1.0), phases=jdaso.Phases(9), session=session, merge="mean")


class Halfway(_merge.Merge):
    """A user's own rule: half the way to the mean."""

    name, keeps_progress, needs_anchor = "halfway", False, False

    def weight(self, nodes, age):
        return 0.5


class Doubled(BFloat16):
    """A user's own wire: sends twice the numbers, which bfloat16 holds as well."""

    name = "doubled"

    def encode(self, rows):
        return super().encode(2 * rows)

    def decode(self, rows):
        return super().decode(rows) / 2


def trained(**settings):
    """Parameters of two virtual nodes that pull apart, after a late merge and before the next."""
    with jdaso.Session(engine=jdaso.Simulated(2)) as session:
        phases = jdaso.Phases(20, sync_every=4, delay=2)
        tx = jdaso.daso(optax.sgd(1.0), phases=phases, session=session, **settings)
        params = {"w": jnp.ones(5)}
        state = tx.init(params)

        def run(pull):
            def step(carry, _):
                updates, new = tx.update({"w": pull * jnp.ones(5)}, carry[1], carry[0])
                return (optax.apply_updates(carry[0], updates), new), None

            return jax.lax.scan(step, (params, state), None, length=4)[0][0]["w"]

        pulls = jnp.array([0.25, -0.25])
        return np.asarray(jax.jit(jax.vmap(run, axis_name=session.node_axis))(pulls))[:, 0]


def test_a_rule_and_a_wire_of_the_users_own():
    """Snapshots of mean 1, merged in update 3: (.25 + 1) / 2 and (1.75 + 1) / 2; then a step."""
    np.testing.assert_allclose(trained(merge=Halfway()), [0.375, 1.625], rtol=1e-6)
    plain, own = trained(wire="bfloat16"), trained(wire=Doubled())
    np.testing.assert_array_equal(own, plain)


@pytest.mark.parametrize(
    ("optimizer", "gain"),
    [
        (optax.sgd(1.0), 1.0),
        (optax.sgd(0.7, momentum=0.3), 1.0),
        (optax.sgd(0.7, momentum=0.9, nesterov=True), 7.0),
        (optax.chain(optax.clip(0.5), optax.sgd(1.0)), None),  # as far for any steep slope
    ],
)
def test_the_gain_of_an_outer_optimizer(optimizer, gain):
    assert jdaso.outer(optimizer).gain() == (None if gain is None else pytest.approx(gain))


@pytest.mark.parametrize(
    ("optimizer", "every", "nodes", "warns"),
    [
        (optax.sgd(0.7, momentum=0.9, nesterov=True), 4, 3, True),
        (optax.sgd(0.7, momentum=0.9, nesterov=True), 500, 3, False),  # as DiLoCo has it
        (optax.sgd(0.7, momentum=0.9, nesterov=True), 4, 1, False),  # one node exchanges nothing
        (optax.sgd(0.7, momentum=0.5, nesterov=True), 4, 3, False),
        (optax.chain(optax.clip(0.5), optax.sgd(9.0)), 4, 3, False),
    ],
)
def test_an_outer_optimizer_that_runs_ahead_is_warned_of(optimizer, every, nodes, warns, caplog):
    with jdaso.Session(engine=jdaso.Simulated(nodes)) as session:
        phases = jdaso.Phases(1000, sync_every=every)
        rule = jdaso.outer(optimizer)
        jdaso.daso(optax.sgd(0.1), phases=phases, session=session, merge=rule)
    said = [r.message for r in caplog.records if "outer optimizer moves" in r.message]
    assert len(said) == warns
    assert not warns or "moves 7 times" in said[0] and "sync_every=4 on 3 nodes" in said[0]
