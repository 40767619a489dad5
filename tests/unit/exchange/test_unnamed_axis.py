"""Axes of several devices that an optimizer was not given: refused while tracing."""

import functools

import jax
import jax.numpy as jnp
import optax
import pytest
from jax.sharding import AbstractMesh, AxisType
from jax.sharding import PartitionSpec as P

import jdaso

PHASES = jdaso.Phases(total_steps=14, warmup_steps=2, cooldown_steps=4, sync_every=4, delay=2)
MESH = AbstractMesh((2, 3), ("data", "model"), axis_types=(AxisType.Auto,) * 2)
MAKE = {
    "daso": functools.partial(jdaso.daso, phases=PHASES),
    "daso.parameters": functools.partial(jdaso.daso, phases=PHASES, blocking="parameters"),
    "synchronous": jdaso.synchronous,
}
every_optimizer = pytest.mark.parametrize("make", MAKE.values(), ids=MAKE)


@pytest.fixture
def session(monkeypatch):
    """A session that counts as one of several nodes while steps are traced."""
    with jdaso.Session() as session:
        monkeypatch.setattr(type(session), "sends", True)
        yield session


def traced(call, *, mesh=MESH, **about):
    """Traces a call inside ``shard_map``; no device is needed for that."""
    mapped = functools.partial(jax.shard_map, mesh=mesh, in_specs=P(), out_specs=P())
    return jax.make_jaxpr(mapped(call, **{"check_vma": False, **about}))(jnp.ones(6))


def updater(make, session, axis):
    tx = make(optax.sgd(0.1), session=session, local_axis=axis)
    return lambda x: tx.update(x, tx.init(x), x)[0]


@every_optimizer
def test_an_axis_that_is_not_named_is_refused(make, session):
    with pytest.raises(ValueError, match=r"'model' of size 3.*'data'.*\('data', 'model'\)"):
        traced(updater(make, session, "data"))
    with pytest.raises(ValueError, match=r"'data' of size 2.*=None.*\('data', 'model'\)"):
        traced(updater(make, session, None))


def in_jit(f):
    return jax.jit(f)


def in_scan(f):
    return lambda x: jax.lax.scan(lambda c, _: (f(c), None), x, length=2)[0]


def in_cond(f):
    return lambda x: jax.lax.cond(x[0] > 0, f, lambda y: y, x)


def in_named_vmap(f):
    return lambda x: jax.vmap(f, axis_name="seed")(jnp.stack([x, x]))[0]


@pytest.mark.parametrize("inside", [in_jit, in_scan, in_cond, in_named_vmap])
def test_whatever_lies_between(inside, session):
    with pytest.raises(ValueError, match=r"'model' of size 3.*local_axis='data'"):
        traced(inside(updater(MAKE["daso"], session, "data")))


def test_check_vma_and_nested_maps(session):
    update = updater(MAKE["daso"], session, "data")
    with pytest.raises(ValueError, match="'model' of size 3"):
        traced(update, check_vma=True)

    def inner(x):
        return jax.shard_map(
            update, in_specs=P(), out_specs=P(), axis_names={"model"}, check_vma=False
        )(x)

    with pytest.raises(ValueError, match="'model' of size 3"):
        traced(inner, axis_names={"data"})


def test_an_axis_that_shard_map_leaves_to_the_compiler(session):
    """JAX itself reports only that callbacks need all axes."""
    with pytest.raises(ValueError, match="axis_names leave out axis 'model' of size 3"):
        traced(updater(MAKE["daso"], session, "data"), axis_names={"data"})


def test_pmap_without_a_name(session):
    update = updater(MAKE["daso"], session, None)
    with pytest.raises(ValueError, match=r"without a name.*axis_name='local' to jax\.pmap"):
        jax.vmap(update, axis_name="_internal_pmap_axis_name")(jnp.ones((2, 3)))


def test_mean_and_finalize(session, monkeypatch):
    monkeypatch.setattr(session, "num_nodes", 2)
    with pytest.raises(ValueError, match=r"jdaso\.mean.*'data' of size 2"):
        traced(lambda x: jdaso.mean(x, session))
    with pytest.raises(ValueError, match="'model' of size 3"):
        traced(lambda x: x + jdaso.mean(jnp.ones(2), session, "data")[0])
    with pytest.raises(NotImplementedError, match="cannot be mapped with jax.vmap"):
        jax.make_jaxpr(jax.vmap(lambda x: jdaso.mean(x, session)))(jnp.ones((2, 3)))
    with pytest.raises(TypeError, match="finalize takes arrays"):
        jax.make_jaxpr(lambda x: jdaso.finalize(x, (), session))(jnp.ones(2))


@every_optimizer
def test_what_is_named_or_of_one_device_is_not_refused(make, session):
    traced(updater(make, session, ("data", "model")))
    one = AbstractMesh((2, 1), ("data", "model"), axis_types=(AxisType.Auto,) * 2)
    traced(updater(make, session, "data"), mesh=one)


def test_one_node_is_the_inner_optimizer():
    """One node exchanges nothing, so any axis may be left out."""
    with jdaso.Session() as session:
        traced(updater(MAKE["daso"], session, None))
        traced(updater(MAKE["synchronous"], session, "data"))
