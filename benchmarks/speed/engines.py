"""Exchanges through each engine and wire: how long they take, and how much of it is lost.

    python benchmarks/speed/engines.py [--quick]

For each size, "alone" is the time from start to result; "lost" is how much longer a computation of
at least that length takes if the exchange starts before it and is waited for after it. In turn with
each, the same sum is done by mpi4py's plain blocking Allreduce, of which all time is lost. The last
row of each group is a bfloat16 sum by a Python MPI operation (MPI.Op.Create). Times are medians,
and ratios are taken run by run.
"""

import argparse
import gc
import itertools
import subprocess

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np

import jdaso
from benchmarks.lib import harness
from jdaso._exchange.make import exchange_of, late_of
from jdaso._exchange.replicated import Common
from jdaso._payload.header import header
from jdaso._rules.merge import merge_of

MEGABYTES, QUICK_MEGABYTES = (1, 10, 100, 400), (1,)
RANKS, QUICK_RANKS = (2, 4), (2,)
REPEATS, FEWER_REPEATS = 7, 3
LARGE_MEGABYTES = 100  # of more than these, and with --quick, fewer times: they take minutes
ENGINES = ("mpi4jax", "mpi4py", "instant")
WIRES = ("float32", "bfloat16", "int8", "int4")


class Loop:
    """One exchange, a computation of adjustable length, and Allreduce of the same numbers."""

    def __init__(self, session, wire, megabytes):
        from mpi4py import MPI

        self.comm, self.session = MPI.COMM_WORLD, session
        self.leaf = jax.random.normal(jax.random.key(session.node), (int(megabytes * 250_000),))
        exchange = exchange_of([self.leaf], session, wire=wire, owner=1)
        self.late = late_of(exchange, merge_of("paper"), list, checks=False)
        self.held = self.late.empty(1)
        self.send, self.sum = np.asarray(self.leaf), np.empty(self.leaf.size, np.float32)
        self.step, self.turns, self.matrix = 0, np.int32(0), jnp.eye(256)
        self.start, self.wait = jax.jit(self._start), jax.jit(self._wait)
        if self.late.anchored:
            begin = jax.jit(lambda x: self.late.begin(self.held, (x,), jnp.int32(0))[1])
            jax.block_until_ready(begin(self.leaf))
        self.multiply = jax.jit(
            lambda x, turns: jax.lax.fori_loop(0, turns, lambda _, y: y @ self.matrix, x)
        )

    def _start(self, leaf, step):
        about = {"step": step, "before": step, "weight": None, "turn": step}
        return self.late.start(self.held, (leaf,), header(step=step), **about)[0]

    def _wait(self, ticket):
        about = ticket, jnp.int32(1), jnp.int32(0), Common((), False)
        found, _ = self.late.wait(self.held, *about)
        return found.change

    def exchange_alone(self):
        ticket = self.start(self.leaf, jnp.int32(self.step))
        self.step += 1
        jax.block_until_ready(self.wait(ticket))

    def compute(self):
        self.multiply(self.matrix, self.turns).block_until_ready()

    def exchange_and_compute(self):
        ticket = self.start(self.leaf, jnp.int32(self.step))
        self.step += 1
        jax.block_until_ready(ticket)
        self.compute()
        jax.block_until_ready(self.wait(ticket))

    def allreduce(self):
        self.comm.Allreduce(self.send, self.sum)

    def calibrate(self, repeats):
        """Sets the length of the computation to 1.5 times that of the exchange, on all nodes."""
        self.exchange_alone(), self.compute()
        alone = harness.median(
            harness.interleaved([self.exchange_alone], repeats, self.comm.Barrier)[0]
        )
        self.turns = np.int32(200)
        one = min(harness.interleaved([self.compute], 3)[0]) / 200
        self.turns = np.int32(self.comm.bcast(max(1.5 * alone / one, 1)))
        self.exchange_and_compute(), self.allreduce()


