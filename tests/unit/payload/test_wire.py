"""Wire formats: a number's rounding error, and the error feedback that returns it."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import reference
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as st_numpy
from nights import rows

import jdaso
from jdaso._payload import header as _header
from jdaso._payload import wire as _wire
from jdaso._payload.wire import BLOCK, WIRES

pytestmark = pytest.mark.strict_dtypes

NARROW = ("bfloat16", "int8", "int4")
BLOCKWISE = ("int8", "int4")
UNIT = 2.0**-8  # of bfloat16
"""Half a unit in the last place: the relative error of rounding to the nearest."""

EPS = np.finfo(np.float32).eps

rows_of_floats = st_numpy.arrays(
    np.float32,
    st.tuples(st.integers(1, 3), st.integers(1, 3).map(lambda n: n * BLOCK)),
    elements=st.floats(-6e4, 6e4, width=32, allow_subnormal=False),
    fill=st.floats(-1, 1, width=32, allow_subnormal=False),
)


def there_and_back(name, rows):
    wire = WIRES[name]
    return np.asarray(wire.decode(wire.encode(rows)))


@settings(max_examples=25, deadline=None)
@given(rows=rows_of_floats)
def test_float32_is_exact(rows):
    np.testing.assert_array_equal(there_and_back("float32", rows), rows)


@settings(max_examples=25, deadline=None)
@given(rows=rows_of_floats)
def test_bfloat16_error_bound(rows):
    bound = UNIT * np.maximum(np.abs(rows), 1e-38)  # below it the spacing is constant
    assert np.all(np.abs(there_and_back("bfloat16", rows) - rows) <= bound)


@pytest.mark.parametrize("name", BLOCKWISE)
@settings(max_examples=25, deadline=None)
@given(rows=rows_of_floats)
def test_error_bound_of_blocks(name, rows):
    """Half a level: 1/127 or 1/7 of the block's largest number, as its scale rounds it.

    Blocks with levels below 2**-120 are zeros.
    """
    wire = WIRES[name]
    blocks = rows.reshape(-1, wire.block)
    level = np.max(np.abs(blocks), axis=1, keepdims=True) / wire.levels
    if name == "int4":
        level = reference.bfloat16(level.astype(np.float32))
    error = np.abs(there_and_back(name, rows).reshape(-1, wire.block) - blocks)
    assert np.all(error <= level * (0.5 + wire.levels * 4 * EPS) + wire.levels * 2.0**-120)


def test_bytes_of_int4():
    """Takes at most 0.14 of float32's: half a byte a number, and two bytes a scale of 64."""
    assert WIRES["int4"].encoded_width(BLOCK) == BLOCK // 2 + 2 * BLOCK // 64 <= 0.14 * 4 * BLOCK


@pytest.mark.users_compiler
@pytest.mark.parametrize("name", NARROW)
@settings(max_examples=20, deadline=None)
@given(rows=rows_of_floats)
def test_device_and_host_give_the_same_bits(name, rows):
    wire = WIRES[name]
    on_host, on_device = wire.encode(rows), COMPILED[name, "encode"](rows)
    assert on_host.dtype == on_device.dtype == wire.dtype
    assert on_host.shape == (rows.shape[0], wire.encoded_width(rows.shape[1]))
    np.testing.assert_array_equal(on_host, on_device)
    np.testing.assert_array_equal(wire.decode(on_host), COMPILED[name, "decode"](on_host))


@pytest.mark.users_compiler
@pytest.mark.parametrize("name", BLOCKWISE)
@pytest.mark.parametrize("largest", [1e-30, 1.4e-38 * 127, 1.1e-38 * 127, 1e-40, 0.0])
def test_tiny_numbers_have_the_same_bits_on_device_and_host(name, largest):
    """A subnormal scale would be zero on the device only."""
    rows = np.linspace(-largest, largest, BLOCK).astype(np.float32)[None]
    on_host, on_device = WIRES[name].encode(rows), COMPILED[name, "encode"](rows)
    np.testing.assert_array_equal(on_host, on_device)
    decoded = WIRES[name].decode(on_host)
    np.testing.assert_array_equal(decoded, COMPILED[name, "decode"](on_host))
    assert np.any(decoded) == (largest > 1e-34)


COMPILED = {
    (name, verb): jax.jit(getattr(WIRES[name], verb))
    for name in NARROW
    for verb in ("encode", "decode")
}


@pytest.mark.parametrize("name", NARROW)
@settings(max_examples=25, deadline=None)
@given(rows=rows_of_floats)
def test_codecs_are_those_of_the_reference(name, rows):
    """Equal to float32 rounding, except levels that hang on the last bit of the scale."""
    for got, row in zip(there_and_back(name, rows), rows, strict=True):
        expected = reference.WIRES[name](row)
        if name not in BLOCKWISE:
            np.testing.assert_array_equal(got, expected)
            continue
        block, levels = WIRES[name].block, WIRES[name].levels
        largest = np.abs(row.reshape(-1, block)).max(1).repeat(block).astype(np.float64)
        level = np.where(largest > 0, largest, 1) / levels
        if name == "int4":
            level = reference.bfloat16(level.astype(np.float32)).astype(np.float64)
        tie = np.abs(np.abs(row / level) % 1 - 0.5) < 1e-4
        jump = np.where(tie, 1.01 * level, 0)
        error = np.abs(got.astype(np.float64) - expected)
        assert np.all(error <= 4 * EPS * largest + jump + levels * 2.0**-120)


