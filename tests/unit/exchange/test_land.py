"""Late cool-down updates between real nodes: the host reports where the nodes would land alike."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from pair import Pair

from jdaso._base.errors import NodeError
from jdaso._engines.sums import Sums
from jdaso._exchange.host import HostExchange
from jdaso._exchange.land import land_alike
from jdaso._exchange.updates import difference
from jdaso._payload.landing import arrival
from jdaso._payload.layout import layout_of
from jdaso._payload.trees import from_leaves, to_leaves
from jdaso._payload.wire import wire_of

PARAMS = {
    "complex": np.linspace(1, 3, 9).astype(np.complex64) * np.complex64(1 - 2j),
    "half": jnp.linspace(-1, 1, 40, dtype=jnp.bfloat16).reshape(8, 5),
    "none": np.linspace(2, 3, 4, dtype=np.float32),
    "scalar": np.float32(0.3),
    "whole": np.arange(3),
    "wide": np.linspace(0.1, 1, 1000, dtype=np.float32),
}


@pytest.fixture
def pair():
    pair = Pair()
    yield pair
    pair.close()


def exchange_in(pair):
    return HostExchange(pair, layout_of(PARAMS, 2, 2**20), wire_of("float32"), owner=1)


@pytest.fixture
def other(pair):
    about = exchange_in(pair)
    return pair.other_of(about.layout, about.wire, about.name)


def land(pair, params, step):
    """A step that is traced, and opens the channel, in one thread, and runs in another."""
    target = tuple(jnp.float32(0.5) + 3 * x for x in to_leaves(params))
    updates = {name: jnp.zeros_like(x) for name, x in params.items()}
    updates |= {"none": None, "half": updates["half"].astype(jnp.float32)}
    landed, _ = land_alike(exchange_in(pair), target, params, updates, step)
    return target, landed


def arrives_elsewhere(pair, places):
    """The first sum, of fingerprints, in which the other node's differ at places by leaf."""
    layout = exchange_in(pair).layout
    assert len(layout.widths) == 1  # the other node makes row after row
    pairs = zip(layout.exchanged, layout.offsets, strict=False)
    offsets = {leaf.path.strip("[']"): offset for leaf, offset in pairs}
    apart, begin = np.array([offsets[name] + k for name, k in places.items()]), 0

    def make(x):
        nonlocal begin
        here, begin = apart - begin, begin + x.size
        x = np.array(x)
        x[0, here[(0 <= here) & (here < x.size)]] += 1
        return x

    return make


def test_nodes_that_land_alike_keep_the_target(pair):
    target, landed = jax.jit(partial(land, pair))(PARAMS, jnp.int32(0))
    jax.tree.map(np.testing.assert_array_equal, target, landed)


def test_where_nodes_would_land_apart_they_meet_at_0(pair, other):
    places = {"complex": 4, "half": 7, "scalar": 0, "wide": 700}
    other.makes = [arrives_elsewhere(pair, places)]
    target, landed = jax.jit(partial(land, pair))(PARAMS, jnp.int32(0))
    names = [leaf.path.strip("[']") for leaf in exchange_in(pair).layout.exchanged]
    for name, before, after in zip(names, target, landed, strict=True):
        moved = np.flatnonzero(np.ravel(before) != np.ravel(after))
        assert moved.tolist() == ([places[name]] if name in places else []), name
        assert not np.ravel(after)[moved].any()


def test_a_node_with_a_nan_takes_no_other_along(pair, other):
    """Adding cannot remove the NaN there; the other elements go to the target."""
    params = PARAMS | {"wide": PARAMS["wide"].copy()}
    params["wide"][3] = np.nan
    other.makes = [arrives_elsewhere(pair, {"wide": 3})]
    target, landed = jax.jit(partial(land, pair))(params, jnp.int32(0))
    jax.tree.map(np.testing.assert_array_equal, target, landed)


def test_a_landing_that_fails_is_an_error(pair, monkeypatch):
    """A failed landing has no headers: JAX dropped the check with them, and zeros passed."""

    def fail(*_, **__):
        raise NodeError("the link is down")

    monkeypatch.setattr(Sums, "total", fail)
    with pytest.raises(jax.errors.JaxRuntimeError, match="the link is down"):
        jax.block_until_ready(jax.jit(partial(land, pair))(PARAMS, jnp.int32(0)))


@pytest.mark.parametrize("update", ["own", "float32"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16", "complex64"])
def test_the_host_finds_the_point_at_which_a_step_arrives(dtype, update):
    random = np.random.default_rng(7)
    param = jnp.asarray(random.normal(size=2000) * 10.0 ** random.integers(-6, 3, 2000), dtype)
    update = dtype if update == "own" else jnp.promote_types(dtype, "float32")
    (reals,) = to_leaves(param)
    target = np.asarray(reals) * random.normal(1, 3, reals.shape).astype(np.float32)

    @jax.jit
    def moved(param, target):
        return difference(from_leaves(param, (target,)), param, jnp.zeros(2000, update))

    @jax.jit
    def step(param, moved):
        return optax.apply_updates(param, moved)

    arrived = np.asarray(step(param, moved(param, target)))
    if dtype == "complex64":
        arrived = arrived.view(np.float32).reshape(-1, 2)
    found = arrival(target, np.asarray(param), jnp.dtype(update))
    np.testing.assert_array_equal(found, arrived.astype(np.float32))
    assert (found != target).mean() > 0.01  # the addition rounds


def test_a_parameter_without_an_update_stays():
    assert arrival(np.zeros(3, np.float32), np.ones(3, np.float32), None).tolist() == [1, 1, 1]
