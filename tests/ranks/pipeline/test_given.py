"""Parameters, states and batches as users give them: NumPy's float64, buffers that are reused."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from mpi4py import MPI

import jdaso
from jdaso import pipeline
from jdaso._jax.ffi import aligned
from jdaso.data import Loader

COMM = MPI.COMM_WORLD
WIDTH, STEPS = 16, 3
pytestmark = [
    pytest.mark.two_nodes,
    pytest.mark.skipif(COMM.size not in (2, 3), reason="2 or 3 partitions"),
]


def loss_fn(params, batch):
    """A tied matrix: the first and the last stage use it, so one lends it to the other."""
    x, y = batch
    h = jnp.tanh(x @ params["tied"])
    for w in params["w"]:
        h = jnp.tanh(h @ w)
    return jnp.mean((h @ params["tied"] - y) ** 2), h.mean() * (1 + 1j)


def problem(dtype):
    random = np.random.default_rng(0)
    make = lambda *shape: random.normal(size=shape).astype(dtype) / 4  # noqa: E731
    params = {"tied": make(WIDTH, WIDTH), "w": [make(WIDTH, WIDTH) for _ in range(3)]}
    return params, [(make(8, WIDTH), make(8, WIDTH)) for _ in range(STEPS)]


def trained_alone(params, batches):
    """Losses, parameters and last auxiliary output of plain JAX in one process."""
    tx, losses, aux = optax.adam(1e-2), [], None
    params = jax.tree.map(jnp.asarray, params)
    state = tx.init(params)
    for batch in batches:
        (loss, aux), grads = jax.value_and_grad(loss_fn, has_aux=True)(params, batch)
        updates, state = tx.update(grads, state, params)
        params = optax.apply_updates(params, updates)
        losses.append(loss)
    return np.array(losses), params, np.asarray(aux)


def trained(params, batches, on_step=lambda *_: None):
    with jdaso.Session(timeout_seconds=60) as session:
        return jdaso.fit(
            loss_fn,
            params,
            optax.adam(1e-2),
            batches,
            session=session,
            strategy="model",
            num_microbatches=4,
            on_step=on_step,
        )


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_numpys_numbers_train_as_in_one_process(dtype):
    aux = []
    result = trained(*problem(dtype), lambda n, found, *_: aux.append(found.aux))
    losses, params, of_last = trained_alone(*problem(dtype))
    np.testing.assert_allclose(result.history, losses, rtol=1e-5)
    for found, wanted in zip(jax.tree.leaves(result.params), jax.tree.leaves(params), strict=True):
        assert found.dtype == np.float32
        np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(aux[-1], of_last, rtol=1e-4, atol=1e-6)  # a mean, complex too


def test_a_buffer_may_be_filled_again_after_a_step():
    params, batches = problem(np.float32)
    buffer = tuple(aligned.zeros(x.size, x.dtype).reshape(x.shape) for x in batches[0])

    def reused():
        for batch in batches:
            for own, x in zip(buffer, batch, strict=True):
                own[:] = x
            yield buffer
            for own in buffer:
                own[:] = np.nan

    np.testing.assert_array_equal(
        trained(params, reused()).history, trained(params, batches).history
    )


def test_the_users_parameters_stay_the_users():
    """At such an address JAX's arrays on a CPU share the memory of NumPy's."""
    params, batches = problem(np.float32)
    given = jax.tree.map(lambda x: aligned.zeros(x.size, x.dtype).reshape(x.shape), params)
    jax.tree.map(np.copyto, given, params)
    with jdaso.Session(timeout_seconds=60) as session:
        plan = pipeline.partition(
            loss_fn, given, batches[0], num_partitions=COMM.size, num_microbatches=2
        )
        pipe = pipeline.Pipeline(plan, optax.sgd(0.1), session=session)
        state = pipe.init(given)
        jax.tree.map(lambda x: x.fill(np.nan), given)
        jax.tree.map(np.testing.assert_array_equal, pipe.gather(state.params), params)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (lambda p: {**p, "tied": p["tied"].T[:8]}, r"params\['tied'\] is float32\[8,16\]"),
        (lambda p: {**p, "tied": p["tied"].astype(np.float16)}, r"planned|float16\[16,16\]"),
        (lambda p: {**p, "more": p["tied"]}, "another structure"),
    ],
)
def test_parameters_unlike_the_plans_are_refused(change, named):
    params, batches = problem(np.float32)
    with jdaso.Session(timeout_seconds=60) as session:
        plan = pipeline.partition(
            loss_fn, params, batches[0], num_partitions=COMM.size, num_microbatches=2
        )
        pipe = pipeline.Pipeline(plan, optax.sgd(0.1), session=session)
        with pytest.raises(ValueError, match=named):
            pipe.init(change(params))
        with pytest.raises(ValueError, match="state has another structure"):
            pipe.init(params, {"m": np.zeros(3)})
        session.agree("end the test", [])


def loaded(session, **share):
    params, batches = problem(np.float32)
    stream = [np.concatenate(parts) for parts in zip(*batches, strict=True)]
    loader = Loader(tuple(stream), 12, session, shuffle=False, epochs=1, **share)
    return params, loader


def test_samples_that_differ_inside_a_pipeline_are_refused():
    """A loader that is not given its share takes the nodes for replicas."""
    with jdaso.Session(timeout_seconds=60) as session:
        params, loader = loaded(session)
        settings = dict(session=session, strategy="model", num_microbatches=2)
        nodes = ", ".join(map(str, range(COMM.size)))
        said = rf"nodes {nodes} hold .* share=\(session.node // {COMM.size}, session.num_nodes //"
        with pytest.raises(jdaso.NodeError, match=said):
            jdaso.fit(loss_fn, params, optax.sgd(0.1), loader, **settings)
        params, loader = loaded(session, share=(0, 1))
        losses = jdaso.fit(loss_fn, params, optax.sgd(0.1), loader, **settings).history
        assert len(losses) == 2 and np.isfinite(losses).all()


def test_samples_of_an_evaluation_that_differ_inside_a_pipeline_are_refused():
    params, batches = problem(np.float32)
    with jdaso.Session(timeout_seconds=60) as session:
        plan = pipeline.partition(
            loss_fn, params, batches[0], num_partitions=COMM.size, num_microbatches=2
        )
        pipe = pipeline.Pipeline(plan, optax.sgd(0.1), session=session)
        state = pipe.init(params)
        pipe.evaluate(state, batches[0])
        with pytest.raises(jdaso.NodeError, match="different samples"):
            pipe.evaluate(state, jax.tree.map(lambda x: x[:6], batches[session.node % 2]))


def test_the_whole_numbers_of_a_state_are_the_same_on_all_nodes():
    """Replicas count different samples; the result has the mean of floats, node 0's integers."""

    def counts(params, state, batch):
        x = batch @ params["tied"]
        new = {"seen": state["seen"] + (batch > 0).sum(), "mean": state["mean"] + batch.mean()}
        return jnp.mean(x**2), (new, None)

    batches = [np.random.default_rng(n).normal(n, size=(4, WIDTH)) for n in range(COMM.size)]
    with jdaso.Session(timeout_seconds=60) as session:
        found = jdaso.fit(
            counts,
            {"tied": np.eye(WIDTH, dtype=np.float32)},
            optax.sgd(0.1),
            [batches[session.node].astype(np.float32)],
            session=session,
            state={"seen": np.int32(0), "mean": np.float32(0)},
        ).state
    assert int(found["seen"]) == (batches[0] > 0).sum() != (batches[1] > 0).sum()
    np.testing.assert_allclose(found["mean"], np.mean(batches), rtol=1e-5)


def test_a_tree_unlike_the_parameters_on_one_rank_is_an_error_on_all():
    """Its bytes would be read as float32 by the others."""
    params, batches = problem(np.float32)
    with jdaso.Session(timeout_seconds=60) as session:
        plan = pipeline.partition(loss_fn, params, batches[0], num_partitions=COMM.size)
        with pipeline.Pipeline(plan, optax.sgd(0.1), session=session) as pipe:
            own = pipe.init(params).params
            odd = jax.tree.map(lambda x: x.astype(jnp.bfloat16), own) if session.node == 0 else own
            words = "is bfloat16" if session.node == 0 else "Partition 0 gave a tree unlike"
            with pytest.raises(ValueError, match=words):
                pipe.gather(odd)
            jax.tree.map(np.testing.assert_array_equal, pipe.gather(own), params)
