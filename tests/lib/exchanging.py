"""Exchanges of simulated nodes: a channel as in `Session.channel`, without a compiled step."""

import jax.numpy as jnp
import numpy as np

from jdaso._engines.channel import Channel
from jdaso._engines.make import make_reducer
from jdaso._engines.pace import Pace
from jdaso._engines.sums import Sums
from jdaso._payload.header import header
from jdaso._payload.layout import layout_of
from jdaso._payload.wire import wire_of
from jdaso.traces._timeline import Timeline

SIZE, CHUNK_BYTES = 2000, 2048
SCATTER, GATHER = "world.1.0", "world.1.1"
"""Communicators of a node's first channel, by collectives; `Control`'s first is world.1."""

FAST, SLOW = 1e9, 1e7
"""Bytes per second: fast enough for collectives, and slow enough for messages."""


def open_channel(node, wire="float32", rate=FAST, limit_seconds=86400.0):
    """Opens a channel; a collective call. The channel is closed with its node."""
    nodes, control = node.topology.num_nodes, node.control
    layout, form = layout_of([jnp.zeros(SIZE)], nodes, CHUNK_BYTES), wire_of(wire)
    reducer = make_reducer(
        "mpi4py",
        form,
        nodes,
        control.duplicate,
        check=control.check,
        limit_seconds=limit_seconds,
        bytes_per_second=lambda: rate,
        survives=control.survives,
    )
    channel = Channel(layout, form, reducer, control, Timeline(), Pace())

    def close(failed):
        channel.close(1.0 if failed else None, after_error=failed)

    node.closing.append(close)
    return channel


def start(channel, ticket, value, **words):
    """Starts a sum of a vector that is `value` everywhere."""
    head = np.asarray(header(**({"step": ticket - 1} | words)))
    if channel.sums is None:
        channel.sums = Sums(channel, channel._control.topology.node)
    begun = channel.sums.start(ticket, [np.full(SIZE, value, np.float32)], head)
    vars(channel).setdefault("begun", {})[ticket] = begun


def finish(channel, ticket):
    """Returns the headers of all nodes and the vector's sums; raises the channel's error."""
    heads, (total,), _ = channel.sums.wait(ticket, channel.begun[ticket])[0]
    if (error := channel._control.broken) is not None:
        raise error
    return heads.copy(), total.copy()


def exchange(channel, ticket, value, **words):
    """Starts an exchange and waits for it."""
    start(channel, ticket, value, **words)
    return finish(channel, ticket)
