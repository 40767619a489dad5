"""A compiled step: its memory as XLA counts it, the order of its calls; what `init` compiles."""

import jax
import jax.numpy as jnp
import optax
import pytest
from jax.extend.core import Var

import jdaso

pytestmark = [pytest.mark.any_mpi, pytest.mark.several, pytest.mark.two_nodes]
PARAMS = {f"leaf {k}": jnp.ones((100, 200)) for k in range(8)}
PHASES = jdaso.Phases(100, warmup_steps=5, cooldown_steps=5, sync_every=4, delay=1, fragments=4)


def temporaries(tx):
    def step(params, state):
        gradients = jax.tree.map(jnp.tanh, params)
        updates, state = tx.update(gradients, state, params)
        return optax.apply_updates(params, updates), state

    compiled = jax.jit(step, donate_argnums=(0, 1)).lower(PARAMS, tx.init(PARAMS)).compile()
    return compiled.memory_analysis().temp_size_in_bytes / sum(x.nbytes for x in PARAMS.values())


def test_shared_second_moments_need_one_copy_more():
    """Gradients and updates at a time; no copies of both moments, which would be two."""
    with jdaso.Session() as session:
        shared, own = (
            temporaries(
                jdaso.daso(
                    optax.adam(0.1), phases=PHASES, session=session, second_moments=kind, name=kind
                )
            )
            for kind in ("shared", "own")
        )
    assert own < 1.5
    assert shared < own + 1.2


def test_init_compiles_nothing_for_each_shape_of_a_parameter():
    """Networks have dozens of shapes, and a program for each takes longer than all of `init`."""
    programs = []
    note = lambda name, *_, **__: programs.append(name)  # noqa: E731
    params = {f"leaf {k}": jnp.ones((3, 50 + k)) for k in range(30)}
    jax.monitoring.register_event_duration_secs_listener(note)
    try:
        with jdaso.Session() as session:
            tx = jdaso.daso(optax.adam(0.1), phases=PHASES, session=session)
            jax.block_until_ready(tx.init(params))
    finally:
        jax.monitoring.unregister_event_duration_listener(note)
    assert 0 < programs.count("/jax/core/compile/backend_compile_duration") < 30


def test_the_last_call_of_a_step_waits_for_all_others(tmp_path):
    """Devices make calls together: without an order two of them may wait for ever."""
    with jdaso.Session(trace=tmp_path) as session:
        tx = jdaso.daso(optax.adam(0.1), phases=PHASES, session=session)
        state = tx.init(PARAMS)
        step = jax.make_jaxpr(lambda *x: tx.update(*x))(PARAMS, state, PARAMS).jaxpr
    made_by = {x: number for number, each in enumerate(step.eqns) for x in each.outvars}
    calls = [k for k, x in enumerate(step.eqns) if x.primitive.name in ("jdaso_host_call", "cond")]
    before, left = set(), [calls[-1]]
    while left:
        before.add(number := left.pop())
        found = {made_by.get(x) for x in step.eqns[number].invars if isinstance(x, Var)}
        left.extend(found - before - {None})
    assert step.eqns[calls[-1]].primitive.name == "jdaso_host_call"
    assert len(calls) > 3 and before.issuperset(calls)
