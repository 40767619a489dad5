"""The defects of HeAT's DASO, each with a test that it would fail (one process, virtual nodes).

Defects that need real ranks are in tests/ranks/optimizers/test_heat_defects.py.
"""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from nights import at_night

import jdaso
from jdaso._rules.state import init_phases

EPS = np.finfo(np.float32).eps


def run(tx, session, params, gradients, *, steps=None, state=None, value=None):
    """Trains all virtual nodes on given gradients, ``[nodes, steps, ...]`` in every leaf.

    Returns all parameters on the way, ``[nodes, steps, ...]``, and the last (params, state).
    """
    if state is None:
        state = begin(tx, session, params)
    return compiled(tx, session, steps, value)(params, state, gradients)


def begin(tx, session, params):
    """The state of all virtual nodes before the first update."""
    return jax.jit(jax.vmap(tx.init, axis_name=session.node_axis))(params)


def compiled(tx, session, steps=None, value=None):
    """A program of updates that may run several times."""

    def one(params, state, gradients):
        def step(carry, gradient):
            params, state = carry
            updates, state = tx.update(gradient, state, params, value=value)
            params = optax.apply_updates(params, updates)
            return (params, state), params

        last, history = jax.lax.scan(step, (params, state), gradients, length=steps)
        return history, last

    return jax.jit(jax.vmap(one, axis_name=session.node_axis))


def stepper(tx, session):
    """A program of one update, for runs that are looked at, or left, anywhere."""

    def step(params, state, gradient):
        updates, state = tx.update(gradient, state, params)
        return optax.apply_updates(params, updates), state

    return jax.jit(jax.vmap(step, axis_name=session.node_axis))


def walk(step, params, state, gradients):
    """Returns (params, state) after each update by the program of a `stepper`."""
    found = []
    for n in range(jax.tree.leaves(gradients)[0].shape[1]):
        params, state = step(params, state, jax.tree.map(lambda g, n=n: g[:, n], gradients))
        found.append((params, state))
    return jax.block_until_ready(found)


def walked(tx, session, params, gradients):
    """Returns (params, state) after each update, from the first on."""
    return walk(stepper(tx, session), params, begin(tx, session, params), gradients)


def virtual(nodes, **settings):
    return jdaso.Session(engine=jdaso.Simulated(nodes, **settings))


def pushes(nodes, steps, first):
    """Gradients that part the nodes in the first update and leave them alone after."""
    gradients = np.zeros((nodes, steps, np.shape(first)[-1]), np.float32)
    gradients[:, 0] = first
    return jnp.asarray(gradients)


def test_defect_01_delay_of_one_less_than_the_distance():
    """Data of age S = B - 1 is weighed as age S, and snapshots hold the last merge."""
    x = np.array([1.0, 5.0])
    with virtual(2) as session:
        phases = jdaso.Phases(100, 0, 0)
        tx = jdaso.daso(optax.sgd(1.0), phases=phases, session=session, merge="paper")
        train, start = compiled(tx, session), jnp.zeros((2, 1))
        state = begin(tx, session, start)
        for sync_every in (2, 3, 4):
            # B and S live in the optimizer state: one program serves them all.
            delay = sync_every - 1
            phase = init_phases(jdaso.Phases(100, 0, 0, sync_every, delay))
            phase = jax.tree.map(lambda x: jnp.stack([x, x]), phase)
            history, _ = train(start, state._replace(phase=phase), pushes(2, 9, [[-1.0], [-5.0]]))
            merged = (2 * delay * x + 6.0) / (2 * delay + 2)
            np.testing.assert_allclose(history[:, delay, 0], merged, rtol=8 * EPS)
            # The next start, at B, sends what was merged; its merge comes at B + S.
            again = (2 * delay * merged + merged.sum()) / (2 * delay + 2)
            np.testing.assert_allclose(history[:, sync_every + delay, 0], again, rtol=16 * EPS)
            assert not np.allclose(merged, (2 * x + 6.0) / 4) or delay == 1


