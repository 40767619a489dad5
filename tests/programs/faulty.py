"""A small run in which node 1 (or both) does something wrong: ``python faulty.py CASE ENGINE``.

Prints ``NODE SECONDS ERROR TEXT`` on a node that met an error, ``NODE end`` on one that did not.
"""

import concurrent.futures
import contextlib
import gc
import importlib
import logging
import math
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import optax
from jax.sharding import PartitionSpec as P

import jdaso
from jdaso._jax.host_call import STEP_ERRORS

sys.path.insert(0, str(Path(__file__).parents[1] / "lib"))

import compiled_once

compiled_once.share()

CASE, ENGINE = sys.argv[1], sys.argv[2]
STEPS, FAULT_STEP = 20, 6
TIMEOUT_SECONDS = 60.0 if CASE == "more_devices" else 6.0  # compiling takes nodes unequally long
STUCK_SECONDS = 90.0  # longer than the launch may take: somebody else has to end the job
CLOCK = {"begin": time.monotonic()}


def act(session, step):
    """Makes node 1's fault before this step."""
    if step == (1 if CASE.endswith("_warmup") else FAULT_STEP):
        what = CASE.removesuffix("_warmup")
        if what in ("raise", "uncaught"):
            raise KeyError("boom")
        if what == "exit":
            sys.exit(3)
        if what == "leave":
            sys.exit(0)
        if what == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if what == "stuck":
            time.sleep(STUCK_SECONDS)
        if what == "closed":
            session.close()
        if what == "thread":
            with concurrent.futures.ThreadPoolExecutor(1) as pool:
                pool.submit(jdaso.mean, jnp.ones(2), session).result()


def put_to_sleep(pid, seconds):
    """A busy machine leaves a process without a core."""
    null = subprocess.DEVNULL
    os.kill(pid, signal.SIGSTOP)
    subprocess.Popen(["sh", "-c", f"sleep {seconds}; kill -CONT {pid}"], stdout=null, stderr=null)


def parameters(odd):
    many = 2**24 if CASE in ("unclosed", "forgotten") else 5  # on its way for a while
    params = {"b": jnp.zeros(3), "w": jnp.arange(many, dtype=jnp.float32)}
    if odd and CASE == "shape":
        params["b"] = jnp.zeros(4)
    if odd and CASE == "dtype":
        params["b"] = jnp.zeros(3, jnp.bfloat16)
    if odd and CASE == "tree":
        params["c"] = jnp.zeros(3)
    if odd and CASE in ("bits", "bits_traced", "bits_traced_cycling"):
        params["b"] = jnp.ones(3)
    return params


def recover(step, params, state):
    """Does what the error says."""
    try:
        for _ in range(4):
            params, state = jax.block_until_ready(step(params, state, jnp.zeros(1)))
    except STEP_ERRORS as error:
        assert "set state.ticket to 0s" in str(error)
        return state._replace(ticket=jnp.zeros_like(state.ticket))
    raise AssertionError("nobody refused the ticket")


