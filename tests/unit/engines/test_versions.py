"""Versions of late numbers on the host, against NumPy formulas in float64; no step, no MPI.

Node 0 of three runs here; what the others send is made up. Each exchange is checked by what comes
back: the change that a merge adds, the error feedback, and the same bits when it is made again.
"""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import jdaso
from jdaso._engines.base import InTurn
from jdaso._engines.channel import Channel
from jdaso._engines.pace import Pace
from jdaso._engines.passes import passes_of
from jdaso._engines.versions import Versions
from jdaso._mpi.topology import Topology
from jdaso._nodes.control import Control
from jdaso._payload.layout import layout_of
from jdaso._payload.wire import wire_of
from jdaso._payload.words import BAD_LEAF, HEADER, STATUS, WEIGHT
from jdaso._rules.merge import Merge, merge_of
from jdaso.traces._timeline import Timeline

NODES = 3
SHAPES = ((700,), (40, 9))
WIRES = ("float32", "bfloat16", "int8", "int4")
NESTEROV = jdaso.outer(optax.sgd(0.7, momentum=0.9, nesterov=True))


class Others:
    """Sums node 0's rows with those of two nodes that send the same."""

    def __init__(self, wire):
        self.wire, self.bad, self.sum = wire, 0, passes_of(wire).total
        self.weights = (1.0, 1.0, 1.0)

    def __call__(self, rows, out, headed):
        width, residual = out.shape[1], None
        for p in range(NODES):
            received = np.repeat(rows[p : p + 1], NODES, axis=0)
            lost = self.sum(received, out[p])
            residual = lost if p == 0 else residual
        heads = None
        if headed:
            heads = np.repeat(np.ascontiguousarray(rows[:1, width:]).view(np.int32), NODES, axis=0)
            heads[:, STATUS], heads[1, BAD_LEAF] = 0, self.bad
            heads[:, WEIGHT] = np.array(self.weights, np.float32).view(np.int32)
        return residual, heads


@pytest.fixture
def make():
    channels = []

    def make(wire, rule):
        wire = wire_of(wire)
        layout = layout_of([np.zeros(x, np.float32) for x in SHAPES], NODES, 4096, wire.block)
        others = Others(wire)
        control = Control(Topology(0, 1, "here"), timeout_seconds=120.0)
        channel = Channel(layout, wire, InTurn(others, 120.0), control, Timeline(), Pace())
        channel._nodes = channel.worker._nodes = NODES
        channels.append(channel)
        versions = Versions(channel, merge_of(rule), list, checks=True, node=0)
        channel.versions["one"] = versions
        return versions, others

    yield make
    for channel in channels:
        channel.close(5.0)


class Again:
    """An engine that begins each exchange again after it has taken some chunks."""

    def __init__(self, engine, chunks):
        self.engine, self.chunks = engine, chunks

    def __call__(self, work):
        for k in range(self.chunks):
            work.take(k, 20.0)
        self.engine(work)

    def close(self):
        pass


def leaves(seed):
    random = np.random.default_rng(seed)
    return [random.normal(size=x).astype(np.float32) for x in SHAPES]


def start(versions, ticket, arrays, before, weight=None, model=1, owner=1):
    head = np.zeros(HEADER, np.int32)
    about = {"before": before, "weight": weight, "owner": owner, "model": model, "device": 0}
    versions.start(ticket, arrays, head, **about)


def correction(versions, ticket, age=2, model=1):
    heads, change = versions.correction(ticket, age, owner=1, model=model, device=0)
    return heads, [np.array(x) for x in change]


def feedback(versions, ticket):
    heads, owed = versions.feedback(ticket, 1, 1)
    assert not heads.any()
    return [np.array(x) for x in owed]