def test_defect_02_a_merge_across_the_end_of_an_epoch():
    """The cut of the loop into epochs changes nothing, and every start has its merge."""
    gradients = jnp.asarray(np.random.default_rng(0).normal(size=(2, 24, 3)), jnp.float32)
    phases = jdaso.Phases(100, 2, 0, 4, 3)
    with virtual(2) as session:
        tx = jdaso.daso(optax.sgd(0.1, momentum=0.5), phases=phases, session=session)
        train, start = compiled(tx, session), jnp.ones((2, 3))
        first = begin(tx, session, start)
        whole, (_, whole_state) = train(start, first, gradients)
        for epoch in (3, 4):
            params, state, parts = start, first, []
            for n in range(0, 24, epoch):
                part = gradients[:, n : n + epoch]
                history, (params, state) = train(params, state, part)
                parts.append(history)
            np.testing.assert_array_equal(np.concatenate(parts, axis=1), whole)
            exchanges = [int(x.phase.exchanges[0]) for x in (state, whole_state)]
            assert exchanges == [6, 6], epoch


def test_defect_03_local_steps_are_never_thrown_away():
    """Devices diverge with l > 1; when they meet, the mean of all steps remains, also at starts."""
    nodes, devices, steps = 2, 2, 12
    phases = jdaso.Phases(100, 0, 0, sync_every=4, delay=2, local_every=3)
    gradients = np.random.default_rng(0).normal(size=(nodes, devices, steps, 3)).astype(np.float32)
    with virtual(nodes) as session:
        tx = jdaso.daso(
            optax.sgd(0.1),
            phases=phases,
            session=session,
            local_axis="local",
            merge="corrected",
        )

        def one(gradients):
            def step(carry, gradient):
                x, state = carry
                updates, state = tx.update(gradient, state, x)
                x = optax.apply_updates(x, updates)
                return (x, state), x

            x = jnp.zeros(3)
            return jax.lax.scan(step, (x, tx.init(x)), gradients)[1]

        every_device = jax.vmap(one, axis_name="local")
        history = jax.jit(jax.vmap(every_device, axis_name=session.node_axis))(gradients)
    # "corrected" keeps the mean over nodes, so the mean over all is the sum of all gradients.
    expected = -0.1 * np.cumsum(gradients.mean((0, 1)), axis=0)
    bound = 8 * steps * EPS * np.abs(history).max()
    np.testing.assert_allclose(history.mean((0, 1)), expected, atol=bound)
    apart = np.abs(history[:, 0] - history[:, 1]).max((0, 2))
    assert apart.max() > 0.05, "local steps were not skipped"
    assert (apart[[0, 4, 8]] <= bound).all(), "devices meet before a snapshot is taken"


@pytest.mark.parametrize("blocking", ["gradients", "parameters"])
@pytest.mark.parametrize("wire", ["float32", at_night("bfloat16"), at_night("int8"), "int4"])
def test_defect_04_weights_are_not_rounded_while_blocking(blocking, wire):
    """1000 blocking steps of -1e-3 from 1.0 arrive at 0."""
    phases = jdaso.Phases(1000, 1000)
    with virtual(2) as session:
        tx = jdaso.daso(
            optax.sgd(1e-3), phases=phases, session=session, wire=wire, blocking=blocking
        )
        history, _ = run(tx, session, jnp.ones((2, 1)), jnp.ones((2, 1000, 1)))
    np.testing.assert_allclose(history[:, -1], 0, atol=1000 * EPS)


@pytest.mark.parametrize("merge", ["paper", at_night("corrected")])
def test_defect_05_frozen_parameters_do_not_corrupt_the_model(merge):
    """A frozen leaf before, between and after others: those train as if it were not there."""
    generator = np.random.default_rng(0)
    gradients = {k: generator.normal(size=(2, 20, 5)).astype(np.float32) for k in "abcde"}
    frozen = ("a", "c", "e")
    labels = {k: "freeze" if k in frozen else "train" for k in gradients}
    inner = optax.sgd(0.1, momentum=0.9)
    with virtual(2) as session:
        settings = dict(phases=jdaso.Phases(20, 3, 4), session=session, merge=merge)
        groups = {"train": inner, "freeze": optax.set_to_zero()}
        tx = jdaso.daso(optax.multi_transform(groups, labels), **settings)
        start = {k: jnp.full((2, 5), ord(k) / 10) for k in gradients}
        history, _ = run(tx, session, start, gradients)

        alone = jdaso.daso(inner, **settings)
        trained = lambda tree: {k: v for k, v in tree.items() if k not in frozen}  # noqa: E731
        expected, _ = run(alone, session, trained(start), trained(gradients))
    for k in trained(start):
        np.testing.assert_array_equal(history[k], expected[k])
    for k in frozen:
        kept = np.broadcast_to(start[k][:, None], history[k].shape)
        np.testing.assert_allclose(history[k], kept, rtol=20 * EPS)


