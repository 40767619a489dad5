"""Calls to the host that wait for other nodes depend on each other, in the order of the source."""

import jax
import jax.numpy as jnp
import optax
import pytest
from jax.extend.core import Literal

import jdaso

pytestmark = [pytest.mark.several, pytest.mark.any_mpi, pytest.mark.two_nodes]
CYCLES, BLOCKS = jdaso.Phases(20, 4, 4, sync_every=3, delay=2), jdaso.Phases(20, 20)
PARAMS = {"w": jnp.ones((8, 3))}


def parts_of(eqn):
    """The inner programs of an operation."""
    for param in eqn.params.values():
        for each in param if isinstance(param, tuple | list) else (param,):
            if hasattr(inner := getattr(each, "jaxpr", each), "eqns"):
                yield inner


def calls_host(eqn):
    inner = (calls_host(x) for part in parts_of(eqn) for x in part.eqns)
    return eqn.primitive.name == "jdaso_host_call" or any(inner)


def calls_in(program):
    """For each operation that calls the host: its place, and those of the calls that it follows."""
    before, found = {}, []
    for place, eqn in enumerate(program.eqns):
        given = (x for x in eqn.invars if not isinstance(x, Literal))
        mine = set().union(*(before.get(x, set()) for x in given))
        if calls_host(eqn):
            found.append((place, set(mine)))
            mine.add(place)
        before.update(dict.fromkeys(eqn.outvars, mine))
    return found


@pytest.mark.parametrize(
    "kinds",
    [
        (CYCLES, CYCLES),
        (BLOCKS, "synchronous", "mean", BLOCKS),
        ("mean", CYCLES, "synchronous", "mean", "synchronous"),
    ],
    ids=str,
)
@pytest.mark.parametrize("on_drift", ["raise", "ignore"])
def test_each_call_of_a_step_follows_all_before_it(kinds, on_drift):
    with jdaso.Session(timeout_seconds=120) as session:
        txs = []
        for number, kind in enumerate(kinds):
            about = {"session": session, "name": f"number {number}", "on_drift": on_drift}
            if kind == "synchronous":
                txs.append(jdaso.synchronous(optax.adam(0.1), **about))
            elif kind != "mean":
                txs.append(jdaso.daso(optax.adam(0.1), phases=kind, **about))
            else:
                txs.append(None)
        states = [None if tx is None else tx.init(PARAMS) for tx in txs]

        def step(params, states):
            found = []
            for tx, state in zip(txs, states, strict=True):
                if tx is None:
                    found.append(jdaso.mean(params["w"], session))
                else:
                    found.append(tx.update(params, state, params, value=1.0))
            return found

        calls = calls_in(jax.make_jaxpr(step)(PARAMS, states).jaxpr)
    assert len(calls) >= 2 * len(kinds) - kinds.count("mean")
    places = [place for place, _ in calls]
    assert [sorted(follows) for _, follows in calls] == [places[:k] for k in range(len(calls))]
