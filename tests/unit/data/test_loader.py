"""A loader's batches: the stream of its order, shared out, across stops and restarts."""

import gc
import inspect
import itertools
import os
import statistics
import subprocess
import sys
import threading
import time
import weakref

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import jdaso
from jdaso.checkpoint import Checkpoints
from jdaso.data import Arrays, Loader, LoadingError, Order, _ahead


@pytest.fixture(scope="module")
def session():
    with jdaso.Session() as session:
        yield session


def stream(order, epochs):
    """Sample by sample, in an independent way: whole epochs one after another."""
    n = order.num_samples
    return [int(x) for e in range(epochs) for x in order.samples(e * n, (e + 1) * n)]


def taken(loader, steps):
    found = [np.asarray(batch).tolist() for batch in itertools.islice(loader, steps)]
    loader.close()
    return found


@settings(max_examples=25)
@given(
    num_samples=st.integers(1, 30),
    share=st.integers(1, 4),
    nodes=st.integers(1, 4),
    seed=st.integers(0, 99),
    shuffle=st.booleans(),
)
def test_step_by_step_the_nodes_take_the_stream(session, num_samples, share, nodes, seed, shuffle):
    size, epochs = share * nodes, 3
    given = dict(seed=seed, shuffle=shuffle, epochs=epochs)
    of_nodes = [
        Loader(np.arange(num_samples), size, session, share=(p, nodes), **given)
        for p in range(nodes)
    ]
    steps = -(-epochs * num_samples // size)
    assert {len(loader) for loader in of_nodes} == {steps}
    parts = [taken(loader, None) for loader in of_nodes]
    joined = [x for step in zip(*parts, strict=True) for part in step for x in part]
    expected = stream(of_nodes[0].order, 3 + -(-size // num_samples))
    assert joined == expected[: steps * size]


@settings(max_examples=15)
@given(
    before=st.integers(0, 6),
    nodes=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    sizes=st.tuples(st.sampled_from([6, 12]), st.sampled_from([6, 12])),
)
def test_another_number_of_nodes_goes_on_exactly(session, before, nodes, sizes):
    """The batch may change too; samples that were only read ahead do not count."""
    old = [Loader(np.arange(17), sizes[0], session, share=(p, nodes[0])) for p in range(nodes[0])]
    for loader in old:
        taken(loader, before)
    states = {tuple(loader.state().items()) for loader in old}
    assert len(states) == 1  # the same on all nodes
    new = [Loader(np.arange(17), sizes[1], session, share=(p, nodes[1])) for p in range(nodes[1])]
    for loader in new:
        loader.restore(dict(states.copy().pop()))
    parts = [taken(loader, 4) for loader in new]
    joined = [x for step in zip(*parts, strict=True) for part in step for x in part]
    begin = before * sizes[0]
    assert joined == stream(new[0].order, 10)[begin : begin + len(joined)]


def test_weights_mark_samples_beyond_the_last_epoch(session):
    loader = Loader({"x": np.arange(10)}, 4, session, epochs=1, weights=True)
    batches = list(loader)
    assert [weights.tolist() for _, weights in batches] == [[1] * 4, [1] * 4, [1, 1, 0, 0]]
    counted = [int(x) for b, w in batches for x, one in zip(b["x"], w, strict=True) if one]
    assert sorted(counted) == list(range(10))
    assert batches[0][1].dtype == jnp.float32


def test_it_ends_at_its_position_and_begins_at_a_given_one(session):
    loader = Loader(np.arange(10), 5, session, epochs=2)
    first = taken_without_closing(loader)
    assert len(first) == len(loader) == 4 and list(loader) == [] and loader.epoch == 2
    loader.seek(1)
    assert taken_without_closing(loader) == first[1:]
    loader.close()
    with pytest.raises(RuntimeError, match="was closed"):
        next(loader)
    with pytest.raises(TypeError, match="no end"):
        len(Loader(np.arange(10), 5, session))


def taken_without_closing(loader):
    return [batch.tolist() for batch in loader]


def test_a_position_of_no_loader_is_refused(session):
    with pytest.raises(ValueError, match=r'"order" and "position".*got \[\'step\'\]'):
        Loader(np.arange(10), 5, session).restore({"step": 3})


def test_a_position_of_another_order_is_refused(session):
    state = Loader(np.arange(10), 5, session, seed=1).state()
    for other in [dict(seed=2), dict(seed=1, shuffle=False), dict(seed=1, shuffle_block=2)]:
        with pytest.raises(ValueError, match="another number of samples, seed or shuffling"):
            Loader(np.arange(10), 5, session, **other).restore(state)


def test_numbers_of_other_types_are_the_same_order(session):
    state = Loader(np.arange(10), 5, session, shuffle_block=2).state()
    given = {"batch_size": 5, "session": session, "shuffle": 1, "shuffle_block": np.int64(2)}
    loader = unchecked(10, **given)
    loader.restore(state)
    loader.close()


def test_a_transform_draws_the_same_for_any_number_of_nodes(session):
    def transform(sample, random):
        return {"x": sample["x"], "noise": random.random(2, np.float32)}

    def noise(share, size):
        loader = Loader({"x": np.arange(9)}, size, session, share=share, transform=transform)
        found = [np.asarray(batch["noise"]) for batch in itertools.islice(loader, 4)]
        loader.close()
        return found

    whole, halves = noise((0, 1), 6), [noise((p, 2), 6) for p in (0, 1)]
    for k in range(4):
        np.testing.assert_array_equal(whole[k], np.concatenate([half[k] for half in halves]))
    assert len(np.unique(np.concatenate(whole))) == 48


class OwnSamples(Arrays):
    """Samples of one node only, as `jdaso.array.Rows`."""

    def __init__(self, tree, node):
        super().__init__(tree)
        self.own_node = node


def test_nodes_with_samples_of_their_own_draw_other_numbers(session):
    def noise(source):
        draws = lambda sample, random: random.random()  # noqa: E731
        loader = Loader(source, 4, session, share=(0, 1), transform=draws)
        found = np.asarray(next(loader))
        loader.close()
        return found.tolist()

    of_all, *of_nodes = map(noise, [np.arange(4), *(OwnSamples(np.arange(4), k) for k in range(3))])
    assert of_all == of_nodes[0] and len({*of_nodes[0], *of_nodes[1], *of_nodes[2]}) == 12
    with pytest.raises(ValueError, match=r"samples of this node only, .* Give share=\(0, 1\)"):
        Loader(OwnSamples(np.arange(4), 1), 4, session, share=(1, 2))


class Failing(Arrays):
    broken = True

    def rows(self, indices):
        if self.broken and 7 in indices:
            raise OSError("bad sector")
        return super().rows(indices)


def test_a_failure_names_sample_and_step_and_may_be_mended(session):
    source = Failing(np.arange(8))
    loader = Loader(source, 4, session, shuffle=False)
    next(loader)
    with pytest.raises(LoadingError, match=r"step 1\] Reading sample 7 failed: OSError: bad sect"):
        next(loader)
    source.broken = False
    assert next(loader).tolist() == [4, 5, 6, 7]
    loader.close()


def test_a_transform_that_fails_names_the_sample(session):
    def transform(sample, random):
        return {int(k): k for k in (0, 1, 2, 3, 4, 6, 7)}[int(sample)]

    loader = Loader(np.arange(8), 4, session, shuffle=False, transform=transform)
    next(loader)
    with pytest.raises(LoadingError, match=r"step 1\] The transform of sample 5 failed: KeyError"):
        next(loader)


def test_samples_that_a_transform_makes_unlike_each_other_are_an_error_of_loading(session):
    def transform(sample, random):
        return np.zeros(int(sample) % 2 + 1)

    loader = Loader(np.arange(8), 4, session, shuffle=False, transform=transform)
    with pytest.raises(LoadingError, match=r"step 0\] The transform .* gave samples that cannot"):
        next(loader)


def test_rows_that_are_not_as_many_as_asked_for_are_refused(session):
    class Short(Arrays):
        def rows(self, indices):
            return super().rows(indices[1:])

    with pytest.raises(LoadingError, match="asked for 4 samples and gave arrays with"):
        next(Loader(Short(np.arange(8)), 4, session))


def test_a_wait_has_a_limit(session):
    go = threading.Event()

    class Slow(Arrays):
        def rows(self, indices):
            go.wait(20)
            return super().rows(indices)

    loader = Loader(Slow(np.arange(8)), 4, session, timeout_seconds=0.2)
    threading.Timer(1.0, go.set).start()
    with pytest.raises(LoadingError, match=r"No batch came within 0.2 s"):
        next(loader)
    assert loader.waited_seconds >= 0.2


def test_batches_are_read_while_the_loop_computes(session):
    """Each is on the devices before the loop asks for it, and then costs no wait."""

    class Slow(Arrays):
        def rows(self, indices):
            time.sleep(0.05)
            return super().rows(indices)

    loader, waits = Loader(Slow(np.arange(8)), 4, session), []
    next(loader)
    for taken in range(1, 11):
        until(lambda taken=taken: taken in loader._ahead._ready)
        before = loader.waited_seconds
        next(loader)
        waits.append(loader.waited_seconds - before)
    assert sum(waits) < 0.25  # reading them takes 0.5 s
    assert statistics.median(waits) < 0.025
    loader.close()


class Reading(Arrays):
    """Counts the batches that are read; `wait` is called before each."""

    def __init__(self, tree, wait=lambda number: None):
        super().__init__(tree)
        self.wait, self.begun, self.numbers = wait, 0, itertools.count()

    def rows(self, indices):
        number = next(self.numbers)
        self.begun = number + 1
        self.wait(number)
        return super().rows(indices)


def until(condition, seconds=30.0):
    limit = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < limit
        time.sleep(0.01)


def comes_to(value, expected, seconds=0.3):
    """`value()` becomes that, and stays so for as long: no event shows that nothing more comes."""
    until(lambda: value() == expected)
    since = time.monotonic()
    while time.monotonic() < since + seconds:
        time.sleep(0.01)
        if value() != expected:
            return False
    return True


def test_batches_come_in_order_though_later_ones_are_read_first(session):
    """Of each four the last is read first."""
    read, order = [threading.Event() for _ in range(16)], []

    def wait(number):
        assert number % 4 == 3 or read[number + 1].wait(20)
        order.append(number)
        read[number].set()

    source = Reading(np.arange(64), wait)
    loader = Loader(source, 4, session, shuffle=False, epochs=1, workers=4, prefetch=3)
    assert [batch[0].item() for batch in loader] == list(range(0, 64, 4))
    assert order == [number for four in range(0, 16, 4) for number in range(four, four + 4)[::-1]]
    loader.close()


@pytest.mark.parametrize(("workers", "prefetch"), [(1, 2), (3, 4)])
def test_no_more_is_read_ahead_than_promised(session, workers, prefetch):
    source = Reading(np.arange(100))
    loader = Loader(source, 1, session, workers=workers, prefetch=prefetch)
    gc.collect()  # arrays of earlier tests
    before = len(jax.live_arrays())
    for taken in range(1, 5):
        next(loader)
        assert comes_to(lambda: source.begun, taken + workers + prefetch)
        assert comes_to(lambda: len(jax.live_arrays()), before + prefetch)
    loader.close()


def test_closing_drops_the_batches_also_while_a_read_hangs(session, monkeypatch):
    monkeypatch.setattr(_ahead, "_END_SECONDS", 0.2)
    go = threading.Event()
    source = Reading(np.arange(100), lambda number: number < 4 or go.wait(20))
    gc.collect()  # arrays of earlier tests
    before = len(jax.live_arrays())
    loader = Loader(source, 1, session, prefetch=4)
    next(loader)
    assert comes_to(lambda: len(jax.live_arrays()), before + 3)
    loader.close()
    assert len(jax.live_arrays()) == before
    go.set()


def test_closing_waits_for_reads(session):
    """A thread inside the HDF5 library when Python ends would keep its lock, and the process."""
    inside = []

    class Slow(Arrays):
        def rows(self, indices):
            inside.append(1)
            time.sleep(0.3)
            found = super().rows(indices)
            inside.pop()
            return found

    loader = Loader(Slow(np.arange(100)), 1, session)
    next(loader)
    assert inside
    loader.close()
    assert not inside


def test_a_batch_that_cannot_be_put_on_the_devices_is_an_error_of_the_loop(session, monkeypatch):
    def fail(batch, sharding):
        raise TypeError("not a valid JAX type")

    loader = Loader(np.arange(8), 4, session, timeout_seconds=60)
    monkeypatch.setattr(jax, "device_put", fail)
    with pytest.raises(TypeError, match="not a valid JAX"):
        next(loader)
    loader.close()


@pytest.mark.parametrize(
    ("leaf", "dtype"),
    [
        (np.array("text"), "<U4"),
        (np.array(b"text"), r"\|S4"),
        (np.array(None), "object"),
        (np.datetime64("2026-01-01"), r"datetime64\[D\]"),
        (np.zeros((), [("a", "i4")]), r"\[\('a', '<i4'\)\]"),
    ],
)
def test_samples_that_hold_no_numbers_are_named(session, leaf, dtype):
    row = {"x": np.zeros(2), "parts": [{"label": leaf}]}
    said = (
        rf"step 1\] Samples hold {dtype} at \['parts'\]\[0\]\['label'\], and devices take .*Leave"
    )

    def transform(sample, random):
        return row if sample > 3 else {"x": row["x"]}

    loader = Loader(np.arange(8), 4, session, shuffle=False, transform=transform)
    next(loader)
    with pytest.raises(LoadingError, match=said):
        next(loader)
    with pytest.raises(LoadingError, match=said.replace("step 1", "step 0")):
        next(Loader([row] * 4, 4, session))  # as rows of Hugging Face


def test_a_text_is_left_out_by_a_transform(session):
    rows = [{"x": np.full(2, k), "text": "a" * k} for k in range(4)]
    loader = Loader(rows, 4, session, shuffle=False, transform=lambda row, random: row["x"])
    assert next(loader)[:, 0].tolist() == [0, 1, 2, 3]
    with pytest.raises(LoadingError, match="Samples hold <U3 at their root"):
        next(Loader(["abc"] * 4, 4, session))


def test_numbers_that_numpy_has_not_are_taken(session):
    class Keys(Arrays):
        def rows(self, indices):
            return {
                "key": jax.random.split(jax.random.key(0), len(indices)),
                **super().rows(indices),
            }

    tree = {k: np.zeros(8, k) for k in ("bfloat16", "float8_e5m2", "int4", "bool", "complex64")}
    batch = next(Loader(Keys(tree), 4, session))
    assert {k: str(batch[k].dtype) for k in tree} == {k: k for k in tree}
    assert jax.dtypes.issubdtype(batch["key"].dtype, jax.dtypes.prng_key)


def test_closing_ends_the_threads(session):
    def own():
        return {x for x in threading.enumerate() if x.name == "jdaso-data"} - others

    others = set()
    others = own()
    loader = Loader(np.arange(8), 4, session)
    next(loader)
    assert len(own()) == 2
    loader.close()
    assert not own()


HANGS = """
import threading, numpy as np, jdaso
from jdaso.data import Arrays, Loader, _ahead

_ahead._END_SECONDS = 0.5

class Hangs(Arrays):
    def rows(self, indices):
        return threading.Event().wait()

with jdaso.Session() as session:
    next(Loader(Hangs(np.arange(8)), 4, session, timeout_seconds=0.5))
"""


def test_a_read_that_hangs_keeps_no_process_alive():
    done = subprocess.run([sys.executable, "-c", HANGS], capture_output=True, text=True, timeout=60)
    assert done.returncode == 1 and "No batch came within 0.5 s" in done.stderr


def test_a_transform_that_returns_nothing_is_named(session):
    loader = Loader(np.arange(8), 4, session, transform=lambda sample, random: None)
    with pytest.raises(LoadingError, match="gave None, no arrays. It must return the sample"):
        next(loader)
    loader.close()


def test_loaders_that_are_closed_are_let_go(session):
    before = len(session.hooks.closers)
    for _ in range(3):
        Loader(np.arange(8), 4, session).close()
    assert len(session.hooks.closers) == before


@pytest.mark.parametrize("end", ["taken", "asked for more", "closed", "never begun"])
def test_a_finished_loader_and_its_source_are_let_go(session, end):
    source = Arrays(np.arange(8))
    loader = Loader(source, 4, session, epochs=1)
    alive = weakref.ref(loader), weakref.ref(source)
    if end != "never begun":
        assert len(list(itertools.islice(loader, 2))) == 2
    if end == "asked for more":
        assert list(loader) == []
    if end == "closed":
        loader.close()
    del loader, source
    gc.collect()
    assert [x() for x in alive] == [None, None]


def test_a_loader_ends_with_its_session():
    with jdaso.Session() as session:
        loaders = [Loader(np.arange(8), 4, session) for _ in range(2)]
        next(loaders[0])
    for loader in loaders:
        with pytest.raises(RuntimeError, match="was closed, perhaps with its session"):
            next(loader)


def test_a_seed_of_numpy_is_the_same_seed(session):
    loader = Loader(np.arange(10), 5, session, seed=np.int64(3))
    assert loader.order.fingerprint == Order(10, seed=3).fingerprint
    loader.close()


def test_what_has_only_items_is_a_source(session):
    items = [{"x": np.full(3, k), "y": k} for k in range(5)]
    batch = next(Loader(items, 5, session, shuffle=False))
    assert batch["x"].shape == (5, 3) and batch["y"].tolist() == [0, 1, 2, 3, 4]
    with pytest.raises(TypeError, match="int is not a source of samples"):
        Loader(3, 5, session)


def test_a_list_of_columns_is_explained(session):
    columns = [np.zeros((5, 2)), np.zeros(5)]
    said = r"A list is a sequence of 2 samples; give a tuple or dict of arrays if its parts are col"
    with pytest.raises(LoadingError, match=rf"2 samples together failed: ValueError.*\. {said}"):
        next(Loader(columns, 2, session))
    x, y = next(Loader(tuple(columns), 2, session))
    assert x.shape == (2, 2) and y.shape == (2,)


def test_a_wait_may_have_no_limit(session):
    loader = Loader(np.arange(8), 4, session, timeout_seconds=float("inf"))
    assert next(loader).shape == (4,)
    loader.close()


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"batch_size": 7}, r"multiple of 3 \(3 nodes times 1 local devices\), got 7. Take 6 or 9"),
        ({"batch_size": 2}, r"got 2. Take 3\."),
        ({"batch_size": 0}, r"got 0. Take 3\."),
        ({"share": (3, 3)}, r"share must be \(p, P\) with 0 <= p < P, got \(3, 3\)"),
        ({"share": (0, 3, 3)}, r"share must be \(p, P\) with 0 <= p < P, got \(0, 3, 3\)"),
        ({"share": 3}, r"share must be \(p, P\) with 0 <= p < P, got 3"),
        ({"share": 0}, r"share must be \(p, P\) with 0 <= p < P, got 0"),
        ({"share": (0, 1.5)}, r"share must be \(p, P\) with 0 <= p < P, got \(0, 1.5\)"),
        ({"epochs": 0}, "epochs must be at least 1, got 0"),
        ({"workers": 0}, "workers must be at least 1, got 0"),
        ({"prefetch": 1}, "prefetch must be at least 2, got 1"),
        ({"timeout_seconds": 0}, "timeout_seconds must be above 0, got 0"),
        ({"seed": -1}, "seed must be at least 0, got -1"),
        ({"shuffle_block": 0}, "shuffle_block must be at least 1, got 0"),
    ],
)
def test_wrong_settings_are_named(session, wrong, said):
    with pytest.raises(ValueError, match=said):
        unchecked(**{"batch_size": 3, "session": session, "share": (0, 3)} | wrong)


