"""Trains the problem of `reference.Quadratic` with jdaso, on any engine, and compares."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import reference
from jax.flatten_util import ravel_pytree

import jdaso

SHAPES = {"bias": (), "empty": (0,), "weight": (23, 1)}
"""The 24 parameters of `Quadratic`; a test may use other shapes."""

SIZES = (1, 23)
"""Sizes of its leaves that are exchanged."""

OPTIMIZERS = {
    "sgd": (reference.Sgd(0.2, 0.5), lambda: optax.sgd(0.2, momentum=0.5)),
    "adamw": (reference.AdamW(0.1, b2=0.95), lambda: optax.adamw(0.1, b2=0.95)),
}


OUTER = (
    reference.Sgd(0.7, 0.9, nesterov=True),
    lambda: optax.sgd(0.7, momentum=0.9, nesterov=True),
)


class Parts(NamedTuple):
    """Shapes of leaves, and the elements (of the vector of all) in the pieces of each fragment."""

    shapes: dict[str, tuple[int, ...]]
    elements: list[list[np.ndarray]]

    @property
    def count(self):
        return len(self.elements)


def columns(begin, end):
    """Columns of a matrix [3, 200], row by row."""
    return np.arange(600).reshape(3, 200)[:, begin:end].ravel()


ROWS = Parts(  # bias, then 23 rows of weight; six numbers each
    SHAPES,
    [[np.arange(1), np.arange(1, 6)], *([np.arange(k, k + 6)] for k in (6, 12, 18))],
)
LEAVES = Parts({"a": (12,), "b": (4, 3)}, [[np.arange(12)], [np.arange(12, 24)]])
COLUMNS = Parts({"all": (3, 200)}, [[columns(100 * k, 100 * k + 100)] for k in (0, 1)])


def merge_of(name):
    """The `merge=` argument for a name of `reference.daso`."""
    return jdaso.outer(OUTER[1]()) if name == "outer" else name


def unravel_of(shapes):
    """Returns a function from the flat vector to a tree of these shapes."""
    return ravel_pytree({name: jnp.zeros(shape) for name, shape in shapes.items()})[1]


def floats(inner):
    """Momenta of an optax state, by the names of the reference."""
    found = {}
    for part in jax.tree.leaves(inner, is_leaf=lambda x: hasattr(x, "_fields")):
        for name in ("trace", "mu", "nu"):
            if hasattr(part, name):
                found[name] = ravel_pytree(getattr(part, name))[0]
    return found


def update_of(tx, problem, shapes):
    """One update: from (parameters, state) to the next, and the parameters and momenta as seen."""
    unravel, curvature = unravel_of(shapes), jnp.asarray(problem.curvature)

    def step(carry, pull):
        params, state = carry
        x = ravel_pytree(params)[0]
        updates, state = tx.update(unravel(curvature * x - pull), state, params)
        params = optax.apply_updates(params, updates)
        return (params, state), (ravel_pytree(params)[0], floats(state.inner))

    return step


def trainer(session, tx, problem, shapes=SHAPES):
    """A compiled run over the whole problem, from a `PhaseState` or, given None, from tx's own.

    It returns parameters and momenta after each update: ``[steps, nodes, size]`` of all nodes on
    virtual nodes, otherwise ``[steps, size]`` of this node; and the last carry.
    """
    step, unravel = update_of(tx, problem, shapes), unravel_of(shapes)

    def run(phase, pulls):
        params = unravel(jnp.asarray(problem.x0))
        state = tx.init(params)
        state = state if phase is None else state._replace(phase=phase)
        return jax.lax.scan(step, (params, state), pulls)

    if session.simulated:
        run = jax.vmap(run, in_axes=(None, 1), out_axes=(0, 1), axis_name=session.node_axis)
        pulls = problem.pull
    else:
        pulls = problem.pull[:, session.node]
    compiled = jax.jit(run)

    def call(phase=None):
        last, history = compiled(phase, pulls)
        return jax.block_until_ready((*history, last))

    return call


def stepper(session, tx, problem, shapes=SHAPES):
    """A run that stops after any number of updates, all by one compiled update.

    Given the number, it returns what a run of a `trainer` does.
    """
    step, unravel = update_of(tx, problem, shapes), unravel_of(shapes)

    def begin(x0):
        params = unravel(x0)
        return params, tx.init(params)

    if session.simulated:
        virtual = dict(axis_name=session.node_axis, axis_size=session.num_nodes)
        begin = jax.vmap(begin, in_axes=None, **virtual)
        step, pulls = jax.vmap(step, **virtual), problem.pull
    else:
        pulls = problem.pull[:, session.node]
    begin, step = jax.jit(begin), jax.jit(step)

    def call(updates):
        carry, seen = begin(problem.x0), []
        for pull in pulls[:updates]:
            carry, now = step(carry, pull)
            seen.append(now)
        params, momenta = jax.tree.map(lambda *x: np.stack(x), *seen)
        return params, momenta, jax.block_until_ready(carry)

    return call


def train(session, tx, problem, shapes=SHAPES):
    """One run; see `trainer`."""
    return trainer(session, tx, problem, shapes)()


def stopped(params, cooldown):
    """Mask of the (few) elements that all nodes set to 0 in the third cool-down update."""
    third = np.asarray(params)[-cooldown + 2].reshape(-1, np.shape(params)[-1])
    mask = np.all(third == 0, axis=0)
    assert np.mean(mask) < 0.01 or np.sum(mask) == 1
    return mask


def assert_matches(params, momenta, trace, *, node=None):
    """Every step of every node (or of this one) within float32 rounding of the reference."""
    bound = reference.tolerance(trace)
    assert np.mean(trace.slack == 0) > 0.1, "the wire left nothing to compare: change the seed"

    def compare(what, got, want):
        got, want = np.asarray(got), np.array(want)
        want = want if node is None else want[:, node]
        assert got.shape == want.shape
        wrong = np.argwhere(np.abs(got - want) > bound)
        if wrong.size:
            at = tuple(wrong[0])
            raise AssertionError(
                f"{what} first differ at {at} (step, ..., element): got {got[at]}, the reference "
                f"has {want[at]}, tolerance {bound[at[-1]]}; {len(wrong)} of {got.size} in all; "
                f"events {trace.events}"
            )

    compare("parameters", params, trace.params)
    assert momenta, "no momenta found in the inner state"
    for name, got in momenta.items():
        compare(name, got, [[state[name] for state in states] for states in trace.inner])
