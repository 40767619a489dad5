"""The problem of `reference.Quadratic` trained by the real thing, on any engine, and compared."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import reference
from jax.flatten_util import ravel_pytree

import jdaso

SHAPES = {"bias": (3,), "empty": (0,), "scalar": (), "weight": (4, 5)}
"""The 24 parameters of `Quadratic`; a test may bring other shapes."""

OPTIMIZERS = {
    "sgd": (reference.Sgd(0.2, 0.5), lambda: optax.sgd(0.2, momentum=0.5)),
    "adamw": (reference.AdamW(0.1, b2=0.95), lambda: optax.adamw(0.1, b2=0.95)),
}
OUTER = (reference.Sgd(0.7, 0.9, nesterov=True), lambda: optax.sgd(0.7, momentum=0.9, nesterov=True))


def merge_of(name):
    """The `merge=` argument for a name of `reference.daso`."""
    return jdaso.outer(OUTER[1]()) if name == "outer" else name


def unravel_of(shapes):
    """From the flat vector to a tree of these shapes."""
    return ravel_pytree({name: jnp.zeros(shape) for name, shape in shapes.items()})[1]


def floats(inner):
    """Momenta of an optax state, by the names of the reference."""
    found = {}
    for part in jax.tree.leaves(inner, is_leaf=lambda x: hasattr(x, "_fields")):
        for name in ("trace", "mu", "nu"):
            if hasattr(part, name):
                found[name] = ravel_pytree(getattr(part, name))[0]
    return found


def train(session, tx, problem, shapes=SHAPES):
    """Parameters and momenta after each update; the last state.

    On engine "simulated" of all nodes, ``[steps, nodes, size]``; else of this node, ``[steps, size]``.
    """
    unravel, curvature = unravel_of(shapes), jnp.asarray(problem.curvature)

    def step(carry, pull):
        params, state = carry
        x = ravel_pytree(params)[0]
        updates, state = tx.update(unravel(curvature * x - pull), state, params)
        params = optax.apply_updates(params, updates)
        return (params, state), (ravel_pytree(params)[0], floats(state.inner))

    def run(pulls):
        params = unravel(jnp.asarray(problem.x0))
        return jax.lax.scan(step, (params, tx.init(params)), pulls)

    if session.engine == "simulated":
        run = jax.vmap(run, in_axes=1, out_axes=(0, 1), axis_name=session.node_axis)
        last, history = jax.jit(run)(problem.pull)
    else:
        last, history = jax.jit(run)(problem.pull[:, session.node])
    return jax.block_until_ready((*history, last))


def assert_matches(params, momenta, trace, *, node=None):
    """Every step within float32 rounding of the reference; elements it calls undecided excepted."""
    bound, sure = reference.tolerance(trace), ~trace.undecided
    assert np.mean(sure) > 0.7, "a problem that tests too little: change the seed"
    want = np.array(trace.params)
    want = want if node is None else want[:, node]
    np.testing.assert_allclose(np.asarray(params)[..., sure], want[..., sure], rtol=0, atol=bound)
    assert momenta, "no momenta found in the inner state"
    for name, got in momenta.items():
        want = np.array([[state[name] for state in states] for states in trace.inner])
        want = want if node is None else want[:, node]
        np.testing.assert_allclose(
            np.asarray(got)[..., sure], want[..., sure], rtol=0, atol=bound, err_msg=name
        )
