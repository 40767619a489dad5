"""All nodes stop at one step that no loop has passed, whatever the order of events."""

import os
import random
import signal
import threading
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jdaso._nodes.stopping import Stopping


def never():
    raise AssertionError("nobody should pause here")


def run(nodes, seed, asking, dying=None):
    """Runs all nodes' loops and messages in a random order; returns where each stopped.

    `dying` fails at a random moment before it has stopped; its messages in flight may be lost.
    """
    order = random.Random(seed)
    wires = {(a, b): [] for a in range(nodes) for b in range(nodes)}
    parts = [
        Stopping(p, nodes, lambda to, what, step, p=p: wires[p, to].append((what, step)))
        for p in range(nodes)
    ]
    steps, stopped = [order.randrange(20)] * nodes, {}  # where a restored run begins
    dies_at, living, news = order.randrange(300), list(range(nodes)), []
    for node in asking:
        parts[node].tell()
    for tick in range(6000):
        if tick == dies_at and dying is not None and dying not in stopped:
            living.remove(dying)
            news = list(living)
            for other in living:
                del wires[dying, other][order.randrange(9) :]
        node = order.choice(living)
        part = parts[node]
        kind = order.choice(["loop", "look", "take", "news"])
        pauses = part._holds and part._stop is None
        if kind == "loop" and node not in stopped and not pauses:
            steps[node] += 1
            if part.stops_at(steps[node], never):
                stopped[node] = steps[node]
        elif kind == "look":
            part.look()
        elif kind == "news" and node in news:
            news.remove(node)
            part.lost(dying)
        elif kind == "take":
            full = [a for a in range(nodes) if wires[a, node]]
            if full:
                source = order.choice(full)
                part.take(source, *wires[source, node].pop(0))
    holding = [node for node in living if parts[node]._holds and node not in stopped]
    assert not holding, "these wait for ever"
    return stopped, living


@given(st.integers(2, 6), st.integers(0, 10**6), st.data())
def test_all_stop_at_the_same_step(nodes, seed, data):
    asking = data.draw(st.sets(st.integers(0, nodes - 1), min_size=1))
    stopped, _ = run(nodes, seed, asking)
    assert len(stopped) == nodes
    assert len(set(stopped.values())) == 1, stopped


@given(st.integers(2, 6), st.integers(0, 10**6), st.data())
def test_survivors_stop_at_the_same_step(nodes, seed, data):
    """Any node may fail: the leader, or the only one that got the signal."""
    asking, dying = (data.draw(st.integers(0, nodes - 1)) for _ in range(2))
    stopped, living = run(nodes, seed, {asking}, dying)
    assert len({stopped[node] for node in living if node in stopped}) <= 1, stopped
    assert not stopped or set(living) <= set(stopped), (stopped, living)


def test_nobody_stops_untold():
    assert run(3, 0, set()) == ({}, [0, 1, 2])


def test_a_loop_pauses_until_the_step_is_known():
    sent = []
    part = Stopping(1, 2, lambda *message: sent.append(message))
    assert not part.stops_at(4, never)
    part.take(0, 1, 0)  # HOLD
    assert sent == [(0, 2, 5)]  # HELD: it comes to 5 next
    begin = time.monotonic()
    threading.Timer(0.2, part.take, (0, 3, 7)).start()  # STOP at 7
    assert not part.stops_at(5, lambda: None)
    assert time.monotonic() - begin > 0.1
    assert not part.stops_at(6, never)
    assert part.stops_at(7, never)


def test_a_pause_ends_where_it_is_in_vain():
    part = Stopping(1, 2, lambda *_: None)
    part.take(0, 1, 0)

    def check():
        raise RuntimeError("node 0 died")

    with pytest.raises(RuntimeError, match="died"):
        part.stops_at(1, check)


def test_a_signal_requests_a_stop_and_is_given_back():
    part = Stopping(0, 1, lambda *_: None)
    before = signal.getsignal(signal.SIGUSR2)
    part.on_signals([signal.SIGUSR2])
    assert not part.stops_at(1, never)
    os.kill(os.getpid(), signal.SIGUSR2)
    assert part.stops_at(2, never)
    part.close()
    assert signal.getsignal(signal.SIGUSR2) == before