def test_no_conversion_there_and_back_is_left_to_the_compiler():
    """XLA may drop a conversion, as GPUs do; the error feedback would see no rounding."""
    wire = WIRES["bfloat16"]
    program = jax.jit(lambda x: wire.decode(wire.encode(x))).lower(jnp.ones(8)).as_text()
    assert "(tensor<8xf32>) -> tensor<8xbf16>" in program
    assert "(tensor<8xbf16>) -> tensor<8xf32>" not in program


@pytest.mark.parametrize("name", NARROW)
def test_zero_stays_zero(name):
    rows = np.zeros((2, BLOCK), np.float32)
    np.testing.assert_array_equal(there_and_back(name, rows), rows)


@pytest.mark.parametrize("name", NARROW)
def test_encoding_what_was_decoded_changes_nothing(name):
    rows = np.random.default_rng(0).normal(size=(3, BLOCK)).astype(np.float32)
    once = there_and_back(name, rows)
    rounding = 2 * EPS if name == "int8" else 0  # a level times a scale of 24 bits
    np.testing.assert_allclose(there_and_back(name, once), once, rtol=rounding)


@pytest.mark.users_compiler
@pytest.mark.parametrize("nodes", [1, 2, 3, 17, 20])
@pytest.mark.parametrize("name", WIRES)
def test_sums_run_over_the_rows_in_order(name, nodes):
    """Sums are float32; for many nodes the compiled sum is a loop.

    A compiled sum of int8 rows may fuse scale and sum, which rounds once less at each row.
    """
    wire = WIRES[name]
    rows = np.random.default_rng(0).normal(size=(nodes, BLOCK)).astype(np.float32)
    encoded = wire.encode(rows)
    expected = reference.add([np.asarray(wire.decode(row)) for row in encoded])
    np.testing.assert_array_equal(_wire.sum_rows(wire, encoded), expected)
    fused = nodes * EPS * np.abs(rows).sum(0) if name == "int8" else 0.0
    compiled = np.asarray(_wire.sum_rows(wire, jnp.asarray(encoded)))
    assert np.all(np.abs(compiled - expected) <= fused)


@pytest.mark.parametrize("name", WIRES)
def test_a_header_rides_along(name):
    wire = WIRES[name]
    head = _header.header(
        step=5, loss_sum=jnp.float32(1.5), loss_weight=jnp.float32(3), bad_leaf=jnp.int32(7)
    )
    rows = wire.encode(jnp.ones((3, BLOCK)))
    body, heads = _wire.detach(wire, _wire.attach(wire, rows, head))
    np.testing.assert_array_equal(body, rows)
    assert heads.shape == (3, _header.HEADER) and heads.dtype == jnp.int32
    np.testing.assert_array_equal(heads, np.broadcast_to(head, heads.shape))
    assert heads[2, _header.BAD_LEAF] == 7 and heads[0, _header.STEP] == 5
    sums, counts = _header.loss_words(heads.at[:, _header.BAD_LEAF].set(0))
    np.testing.assert_array_equal(sums, [1.5] * 3)
    np.testing.assert_array_equal(counts, [3] * 3)


@pytest.mark.parametrize("name", BLOCKWISE)
@pytest.mark.parametrize("largest", [0.0, 1e-40, 3e38])
def test_blocks_do_not_trip_debug_nans(name, largest):
    """Zeros and subnormal numbers have no scale to divide by, huge ones a huge scale."""
    rows = np.full((1, BLOCK), largest, np.float32)
    rows[0, :7] = 0
    with jax.debug_nans(True), jax.debug_infs(True):
        again = WIRES[name].decode(WIRES[name].encode(jnp.asarray(rows)))
        np.testing.assert_allclose(again, rows, rtol=4e-3, atol=1e-34)


def naive_first_bad(name, rows):
    """Finds the first number that is not finite; for blockwise wires that of its block."""
    block = WIRES[name].block
    for index, number in enumerate(rows.reshape(-1)):
        if not np.isfinite(number):
            return index // block * block
    return None


@pytest.mark.parametrize("name", WIRES)
@settings(max_examples=25, deadline=None)
@given(
    bad=st.lists(
        st.tuples(st.integers(0, 3 * 512 - 1), st.sampled_from([np.nan, np.inf, -np.inf])),
        max_size=3,
    ),
    largest=st.sampled_from([1.0, 1e-30, 3e38]),
)
def test_the_first_bad_number_is_found(name, bad, largest):
    rows = np.linspace(-largest, largest, 3 * 512, dtype=np.float32).reshape(3, 512)
    rows[0] = largest  # a sum that overflows
    for index, number in bad:
        rows.reshape(-1)[index] = number
    with np.errstate(all="ignore"):
        encoded = WIRES[name].encode(rows)
    header = np.zeros((3, WIRES[name].header_width), encoded.dtype)
    sent = np.concatenate([encoded, header], axis=1)[:, : encoded.shape[1]]  # not contiguous
    assert WIRES[name].first_bad(sent) == naive_first_bad(name, rows)


