"""Steps whose compute is *paced*: it takes a given time, as on an accelerator, and no core.

Gradients of every parameter, optimizer, packing, exchange and merge are real, in one compiled
program. All methods of a cell run in the same processes, in turn, round after round, each round
from fresh parameters.
"""

from __future__ import annotations

import gc
import os
import time
from functools import partial
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

import jdaso
from jdaso._compat import host_call

LEAVES = 16
COORDINATOR = "JDASO_BENCHMARK_COORDINATOR"
INNER = partial(optax.sgd, 1e-3, momentum=0.9)


class Cell(NamedTuple):
    """What all methods of a measurement share."""

    parameters: int
    step_ms: float
    sync_every: int
    delay: int
    engine: str
    instant_wire: str
    warm: int  # cycles before the clock runs
    cycles: int  # cycles on the clock


class Pace:
    """Called by a step on the host; returns after the step's time."""

    def __init__(self):
        self.seconds = 0.0

    def __call__(self, _):
        time.sleep(self.seconds)
        return np.zeros((), np.float32)


def make_params(count):
    return [jnp.full(count // LEAVES, 0.5 + k, jnp.float32) for k in range(LEAVES)]


class Method:
    """One way to train on several hosts: its session, its compiled step."""

    def __init__(self, name: str, cell: Cell):
        kind, *rest = name.split()
        self.name, self.cell, self.pace = name, cell, Pace()
        self.exchanges = kind in ("daso", "instant")
        self.session = jdaso.Session(engine="instant" if kind == "instant" else cell.engine)
        if self.exchanges:
            wire, merge = rest or (cell.instant_wire, "paper")
            phases = jdaso.Phases(10**6, sync_every=cell.sync_every, delay=cell.delay)
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
        zero = host_call(self.pace, jax.ShapeDtypeStruct((), jnp.float32), n)
        grads = jax.tree.map(lambda x: 1e-3 * x + zero, params)
        updates, state = self.tx.update(grads, state, params, value=zero)
        return optax.apply_updates(params, updates), state, zero

    def round(self, step_ms: float, barrier) -> dict:
        """A few cycles from fresh parameters: seconds a step, bytes, the exchange's share."""
        cell = self.cell
        self.pace.seconds = 0.0  # compiling and the first cycle need not wait
        params = make_params(cell.parameters)
        state = self.tx.init(params)
        warm, timed = cell.warm * cell.sync_every, cell.cycles * cell.sync_every
        for n in range(warm):
            params, state, loss = self.step(params, state, np.int32(n))
            loss.block_until_ready()
            self.pace.seconds = step_ms / 1e3
        jax.block_until_ready(params)
        barrier()
        before, sent, begin = self.session.stats, bytes_sent(), time.perf_counter()
        for n in range(warm, warm + timed):
            params, state, loss = self.step(params, state, np.int32(n))
            loss.block_until_ready()  # as a training loop that looks at its loss
        jax.block_until_ready(params)
        seconds = (time.perf_counter() - begin) / timed
        row = {"seconds": seconds, "sent": (bytes_sent() - sent) / timed}
        stats = self.session.stats
        if exchanges := stats.exchanges - before.exchanges:
            spent = stats.exchange_seconds - before.exchange_seconds
            row["exchange ms"] = 1e3 * spent / exchanges
            row["lost ms"] = 1e3 * (stats.lost_seconds - before.lost_seconds) / exchanges
            row["hidden"] = max(0.0, 1 - row["lost ms"] / row["exchange ms"])
        if self.exchanges:
            params = jdaso.finalize(params, state, self.session)
        jax.block_until_ready(params)
        return row


def merge_of(name: str):
    """A merge rule by its name; "outer" is Nesterov momentum, as in DiLoCo."""
    return jdaso.outer(optax.sgd(0.7, momentum=0.9, nesterov=True)) if name == "outer" else name


def measure(cell: Cell, methods, step_times, rounds) -> list[dict]:
    """Every method, step time and round on this rank."""
    from mpi4py import MPI

    made, found = [Method(name, cell) for name in methods], []
    for number in range(rounds):
        for step_ms in step_times:
            for method in made:
                row = method.round(step_ms, MPI.COMM_WORLD.Barrier)
                about = {"method": method.name, "step_ms": step_ms, "round": number}
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

    def everywhere(x):
        return jax.make_array_from_single_device_arrays(x.shape, replicated, [x])

    @partial(jax.jit, donate_argnums=(0, 1))
    @partial(jax.shard_map, mesh=mesh, in_specs=jax.P(), out_specs=jax.P(), check_vma=False)
    def step(params, state):
        grads = jax.tree.map(lambda x: jax.lax.pmean(1e-3 * x, "node"), params)
        updates, state = inner.update(grads, state, params)
        return optax.apply_updates(params, updates), state

    def run(params, state, steps):
        for _ in range(steps):
            pace(None)  # a program of several processes may not call the host
            params, state = step(params, state)
            jax.block_until_ready(params)
        return params, state

    pace, found = Pace(), []
    params = make_params(cell.parameters)
    params, state = jax.tree.map(everywhere, (params, inner.init(params)))
    params, state = run(params, state, 2)
    for number in range(rounds):
        for step_ms in step_times:
            pace.seconds = step_ms / 1e3
            multihost_utils.sync_global_devices(f"{number} {step_ms}")
            sent, begin = bytes_sent(), time.perf_counter()
            params, state = run(params, state, cell.cycles)
            seconds = (time.perf_counter() - begin) / cell.cycles
            row = {"seconds": seconds, "sent": (bytes_sent() - sent) / cell.cycles}
            about = {"method": "jax gloo", "step_ms": step_ms, "round": number}
            found.append({**about, **row, "peak MB": peak_megabytes()})
    return found


def bytes_sent() -> int:
    """What this host's interface has sent; the link's layer included."""
    return int(Path("/sys/class/net/eth0/statistics/tx_bytes").read_text())


def peak_megabytes() -> float:
    """The most memory that this process ever held."""
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