def unchecked(num_samples=8, **given):
    """Makes a loader as users do, without the tests' check of types at the call."""
    loader = object.__new__(Loader)
    inspect.unwrap(Loader.__init__)(loader, np.arange(num_samples), **given)
    return loader


@pytest.mark.parametrize(
    "name", ["seed", "batch_size", "epochs", "workers", "prefetch", "shuffle_block"]
)
def test_numbers_that_are_not_whole_are_named(session, name):
    given = {"batch_size": 4, "session": session}
    with pytest.raises(TypeError, match=f"^{name} must be a whole number, got 4.0. Give an int"):
        unchecked(**given | {name: 4.0})
    loader = unchecked(**given | {name: np.int64(4)})
    assert type(loader.batch_size) is int and next(loader).shape == (4,)
    loader.close()


def test_a_checkpoint_holds_the_position(tmp_path):
    def run(steps):
        with jdaso.Session() as session:
            loader = Loader(np.arange(11), 3, session)
            checkpoints = Checkpoints(tmp_path, session, every_steps=2)
            state, begin = checkpoints.restore({"sum": jnp.zeros(()), "data": loader.state()})
            loader.restore(state["data"])
            found = []
            for step in range(begin, steps):
                found.append(next(loader).tolist())
                state = {"sum": state["sum"] + 1, "data": loader.state()}
                checkpoints.after(step + 1, state)
            return found

    first, second = run(5), run(9)
    expected = stream(Order(11), 3)
    assert sum(first, []) == expected[:15] and sum(second, []) == expected[12:27]