def test_defect_06_a_parameter_of_many_chunks():
    """The bits are the same in one chunk and in fifteen."""
    gradients = np.random.default_rng(0).normal(size=(2, 12, 7001)).astype(np.float32)
    results = []
    for chunk_bytes in (2048, 2**20):
        with virtual(2) as session:
            tx = jdaso.daso(
                optax.sgd(0.1, momentum=0.9),
                phases=jdaso.Phases(12, 2, 3),
                session=session,
                chunk_bytes=chunk_bytes,
            )
            results.append(run(tx, session, jnp.zeros((2, 7001)), gradients)[0])
    np.testing.assert_array_equal(*results)


@pytest.mark.parametrize("nodes", [1, at_night(2), 3, at_night(5)])
def test_defect_07_one_device_a_node_and_no_gpu(nodes):
    """Runs any number of nodes of one CPU device each."""
    with virtual(nodes) as session:
        assert session.num_nodes == nodes and len(session.devices) >= 1
        tx = jdaso.daso(optax.sgd(0.1), phases=jdaso.Phases(9, 2, 3, 2, 1), session=session)
        history, _ = run(tx, session, jnp.ones((nodes, 2)), jnp.ones((nodes, 9, 2)))
    bound = 9 * 16 * EPS
    np.testing.assert_allclose(history[:, 1], 0.8, atol=bound)
    assert np.isfinite(history).all()


def test_defect_08_a_schedule_drives_the_inner_optimizer():
    """The schedule counts in every phase, and the optimizer keeps its identity."""
    schedule = optax.piecewise_constant_schedule(0.5, {4: 0.5, 8: 0.0})
    with virtual(2) as session:
        tx = jdaso.daso(
            optax.sgd(schedule), phases=jdaso.Phases(12, 2, 3), session=session, merge="corrected"
        )
        history, (_, state) = run(tx, session, jnp.zeros((2, 1)), -jnp.ones((2, 12, 1)))
        fixed = jdaso.daso(
            optax.inject_hyperparams(optax.sgd)(learning_rate=schedule),
            phases=jdaso.Phases(12, 2, 3),
            session=session,
            merge="corrected",
        )
        injected, _ = run(fixed, session, jnp.zeros((2, 1)), -jnp.ones((2, 12, 1)))
    expected = np.cumsum([0.5] * 4 + [0.25] * 4 + [0.0] * 4)
    for got in (history, injected):
        np.testing.assert_allclose(got[..., 0], [expected] * 2, rtol=12 * 4 * EPS)
    assert isinstance(state, jdaso.DasoState)


@pytest.mark.parametrize("nodes", [1, 3])
def test_defect_09_pretrained_weights_are_kept(nodes):
    """Wrapping and initialising leave parameters alone; zero gradients move nothing."""
    start = jnp.asarray(np.random.default_rng(0).normal(size=5), jnp.float32)
    before = np.array(start)
    with virtual(nodes) as session:
        tx = jdaso.daso(optax.sgd(0.1), phases=jdaso.Phases(20, 3, 4), session=session)
        params = jnp.broadcast_to(start, (nodes, 5))
        history, _ = run(tx, session, params, jnp.zeros((nodes, 20, 5)))
    np.testing.assert_array_equal(start, before)
    np.testing.assert_array_equal(history[:, :3], np.broadcast_to(before, (nodes, 3, 5)))
    np.testing.assert_allclose(history, np.broadcast_to(before, (nodes, 20, 5)), rtol=20 * EPS)


