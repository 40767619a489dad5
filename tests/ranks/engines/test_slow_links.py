"""Exchanges over slow links, in small messages, beside those over fast ones, in collectives."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from mpi4py import MPI
from nights import at_night

import jdaso
from jdaso._engines import lanes, mpi4py
from jdaso._exchange.make import exchange_of
from jdaso._payload.header import header

RANK, SIZE = MPI.COMM_WORLD.Get_rank(), MPI.COMM_WORLD.Get_size()
pytestmark = pytest.mark.skipif(SIZE == 1, reason="a node alone sends nothing")
SHAPES = (300, 1001), (77,), (9, 5000)  # chunks of 350 KB and more: rows of several messages


def total(exchange, leaves, step):
    received = exchange.total(leaves, header(step=step), step)
    return received.total, received.lost


def exchanged(wire, slow, monkeypatch, engine="mpi4py"):
    """Totals and what the wire took, of two exchanges."""
    monkeypatch.setattr(mpi4py, "SLOW_LINK", np.inf if slow else 0.0)
    keys = jax.random.split(jax.random.key(RANK), len(SHAPES))
    leaves = tuple(jax.random.normal(k, shape) for k, shape in zip(keys, SHAPES, strict=True))
    found = []
    with jdaso.Session(engine=engine, timeout_seconds=120) as session:
        exchange = exchange_of(leaves, session, wire=wire)
        if engine == "mpi4py":
            assert exchange.channel.worker.reducer._slow == slow
        else:
            assert isinstance(exchange.channel.worker.reducer, lanes.LanesReducer) == slow
        for step in range(2):
            sends, step = jax.tree.map(lambda x, n=step: x + n, leaves), jnp.int32(step)
            received = jax.jit(lambda x, n: total(exchange, x, n))(sends, step)
            found.append(received)
        found = jax.tree.map(np.asarray, found)  # before the count: it is computed by now
        return found, session.stats.bytes_sent


@pytest.mark.parametrize(
    ("wire", "engine"),
    [
        ("float32", "mpi4py"),
        at_night(("bfloat16", "mpi4py")),
        at_night(("int8", "mpi4py")),
        ("int4", "mpi4py"),
        at_night(("float32", "mpi4jax")),
        at_night(("bfloat16", "mpi4jax")),
        ("int4", "mpi4jax"),
    ],
)
def test_small_messages_bring_the_same_bits(wire, engine, monkeypatch):
    if engine == "mpi4jax":
        pytest.importorskip("mpi4jax")
    monkeypatch.setattr(mpi4py, "MESSAGE_BYTES", 10_001)
    monkeypatch.setattr(lanes, "MESSAGE_BYTES", 10_001)
    messages, sent = exchanged(wire, True, monkeypatch, engine)
    collectives, same = exchanged(wire, False, monkeypatch)
    jax.tree.map(np.testing.assert_array_equal, messages, collectives)
    assert sent == same