def run(rank):
    odd = rank == 1
    engine = ENGINE
    if odd and CASE == "engine":
        engine = "mpi4py" if ENGINE != "mpi4py" else "instant"
    if odd and CASE == "engine_simulated":
        engine = jdaso.Simulated(2)
    if odd and CASE == "unknown_engine":
        engine = "carrier pigeon"
    if odd and CASE == "version":
        from jdaso._session import start

        start.__version__ = "0.0.1"
    if odd and CASE == "more_devices":
        os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=2"
    if odd and CASE == "level_on_one":
        os.environ["MPI4PY_RC_THREAD_LEVEL"] = "serialized"  # mpi4py is imported by the session
    if CASE == "stuck_before_session" and rank == 2:
        time.sleep(2)  # meets the limit later than node 0
    if odd and CASE.startswith("stuck_before"):
        time.sleep(STUCK_SECONDS)
    if odd and CASE == "stuck_starting":  # it has said who it is, and comes no further
        from jdaso._session import session as sessions

        sessions.Control = lambda *_: time.sleep(STUCK_SECONDS)
    limit = math.inf if odd and CASE == "unlimited" else TIMEOUT_SECONDS
    session = jdaso.Session(engine=engine, timeout_seconds=limit)
    unclosed = CASE in ("unclosed", "forgotten") or (odd and CASE == "uncaught")
    with contextlib.nullcontext() if unclosed else session:
        if odd and CASE == "phases_invalid":
            jdaso.Phases(STEPS, sync_every=2, delay=3)
        if odd and CASE == "phases_zero":
            jdaso.Phases(STEPS, sync_every=0)
        if odd and CASE == "phases_long":
            jdaso.Phases(STEPS, warmup_steps=STEPS, cooldown_steps=1)
        warmup = 0 if CASE == "bits_traced_cycling" else 3
        phases = jdaso.Phases(STEPS, warmup, 4, 4, delay=1 if odd and CASE == "phases" else 2)
        axis = "local" if len(session.devices) > 1 else None
        if CASE == "axis":
            axis = "nowhere"
        tx = jdaso.daso(
            optax.sgd(1e-2) if odd and CASE == "inner" else optax.adam(1e-2),
            phases=phases,
            session=session,
            local_axis=axis,
            wire="bfloat16" if odd and CASE == "wire" else "float32",
            on_nonfinite="skip" if CASE == "nan_skip" else "raise",
        )
        params = parameters(odd)
        state = (jax.jit(tx.init) if "traced" in CASE else tx.init)(params)

        def step(params, state, noise):
            grads = jax.tree.map(lambda x: jnp.ones_like(x) + noise.sum(), params)
            given = None if odd and CASE == "params_none" else params
            updates, state = tx.update(grads, state, given, value=jnp.float32(1))
            return optax.apply_updates(params, updates), state

        if axis == "local":
            specs = (P(), P(), P("local"))
            step = jax.shard_map(step, mesh=session.mesh, in_specs=specs, out_specs=(P(), P()))
        step = jax.jit(step)
        if "traced" in CASE:  # the first step ends with an error: compiled before the clock starts
            step = step.lower(params, state, jnp.zeros(len(session.devices))).compile()
            CLOCK["begin"] = time.monotonic()
        for n in range(STEPS):
            if odd:
                act(session, n)
            if CASE == "stale" and n == FAULT_STEP:  # on both nodes
                state = recover(
                    step, params, state._replace(ticket=jnp.full_like(state.ticket, 99))
                )
            bad = odd and CASE.startswith("nan") and n == FAULT_STEP
            bad_value = jnp.inf if CASE == "nan_inf" else jnp.nan
            noise = jnp.full(len(session.devices), bad_value if bad else 0.0)
            params, state = jax.block_until_ready(step(params, state, noise))
            if n == 0:  # started and compiled: the clock is for what goes wrong from here on
                CLOCK["begin"] = time.monotonic()
            if odd and CASE == "fewer" and n == FAULT_STEP:
                break
            if CASE == "one_more" and n == FAULT_STEP + (not odd):
                return  # node 0 has started an exchange that node 1 never starts
            if unclosed and n > FAULT_STEP and bool(state.ticket.any()):
                print(f"{session.node} end\n", end="", flush=True)
                return
        jdaso.finalize(params, state, session)
        print(f"{session.node} end\n", end="", flush=True)


if __name__ == "__main__":
    logging.basicConfig(format="log: %(message)s")
    logging.getLogger("jax").setLevel(logging.CRITICAL)
    if CASE not in ("stuck_before", "level_on_one"):
        # Both are here, however long it took them on a busy machine; now the limits may count.
        importlib.import_module("mpi4py.MPI")
    names = ("PMI_RANK", "OMPI_COMM_WORLD_RANK")
    rank = int(next(os.environ[name] for name in names if name in os.environ))
    try:
        run(rank)
        if CASE == "forgotten":  # nothing of the program's holds the session any more
            jax.clear_caches()
            gc.collect()
    except Exception as error:
        if CASE == "uncaught":
            if rank == 1:
                raise
            time.sleep(2)  # the time is what is tested: what the program says comes late
        text = next((x for x in str(error).splitlines()[::-1] if "[node" in x), str(error))
        seconds = time.monotonic() - CLOCK["begin"]
        if os.environ.get("LAUNCHER_SLEEPS") == str(rank):
            put_to_sleep(os.getppid(), seconds=1.0)
        # In one piece: the ranks share a terminal, and print writes the end of a line by itself.
        sys.stdout.write(f"{rank} {seconds:.1f} {type(error).__name__} {text}\n")
        sys.stdout.flush()
        raise SystemExit(1) from error