def measure(megabytes, engine, wire, repeats):
    with jdaso.Session(engine=engine) as session:
        loop = Loop(session, wire, megabytes)
        loop.calibrate(repeats)
        functions = [loop.exchange_alone, loop.compute, loop.exchange_and_compute, loop.allreduce]
        alone, compute, both, plain = harness.interleaved(functions, repeats, loop.comm.Barrier)
        lost = [b - c for b, c in zip(both, compute, strict=True)]
        ratios = [a / p for a, p in zip(alone, plain, strict=True)]
        lost_ratios = [x / p for x, p in zip(lost, plain, strict=True)]
        return {
            "ranks": session.num_nodes,
            "MB": megabytes,
            "engine": engine,
            "wire": wire,
            "alone ms": harness.median(alone) * 1e3,
            "lost ms": harness.median(lost) * 1e3,
            "Allreduce ms": harness.median(plain) * 1e3,
            "alone / Allreduce": harness.median(ratios),
            "lost / Allreduce": harness.median(lost_ratios),
        }


def measure_python_operation(megabytes, repeats):
    """Allreduce of bfloat16 numbers, added by a Python function that MPI calls."""
    from mpi4py import MPI

    def add(a, b, _):
        a, b = (np.frombuffer(x, ml_dtypes.bfloat16) for x in (a, b))
        np.add(a, b, out=b)

    comm, operation = MPI.COMM_WORLD, MPI.Op.Create(add, commute=True)
    numbers = np.random.default_rng(0).standard_normal(int(megabytes * 250_000), np.float32)
    total, plain_total = np.empty(numbers.size, np.uint16), np.empty_like(numbers)

    def reduce_bfloat16():
        send = numbers.astype(ml_dtypes.bfloat16).view(np.uint16)
        comm.Allreduce([send, MPI.UINT16_T], [total, MPI.UINT16_T], operation)
        total.view(ml_dtypes.bfloat16).astype(np.float32)

    functions = [reduce_bfloat16, lambda: comm.Allreduce(numbers, plain_total)]
    for function in functions:
        function()
    seconds, plain = harness.interleaved(functions, repeats, comm.Barrier)
    operation.Free()
    ratio = harness.median([a / p for a, p in zip(seconds, plain, strict=True)])
    return {
        "ranks": comm.Get_size(),
        "MB": megabytes,
        "engine": "Python MPI.Op",
        "wire": "bfloat16",
        "alone ms": harness.median(seconds) * 1e3,
        "lost ms": harness.median(seconds) * 1e3,
        "Allreduce ms": harness.median(plain) * 1e3,
        "alone / Allreduce": ratio,
        "lost / Allreduce": ratio,
    }


def measure_all(sizes, engines, wires, repeats):
    rows = []
    for megabytes in sizes:
        for engine in engines:
            for wire in wires:
                rows.append(measure(megabytes, engine, wire, repeats))
                gc.collect()
        if "bfloat16" in wires:
            rows.append(measure_python_operation(megabytes, repeats))
    return rows


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--megabytes", type=float, nargs="+")
    parser.add_argument("--ranks", type=int, nargs="+")
    parser.add_argument("--engines", nargs="+", default=ENGINES)
    parser.add_argument("--wires", nargs="+", default=WIRES)
    parser.add_argument("--repeats", type=int)
    options = parser.parse_args()
    sizes = options.megabytes or (QUICK_MEGABYTES if options.quick else MEGABYTES)
    ranks = options.ranks or (QUICK_RANKS if options.quick else RANKS)
    if not harness.is_rank():
        rows, failed = [], False
        # Memory that malloc keeps of one wire is lost to the next: 4 ranks need it.
        wires = [options.wires] if options.quick else [[wire] for wire in options.wires]
        for n, size, some in itertools.product(ranks, sizes, wires):
            print(f"{n} ranks, {size:g} MB, {', '.join(some)}", flush=True)
            fewer = options.quick or size > LARGE_MEGABYTES
            repeats = options.repeats or (FEWER_REPEATS if fewer else REPEATS)
            flags = ["--repeats", repeats, "--megabytes", size]
            flags += ["--engines", *options.engines, "--wires", *some]
            try:
                new = harness.launch(__file__, flags, n)
                print("".join(f"    {row}\n" for row in new), end="", flush=True)
                rows += new
            except subprocess.CalledProcessError as error:  # too little memory, say
                print(f"failed with status {error.returncode}", flush=True)
                failed = True
        harness.report("engines", rows, repeats=options.repeats or (REPEATS, FEWER_REPEATS))
        if failed:
            raise SystemExit("not all could be measured")
        return
    rows = measure_all(sizes, options.engines, options.wires, options.repeats)
    from mpi4py import MPI

    if MPI.COMM_WORLD.Get_rank() == 0:
        harness.give(rows)


if __name__ == "__main__":
    main()