def test_defect_10_batch_statistics_are_averaged():
    """`jdaso.mean` inside and outside of a compiled step; counts stay."""
    stats = {"mean": jnp.arange(6.0).reshape(3, 2), "count": jnp.array([4, 5, 6])}
    with virtual(3) as session:
        inside = jax.jit(jax.vmap(lambda s: jdaso.mean(s, session), axis_name=session.node_axis))
        for averaged in (inside(stats), jdaso.mean(stats, session)):
            np.testing.assert_array_equal(averaged["mean"], [[2.0, 3.0]] * 3)
            np.testing.assert_array_equal(averaged["count"], stats["count"])


@pytest.mark.parametrize("merge", ["paper", at_night("corrected")])
def test_defect_11_moments_are_averaged(merge):
    """The last cycling update leaves every node the mean of all moments, not its own."""
    gradients = np.random.default_rng(0).normal(size=(3, 12, 4)).astype(np.float32)
    with virtual(3) as session:
        tx = jdaso.daso(
            optax.adamw(0.1),
            phases=jdaso.Phases(12, 0, 4),
            session=session,
            merge=merge,
            second_moments="own",
        )
        _, (_, state) = run(tx, session, jnp.zeros((3, 4)), gradients[:, :8])
    moments = state.inner[0]
    mu = nu = np.zeros((3, 4))
    for g in gradients[:, :8].transpose(1, 0, 2):
        mu, nu = 0.9 * mu + 0.1 * g, 0.999 * nu + 0.001 * g * g
    for got, own in ((moments.mu, mu), (moments.nu, nu)):
        np.testing.assert_array_equal(got, np.broadcast_to(got[:1], got.shape))
        np.testing.assert_allclose(got[0], own.mean(0), atol=8 * 8 * EPS * np.abs(own).max())


@pytest.mark.parametrize("bad", [np.nan, np.inf, at_night(-np.inf)])
def test_defect_12_numbers_that_are_not_finite_raise(bad):
    """The error names node and leaf, for NaN and infinity in one node's snapshot."""
    gradients = np.zeros((3, 12, 2), np.float32)
    gradients[2, 3, 1] = bad
    with virtual(3) as session:
        tx = jdaso.daso(optax.sgd(0.1), phases=jdaso.Phases(20, 2, 2), session=session)
        errors = (jdaso.NodeError, jax.errors.JaxRuntimeError, ValueError)
        with pytest.raises(errors, match=r"not finite .*: node 2, leaf \['w'\]\."):
            out = run(tx, session, {"w": jnp.zeros((3, 2))}, {"w": gradients})
            jax.block_until_ready(out)


def test_defect_12_numbers_that_are_not_finite_are_skipped_by_all():
    """Skipped numbers never reach the others: their parameters stay finite, and they train on."""
    phases, start = jdaso.Phases(40, 2, 2), jnp.zeros((3, 2))
    with virtual(3) as session:
        tx = jdaso.daso(optax.sgd(0.1), phases=phases, session=session, on_nonfinite="skip")
        train = compiled(tx, session)
        state = begin(tx, session, start)
        for bad in (np.nan, np.inf):
            gradients = np.full((3, 14, 2), 0.5, np.float32)
            gradients[2, 3, 1] = bad
            history, _ = train(start, state, gradients)
            assert np.isfinite(history[:2]).all()
            np.testing.assert_allclose(history[0, -1], -0.05 * 14, rtol=0.2)


def turns_bad_after_its_last_snapshot(steps, bad, at=14):
    """Gradients of three nodes, zeros but for update `at`, where node 1's are not finite.

    With `LATE` the last snapshot is taken in update 12 and merged in 13; the mean comes in 15.
    """
    gradients = np.zeros((3, steps, 2), np.float32)
    gradients[:, at:][:, :1] = np.array([1, 5, 3], np.float32)[:, None, None]
    gradients[1, at:][:1, 0] = bad
    return {"w": jnp.asarray(gradients)}


LATE = jdaso.Phases(20, 2, 4, 5, 1)


