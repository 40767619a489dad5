"""`Messages`: they arrive in order, and nobody waits for them."""

import time

import pytest
from mpi4py import MPI

from jdaso._mpi.messages import Messages

COMM = MPI.COMM_WORLD
RANK, SIZE = COMM.Get_rank(), COMM.Get_size()
LONG = bytes(2**24)
"""Longer than what MPI sends before the other side takes it."""


@pytest.fixture
def messages():
    messages = Messages(RANK, SIZE)
    messages.begin(COMM.Dup())
    yield messages
    COMM.Barrier()
    messages.free()
    assert not messages.open


def take(messages, count):
    """Takes so many messages, in the order in which they arrived."""
    found, until = [], time.monotonic() + 30
    while len(found) < count and time.monotonic() < until:
        found += messages.taken()
    return found


def until_gone(messages):
    until = time.monotonic() + 30
    while not messages.all_gone():
        assert time.monotonic() < until


def test_before_there_is_a_communicator_nothing_is_sent():
    messages = Messages(RANK, SIZE)
    messages.send_all(3, b"lost")
    assert messages.all_gone() and not messages.open


def test_messages_reach_all_in_their_order(messages):
    others = [node for node in range(SIZE) if node != RANK]
    for tag in (5, 2, 9):
        messages.send_all(tag, f"{RANK} says {tag}".encode() + bytes(10_000))
    found = take(messages, 3 * (SIZE - 1))
    until_gone(messages)
    for node in others:
        said = [(tag, payload) for source, tag, payload in found if source == node]
        assert [tag for tag, _ in said] == [5, 2, 9]
        for tag, payload in said:
            assert payload == (f"{node} says {tag}".encode() + bytes(10_000))[:8192]


def test_nothing_goes_to_the_dead_or_to_oneself(messages):
    messages.dead.update(range(SIZE))
    messages.send_all(1, b"hello")
    messages.send(RANK, 1, b"hello")
    assert messages.all_gone()
    COMM.Barrier()
    assert list(messages.taken()) == []


@pytest.mark.skipif(SIZE == 1, reason="needs several nodes")
def test_what_is_under_way_is_known_by_node_and_tag(messages):
    """So that news is not queued behind news that is not out."""
    other = RANK ^ 1
    pairs = other < SIZE
    if pairs:
        messages.send(other, 1, LONG)
        assert not messages.all_gone()
        assert messages.under_way(other, 1) and not messages.under_way(other, 2)
        messages.send(other, 2, b"other news")
        messages.send(other, 1, b"must come")
    COMM.Barrier()
    found = take(messages, 3 if pairs else 0)
    until_gone(messages)
    COMM.Barrier()
    found += messages.taken()
    assert not messages.under_way(other, 1)
    right = [(other, 1, LONG), (other, 2, b"other news"), (other, 1, b"must come")]
    assert sorted(found) == sorted(right if pairs else [])
