"""A plan's refusals before anything is trained, and the parts that it keeps together."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import jdaso
from jdaso import pipeline
from jdaso.pipeline._optimizer.whole import leaves_about
from jdaso.pipeline._restore import _is_of
from jdaso.pipeline._run.follow import follow

PARAMS = {name: np.full((4, 4), 0.1, np.float32) for name in ("a", "b", "c", "d")}


def layers(params, x):
    for w in params.values():
        x = jnp.tanh(x @ w)
    return x


def batch(samples):
    return np.ones((samples, 4), np.float32)


def test_keys_in_a_state_are_refused():
    def loss_fn(params, state, batch):
        return jnp.mean(layers(params, batch)), (state, None)

    with pytest.raises(TypeError, match="got keys of jax.random. Put keys into the batch"):
        pipeline.partition(
            loss_fn, PARAMS, batch(4), num_partitions=2, state={"key": jax.random.key(0)}
        )


def test_auxiliary_outputs_of_unequal_shapes_are_refused():
    def loss_fn(params, batch):
        x = layers(params, batch)
        return jnp.mean(x), x[:, 0]

    with pytest.raises(ValueError, match="different shapes, for micro-batches .* 3 and 2 samples"):
        pipeline.partition(loss_fn, PARAMS, batch(5), num_partitions=2, num_microbatches=2)
    pipeline.partition(loss_fn, PARAMS, batch(4), num_partitions=2, num_microbatches=2)


def test_a_state_that_is_handed_on_stays_with_the_one_it_comes_from():
    def loss_fn(params, state, batch):
        x = layers(params, batch)
        new = {"now": x.mean(), "before": state["now"], "long before": state["before"]}
        return jnp.mean(x**2), (new, None)

    state = dict.fromkeys(("now", "before", "long before"), np.float32(0))
    plan = pipeline.partition(loss_fn, PARAMS, batch(4), num_partitions=2, state=state)
    held = [stage.state for stage in plan.stages]
    assert sorted(held, key=len) == [(), (0, 1, 2)]
    assert held[1] == (0, 1, 2), "the mean is computed last"


def test_an_evaluation_takes_equal_micro_batches_where_sizes_are_computed_differently():
    def loss_fn(params, batch):
        x = layers(params, batch)
        return jnp.mean(x - jnp.broadcast_to(x.mean(0, keepdims=True), x.shape) / 2)

    plan = pipeline.partition(loss_fn, PARAMS, batch(8), num_partitions=2, num_microbatches=4)
    structs = plan.holding.whole_structs()
    assert follow(plan, loss_fn, structs, batch(5)).microbatches.sizes == (5,)
    assert follow(plan, loss_fn, structs, batch(8)).microbatches.sizes == (2, 2, 2, 2)


def test_hyperparameters_are_about_no_parameter_of_their_name():
    """Restores a rank that holds b1 alone: parameters that it does not hold are empty."""
    params = {name: jax.ShapeDtypeStruct((3,), jnp.float32) for name in ("b1", "b2", "w")}
    here = {name: np.zeros(3 if name == "b1" else 0, np.float32) for name in params}
    rates = {name: np.float32(0.9) for name in ("b1", "b2")}
    state = {"hyper": rates, "mu": here, "masked": {"b1": here["b1"], "w": here["w"]}}
    found = leaves_about(state, params, _is_of)
    assert found == [None, None, 0, 2, 0, 1, 2]


def counting(params, state, batch):
    x = layers(params, batch)
    new = {"n": state["n"] + 1, "mean": 0.9 * state["mean"] + x.mean()}
    return jnp.mean(x**2), (new, None)


STATES = {
    "numbers": {"n": 0, "mean": 0.0},
    "NumPy's": {"n": np.int64(0), "mean": np.float64(0)},
    "64 bits": {"n": np.zeros(3, np.int64), "mean": np.zeros(3)},
    "unsigned": {"n": np.zeros((), np.uint64), "mean": np.zeros((), np.float32)},
}


@pytest.mark.parametrize("state", STATES.values(), ids=STATES)
def test_states_may_be_numbers_and_have_64_bits(state):
    with jdaso.Session() as session:
        settings = dict(session=session, state=state, num_microbatches=2)
        found = jdaso.fit(counting, PARAMS, optax.sgd(0.0), [batch(4)] * 3, **settings).state
    assert (found["n"] == 6).all() and found["n"].shape == np.shape(state["n"])
    assert found["n"].dtype.itemsize == 4 and found["mean"].dtype == np.float32


@pytest.mark.parametrize(
    ("state", "said"),
    [
        ({"n": np.zeros(3, bool)}, r"\['n'\] is bool\[3\] before and int32\[3\] after"),
        ({"n": "many"}, r"Leaf \['n'\] is of type str \('many'\)"),
        ({"n": jax.random.key(0)}, "must be numbers, got keys"),
    ],
)
def test_states_of_other_kinds_are_named(state, said):
    def loss_fn(params, state, batch):
        return jnp.mean(layers(params, batch) ** 2), ({"n": state["n"] + 1}, None)

    with pytest.raises(TypeError, match=said):
        pipeline.partition(loss_fn, PARAMS, batch(4), num_partitions=2, state=state)


def test_a_state_of_another_structure_is_named():
    def loss_fn(params, state, batch):
        return jnp.mean(layers(params, batch) ** 2), ({"m": state["n"]}, None)

    with pytest.raises(TypeError, match=r"returns .*'m'.* for .*'n'"):
        pipeline.partition(loss_fn, PARAMS, batch(4), num_partitions=2, state={"n": np.float32(0)})


def test_a_number_among_the_parameters_is_named():
    with pytest.raises(TypeError, match=r"must be floating-point arrays, got float at \['d'\]"):
        pipeline.partition(
            lambda p, x: jnp.mean(layers(p, x)), PARAMS | {"d": 0.5}, batch(4), num_partitions=1
        )