@pytest.mark.parametrize(("steps", "bad"), [(15, np.nan), at_night((20, np.inf)), (20, np.nan)])
def test_defect_12_numbers_that_turn_bad_after_the_last_snapshot_raise(steps, bad):
    """Fails in the mean that ends cycling, or in `finalize` if the run stops before."""
    with virtual(3) as session:
        tx = jdaso.daso(optax.sgd(1.0, momentum=0.5), phases=LATE, session=session)
        gradients = turns_bad_after_its_last_snapshot(steps, bad)
        errors = (jdaso.NodeError, jax.errors.JaxRuntimeError, ValueError)
        with pytest.raises(errors, match=r"not finite .*: node 1, leaf .*\['w'\]"):
            _, last = run(tx, session, {"w": jnp.zeros((3, 2))}, gradients)
            jax.block_until_ready(last)
            assert steps == 15, "the mean let them pass"
            jdaso.finalize(*last, session)


def skipping(session, wire="float32"):
    inner, options = optax.sgd(1.0, momentum=0.5), dict(merge="corrected", on_nonfinite="skip")
    return jdaso.daso(inner, phases=LATE, session=session, wire=wire, **options)


@pytest.mark.parametrize(
    ("wire", "bad"), [("float32", np.nan), ("int4", np.inf), at_night(("int8", np.inf))]
)
def test_defect_12_numbers_that_turn_bad_in_the_last_mean_are_left_out(wire, bad):
    """The others' mean becomes everybody's with "skip": parameters and momentum."""
    start = {"w": jnp.zeros((3, 2))}
    with virtual(3) as session:
        gradients = turns_bad_after_its_last_snapshot(20, bad, at=15)["w"]
        found = walked(skipping(session, wire), session, start, {"w": gradients})
    history = np.stack([params["w"] for params, _ in found], axis=1)
    (_, after), (_, state) = found[15], found[-1]
    np.testing.assert_array_equal(history[:, 15], np.full((3, 2), -2.0))
    np.testing.assert_array_equal(after.inner[0].trace["w"], np.full((3, 2), 2.0))
    np.testing.assert_array_equal(history, np.roll(history, 1, axis=0))
    assert np.isfinite(history).all() and np.isfinite(state.inner[0].trace["w"]).all()


@pytest.mark.parametrize(
    ("wire", "bad"), [("float32", np.nan), ("int4", np.inf), at_night(("int8", np.inf))]
)
def test_defect_12_a_node_whose_parameters_are_bad_gets_the_others_from_finalize(wire, bad):
    """optax adds updates, and no sum with NaN is finite: only the momentum is the others'."""
    start = {"w": jnp.zeros((3, 2))}
    with virtual(3) as session:
        gradients = turns_bad_after_its_last_snapshot(20, bad)["w"]
        found = walked(skipping(session, wire), session, start, {"w": gradients[:, :16]})
        for steps, expected in ((15, -2.0), (16, -3.0)):
            params, state = found[steps - 1]
            final = jdaso.finalize(params, state, session)["w"]
            np.testing.assert_array_equal(final, np.full((3, 2), expected))
        np.testing.assert_array_equal(params["w"][::2], np.full((2, 2), -3.0))
        np.testing.assert_array_equal(state.inner[0].trace["w"], np.full((3, 2), 1.0))


def test_defect_12_a_node_whose_parameters_are_bad_leaves_the_others_alone():
    """Bad parameters make bad gradients, and the cool-down averages gradients."""
    with virtual(3) as session:
        tx = optax.chain(optax.add_decayed_weights(0.1), skipping(session))
        gradients = turns_bad_after_its_last_snapshot(20, np.nan)
        history, (params, state) = run(tx, session, {"w": jnp.ones((3, 2))}, gradients)
        assert np.isfinite(history["w"][::2]).all()
        final = jdaso.finalize(params, state, session)["w"]
    assert np.isfinite(final).all()
    np.testing.assert_array_equal(final, np.roll(final, 1, axis=0))