def test_unknown_wire():
    with pytest.raises(ValueError, match=r"wire must be one of .*float32.*, got 'float8'"):
        with jdaso.Session(engine=jdaso.Simulated(2)) as session:
            jdaso.daso(optax.sgd(1.0), phases=jdaso.Phases(9), session=session, wire="float8")


STEPS = list(itertools.product([2, 3], WIRES, ("paper", "corrected")))
BY_DAY = [
    *((2, wire, "paper") for wire in ("float32", "int8", "int4")),
    *((3, wire, "corrected") for wire in ("bfloat16", "int8")),
]


@pytest.mark.parametrize(
    ("nodes", "wire", "merge"),
    rows(STEPS, BY_DAY),
)
def test_a_thousand_small_steps_arrive(nodes, wire, merge):
    """1000 steps of -1e-3 from 1.0. Weights rounded to bfloat16 would stay at 1.0.

    Two more elements take smaller steps, which a block with the first rounds.

    "corrected" arrives at 0. "paper" takes stale parameters in, which costs ``P a / (2a + P)``
    steps at each of the 400 merges, with any wire. An update rounds in float32 at 1.0 or below.
    """
    lost = 400 * nodes / (2 + nodes) if merge == "paper" else 0
    with jdaso.Session(engine=jdaso.Simulated(nodes)) as session:
        phases = jdaso.Phases(1000, 100, 100, sync_every=2, delay=1)
        tx = jdaso.daso(optax.sgd(1e-3), phases=phases, session=session, wire=wire, merge=merge)

        def run(gradient):
            x = jnp.ones(3)

            def step(carry, _):
                x, state = carry
                updates, state = tx.update(gradient, state, x)
                return (optax.apply_updates(x, updates), state), None

            return jax.lax.scan(step, (x, tx.init(x)), length=1000)[0][0]

        sizes = np.array([1, 0.037, 0.0041], np.float32)
        gradients = jnp.broadcast_to(sizes, (nodes, 3))
        x = jax.jit(jax.vmap(run, axis_name=session.node_axis))(gradients)
    expected = 1 - (1000 - lost) * 1e-3 * sizes
    np.testing.assert_allclose(x, [expected] * nodes, atol=2000 * EPS)


@pytest.mark.parametrize("wire", NARROW)
def test_a_thousand_small_gradients_arrive_through_synchronous(wire):
    """Gradients too small for their block: the error feedback collects them until they count."""
    steps, nodes = 1000, 2
    with jdaso.Session(engine=jdaso.Simulated(nodes)) as session:
        tx = jdaso.synchronous(optax.sgd(1.0), session=session, wire=wire)
        small, large = 1e-3, 1.0  # 1e-3 is less than half a level of a block with a 1.0

        def run(gradient):
            x = jnp.zeros(2)

            def step(carry, _):
                x, state = carry
                updates, state = tx.update(gradient, state, x)
                return (optax.apply_updates(x, updates), state), None

            return jax.lax.scan(step, (x, tx.init(x)), length=steps)[0][0]

        gradients = jnp.broadcast_to(jnp.array([small, large]), (nodes, 2))
        x = jax.jit(jax.vmap(run, axis_name=session.node_axis))(gradients)
    # The error feedback left is at most one rounding of a node and one of the sum, a level each.
    kept_back = {"bfloat16": UNIT, "int8": 1 / 254, "int4": 1 / 14}[wire] * 2 * large
    rounding = steps * steps * large * EPS / 2
    np.testing.assert_allclose(x[:, 0], -small * steps, atol=kept_back + rounding)
    np.testing.assert_allclose(x[:, 1], -large * steps, atol=2 * kept_back + rounding)


@pytest.mark.parametrize(
    ("wire", "merge"),
    rows(
        itertools.product(NARROW, ["paper", "corrected", "outer"]),
        day=[("bfloat16", "corrected"), ("int8", "outer"), ("int4", "paper")],
    ),
)
def test_narrow_wires_reach_the_float32_loss(wire, merge):
    """Nodes pull apart: the same final loss to 1 %, not merely a low one."""
    import training

    def loss(name):
        problem = reference.Quadratic(120, 4, size=64)
        with jdaso.Session(engine=jdaso.Simulated(4)) as session:
            tx = jdaso.daso(
                optax.sgd(0.1, momentum=0.5),
                phases=jdaso.Phases(120, 10, 10, sync_every=3, delay=2),
                session=session,
                wire=name,
                merge=training.merge_of(merge),
            )
            params, _, _ = training.train(session, tx, problem, {"x": (64,)})
        x, best = np.asarray(params)[-1, 0], problem.pull.mean((0, 1)) / problem.curvature
        return np.mean(problem.curvature * (x - best) ** 2)

    assert loss(wire) == pytest.approx(loss("float32"), rel=0.01)