@pytest.mark.parametrize("taken", [0, 3])
def test_fit_takes_a_loader_and_does_not_read_what_it_has_seen(tmp_path, taken):
    """The loader may have been used before, as long as each run uses it in the same way."""
    read = []

    class Watched(Arrays):
        def rows(self, indices):
            read.extend(indices.tolist())
            return super().rows(indices)

    x = np.random.default_rng(0).normal(size=(64, 3)).astype(np.float32)
    source = Watched({"x": x, "y": x @ np.float32([[1], [2], [3]])})

    def loss_fn(params, batch):
        return jnp.mean((batch["x"] @ params["w"] - batch["y"]) ** 2)

    def fit(epochs, folder=None):
        with jdaso.Session() as session:
            loader = Loader(source, 16, session, epochs=epochs)
            for _ in range(taken):
                next(loader)
            params, settings = {"w": jnp.zeros((3, 1))}, dict(folder=folder, every_steps=20 - taken)
            return jdaso.fit(loss_fn, params, optax.sgd(0.1), loader, session=session, **settings)

    whole = fit(10)
    assert whole.history[-1] < 1e-2 * whole.history[0]
    fit(5, tmp_path)
    del read[:]
    again = fit(10, tmp_path)
    np.testing.assert_array_equal(again.params["w"], whole.params["w"])
    # The first batch shows the shapes; what it began to read ahead is dropped.
    assert len(read) <= 5 * 64 + 16 * (6 + taken)


