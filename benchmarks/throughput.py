"""Steps a second on emulated hosts: jdaso between its limits and beside synchronous peers.

    python benchmarks/throughput.py [--quick] [--hosts 2 4] [--gigabits 1] [--step-ms 200]

The compute is *paced*: a step takes a given time, as on an accelerator, while the host's cores stay
free, and gives gradients of every parameter; optimizer, packing, exchange and merge are real, in
the same compiled program. All methods run the same step on the same cluster, in turn, round after
round, in processes of their own; a ratio is the median over rounds.

- *bare*: the inner optimizer alone. *instant*: all of jdaso, but nothing is sent.
- *daso WIRE MERGE*, *synchronous*: jdaso's.
- *jax gloo*: JAX's own data parallelism over processes, `shard_map` and `pmean`.

"sent" is read from the interface's counter. Needs root, iproute2 and MPICH.
"""

import argparse
import json
import os
import resource
import time
from functools import partial
from pathlib import Path

import _report
import jax
import jax.numpy as jnp
import numpy as np
import optax

import jdaso
from jdaso._compat import host_call
from jdaso.fabric import ClusterError, emulated_cluster

LEAVES = 16
METHODS = (
    "bare",
    "instant",
    "daso float32 paper",
    "daso bfloat16 paper",
    "daso int8 paper",
    "synchronous",
    "jax gloo",
)
COORDINATOR = "JDASO_BENCHMARK_COORDINATOR"


class Pace:
    """Called by a step: returns when the step's time has passed since the last one ended."""

    def __init__(self, seconds):
        self.seconds = seconds

    def __call__(self, step):
        time.sleep(self.seconds)
        return np.zeros((), np.float32)