@pytest.mark.parametrize("wire", WIRES)
@pytest.mark.parametrize(
    "rule", ["corrected", "paper", NESTEROV], ids=["corrected", "paper", "outer"]
)
def test_what_the_wire_loses_comes_later(make, wire, rule):
    """All nodes send the same: the mean is the snapshot once the error feedback is added."""
    versions, _ = make(wire, rule)
    anchor, x = leaves(0), [a + 0.01 * b for a, b in zip(leaves(0), leaves(1), strict=True)]
    versions.begin(anchor, 1, 1)
    before, errors = 0, []
    for n in range(30):
        start(versions, 1 + 4 * n, x, before)
        heads, change = correction(versions, 1 + 4 * n)
        assert not heads[:, STATUS].any()
        before = 1 + 4 * n
        if rule == "paper":  # the change is the mean itself
            errors.append(max(np.abs(c - y).max() for c, y in zip(change, x, strict=True)))
        elif rule == "corrected":  # the mean less the snapshot
            errors.append(max(np.abs(c).max() for c in change))
        else:
            point = np.concatenate([np.asarray(c).reshape(-1) for c in change])
            assert np.isfinite(point).all()
    if errors:
        assert errors[-1] <= 1e-6 and (wire == "float32" or errors[0] > 1e-6)


class Rounded(Merge):
    """A rule of a user's own, whose targets are not float32."""

    name, keeps_progress, needs_anchor = "rounded", True, True

    def target(self, mean, anchor, outer):
        return jax.tree.map(lambda x: x.astype(jnp.bfloat16), mean), outer


@pytest.mark.parametrize("wire", ["float32", "bfloat16", "int8"])
def test_a_target_of_another_dtype_is_converted(make, wire):
    versions, _ = make(wire, Rounded())
    x, before = leaves(0), 0
    versions.begin(x, 1, 1)
    for ticket in (1, 5, 9):
        start(versions, ticket, x, before)
        _, change = correction(versions, ticket)
        before = ticket
        for c, y in zip(change, x, strict=True):
            np.testing.assert_allclose(c, y.astype(jnp.bfloat16) - y, atol=2e-2)


