"""Partitions and models at the edges: parts without parameters, narrow losses, trials of daso."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from network import World
from pipeline_in_process import (
    COMPILING_SECONDS,
    expected,
    gatherer,
    loss_and_gradients,
    together,
)

from jdaso import pipeline
from jdaso._optimizers.find_lengths import LengthsFinder
from jdaso._optimizers.find_moments import MomentsFinder
from jdaso._optimizers.inner import update_with
from jdaso.pipeline._optimizer.whole import WholeOptimizer, leaves_about
from jdaso.pipeline._plan.holding import Holding, Unit
from jdaso.pipeline._plan.microbatch import Microbatches
from jdaso.pipeline._run.nonempty import NonEmpty

WHOLE = {"a": np.full((4, 20), 2.0, np.float32), "b": np.full(3, -1.0, np.float32)}


def holding_of(owners, ranks):
    """Each leaf of `WHOLE` on one rank."""
    leaves, tree = jax.tree.flatten(WHOLE)
    units = tuple(Unit(k, 0, len(x), (owners[k],)) for k, x in enumerate(leaves))
    shapes, dtypes = (tuple(getattr(x, name) for x in leaves) for name in ("shape", "dtype"))
    return Holding(tree, (), shapes, dtypes, units, ranks)


def test_a_rank_without_parameters_sends_its_part_of_a_norm():
    """JAX drops calls whose results nothing uses; the other ranks would wait for this one."""
    optimizer = optax.chain(optax.clip_by_global_norm(0.5), optax.sgd(0.1, momentum=0.9))
    holding, world = holding_of([0, 1], 3), World(3, limit_seconds=COMPILING_SECONDS)

    def train(node):
        whole = WholeOptimizer(optimizer, holding, node.number, gatherer(node)).transformation

        def update(given_up, grads):
            params, state = given_up
            updates, state = whole.update(grads, state, params)
            return optax.apply_updates(params, updates), state

        step = NonEmpty(update)
        grads = params = holding.own(jax.tree.leaves(WHOLE), node.number)
        state = whole.init(params)
        for _ in range(2):
            params, state = step((jax.tree.map(jnp.asarray, params), state), grads)
        return jax.block_until_ready(params)

    found, params, state = together(world, train), WHOLE, optimizer.init(WHOLE)
    for _ in range(2):
        updates, state = optimizer.update(WHOLE, state, params)
        params = optax.apply_updates(params, updates)
    for rank, own in enumerate(found):
        wanted = holding.own(jax.tree.leaves(params), rank)
        jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-6), own, wanted)


@pytest.mark.parametrize(
    ("finder", "inner"), [(MomentsFinder, optax.adam(1e-3)), (LengthsFinder, optax.lion(1e-3))]
)
def test_a_trial_sends_nothing(finder, inner):
    """Each rank tries by itself, as often as its own parameters need."""

    def gather(words):
        raise AssertionError("a trial has sent numbers")

    optimizer = optax.chain(optax.clip_by_global_norm(1.0), inner)
    whole = WholeOptimizer(optimizer, holding_of([0, 1], 2), 0, gather).transformation
    own = {"a": jnp.ones((4, 20)), "b": jnp.zeros(0)}
    found = finder(whole.init, update_with(whole)).find(own)
    alone = finder(optimizer.init, update_with(optimizer)).find({"a": own["a"]})
    if finder is MomentsFinder:
        (mine,), (other,) = found.shared, alone.shared
        assert mine[-2:] == other[-2:] == pytest.approx((0.9, 0.999), rel=1e-6)
    else:
        assert found.leaves == alone.leaves == (0,)
    assert not found.failure


def test_a_stage_without_parameters_hands_nothing_back():
    """A frozen body, and a head that is trained: three of four stages have no backward pass."""
    frozen = np.random.default_rng(0).normal(size=(6, 4, 4)).astype(np.float32)

    def loss_fn(params, batch):
        x = first = jnp.sin(batch)
        for w in frozen:
            x = first + jnp.tanh(x @ w)  # the first stage sends to all others
        return jnp.mean((x @ params["head"]) ** 2), None

    params, batch = {"head": np.eye(4, dtype=np.float32)}, np.ones((4, 4), np.float32)
    about = {"num_partitions": 2, "chunks": 2, "num_microbatches": 2}
    plan = pipeline.partition(loss_fn, params, batch, **about)
    wanted = expected(loss_fn, params, batch, plan.microbatches)
    found = loss_and_gradients(plan, params, batch, schedule="interleaved")
    np.testing.assert_allclose(found[2]["head"], wanted[2]["head"], rtol=1e-5)


def test_a_loss_in_bfloat16_does_not_round_the_share_of_a_micro_batch():
    def loss_fn(params, batch):
        return jnp.mean((batch @ params["w"]).astype(jnp.bfloat16)), None

    params = {"w": np.ones((4, 1), np.float32)}
    batch = np.full((12, 4), 0.5, np.float32)
    plan = pipeline.partition(loss_fn, params, batch, num_partitions=1, num_microbatches=12)
    found = loss_and_gradients(plan, params, batch)
    np.testing.assert_allclose(found[2]["w"], np.full((4, 1), 0.5), rtol=1e-6)  # each share 1/12
    assert sum(plan.microbatches.weights()) == pytest.approx(1, abs=1e-12)


def test_scopes_around_functions_that_are_compiled_by_themselves():
    block = jax.jit(lambda x, w: jnp.tanh(x @ w))

    def loss_fn(params, batch):
        x = block(batch, params["first"])
        with jax.named_scope("second_block"):
            x = block(x, params["second"])
        return jnp.mean(x**2), None

    params = {name: np.eye(4, dtype=np.float32) for name in ("first", "second")}
    batch = np.ones((4, 4), np.float32)
    plan = pipeline.partition(loss_fn, params, batch, num_partitions=2, boundaries=["second_block"])
    assert [plan.holding.owned_by(rank) for rank in (0, 1)] == [[0], [1]]


def test_a_bare_array_of_parameters_and_other_arrays_of_the_state():
    params = jax.ShapeDtypeStruct((6, 3), np.float32)
    state = optax.adam(0.1).init(params), jnp.zeros(2), jnp.zeros((1, 2))
    about = leaves_about(state, params)
    paths = [jax.tree_util.keystr(path) for path, _ in jax.tree.leaves_with_path(state)]
    of_params = [path for path, leaf in zip(paths, about, strict=True) if leaf == 0]
    assert len(of_params) == 2 and all("mu" in x or "nu" in x for x in of_params)


@pytest.mark.parametrize(
    ("tree", "words"),
    [
        (
            {"a": jnp.zeros((4, 20), jnp.bfloat16), "b": jnp.zeros(0)},
            r"Leaf \['a'\] is bfloat16\[4, 20\] on partition 0",
        ),
        ({"a": jnp.zeros(()), "b": jnp.zeros(0)}, r"Leaf \['a'\] is float32\[\]"),
        ({"a": jnp.zeros((4, 20))}, "The tree is"),
    ],
)
def test_trees_unlike_the_parameters(tree, words):
    assert re.match(words, holding_of([0, 1], 2).unlike(tree, 0))


def test_trees_like_the_parameters():
    """Of what another rank holds there is nothing to compare."""
    like = {"a": jnp.zeros((4, 20)), "b": jnp.zeros(0, jnp.bfloat16)}
    assert holding_of([0, 1], 2).unlike(like, 0) == ""


def test_weights_are_shares():
    assert Microbatches.of(np.ones((3, 1)), 3).weights() == [1 / 3] * 3


@pytest.mark.parametrize("number", [0.5, jnp.asarray(0.5)])
def test_a_number_in_a_batch_keeps_narrow_floats_narrow(number):
    """Otherwise the loop below would begin in bfloat16 and go on in float32."""

    def loss_fn(params, batch):
        def layer(x, w):
            return jnp.tanh(x @ w) * batch["temperature"], None

        x, _ = jax.lax.scan(layer, batch["x"], params["w"])
        return jnp.mean(x.astype(jnp.float32)), None

    params = {"w": jnp.ones((4, 3, 3), jnp.bfloat16)}
    batch = {"x": jnp.ones((4, 3), jnp.bfloat16), "temperature": number}
    plan = pipeline.partition(loss_fn, params, batch, num_partitions=2, num_microbatches=2)
    found = loss_and_gradients(plan, params, batch)
    wanted = jax.grad(lambda p: loss_fn(p, batch)[0])(params)["w"]
    assert found[2]["w"].dtype == jnp.bfloat16
    np.testing.assert_allclose(
        found[2]["w"].astype(np.float32), wanted.astype(np.float32), rtol=0.05, atol=1e-3
    )
