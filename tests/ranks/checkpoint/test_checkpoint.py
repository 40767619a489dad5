"""A run that goes on from a checkpoint is the run that never stopped, bit for bit."""

import dataclasses
import os

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import training
from mpi4py import MPI
from nights import at_night, nightly, rows

import jdaso
from jdaso._session import channels
from jdaso.checkpoint import CheckpointError, Checkpoints
from jdaso.checkpoint._state import values_of

pytestmark = pytest.mark.two_nodes
COMM = MPI.COMM_WORLD
RANK, SIZE = COMM.Get_rank(), COMM.Get_size()
EVERY_STEP = "JDASO_TEST_EVERY_STEP" in os.environ
STEPS = 60 if EVERY_STEP else 20
PHASES = jdaso.Phases(STEPS, STEPS // 5, STEPS // 5, sync_every=4, delay=3)
WIRES = ["float32", "bfloat16", "int8", "int4"]
ENGINES = ["mpi4py", "mpi4jax", "instant"]
MIXES = [(engine, wire, count) for engine in ENGINES for wire in WIRES for count in (1, 2)]
if not EVERY_STEP:
    MIXES = [at_night(("mpi4py", "float32", 2)), ("mpi4py", "int4", 2)]
    MIXES += [at_night(("mpi4py", "int8", 1)), at_night(("mpi4jax", "bfloat16", 1))]
    MIXES += [at_night(("instant", "bfloat16", 2))]
SHAPES = {"bias": (3,), "empty": (0, 2), "weight": (300, 7)}


def make(session, wire, merge="corrected", phases=PHASES, shapes=SHAPES, inner=None, name="daso"):
    """A state as before the first update, and the update; its noise comes from the state's key."""
    inner = inner or optax.adam(3e-2)
    tx = jdaso.daso(
        inner,
        phases=phases,
        session=session,
        wire=wire,
        merge=training.merge_of(merge),
        name=name,
    )
    params = {name: jnp.ones(shape) for name, shape in shapes.items()}
    state = {
        "params": params,
        "optimizer": tx.init(params),
        "statistics": {"mean": jnp.zeros(3)},
        "key": jax.random.fold_in(jax.random.key(7), session.node),
        "position": 0,
    }

    @jax.jit
    def update(params, opt_state, key):
        key, now = jax.random.split(key)
        noise = jax.tree.map(lambda x: jax.random.normal(now, x.shape), params)
        grads = jax.tree.map(lambda x, y: x + y, params, noise)
        loss = sum(jnp.sum(x**2) for x in jax.tree.leaves(params))
        updates, opt_state = tx.update(grads, opt_state, params, value=loss)
        return optax.apply_updates(params, updates), opt_state, key

    def step(state):
        args = state["params"], state["optimizer"], state["key"]
        params, optimizer, key = update(*args)
        mean = state["statistics"]["mean"] * 0.9 + params["bias"]
        now = {"params": params, "optimizer": optimizer, "key": key}
        return now | {"statistics": {"mean": mean}, "position": state["position"] + 1}

    return state, step


def bits(state):
    """All numbers of a state except the ticket's owner, as bytes."""
    leaves = jax.tree.leaves(state)
    keys = [jnp.issubdtype(jnp.result_type(x), jax.dtypes.prng_key) for x in leaves]
    data = [jax.random.key_data(x) if y else x for x, y in zip(leaves, keys, strict=True)]
    return [np.asarray(x).tobytes() for x in data]


@pytest.mark.parametrize(("engine", "wire", "fragments"), MIXES)
def test_it_goes_on_as_if_it_had_never_stopped(engine, wire, fragments, folder):
    """Stops after each step of all phases, also with exchanges in flight."""
    phases = dataclasses.replace(PHASES, fragments=fragments)
    with jdaso.Session(engine=engine) as session:
        checkpoints = Checkpoints(folder, session, every_steps=1, keep_last=STEPS)
        state, step = make(session, wire, phases=phases)
        history = []
        for n in range(STEPS):
            state = step(state)
            checkpoints.after(n + 1, state)
            history.append(bits(state))
        final = bits(jdaso.finalize(state["params"], state["optimizer"], session))
    in_flight = 0
    with jdaso.Session(engine=engine) as session:
        checkpoints = Checkpoints(folder, session)
        like, step = make(session, wire, phases=phases)
        assert checkpoints.steps() == list(range(1, STEPS + 1))
        for stop in range(1, STEPS + 1, 1 if EVERY_STEP else 3):
            state, begin = checkpoints.restore(like, stop)
            assert begin == stop == state["position"]
            in_flight += bool(state["optimizer"].ticket.any())
            assert bits(state) == history[stop - 1]
            for n in range(stop, STEPS):
                state = step(state)
                assert bits(state) == history[n], (stop, n)
            assert bits(jdaso.finalize(state["params"], state["optimizer"], session)) == final
    assert in_flight > STEPS // 10 or SIZE == 1


@pytest.mark.any_mpi
def test_a_save_leaves_the_run_as_it_is(folder):
    """A save completes the exchange on the wire, but the merge keeps its step."""
    ends = []
    for saves in (False, True):
        with jdaso.Session() as session:
            checkpoints = Checkpoints(folder, session, every_steps=1)
            state, step = make(session, "bfloat16")
            for n in range(STEPS):
                state = step(state)
                if saves:
                    checkpoints.after(n + 1, state)
            ends.append(bits(state))
    assert ends[0] == ends[1]


@nightly  # unit/checkpoint has each
@pytest.mark.any_mpi
def test_other_shapes_phases_and_settings_are_refused(folder):
    with jdaso.Session() as session:
        checkpoints = Checkpoints(folder, session)
        state, step = make(session, "float32")
        checkpoints.save(1, step(state))
        checkpoints.wait()
    others = [
        (
            dict(shapes=SHAPES | {"weight": (300, 8)}),
            r"Leaf .*\['weight'\] is float32\[300,7\] in",
        ),
        (dict(shapes=SHAPES | {"more": (1,)}), r"has no leaf .*\['more'\]"),
    ]
    if SIZE > 1:
        others += [
            (dict(phases=jdaso.Phases(STEPS, 2, 2)), "another value of the setting phases"),
            (dict(merge="paper"), "another value of the setting merge"),
        ]
    for settings, said in others:
        with jdaso.Session() as session:
            checkpoints = Checkpoints(folder, session)
            state, _ = make(session, **{"wire": "float32", **settings})
            with pytest.raises(CheckpointError, match=said):
                checkpoints.restore(state)


def test_the_number_of_fragments_counts_and_not_how_it_was_given(folder):
    phases = {count: dataclasses.replace(PHASES, fragments=count) for count in ("auto", 1, 2)}
    with jdaso.Session() as session:
        state, step = make(session, "float32", phases=phases["auto"])
        for _ in range(STEPS // 5 + 2):  # ends with an exchange in flight
            state = step(state)
        checkpoints = Checkpoints(folder, session)
        checkpoints.save(state["position"], state)
        checkpoints.wait()
        ends = [bits(step(state)["params"])]
    with jdaso.Session() as session:
        state, step = make(session, "float32", phases=phases[1])
        state, _ = Checkpoints(folder, session).restore(state)
        ends.append(bits(step(state)["params"]))
    assert ends[0] == ends[1]
    with jdaso.Session() as session:
        state, _ = make(session, "float32", phases=phases[2])
        with pytest.raises(CheckpointError, match=r"ticket is .*Give Phases\(fragments=1, "):
            Checkpoints(folder, session).restore(state)


def test_a_model_that_is_begun_after_a_restore_has_another_number(folder):
    """The third `init` made the state that was saved; the first one here only shows its form."""
    params = jnp.ones(3)
    with jdaso.Session() as session:
        tx = jdaso.daso(optax.sgd(0.1), phases=PHASES, session=session)
        state = [tx.init(params) for _ in range(3)][-1]
        Checkpoints(folder, session).save(1, state)
    with jdaso.Session() as session:
        tx = jdaso.daso(optax.sgd(0.1), phases=PHASES, session=session)
        like = tx.init(params)
        state, _ = Checkpoints(folder, session).restore(like)
        numbers = [int(x.held[0]) for x in (like, state, tx.init(params))]
    assert numbers == [1, 3, 4]


@pytest.mark.skipif(SIZE < 2, reason="a single node measures no wire")
@pytest.mark.parametrize("measured", ["int4", "float32"])
def test_a_restored_run_goes_on_with_the_wire_that_was_measured_first(
    measured, folder, monkeypatch
):
    """The links are measured again, with another result; the bits are as without the end."""
    slow = {"int4": 0.0, "float32": 1.0}
    cost = lambda wire, nodes: 0.0 if wire.name == "float32" else slow[measured]  # noqa: E731
    monkeypatch.setattr(channels, "host_seconds_of", cost)
    stop, history = PHASES.warmup_steps + 2, []
    with jdaso.Session() as session:
        checkpoints = Checkpoints(folder, session)
        state, step = make(session, "auto")
        for n in range(STEPS):
            state = step(state)
            history.append(bits(state))
            if n + 1 == stop:
                assert state["optimizer"].ticket.any()
                checkpoints.save(stop, state)
        assert session.fastest_wire().name == measured
    slow = {"int4": 1.0, "float32": 0.0}
    with jdaso.Session() as session:
        checkpoints = Checkpoints(folder, session)
        like, step = make(session, "auto")
        assert session.fastest_wire().name != measured
        state, _ = checkpoints.restore(like)
        assert session.fastest_wire().name == measured
        for n in range(stop, STEPS):
            state = step(state)
            assert bits(state) == history[n], n
        jdaso.finalize(state["params"], state["optimizer"], session)
    with jdaso.Session() as session:  # a compiled update has the other wire
        checkpoints = Checkpoints(folder, session)
        state, step = make(session, "auto")
        state = step(state)
        with pytest.raises(CheckpointError, match="Restore before the first update"):
            checkpoints.restore(state, stop)
        for _ in range(STEPS - 1):
            state = step(state)
        assert session.fastest_wire().name != measured


@pytest.mark.any_mpi
def test_a_damaged_leaf_is_named_and_the_checkpoint_before_it_is_taken(folder):
    with jdaso.Session() as session:
        checkpoints = Checkpoints(folder, session)
        state, step = make(session, "float32")
        states = [state := step(state) for _ in range(2)]
        for n, now in enumerate(states):
            checkpoints.save(n + 1, now)
        checkpoints.wait()
        if RANK == SIZE - 1:
            (path,) = checkpoints.folder.glob(f"step_00000002-*/node_{RANK}/jdaso.small/0")
            data = path.read_bytes()
            path.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
        COMM.Barrier()
        with pytest.raises(CheckpointError, match=r"leaf \['statistics'\]\['mean'\]"):
            checkpoints.restore(state, 2)
        restored, begin = checkpoints.restore(state)
        assert begin == 1 and bits(restored) == bits(states[0])


@pytest.mark.skipif(SIZE < 2, reason="needs several nodes")
@pytest.mark.parametrize("fewer", [True, False])
def test_on_other_nodes_floats_are_averaged(fewer, folder):
    """Restores on node 0 alone and back on all nodes, with an exchange in flight."""
    first = PHASES.warmup_steps + 2
    sizes = (COMM, MPI.COMM_SELF) if fewer else (MPI.COMM_SELF, COMM)
    params, ends = None, []
    for comm in sizes:
        COMM.Barrier()  # a run of other nodes begins when the one before it has ended
        if comm is MPI.COMM_SELF and RANK > 0:
            continue
        with jdaso.Session(comm, timeout_seconds=120) as session:
            checkpoints = Checkpoints(folder, session)
            state, step = make(session, "float32")
            if comm is sizes[0]:
                for _ in range(first):
                    state = step(state)
                checkpoints.save(first, state)
                params = jax.device_get(state["params"]["weight"])
            else:
                state, begin = checkpoints.restore(state)
                assert begin == first == state["position"]
                assert int(state["optimizer"].step) == first
                assert not state["optimizer"].ticket.any()
                ends.append(np.asarray(state["params"]["weight"]))
                state = step(state)
    everyone = COMM.allgather(params)
    everyone = [x for x in everyone if x is not None]
    mean = np.mean(np.float64(everyone), axis=0).astype(np.float32)
    assert all(np.array_equal(end, mean) for end in ends)
    assert ends or (fewer and RANK > 0)


@pytest.mark.several
@pytest.mark.parametrize(
    ("wire", "merge", "inner"),
    [
        ("int4", "corrected", optax.adam(3e-2)),
        ("float32", "outer", optax.sgd(1e-2)),
        ("float32", "corrected", optax.lion(1e-2)),
    ],
)
def test_several_nodes_go_on_from_one_as_after_a_warm_up(wire, merge, inner, folder):
    """Node 0 goes on alone, and then all nodes, with an exchange in flight when it was left alone.

    The others are as after a warm-up that ends there: a single node has no common point.
    """
    phases = dataclasses.replace(PHASES, fragments=2)
    step_count = PHASES.warmup_steps
    for comm in (COMM, MPI.COMM_SELF):
        COMM.Barrier()
        if comm is MPI.COMM_SELF and RANK > 0:
            continue
        with jdaso.Session(comm, timeout_seconds=120) as session:
            checkpoints = Checkpoints(folder, session)
            state, step = make(session, wire, merge, phases=phases, inner=inner)
            state, begin = checkpoints.restore(state)
            for _ in range(begin, step_count + 2):
                state = step(state)
            step_count += 2
            checkpoints.save(step_count, state)
    step_count = COMM.bcast(step_count)
    COMM.Barrier()
    with jdaso.Session(timeout_seconds=120) as session:
        checkpoints = Checkpoints(folder, session)
        state, step = make(session, wire, merge, phases=phases, inner=inner)
        state, begin = checkpoints.restore(state)
        assert begin == step_count == PHASES.warmup_steps + 4
        phases = dataclasses.replace(phases, warmup_steps=begin)
        other, other_step = make(session, wire, merge, phases=phases, inner=inner, name="other")
        at = {"step": state["optimizer"].step, "inner": state["optimizer"].inner}
        other = {**state, "optimizer": other["optimizer"]._replace(**at)}
        for n in range(begin, STEPS):
            state, other = step(state), other_step(other)
            assert bits(state["params"]) == bits(other["params"]), n
            assert bits(state["optimizer"].inner) == bits(other["optimizer"].inner), n
            assert n > begin or state["optimizer"].ticket[0] == begin + 1
        ends = COMM.allgather(bits(state["params"]))
        assert ends == ends[:1] * SIZE


@pytest.mark.skipif(SIZE < 2, reason="needs several nodes")
@pytest.mark.parametrize(
    ("wire", "merge"),
    rows(
        [*((wire, "corrected") for wire in WIRES), ("int8", "outer"), ("int4", "outer")],
        day=[("int4", "outer")],
    ),
)
def test_what_is_saved_once_is_the_same_on_all_nodes(wire, merge):
    """Compares bits: XLA rounds otherwise in another program, so all nodes must run the same."""
    with jdaso.Session() as session:
        state, step = make(session, wire, merge)
        for n in range(STEPS):
            state = step(state)
            shared = [x for x in values_of(state, shares=True) if x.leaf.common]
            assert len(shared) > 10
            for leaf, value, *_ in shared:
                same = len(set(COMM.allgather(np.asarray(value).tobytes()))) == 1
                assert same, f"{leaf.path} after {n + 1} updates"


@pytest.mark.any_mpi
def test_two_optimizers_go_on_each_where_it_was(folder):
    """Each optimizer has an exchange in flight."""
    ends = []
    for restored in (False, True):
        with jdaso.Session(engine="mpi4py") as session:
            checkpoints = Checkpoints(folder, session)
            txs = [
                jdaso.daso(optax.sgd(0.1 * k), phases=PHASES, session=session, name=f"number {k}")
                for k in (1, 2)
            ]
            params = [jnp.full(40, 1.0 + session.node) * 0 + 1, jnp.ones(40)]
            state = params, [tx.init(x) for tx, x in zip(txs, params, strict=True)]

            @jax.jit
            def step(params, states, n, node=session.node, txs=txs):
                noise = jax.random.normal(jax.random.fold_in(jax.random.key(node), n), (2, 40))
                for k, tx in enumerate(txs):
                    updates, states[k] = tx.update(params[k] + noise[k], states[k], params[k])
                    params[k] = optax.apply_updates(params[k], updates)
                return params, states

            begin = 0
            if restored:
                state, begin = checkpoints.restore(state)
                assert begin == PHASES.warmup_steps + 2
            for n in range(begin, STEPS):
                state = jax.block_until_ready(step(*state, n))
                if n + 1 == PHASES.warmup_steps + 2 and not restored:
                    checkpoints.save(n + 1, state)
            ends.append(bits(state[0]))
    assert ends[0] == ends[1]
