"""Packing, encoding and summing beside a plain memory copy, and the memory that staging takes.

    python benchmarks/cost/packing.py [--quick]

All in one process, for the tree of a network and two nodes. A ratio of 1 is the time of copying
the same float32 numbers once into memory that is there (of one chunk for the host's sum, of all
rows for the rest). XLA's results are in memory of their own: "new copy" is what NumPy takes for a
copy into such. malloc is set as `Session` sets it where there are several nodes.

"staging" is what an engine holds between exchanges and uses again, in times of what is sent; mark:
at most 3, allocated once. "new" is what it holds besides, from the end of an exchange to the start
of the next, in memory that is new each time: with narrow wires what rounding took from the part
that this node summed, in float32.
"""

import argparse
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

import jdaso
from benchmarks.lib import harness
from jdaso._engines.base import compiled_for_host, sum_part
from jdaso._exchange.exchange import CHUNK_BYTES
from jdaso._exchange.make import exchange_of
from jdaso._launch.memory import keep_freed_memory
from jdaso._payload.chunks import pack, unpack
from jdaso._payload.header import header
from jdaso._payload.layout import layout_of
from jdaso._payload.wire import WIRES

MEGABYTES, QUICK_MEGABYTES = 96, 12
NODES, LEAVES, ENGINES = 2, 60, ("mpi4jax", "mpi4py")
REPEATS, QUICK_REPEATS = 15, 5


def beside_copy(function, array, repeats):
    """Median over runs of the time of `function`, in times of copying `array`."""
    target = np.zeros_like(array)
    both = [function, partial(np.copyto, target, array)]
    for call in both:
        call()
    times = harness.interleaved(both, repeats)
    return harness.median([a / b for a, b in zip(*times, strict=True)])


def run(function, *arguments):
    return lambda: jax.block_until_ready(function(*arguments))


def speeds(megabytes, repeats):
    keep_freed_memory()
    size = megabytes * 2**18 // LEAVES
    leaves = tuple(jax.random.normal(jax.random.key(k), (size,)) for k in range(LEAVES))
    layout = layout_of(leaves, NODES, CHUNK_BYTES)
    packed = jax.jit(partial(pack, layout))
    chunks = packed(leaves)
    numbers = np.concatenate([np.asarray(chunk).reshape(-1) for chunk in chunks])
    new_copy = beside_copy(numbers.copy, numbers, repeats)
    rows = []
    for name, wire in WIRES.items():
        encode = jax.jit(lambda x, wire=wire: [wire.encode(c) for c in pack(layout, x)])
        decode = jax.jit(
            lambda x, wire=wire: unpack(layout, tuple(wire.decode(chunk) for chunk in x))
        )
        encoded = encode(leaves)
        chunk = np.asarray(encoded[0])
        sums = partial(sum_part, wire)
        sums = compiled_for_host(sums) if wire.narrow else sums
        beside = partial(beside_copy, repeats=repeats)
        rows.append(
            {
                "wire": name,
                "new copy": new_copy,
                "pack and encode": beside(run(encode, leaves), numbers),
                "decode and unpack": beside(run(decode, encoded), numbers),
                "host's sum": beside(run(sums, chunk, chunk.shape[1]), np.asarray(chunks[0])),
                "bits a number": round(8 * sum(x.nbytes for x in encoded) / numbers.size, 2),
            }
        )
    return rows


def staging(megabytes, engine, wire):
    """Two exchanges on one node's channel: what it holds, the same memory or not, what is new."""
    leaf = jnp.ones(megabytes * 2**18)
    with jdaso.Session(engine=engine) as session:
        exchange = exchange_of([leaf], session, wire=wire)
        start = jax.jit(lambda x, n: exchange.start((x,), header(step=n), n, n)[0])
        wait = jax.jit(lambda ticket: exchange.wait(ticket, (), jnp.int32(0)).total)
        places = []
        for step in range(2):
            jax.block_until_ready(wait(start(leaf, jnp.int32(step))))
            channel = exchange.channel
            [job] = channel._jobs.values()
            places.append([x.ctypes.data for x in (*channel._send, *job.place.rows)])
        held = channel.staging.nbytes + getattr(channel._reduce, "staging_bytes", 0)
        new = sum(x.nbytes for x in job.residuals)
        encoded = sum(x.nbytes for x in channel._send)
        return session.node, {
            f"{engine} staging / sent": round(held / encoded, 2),
            f"{engine} allocated once": "yes" if places[0] == places[1] else "no",
            f"{engine} new / sent": round(new / encoded, 2),
        }


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true")
    quick = parser.parse_args().quick
    megabytes, repeats = (QUICK_MEGABYTES, QUICK_REPEATS) if quick else (MEGABYTES, REPEATS)
    if harness.is_rank():
        held = [[staging(megabytes, engine, wire) for engine in ENGINES] for wire in WIRES]
        if held[0][0][0] == 0:
            harness.give([one | other for (_, one), (_, other) in held])
    else:
        held = harness.launch(__file__, ["--quick"] * quick, NODES)
        jax.config.update("jax_platforms", "cpu")
        rows = [row | more for row, more in zip(speeds(megabytes, repeats), held, strict=True)]
        harness.report("packing", rows, megabytes=megabytes, nodes=NODES, repeats=repeats)
