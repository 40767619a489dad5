"""Memory of two nodes that exchange at every step: from one heap, nothing held in vain, no leak."""

import json
import sys

import pytest
from launcher import ROOT, mpirun
from nights import at_night

CODE = """
import ctypes, json, re, sys, time
import jax, jax.numpy as jnp, optax
import jdaso

sys.path.insert(0, "benchmarks")
from memory import used_megabytes

MEGABYTES = 24
libc = ctypes.CDLL(None)
libc.open_memstream.restype = ctypes.c_void_p

def heaps():
    "Megabytes of each heap of malloc."
    text, size = ctypes.c_char_p(), ctypes.c_size_t()
    stream = ctypes.c_void_p(libc.open_memstream(ctypes.byref(text), ctypes.byref(size)))
    libc.malloc_info(0, stream)
    libc.fclose(stream)
    parts = re.findall("<heap .*?</heap>", text.value.decode(), re.S)
    return [int(re.search('type="current" size="([0-9]+)"', part)[1]) / 2**20 for part in parts]

with jdaso.Session(engine=sys.argv[1]) as session:
    phases = jdaso.Phases(40, sync_every=1, delay=1)
    tx = jdaso.daso(optax.sgd(1e-3), phases=phases, session=session, merge=sys.argv[2])

    @jax.jit
    def step(params, state):
        updates, state = tx.update(params, state, params)
        return optax.apply_updates(params, updates), state

    begin = used_megabytes()
    params = jnp.ones(MEGABYTES * 2**18)
    state, used = tx.init(params), []
    for n in range(30):
        params, state = jax.block_until_ready(step(params, state))
        if n in (10, 29):
            time.sleep(0.5)  # what is in flight arrives
            used.append(used_megabytes())
    jdaso.finalize(params, state, session)
    held, growth = (used[0] - begin) / MEGABYTES, used[1] - used[0]
    line = json.dumps({"heaps": heaps(), "held": held, "growth": growth})
    print(line + "\\n", end="", flush=True)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="asks glibc")
@pytest.mark.parametrize(
    ("engine", "merge", "most"),
    [
        at_night(("mpi4jax", "paper", 5.5)),
        at_night(("mpi4py", "paper", 8.5)),
        ("mpi4py", "corrected", 9.5),
    ],
)
def test_memory_is_one_heap_and_does_not_grow(engine, merge, most):
    done = mpirun(2, ["-c", CODE, engine, merge], cwd=ROOT)
    assert done.returncode == 0, done.stdout
    nodes = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    assert len(nodes) == 2
    for node in nodes:
        assert sum(megabytes > 4 for megabytes in node["heaps"]) == 1
        assert node["growth"] < 3  # a program or two; one chunk is 16
        # In times of the parameters: they, what is sent, received and brought (of exact means
        # too, but for mpi4jax), the snapshot of "corrected", and the programs of XLA.
        assert node["held"] < most
