"""Exchanges over slow links, in small messages, beside those over fast ones, in collectives."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from mpi4py import MPI
from nights import at_night

import jdaso
from jdaso._engines import lanes, mpi4py
from jdaso._exchange.host import HostExchange
from jdaso._exchange.make import exchange_of
from jdaso._payload.header import header

RANK, SIZE = MPI.COMM_WORLD.Get_rank(), MPI.COMM_WORLD.Get_size()
pytestmark = pytest.mark.skipif(SIZE == 1, reason="a node alone sends nothing")
SHAPES = (300, 1001), (77,), (9, 5000)  # chunks of 350 KB and more: rows of several messages


def wait(exchange, ticket, flight):
    received = exchange.wait(ticket, flight, jnp.int32(0))
    return received.total, received.residual


def exchanged(wire, slow, monkeypatch, engine="mpi4py"):
    """Totals and what the wire took, of two exchanges."""
    monkeypatch.setattr(mpi4py, "SLOW_LINK", np.inf if slow else 0.0)
    keys = jax.random.split(jax.random.key(RANK), len(SHAPES))
    leaves = tuple(jax.random.normal(k, shape) for k, shape in zip(keys, SHAPES, strict=True))
    found = []
    with jdaso.Session(engine=engine, timeout_seconds=30) as session:
        exchange = exchange_of(leaves, session, wire=wire)
        if engine == "mpi4py":
            assert exchange.channel._reduce._slow == slow
        else:
            assert isinstance(exchange.channel._reduce, lanes.LanesReducer) == slow
        for step in range(2):
            sends, step = jax.tree.map(lambda x, n=step: x + n, leaves), jnp.int32(step)
            ticket, flight, _ = jax.jit(exchange.start)(sends, header(step=step), step, step)
            found.append(jax.jit(wait, static_argnums=0)(exchange, ticket, flight))
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


@pytest.mark.any_mpi
@pytest.mark.three_nodes
def test_a_segment_that_leaves_the_device_as_one_vector_brings_the_same_bits(monkeypatch):
    """As it leaves an accelerator; see `HostExchange._joins`. Of int4 it is two, of two dtypes."""
    alone, _ = exchanged("int4", False, monkeypatch)
    monkeypatch.setattr(HostExchange, "_joins", True)
    together, _ = exchanged("int4", False, monkeypatch)
    jax.tree.map(np.testing.assert_array_equal, together, alone)


def test_the_speed_of_links_is_measured_once_and_the_same_everywhere():
    with jdaso.Session(engine="mpi4py", timeout_seconds=30) as session:
        speed = session.control.bytes_per_second()
        assert session.control.bytes_per_second() == speed
    everyone = MPI.COMM_WORLD.allgather(speed)
    assert everyone == [speed] * SIZE
    assert 1e7 < speed < 1e12  # memory of one machine
