"""Ways to train on several hosts, measured in turn in the same processes.

Round after round, each from fresh parameters. Optimizer, packing, exchange and merge are real, in
one compiled program with what the step computes (`work`).
"""

from __future__ import annotations

import contextlib
import gc
import os
import socket
import struct
import time
from functools import partial
from pathlib import Path
from typing import NamedTuple

import jax
import numpy as np
import optax

import jdaso
from benchmarks.lib.work import Kind, OnMesh

COORDINATOR = "JDASO_BENCHMARK_COORDINATOR"
INNER = partial(optax.sgd, 1e-3, momentum=0.9)


class Cell(NamedTuple):
    """Settings that all methods of a measurement share."""

    kind: Kind | OnMesh
    sync_every: int
    delay: int
    engine: str
    instant_wire: str
    warm: int  # cycles before the clock runs
    cycles: int  # cycles on the clock
    ranks_per_node: int = 1


class Method:
    """One way to train on several hosts: its session, its compiled step."""

    def __init__(self, name: str, cell: Cell, fragments: int | str = "auto"):
        kind, *rest = name.split()
        self.name, self.cell = name, cell
        self.exchanges = kind in ("daso", "instant")
        self.cycles = kind != "synchronous"  # of which every step is like the others
        engine = "instant" if kind == "instant" else cell.engine
        self.session = jdaso.Session(engine=engine, ranks_per_node=cell.ranks_per_node)
        self.work = cell.kind.make(self.session.num_nodes)
        if self.exchanges:
            wire, merge = rest or (cell.instant_wire, "corrected")
            every = cell.sync_every, cell.delay
            phases = jdaso.Phases(10**6, 0, 0, *every, fragments=fragments)
            self.tx = jdaso.daso(
                INNER(), phases=phases, session=self.session, wire=wire, merge=merge_of(merge)
            )
        elif kind == "synchronous":
            wire = rest[0] if rest else "float32"
            self.tx = jdaso.synchronous(INNER(), session=self.session, wire=wire)
        else:
            self.tx = optax.with_extra_args_support(INNER())
        self.step = jax.jit(self._step, donate_argnums=(0, 1))

    def _step(self, params, state, n):
        loss, grads = self.work.gradient(params, n, self.session.node)
        updates, state = self.tx.update(grads, state, params, value=loss)
        return optax.apply_updates(params, updates), state, loss

    def round(self, step_ms: float, barrier) -> dict:
        """A few cycles from fresh parameters: seconds a step, bytes, the exchange's share."""
        cell, pace = self.cell, self.work.pace
        pace.seconds = 0.0  # compiling and the first cycle need not wait
        params = self.work.params()
        state = self.tx.init(params)
        cycle = cell.sync_every if self.cycles else 1
        warm, timed = cell.warm * cycle, cell.cycles * cycle
        for n in range(warm):
            params, state, loss = self.step(params, state, np.int32(n))
            loss.block_until_ready()
            pace.seconds = step_ms / 1e3
        jax.block_until_ready(params)
        barrier()
        own, sent = bytes_of_process(), bytes_sent()
        before, begin = self.session.stats, time.perf_counter()
        for n in range(warm, warm + timed):
            since = time.perf_counter()
            params, state, loss = self.step(params, state, np.int32(n))
            loss.block_until_ready()  # as a training loop that looks at its loss
            self.session.timeline.record("step", n, since)
        jax.block_until_ready(params)
        seconds = (time.perf_counter() - begin) / timed
        row = {"seconds": seconds, "sent": (bytes_sent() - sent) / timed}
        row["sent by rank"] = (bytes_of_process() - own) / timed
        row["parameters"] = sum(x.size for x in jax.tree.leaves(params))
        stats = self.session.stats
        if exchanges := stats.exchanges - before.exchanges:
            row["events"] = [e for e in self.session.timeline.events if e.begin_seconds >= begin]
            spent = [e.end_seconds - e.begin_seconds for e in row["events"] if e.name == "exchange"]
            # Those that began before the clock ran had not yet the steps' rhythm.
            spent = spent or [(stats.exchange_seconds - before.exchange_seconds) / exchanges]
            row["exchange ms"] = 1e3 * sum(spent) / len(spent)
            row["exchanges a cycle"] = exchanges / cell.cycles
            row["fragments"] = np.size(state.ticket)
            row["lost ms"] = 1e3 * (stats.lost_seconds - before.lost_seconds) / exchanges
            row["hidden"] = max(0.0, 1 - row["lost ms"] / row["exchange ms"])
            row["hidden, by events"] = jdaso.hidden_share(row["events"])
        if self.exchanges:
            params = jdaso.finalize(params, state, self.session)
        jax.block_until_ready(params)
        return row


def merge_of(name: str):
    """A merge rule by its name; "outer" is Nesterov momentum, as in DiLoCo."""
    return jdaso.outer(optax.sgd(0.7, momentum=0.9, nesterov=True)) if name == "outer" else name