def test_fit_says_how_a_loader_at_its_end_begins_again(session):
    def fit():
        loss_fn, params = lambda params, batch: jnp.mean((batch - params) ** 2), jnp.zeros(3)
        return jdaso.fit(loss_fn, params, optax.sgd(0.1), loader, session=session)

    loader = Loader(np.ones((8, 3), np.float32), 4, session, epochs=1)
    assert len(list(loader)) == 2
    with pytest.raises(ValueError, match=r"data gave no batch.*, call its seek\(0\) first"):
        fit()
    loader.seek(0)
    assert len(fit().history) == 2


DEVICES = """
import jax, numpy as np, jdaso
from jdaso.data import Loader, Order
with jdaso.Session() as session:
    batch = next(Loader({"x": np.arange(12)}, 6, session))
    order = Order(12).samples(0, 6).tolist()
    parts = {s.device: s.data.tolist() for s in batch["x"].addressable_shards}
    assert [parts[d] for d in session.devices] == [order[:2], order[2:4], order[4:]], parts
    try:
        Loader(np.arange(12), 4, session)
    except ValueError as error:
        assert "multiple of 3 (1 nodes times 3 local devices), got 4. Take 3 or 6" in str(error)
with jdaso.Session(engine=jdaso.Simulated(3)) as session:
    assert next(Loader(np.arange(12), 6, session)).tolist() == order
print("done")
"""