def test_defect_13_an_early_break():
    """`finalize` merges exchanges in flight, wherever the loop was left."""
    gradients = np.random.default_rng(0).normal(size=(2, 9, 3)).astype(np.float32)
    phases = jdaso.Phases(100, 2, 0, 4, 3)
    with virtual(2) as session:
        tx = jdaso.daso(optax.sgd(0.1), phases=phases, session=session, merge="corrected")
        found = walked(tx, session, jnp.zeros((2, 3)), gradients)
        for stop in (3, 4, 5, 9):
            params, state = found[stop - 1]
            assert state.ticket.any(), stop
            final = np.asarray(jdaso.finalize(params, state, session))
            np.testing.assert_array_equal(final[0], final[1])
            everything = -0.1 * gradients[:, :stop].sum(1).mean(0)  # "corrected" loses no step
            np.testing.assert_allclose(final[0], everything, atol=stop * 16 * EPS)


def test_defect_14_a_resumed_run_goes_on_where_it_stopped():
    """Saved at any step and restored in a new session: bitwise the run that was not stopped.

    With an outer optimizer and error feedback every field of the state is in use.
    """
    rule = jdaso.outer(optax.sgd(0.7, momentum=0.9))
    gradients = np.random.default_rng(0).normal(size=(2, 16, 3)).astype(np.float32)

    def transformation(session):
        phases = jdaso.Phases(16, 3, 4, sync_every=(3, 2), delay=(2, 1))
        inner = optax.sgd(0.1, momentum=0.5)
        return jdaso.daso(inner, phases=phases, session=session, merge=rule, wire="int8")

    with virtual(2) as session:
        whole = walked(transformation(session), session, jnp.ones((2, 3)), gradients)
        whole = jax.tree.map(np.asarray, whole)
    with virtual(2) as session:
        step = stepper(transformation(session), session)
        for stop in (2, 4, 6, 13):  # warm-up; in flight; just merged; cool-down
            rest = walk(step, *whole[stop - 1], gradients[:, stop:])
            assert len(rest) == 16 - stop
            for (params, _), (expected, _) in zip(rest, whole[stop:], strict=True):
                np.testing.assert_array_equal(params, expected, err_msg=str(stop))


def test_defect_16_the_cycling_phase_has_narrow_wires():
    """Virtual nodes hold an exchange in flight as bytes of the wire, not float32."""
    sizes = {}
    for wire in ("float32", "bfloat16", "int8", "int4"):
        with virtual(2) as session:
            tx = jdaso.daso(optax.sgd(0.1), phases=jdaso.Phases(9), session=session, wire=wire)
            init = jax.vmap(tx.init, axis_name=session.node_axis)
            flight = jax.eval_shape(init, jnp.zeros((2, 8192))).held[0].flight
            # Bytes that travel; beside them lie the header and the rounding errors.
            sizes[wire] = sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(flight[0]))
    assert sizes["bfloat16"] == sizes["float32"] / 2
    assert sizes["int8"] == sizes["float32"] / 4 * (1 + 4 / 256)
    assert sizes["int4"] == sizes["float32"] / 8 * (1 + 4 / 64)


@pytest.mark.parametrize("wire", ["float32", "bfloat16", "int8", "int4"])
def test_defect_17_a_loss_scale_skip_happens_on_all_nodes(wire):
    """One node's overflow while blocking: all nodes skip that update, and none diverges.

    The error feedback of a narrow wire does not keep it.
    """
    gradients = np.ones((3, 6, 2), np.float32)
    gradients[1, 2] = np.inf
    inner = optax.apply_if_finite(optax.sgd(0.1), max_consecutive_errors=5)
    with virtual(3) as session:
        tx = jdaso.synchronous(inner, session=session, wire=wire)
        try:
            history, (_, state) = run(tx, session, jnp.zeros((3, 2)), gradients)
            jax.block_until_ready(history)
        except (jdaso.NodeError, jax.errors.JaxRuntimeError, ValueError):
            pytest.fail("an overflow that the inner optimizer handles must not end the run")
    np.testing.assert_array_equal(history, np.broadcast_to(history[:1], history.shape))
    rtol = 8 * EPS if wire == "float32" else 1e-3  # what the last gradients lost is to come
    np.testing.assert_allclose(history[0, -1], -0.5, rtol=rtol)
    np.testing.assert_array_equal(state.inner.total_notfinite, [1, 1, 1])