def make_params(count):
    return [jnp.full(count // LEAVES, 0.5 + k) for k in range(LEAVES)]


def gradients(params, pace, step):
    zero = host_call(pace, jax.ShapeDtypeStruct((), jnp.float32), step)
    return jax.tree.map(lambda x: 1e-3 * x + zero, params), zero


def run_steps(step, params, state, warm, timed, barrier):
    """Seconds a step, after `warm` steps; every step's loss is read, as a training loop does."""
    for n in range(warm):
        params, state, loss = step(params, state, np.int32(n))
        loss.block_until_ready()
    barrier()
    sent, begin = bytes_sent(), time.perf_counter()
    for n in range(timed):
        params, state, loss = step(params, state, np.int32(warm + n))
        loss.block_until_ready()
    jax.block_until_ready(params)
    seconds = (time.perf_counter() - begin) / timed
    return params, state, seconds, (bytes_sent() - sent) / timed


def bytes_sent():
    return int(Path("/sys/class/net/eth0/statistics/tx_bytes").read_text())


def measure(method, options):
    """One method on this rank; its figures."""
    pace, inner = Pace(options.step_ms / 1e3), optax.sgd(1e-3, momentum=0.9)
    warm, timed = options.warm * options.sync_every, options.cycles * options.sync_every
    if method == "jax gloo":
        return measure_gloo(pace, inner, warm, timed, options.parameters)
    from mpi4py import MPI

    kind, *rest = method.split()
    engine = "instant" if kind == "instant" else options.engine
    with jdaso.Session(engine=engine) as session:
        if kind in ("daso", "instant"):
            wire, merge = rest or (options.instant_wire, "paper")
            phases = jdaso.Phases(
                10**6, sync_every=options.sync_every, delay=options.delay or options.sync_every
            )
            tx = jdaso.daso(inner, phases=phases, session=session, wire=wire, merge=merge)
        elif kind == "synchronous":
            tx = jdaso.synchronous(inner, session=session, wire=rest[0] if rest else "float32")
        else:
            tx = optax.with_extra_args_support(inner)
        params = make_params(options.parameters)
        state = tx.init(params)

        @partial(jax.jit, donate_argnums=(0, 1))
        def step(params, state, n):
            grads, loss = gradients(params, pace, n)
            updates, state = tx.update(grads, state, params, value=loss)
            return optax.apply_updates(params, updates), state, loss

        before = session.stats
        out = run_steps(step, params, state, warm, timed, MPI.COMM_WORLD.Barrier)
        params, state, seconds, sent = out
        stats = session.stats
        if kind in ("daso", "instant"):
            jdaso.finalize(params, state, session)
        exchanges = stats.exchanges - before.exchanges
        return session.node, {
            "seconds": seconds,
            "sent": sent,
            "exchange ms": stats.exchange_seconds * 1e3 / exchanges if exchanges else None,
            "hidden": stats.hidden_share if exchanges else None,
            "peak MB": peak_megabytes(),
        }


def measure_gloo(pace, inner, warm, timed, count):
    """JAX's processes see one mesh; parameters are replicated, gradients are averaged by gloo."""
    rank, size = int(os.environ["PMI_RANK"]), int(os.environ["PMI_SIZE"])
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize(os.environ[COORDINATOR], size, rank)
    mesh = jax.make_mesh((size,), ("node",), axis_types=(jax.sharding.AxisType.Auto,))
    replicated = jax.sharding.NamedSharding(mesh, jax.P())

    def everywhere(x):
        return jax.make_array_from_single_device_arrays(x.shape, replicated, [x])

    params = jax.tree.map(everywhere, make_params(count))
    state = jax.tree.map(everywhere, inner.init(make_params(count)))

    @partial(jax.jit, donate_argnums=(0, 1))
    @partial(jax.shard_map, mesh=mesh, in_specs=jax.P(), out_specs=jax.P(), check_vma=False)
    def step(params, state, zero):
        grads = jax.tree.map(lambda x: jax.lax.pmean(1e-3 * x + zero, "node"), params)
        updates, state = inner.update(grads, state, params)
        return optax.apply_updates(params, updates), state, zero

    def paced(params, state, n):
        pace(n)  # a program of several processes may not call the host
        return step(params, state, np.float32(0))

    def barrier():
        from jax.experimental import multihost_utils

        multihost_utils.sync_global_devices("begin")

    *_, seconds, sent = run_steps(paced, params, state, warm, timed, barrier)
    return rank, {"seconds": seconds, "sent": sent, "peak MB": peak_megabytes()}


def peak_megabytes():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def parse():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--hosts", type=int, nargs="+", default=[2, 4])
    parser.add_argument("--gigabits", type=float, nargs="+", default=[1.0])
    parser.add_argument("--step-ms", type=float, default=200.0)
    parser.add_argument("--parameters", type=lambda text: int(float(text)), default=25_600_000)
    parser.add_argument("--sync-every", type=int, default=4, help="B")
    parser.add_argument("--delay", type=int, help="S; default B")
    parser.add_argument("--methods", nargs="+", default=METHODS)
    parser.add_argument("--engine", default="mpi4jax")
    parser.add_argument("--instant-wire", default="bfloat16")
    parser.add_argument("--warm", type=int, default=2, help="cycles before the clock runs")
    parser.add_argument("--cycles", type=int, default=5, help="timed cycles a round")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    if options.quick:
        options.hosts, options.parameters, options.rounds = [2], 1_000_000, 1
        options.step_ms, options.cycles, options.warm = 20.0, 2, 1
        options.methods = ("bare", "instant", "daso bfloat16 paper", "synchronous")
    return options


def table(found, methods):
    """A row a method: medians over rounds, and of ratios within a round."""
    rows = []
    for method in methods:
        rounds = found[method]
        row = {"method": method, "ms": _report.median(r["seconds"] for r in rounds) * 1e3}
        for limit in ("bare", "instant"):
            if limit in found:
                pairs = zip(found[limit], rounds, strict=True)
                row[f"of {limit}"] = _report.median(a["seconds"] / b["seconds"] for a, b in pairs)
        row["sent MB a step"] = _report.median(r["sent"] for r in rounds) / 1e6
        for key in ("exchange ms", "hidden", "peak MB"):
            values = [r[key] for r in rounds if r.get(key) is not None]
            row[key] = _report.median(values) if values else ""
        rows.append(row)
    return rows


def main():
    options = parse()
    if _report.is_rank():
        (method,) = options.methods
        node, row = measure(method, options)
        if node == 0:
            _report.give(row)
        return
    rows = []
    shared = ["--step-ms", options.step_ms, "--parameters", options.parameters]
    shared += ["--sync-every", options.sync_every, "--engine", options.engine]
    shared += ["--delay", options.delay] * (options.delay is not None)
    shared += ["--warm", options.warm, "--cycles", options.cycles]
    for gigabits in options.gigabits:
        for hosts in options.hosts:
            try:
                with emulated_cluster(hosts, gigabits * 1e9) as cluster:
                    os.environ |= cluster.environment
                    os.environ[COORDINATOR] = f"{cluster.addresses[0]}:23456"
                    found = {method: [] for method in options.methods}
                    for number in range(options.rounds):
                        for method in options.methods:
                            flags = [*shared, "--methods", method]
                            one = _report.launch(__file__, flags, hosts, cluster.mpiexec([]))
                            found[method].append(one)
                            print(hosts, gigabits, number, method, json.dumps(one), flush=True)
            except ClusterError as error:
                print(f"{hosts} hosts at {gigabits:g} Gbit/s: {error}")
                continue
            about = {"hosts": hosts, "Gbit/s": gigabits}
            rows += [{**about, **row} for row in table(found, options.methods)]
    settings = {key: value for key, value in vars(options).items() if key not in ("methods",)}
    _report.report("throughput", rows, **settings)


if __name__ == "__main__":
    main()
