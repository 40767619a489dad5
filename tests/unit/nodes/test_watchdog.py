"""Waits: the nodes waited for, the warnings about them, and the end of a wait."""

import logging
import math

import pytest

from jdaso._mpi.topology import Topology
from jdaso._nodes import heartbeat as _heartbeat
from jdaso._nodes import patience as _patience
from jdaso._nodes import wait as _wait
from jdaso._nodes.detector import Detector
from jdaso._nodes.heartbeat import CALLS, STARTED, Heartbeats
from jdaso._nodes.patience import Patience
from jdaso._nodes.wait import Wait


class Clock:
    """Time that passes only when it is set."""

    now = 1000.0

    def monotonic(self):
        return self.now


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    for module in (_heartbeat, _patience, _wait):
        monkeypatch.setattr(module, "time", clock)
    return clock


def beat(all_nodes, gone=()):
    """One beat of all nodes but those that are gone."""
    sent = [(node, all_nodes[node].beat()) for node in range(len(all_nodes)) if node not in gone]
    for node, payloads in sent:
        assert all(len(payload) <= 4096 for payload in payloads)
        for target in all_nodes[node].targets:
            for payload in payloads:
                all_nodes[target].take(payload)


@pytest.mark.parametrize("nodes", [2, 3, 4, 7, 64, 200])
def test_news_reaches_all_in_as_many_beats_as_promised(nodes, clock):
    everyone = [Heartbeats(node, nodes) for node in range(nodes)]
    everyone[nodes // 2].note(STARTED, 17)
    beats = math.ceil(everyone[0].usual_delay_seconds / everyone[0].beat_seconds)
    for _ in range(beats - 2):  # beside what the detectors' pauses take
        clock.now += everyone[0].beat_seconds
        beat(everyone)
    assert all(x.table[nodes // 2, STARTED] == 17 for x in everyone)
    assert all(
        x.missing(STARTED, 17) == [p for p in range(nodes) if p != nodes // 2] for x in everyone
    )
    assert len(everyone[0].targets) <= math.log2(nodes) + 1


@pytest.mark.parametrize("nodes", [2, 3, 8, 33])
def test_only_the_one_that_is_gone_is_silent(nodes, clock):
    everyone = [Heartbeats(node, nodes) for node in range(nodes)]
    for n in range(40):
        clock.now += everyone[0].beat_seconds
        beat(everyone, gone={1} if n >= 20 else set())
    for node, x in enumerate(everyone):
        silent = [p for p in range(nodes) if x.silent_seconds(p) > x.usual_delay_seconds]
        assert silent == [1] or node == 1


def test_a_process_that_was_stopped_does_not_blame_the_others(clock, caplog):
    mine = Heartbeats(0, 3)
    mine.beat()
    clock.now += 100
    mine.beat()
    assert "did not run for 100.0 s" in caplog.text
    assert mine.silent_seconds(1) == 0


def test_what_is_noted_only_grows():
    mine = Heartbeats(0, 2)
    mine.note(CALLS, 5)
    mine.note(CALLS, 3)
    assert mine.table[0, CALLS] == 5


def known_by_three(timeout_seconds=None):
    """Makes the knowledge of node 0; node 1 sends heartbeats all the time."""
    known = Detector(Topology(0, 3, "a", hosts=("a", "b", "c")), timeout_seconds).known
    known.heartbeats._news_at[1] = math.inf
    return known


def wait_on(known, **settings):
    about = {"call": 37, "column": STARTED, "step": 36} | settings
    return Wait(known, "exchange", "waits for the exchange started at step 36", **about)


def pass_time(clock, wait, seconds):
    """Returns the reason that ends the wait within `seconds`, checked every tenth; else None."""
    for _ in range(round(10 * seconds)):
        clock.now += 0.1
        wait._known.heartbeats.beat()
        if (why := wait.why_no_longer()) is not None:
            return why
    return None


def test_it_names_missing_nodes_within_twice_the_usual_and_two_seconds(clock, caplog):
    known = known_by_three()
    known.phase_of = lambda step: "cycling"
    for seconds in (0.3, 0.8, 0.5):
        known.patience.note("exchange", seconds)
    known.heartbeats.note(STARTED, 37)
    known.heartbeats.table[1, STARTED] = 37
    wait = wait_on(known)
    assert pass_time(clock, wait, 2.4) is None and not caplog.text
    pass_time(clock, wait, 1.1)  # 3.5 s < 2 x 0.8 + 2 s
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    text = record.getMessage()
    assert "[node 0 of 3, host a, step 36] cycling:" in text
    assert "usual: 0.8 s" in text
    assert "node 2 (host c) has been silent for" in text and "node 1" not in text


def test_it_names_nodes_that_arrived_and_are_silent_since(clock):
    known = known_by_three(timeout_seconds=5.0)
    known.heartbeats.table[:, STARTED] = 37
    why = pass_time(clock, wait_on(known), 6.0)
    assert why and "Arrived, and silent since: node 2 (host c) has been silent for" in why
    assert "Not arrived" not in why and "the network" not in why and "node 1" not in why


def test_it_blames_the_network_if_all_arrived_and_are_alive(clock):
    known = known_by_three(timeout_seconds=5.0)
    known.heartbeats.table[:, STARTED] = 37
    known.heartbeats._news_at[2] = math.inf
    why = pass_time(clock, wait_on(known), 6.0)
    assert why and "All nodes have arrived: the network is slow, or stuck." in why


def test_a_node_that_is_alive_says_where_it_is(clock, caplog):
    known = known_by_three()
    known.patience.note("exchange", 0.1)
    known.heartbeats.table[:2, STARTED] = 37
    wait = wait_on(known)
    known.ask_where = lambda nodes: known.take_place(2, "\ntrain.py:7 in load")
    for _ in range(15):
        known.heartbeats._news_at[2] = clock.now
        pass_time(clock, wait, 0.1)
    assert "node 2 (host c) is running, at train.py:7 in load" in caplog.text


def answers(known, node, text):
    """Makes a node alive, so that it answers with its position when asked."""
    known.heartbeats._news_at[node] = math.inf
    known.ask_where = lambda nodes: known.take_place(node, text)


def test_after_the_limit_a_node_that_waits_itself_reports_first(clock):
    known = known_by_three(timeout_seconds=5.0)
    known.heartbeats.table[:2, STARTED] = 37
    answers(known, 2, "waits for its replica, for 4.0 s now\nwait.py:7 in take")
    wait = wait_on(known)
    assert pass_time(clock, wait, 5.0 + _wait._YIELD_SECONDS - 0.2) is None
    known.failure = "node 2: its replica is stuck."
    assert pass_time(clock, wait, 0.1) == "node 2: its replica is stuck."


def test_if_it_says_nothing_this_node_says_what_it_knows_of_it(clock):
    known = known_by_three(timeout_seconds=5.0)
    known.heartbeats.table[:2, STARTED] = 37
    answers(known, 2, "waits for its replica, for 4.0 s now\nwait.py:7 in take")
    why = pass_time(clock, wait_on(known), 5.4 + _wait._YIELD_SECONDS)
    assert "running, and waits for its replica, for 4.0 s now, at wait.py:7 in take." in why


def test_one_that_does_not_wait_is_named_at_the_limit(clock):
    known = known_by_three(timeout_seconds=5.0)
    known.heartbeats.table[:2, STARTED] = 37
    answers(known, 2, "\ntrain.py:7 in load")
    assert "running, at train.py:7 in load." in pass_time(clock, wait_on(known), 5.2)


def test_late_nodes_are_asked_ahead_of_the_limit(clock):
    """A node that waits for a core answers late, and is named with its place all the same."""
    known = known_by_three(timeout_seconds=5.0)
    known.heartbeats.table[:2, STARTED] = 37
    answers(known, 2, "")
    asked = []
    known.ask_where = lambda nodes: asked.extend((clock.now - begin, node) for node in nodes)
    wait, begin = wait_on(known), clock.now
    assert pass_time(clock, wait, 4.9) is None
    ((seconds, node),) = asked
    assert node == 2 and 4.0 < seconds < 4.3
    known.take_place(2, "\ntrain.py:7 in load")
    assert "running, at train.py:7 in load." in pass_time(clock, wait, 0.3)
    assert len(asked) == 1


def test_the_reason_of_a_wait_is_sent_on_request(clock):
    detector = Detector(Topology(0, 3, "a", hosts=("a", "b", "c")), None)
    known = detector.known
    assert detector._place().startswith("\n")
    wait = wait_on(known)
    pass_time(clock, wait, 2.0)
    first, where = detector._place().split("\n")
    assert first == "waits for the exchange started at step 36, for 2.0 s now"
    assert "in test_the_reason_of_a_wait" in where
    clock.now += 2.0  # it has ended: it looks around no more
    assert detector._place().startswith("\n")


def test_it_is_reported_again_when_the_wait_has_doubled(clock, caplog):
    known = known_by_three()
    known.patience.note("exchange", 0.5)
    known.heartbeats.table[1:, STARTED] = 37
    wait = wait_on(known)
    pass_time(clock, wait, 40)
    assert 3 <= len(caplog.records) <= 6


@pytest.mark.parametrize(
    ("usual", "limit", "silence"), [(None, 600, 60), (1.0, 600, 60), (10.0, 1000, 200)]
)
def test_limits_follow_from_what_is_usual(usual, limit, silence):
    patience = Patience(None)
    if usual is not None:
        patience.note("exchange", usual)
    assert patience.limit_seconds("exchange") == limit
    assert patience.silence_seconds("exchange") == silence
    assert Patience(7.0).limit_seconds("exchange") == Patience(7.0).silence_seconds("mean") == 7


def test_a_silent_node_is_given_up_and_a_living_one_waited_for(clock):
    known = known_by_three()
    known.heartbeats.table[1, STARTED] = 37
    why = pass_time(clock, wait_on(known), 100)
    assert "node 2 (host c) has been silent for 60" in why
    known.heartbeats._news_at[:] = clock.now + 1e9  # its heartbeats always arrive
    why = pass_time(clock, wait_on(known), 700)
    assert "did not end within 600 s" in why and "node 2" in why


def test_where_no_call_is_waited_for_silence_tells(clock, caplog):
    known = known_by_three()
    known.patience.note("call", 0.1)
    wait = Wait(known, "call", "agrees on where to stop", call=0, column=CALLS, step=9)
    for _ in range(40):
        known.heartbeats._news_at[1] = clock.now
        pass_time(clock, wait, 0.1)
    text = caplog.records[0].getMessage()
    assert "Not arrived: node 2 (host c) has been silent" in text and "node 1" not in text


def test_time_in_which_this_process_was_stopped_does_not_count(clock):
    known = known_by_three(timeout_seconds=5.0)
    known.heartbeats._news_at[:] = clock.now + 1e9
    wait = wait_on(known)
    clock.now += 1000
    assert wait.why_no_longer() is None
    assert "within 5 s" in pass_time(clock, wait, 10)