def test_devices_get_equal_parts():
    flags = "--xla_force_host_platform_device_count=3"
    env = os.environ | {"XLA_FLAGS": flags}
    run = dict(capture_output=True, text=True, env=env, timeout=120)
    done = subprocess.run([sys.executable, "-c", DEVICES], **run)
    assert done.stdout.endswith("done\n"), done.stderr


def test_batches_are_arrays_of_the_device(session):
    batch = next(Loader(np.arange(12, dtype=np.uint8), 6, session))
    assert isinstance(batch, jax.Array) and batch.dtype == jnp.uint8
    assert batch.devices() == {session.devices[0]}


class Panic(BaseException):
    """As libraries in Rust raise, which is none of `Exception`."""


def test_no_batch_is_lost_to_an_error_of_any_kind(session):
    class Source:
        broken = True

        def __len__(self):
            return 24

        def __getitem__(self, k):
            if k == 5 and self.broken:
                Source.broken = False
                raise Panic
            return np.int64(k)

    loader = Loader(Source(), 4, session, shuffle=False, epochs=1, timeout_seconds=60)
    found = [np.asarray(next(loader)).tolist()]
    with pytest.raises(Panic):
        next(loader)
    found += [np.asarray(batch).tolist() for batch in loader]
    loader.close()
    assert sum(found, []) == list(range(24))


@pytest.mark.parametrize("seed", [0, 5, 2**70])
def test_a_position_fits_in_an_array_of_jax(session, seed):
    loader = Loader(Arrays(np.arange(23)), 4, session, seed=seed, transform=lambda x, rng: x)
    next(loader)
    state = jax.tree.map(jnp.asarray, loader.state())
    follows = np.asarray(next(loader)).tolist()
    loader.restore(jax.jit(lambda x: x)(state))
    assert np.asarray(next(loader)).tolist() == follows
    loader.close()