def test_the_change_is_the_mean_less_the_snapshot(make):
    versions, others = make("float32", "corrected")
    x = leaves(2)
    start(versions, 1, x, 0)
    _, change = correction(versions, 1)
    for c in change:
        np.testing.assert_allclose(c, 0, atol=1e-6)
    others.weights = (1.0, 0.5, 0.0)  # the sum is of three equal snapshots all the same
    start(versions, 5, x, 1)
    _, change = correction(versions, 5)
    for c, y in zip(change, x, strict=True):
        np.testing.assert_allclose(c, (2 - 1) * y, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("wire", WIRES)
def test_a_step_that_is_made_again_has_the_same_bits(make, wire):
    """Repeats a merge, and the start that follows, from the version in the state."""
    versions, _ = make(wire, NESTEROV)
    versions.begin(leaves(0), 1, 1)
    start(versions, 1, leaves(1), 0)
    _, first = correction(versions, 1)
    start(versions, 5, leaves(2), 1)
    for _ in range(2):  # the step with this merge and this start is discarded, and made again
        again = correction(versions, 1)[1]
        for a, b in zip(first, again, strict=True):
            np.testing.assert_array_equal(a, b)
        start(versions, 5, leaves(3), 1)
    _, change = correction(versions, 5)
    other, _ = make(wire, NESTEROV)
    other.begin(leaves(0), 1, 1)
    start(other, 1, leaves(1), 0)
    correction(other, 1)
    start(other, 5, leaves(3), 1)
    for a, b in zip(correction(other, 5)[1], change, strict=True):
        np.testing.assert_array_equal(a, b)
    for a, b in zip(feedback(other, 5), feedback(versions, 5), strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("wire", ["int8"])  # three times a row is exact in it
def test_nothing_is_lost_with_a_result_that_is_discarded(make, wire):
    """The mean comes back as error feedback; the common point stays."""
    versions, others = make(wire, "corrected")
    anchor, x = leaves(0), leaves(1)
    versions.begin(anchor, 1, 1)
    start(versions, 1, x, 0)
    others.weights = (0.0, 0.0, 0.0)
    correction(versions, 1)
    owed = feedback(versions, 1)
    for a, b, c in zip(owed, x, anchor, strict=True):
        np.testing.assert_allclose(a, b - c, atol=1e-6)
    others.weights = (1.0, 1.0, 1.0)
    start(versions, 5, anchor, 1)  # the node has not moved: only the error feedback is sent
    _, change = correction(versions, 5)
    total = [c + y for c, y in zip(change, feedback(versions, 5), strict=True)]
    for a, b, c in zip(total, x, anchor, strict=True):
        np.testing.assert_allclose(a, b - c, atol=1e-5)


def test_numbers_that_are_not_finite_leave_no_error_feedback(make):
    versions, others = make("int8", "corrected")
    versions.begin(leaves(0), 1, 1)
    start(versions, 1, leaves(1), 0)
    others.bad = 2
    heads, _ = correction(versions, 1)
    assert heads[1, BAD_LEAF] == 2
    assert not any(x.any() for x in feedback(versions, 1))


@pytest.mark.parametrize("wire", ["float32", "int8"])
def test_a_version_that_is_gone_is_an_error(make, wire):
    versions, _ = make(wire, NESTEROV)
    versions.begin(leaves(0), 1, 1)
    before = 0
    for ticket in (1, 5, 9):
        start(versions, ticket, leaves(ticket), before)
        correction(versions, ticket)
        before = ticket
    start(versions, 13, leaves(2), 1)
    heads, _ = correction(versions, 13)
    assert (heads[:, STATUS] == 1).all()
    control = versions._channel._control
    said = str(control.refused)
    assert "started at step 0" in said and "no longer has its numbers" in said
    assert control.broken is None, "the run can go on with the last state"
    start(versions, 14, leaves(2), 9)
    assert not (correction(versions, 14)[0][:, STATUS] == 1).any()


@pytest.mark.parametrize(
    "rule", ["corrected", "paper", NESTEROV], ids=["corrected", "paper", "outer"]
)
@pytest.mark.parametrize("wire", ["float32", "int8"])
@pytest.mark.parametrize("in_flight", [False, True])
def test_a_saved_version_goes_on_with_the_same_bits(make, wire, rule, in_flight):
    one, _ = make(wire, rule)
    one.begin(leaves(0), 1, 1)
    start(one, 1, leaves(1), 0)
    if not in_flight:
        correction(one, 1, age=3)
    version = one.kept(1, 1, 1, in_flight=in_flight)
    saved = one.saved(version, in_flight=in_flight)
    two, _ = make(wire, rule)
    two.adopt(1, 1, 1, saved, in_flight=in_flight)
    for each in (one, two):
        each.changes = correction(each, 1, age=3)[1] if in_flight else []
        start(each, 5, leaves(2), 1)
        each.changes += correction(each, 5)[1] + feedback(each, 5)
    for a, b in zip(one.changes, two.changes, strict=True):
        np.testing.assert_array_equal(a, b)


def test_an_optimizer_made_anew_goes_on_with_the_state_of_the_one_before(make):
    """An optimizer that has versions of its own is never given another's."""
    versions, _ = make("int8", "corrected")
    versions.begin(leaves(0), 1, 1)
    start(versions, 1, leaves(1), 0)
    correction(versions, 1)
    assert versions._find(1, 2) is versions._find(1, 1)
    versions.begin(leaves(0), 2, 2)
    assert versions._find(1, 2) is None and versions._find(1, 1) is not None


@pytest.mark.parametrize("wire", ["float32", "int8"])
def test_optimizers_made_anew_for_one_model_take_turns(make, wire):
    """As `optax.inject_hyperparams` makes one for each program that it compiles."""
    results = []
    for owners in ([1] * 8, [1, 2, 2, 1, 3, 1, 2, 3]):
        versions, _ = make(wire, "corrected")
        versions.begin(leaves(0), 1, 1)
        changes = []
        for n in range(4):
            start(versions, 1 + 4 * n, leaves(n), max(4 * n - 3, 0), owner=owners[2 * n])
            owner = owners[2 * n + 1]
            heads, change = versions.correction(1 + 4 * n, 2, owner=owner, model=1, device=0)
            assert not heads[:, STATUS].any()
            changes += [x.copy() for x in change]
        assert len(versions._known) == 1
        results.append(changes)
    for a, b in zip(*results, strict=True):
        np.testing.assert_array_equal(a, b)


class Average(Merge):
    """A rule of a user's, with state and without an anchor."""

    name, keeps_progress, needs_anchor = "average", True, False

    def init(self, params):
        return params


def test_a_merge_rule_with_state_needs_an_anchor(make):
    with pytest.raises(ValueError, match=r"'average' has state .* set needs_anchor=True"):
        make("float32", Average())


def test_merge_rules_made_anew_for_one_model_take_turns(make):
    """Each has versions of its own, and goes on with the numbers that the other has made."""
    results = []
    for several in (False, True):
        first, _ = make("int8", NESTEROV)
        channel = first._channel
        rule = jdaso.outer(optax.sgd(0.7, momentum=0.9, nesterov=True))  # equal to no other
        second = Versions(channel, rule, list, checks=True, node=0) if several else first
        channel.versions["two"] = second
        assert second._places is first._places
        first.begin(leaves(0), 1, 1)
        changes = []
        # The starts with seeds 7 and 8 are discarded, and made again.
        for versions, owner, ticket, before, seed in (
            (first, 1, 1, 0, 1),
            (second, 2, 5, 1, 7),
            (second, 2, 5, 1, 2),
            (first, 1, 9, 5, 3),
            (first, 1, 13, 9, 8),
            (first, 1, 13, 9, 4),
        ):
            owner = owner if several else 1
            start(versions, ticket, leaves(seed), before, owner=owner)
            if seed < 7:
                other = first if versions is second else second  # merged by the other program
                about = {"owner": 3 - owner if several else 1, "model": 1, "device": 0}
                heads, change = other.correction(ticket, 2, **about)
                assert not heads[:, STATUS].any(), ticket
                changes += [np.array(x) for x in change]
        held = sum(place.readers for place in first._places.all)
        results.append((changes, held))
    for a, b in zip(*(changes for changes, _ in results), strict=True):
        np.testing.assert_array_equal(a, b)
    assert results[0][1] == results[1][1]


@pytest.mark.parametrize("wire", ["float32", "bfloat16", "int8"])
def test_an_exchange_that_an_engine_begins_again_is_the_same(make, wire):
    """Engines begin again when a node fails: each node has taken another number of chunks."""
    found = []
    for chunks in (0, 1, 3):
        versions, _ = make(wire, NESTEROV)
        channel = versions._channel
        channel.worker.reducer = Again(
            channel.worker.reducer, min(chunks, len(channel.layout.widths))
        )
        versions.begin(leaves(0), 1, 1)
        start(versions, 1, leaves(1), 0)
        heads, change = correction(versions, 1)
        found.append([heads, *change, *feedback(versions, 1)])
    for other in found[1:]:
        for a, b in zip(found[0], other, strict=True):
            np.testing.assert_array_equal(a[..., :6], b[..., :6])  # without measured times


def test_a_common_point_is_saved_before_the_first_exchange(make):
    one, _ = make("int8", NESTEROV)
    one.begin(leaves(0), 1, 1)
    saved = one.saved(one.kept(0, 1, 1, in_flight=False), in_flight=False)
    two, _ = make("int8", NESTEROV)
    two.adopt(0, 1, 1, saved, in_flight=False)
    changes = []
    for each in (one, two):
        start(each, 1, leaves(1), 0)
        changes.append(correction(each, 1)[1])
    for a, b in zip(*changes, strict=True):
        np.testing.assert_array_equal(a, b)


def test_an_outer_optimizer_that_has_not_stepped_yet_is_saved(make):
    one, others = make("float32", NESTEROV)
    others.weights = (0.0, 0.0, 0.0)
    one.begin(leaves(0), 1, 1)
    start(one, 1, leaves(1), 0)
    correction(one, 1)
    two, _ = make("float32", NESTEROV)
    saved = one.saved(one.kept(1, 1, 1, in_flight=False), in_flight=False)
    two.adopt(1, 1, 1, saved, in_flight=False)
    others.weights = (1.0, 1.0, 1.0)
    changes = []
    for each in (one, two):
        start(each, 5, leaves(2), 1)
        changes.append(correction(each, 5)[1])
    for a, b in zip(*changes, strict=True):
        np.testing.assert_array_equal(a, b)


def test_another_rule_never_goes_on_from_a_version(make):
    """Another rule reads other numbers there: the wait is an error, not a wrong merge."""
    one, _ = make("float32", "corrected")
    start(one, 1, leaves(1), 0)
    channel = one._channel
    two = Versions(channel, merge_of("paper"), list, checks=True, node=0)
    channel.versions["two"] = two
    heads, _ = two.correction(1, 2, owner=2, model=1, device=0)
    assert (heads[:, STATUS] == 1).all()
    assert "no longer has its numbers" in str(channel._control.refused)


def test_a_saved_version_of_another_layout_is_refused(make):
    versions, _ = make("float32", NESTEROV)
    versions.begin(leaves(0), 1, 1)
    start(versions, 1, leaves(1), 0)
    saved = versions.saved(versions.kept(1, 1, 1, in_flight=True), in_flight=True)
    first, second = saved.by_leaf["anchor"]
    for wrong in ([np.append(first, 0), second], [first]):
        other = saved._replace(by_leaf=saved.by_leaf | {"anchor": wrong})
        with pytest.raises(ValueError, match=r"expected 700|shorter"):
            versions.adopt(1, 1, 1, other, in_flight=True)


def test_leaves_may_have_any_dtype(make):
    versions, _ = make("float32", "paper")
    x = [jnp.asarray(leaf).astype(jnp.bfloat16) for leaf in leaves(4)]
    start(versions, 1, [np.asarray(leaf) for leaf in x], 0)
    _, mean = correction(versions, 1)
    for a, b in zip(mean, x, strict=True):
        np.testing.assert_allclose(a, np.asarray(b.astype(jnp.float32)), rtol=1e-6)


def test_numbers_of_another_model_are_never_merged(make):
    """One optimizer trains two models by turns: the first to wait after the other's start fails."""
    versions, _ = make("float32", "corrected")
    start(versions, 1, leaves(0), 0, model=1)
    start(versions, 1, leaves(1), 0, model=2)
    heads, _ = versions.correction(1, 2, owner=1, model=1, device=0)
    assert (heads[:, STATUS] == 1).all()
    assert "trains another model" in str(versions._channel._control.refused)


def test_a_model_that_is_begun_anew_replaces_the_one_before(make):
    """Its numbers in flight are dropped; the new model merges its own."""
    versions, _ = make("float32", "corrected")
    start(versions, 1, leaves(0), 0, model=1)
    start(versions, 1, leaves(1), 0, model=2)
    heads, _ = correction(versions, 1, model=2)
    assert not heads[:, STATUS].any()


def test_an_exchange_that_is_started_again_before_its_merge_is_reported(make, caplog):
    """By a second model with the same number, for example; once, and not for steps in a row."""
    versions, _ = make("float32", "corrected")
    for n in range(3):
        start(versions, 1 + 4 * n, leaves(n), 0)
        correction(versions, 1 + 4 * n)
    assert "started again" not in caplog.text
    for ticket in (13, 17):
        start(versions, ticket, leaves(0), 0)
        start(versions, ticket, leaves(1), 0)
        correction(versions, ticket)
    assert caplog.text.count("The exchange of step 12 is started again") == 1
    assert caplog.text.count("started again") == 1