def test_defect_17_a_skip_of_one_node_while_cycling_does_not_part_the_nodes():
    """The node skips alone, so its count differs; in the cool-down all are equal again.

    Adam's count sets its bias correction: were it left apart, equal moments would give the nodes
    different updates for ever.
    """
    nodes, steps, cooldown = 2, 24, 6
    gradients = np.random.default_rng(0).normal(size=(nodes, steps, 50)).astype(np.float32)
    gradients[1, 8, 0] = np.nan
    inner = optax.apply_if_finite(optax.adam(0.01), max_consecutive_errors=5)
    with virtual(nodes) as session:
        tx = jdaso.daso(inner, phases=jdaso.Phases(steps, 3, cooldown, 4, 2), session=session)

        def one(gradients):
            def step(carry, gradient):
                params, state = carry
                updates, state = tx.update(gradient, state, params)
                params = optax.apply_updates(params, updates)
                return (params, state), (params, state.inner)

            params = jnp.full(50, 0.3)
            return jax.lax.scan(step, (params, tx.init(params)), gradients)[1]

        history = jax.jit(jax.vmap(one, axis_name=session.node_axis))(gradients)
    counts = history[1].inner_state[0].count
    np.testing.assert_array_equal(counts[:, 8:10], [[9, 10], [8, 9]])
    assert np.isfinite(history[0]).all()
    third = steps - cooldown + 2
    for path, leaf in jax.tree_util.tree_leaves_with_path(history):
        at_end = np.asarray(leaf)[:, third:]
        np.testing.assert_array_equal(at_end[0], at_end[1], err_msg=jax.tree_util.keystr(path))


@pytest.mark.parametrize("exchange_steps", [1, 3, 20])
def test_defect_18_the_delay_follows_the_time_of_an_exchange(exchange_steps):
    """`delay="auto"` on virtual nodes whose exchanges take so many steps."""
    phases = jdaso.Phases(60, 2, 2, sync_every=6, delay="auto")
    with virtual(2, exchange_steps=exchange_steps) as session:
        tx = jdaso.daso(optax.sgd(0.1), phases=phases, session=session)
        _, (_, state) = run(tx, session, jnp.zeros((2, 2)), jnp.zeros((2, 40, 2)))
    np.testing.assert_array_equal(state.phase.delay, [min(exchange_steps, 6)] * 2)


def test_defect_18_the_delay_follows_a_table_of_times():
    """Starts at steps 2, 8, 14, ...: the one at 14 takes 5 steps; what follows it takes 1 again."""
    phases = jdaso.Phases(60, 2, 2, sync_every=6, delay="auto")
    with virtual(2, exchange_steps={14: 5}) as session:
        tx = jdaso.daso(optax.sgd(0.1), phases=phases, session=session)
        found = walked(tx, session, jnp.zeros((2, 2)), jnp.zeros((2, 26, 2)))
    delays = [int(found[steps - 1][1].phase.delay[0]) for steps in (14, 19, 26)]
    assert delays == [1, 5, 1]


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (dict(exchange_steps=0), "exchange_steps must be at least 1, got 0"),
        (dict(exchange_steps={4: -2}), "exchange_steps must be at least 1, got -2"),
        (dict(nodes=0), "virtual nodes, at least 1, got 0"),
    ],
)
def test_defect_18_times_that_cannot_be_are_named(settings, said):
    with pytest.raises(ValueError, match=said):
        jdaso.Simulated(**dict(nodes=2) | settings)


def test_defect_18_max_skips_bounds_the_first_cycle():
    for max_skips in (1, 2, 3):
        phases = jdaso.Phases.heat(steps_per_epoch=4, total_epochs=20, max_skips=max_skips)
        with virtual(2) as session:
            tx = jdaso.daso(optax.sgd(0.1), phases=phases, session=session)
            gradients = jnp.zeros((2, 40, 2))
            _, (_, state) = run(tx, session, jnp.zeros((2, 2)), gradients, value=1.0)
        assert (np.asarray(state.phase.sync_every) <= max_skips).all()
