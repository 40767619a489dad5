"""Nodes that have failed: their headers, their heartbeats, and the sums of their rows."""

import jax.numpy as jnp
import numpy as np
import pytest

from jdaso._engines.surviving import SurvivingReducer
from jdaso._nodes.compare import complaint
from jdaso._nodes.heartbeat import STARTED, Heartbeats
from jdaso._payload.header import (
    header,
    living,
    loss_words,
    mean_weight,
    none_weighs,
    time_words,
    weight_of_all,
    weights_are_wrong,
)
from jdaso._payload.words import (
    CHECKSUM,
    GONE,
    HEADER,
    LEFT_OUT,
    LOSS_SUM,
    LOSS_WEIGHT,
    STATUS,
    STEP,
    TIMES,
    WEIGHT,
    bury,
)


def heads_of(weights, losses):
    rows = [
        header(step=7, loss_sum=w * x, loss_weight=w, weight=w, checksum=5)
        for w, x in zip(weights, losses, strict=True)
    ]
    heads = np.stack([np.asarray(row) for row in rows])
    heads.view(np.float32)[:, TIMES] = np.float32([[0.1], [0.2], [0.3], [0.4]])
    return heads


def test_the_dead_weigh_nothing_and_differ_in_nothing():
    heads = heads_of([2, 4, 6, 8], [1, 10, 3, 4])
    heads[1] = -1  # whatever is there
    buried = bury(heads, (0, 2, 3))
    assert (buried[1, STEP], buried[1, STATUS], buried[1, CHECKSUM]) == (7, GONE, LEFT_OUT)
    assert (buried[1, [WEIGHT, LOSS_SUM, LOSS_WEIGHT]] == 0).all()
    np.testing.assert_array_equal(buried[[0, 2, 3]], heads[[0, 2, 3]])
    traced = jnp.asarray(buried)
    assert (float(living(traced)), float(weight_of_all(traced))) == (3.0, 16.0)
    assert float(mean_weight(traced)) == pytest.approx(16 / 3)
    assert not bool(none_weighs(traced)) and not bool(weights_are_wrong(traced))
    sums, weights = loss_words(traced)
    assert float(sums.sum() / weights.sum()) == pytest.approx((2 * 1 + 6 * 3 + 8 * 4) / 16)
    assert time_words(traced)[1].tolist() == pytest.approx([0.1, 0.1, 0.3, 0.4])
    assert complaint(buried, ("w",)) is None


def test_while_all_live_headers_stay_as_they_are():
    heads = heads_of([1, 1, 1, 1], [1, 2, 3, 4])
    np.testing.assert_array_equal(bury(heads, range(4)), heads)
    assert HEADER == heads.shape[1]


@pytest.mark.parametrize("nodes", [2, 3, 5, 8, 17])
def test_news_reaches_all_survivors(nodes):
    random = np.random.default_rng(nodes)
    for _ in range(20):
        dead = set(random.choice(nodes, size=random.integers(0, nodes), replace=False).tolist())
        alive = [node for node in range(nodes) if node not in dead]
        if not alive:
            continue
        beats = {node: Heartbeats(node, nodes) for node in alive}
        for heartbeats in beats.values():
            heartbeats.dead |= dead
        reached, last = {alive[0]}, set()
        while reached != last:
            last = set(reached)
            reached |= {target for node in last for target in beats[node].targets}
        assert reached == set(alive)


def test_nobody_waits_for_the_dead():
    beats = Heartbeats(0, 3)
    beats.note(STARTED, 4)
    assert beats.missing(STARTED, 4) == [1, 2]
    beats.dead.add(1)
    assert beats.missing(STARTED, 4) == [2] and beats.silent_seconds(1) == 0.0


@pytest.mark.parametrize("alive", [(0, 1, 2, 3), (0, 2, 3), (1, 3), (2,)])
def test_each_row_is_summed_by_a_survivor(alive):
    rows = []
    for node in alive:
        reducer = object.__new__(SurvivingReducer)
        reducer._nodes, reducer._node = 4, node
        reducer._group = type("Group", (), {"living": alive})
        assert reducer._mine[0] == node  # its own first, for what encoding takes from it
        assert sorted([*reducer._others, node]) == sorted(alive)
        rows += reducer._mine
    assert sorted(rows) == [0, 1, 2, 3]