def copy_speed(barrier, megabytes: int = 64, repeats: int = 8) -> float:
    """Bytes a second that this rank copies while all others copy too."""
    source = np.ones(megabytes * 1_000_000, np.uint8)
    target = source.copy()
    barrier()
    begin = time.perf_counter()
    for _ in range(repeats):
        np.copyto(target, source)
    return repeats * source.nbytes / (time.perf_counter() - begin)


def measure(cell: Cell, methods, step_times, rounds) -> list[dict]:
    """Every method, step time and round on this rank."""
    from mpi4py import MPI

    comm, barrier = MPI.COMM_WORLD, MPI.COMM_WORLD.Barrier
    made, found = [Method(name, cell) for name in methods], []
    for number in range(rounds):
        copy = comm.allreduce(copy_speed(barrier), MPI.MIN)
        for step_ms in step_times:
            for method in made:
                row = method.round(step_ms, barrier)
                # Methods that send nothing let a rank end before the others, which then have its
                # core: the time of all counts.
                row["seconds"] = comm.allreduce(row["seconds"], MPI.MAX)
                about = {"method": method.name, "step_ms": step_ms, "round": number, "copy": copy}
                found.append({**about, **row, "peak MB": peak_megabytes()})
                gc.collect()
    for method in reversed(made):
        method.session.close()
    return found


def measure_gloo(cell: Cell, step_times, rounds) -> list[dict]:
    """JAX's own processes, which see one mesh: gradients are averaged by gloo in the step."""
    rank, size = int(os.environ["PMI_RANK"]), int(os.environ["PMI_SIZE"])
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize(os.environ[COORDINATOR], size, rank)
    from jax.experimental import multihost_utils

    mesh = jax.make_mesh((size,), ("node",), axis_types=(jax.sharding.AxisType.Auto,))
    replicated, inner = jax.sharding.NamedSharding(mesh, jax.P()), INNER()
    work = cell.kind.make(size)

    def everywhere(x):
        return jax.make_array_from_single_device_arrays(x.shape, replicated, [x])

    @partial(jax.jit, donate_argnums=(0, 1))
    @partial(jax.shard_map, mesh=mesh, in_specs=jax.P(), out_specs=jax.P(), check_vma=False)
    def step(params, state, n):
        node = jax.lax.axis_index("node")
        _, grads = work.gradient(params, n, node, paced=False)
        grads = jax.lax.pmean(grads, "node")
        updates, state = inner.update(grads, state, params)
        return optax.apply_updates(params, updates), state

    def run(params, state, steps):
        for n in range(steps):
            work.pace(None)  # a program of several processes may not call the host
            params, state = step(params, state, np.int32(n))
            jax.block_until_ready(params)
        return params, state

    params, found = work.params(), []
    params, state = jax.tree.map(everywhere, (params, inner.init(params)))
    params, state = run(params, state, 2)
    for number in range(rounds):
        for step_ms in step_times:
            work.pace.seconds = step_ms / 1e3
            multihost_utils.sync_global_devices(f"{number} {step_ms}")
            sent, begin = bytes_sent(), time.perf_counter()
            params, state = run(params, state, cell.cycles)
            seconds = (time.perf_counter() - begin) / cell.cycles
            row = {"seconds": seconds, "sent": (bytes_sent() - sent) / cell.cycles}
            about = {"method": "jax gloo", "step_ms": step_ms, "round": number}
            found.append({**about, **row, "peak MB": peak_megabytes()})
    return found


def bytes_sent() -> int:
    """Returns the bytes that eth0 of this host has sent, with the link layer. 0 without eth0."""
    counter = Path("/sys/class/net/eth0/statistics/tx_bytes")
    return int(counter.read_text()) if counter.exists() else 0


_BYTES_SENT = 200  # of struct tcp_info


def bytes_of_process() -> int:
    """Returns the bytes that this process has sent to other hosts, as its connections count them.

    They are the kernel's counts, without headers; connections that were closed are missing.
    """
    total = 0
    for entry in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):  # it was closed meanwhile, or is not connected
            if os.readlink(f"/proc/self/fd/{entry}").startswith("socket:"):
                with socket.socket(fileno=os.dup(int(entry))) as link:
                    total += _sent_to_other_hosts(link)
    return total


def _sent_to_other_hosts(link: socket.socket) -> int:
    """The bytes that a connection has sent; 0 if it leads to another rank of this host."""
    if link.type != socket.SOCK_STREAM or link.family not in (socket.AF_INET, socket.AF_INET6):
        return 0
    if link.getpeername()[0] == link.getsockname()[0]:
        return 0
    found = link.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256)
    return struct.unpack_from("=Q", found, _BYTES_SENT)[0]


def peak_megabytes() -> float:
    """The most memory that this process ever held."""
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e6
