"""The time of one call of the host from a compiled step, by the way of the call.

    python benchmarks/cost/calls.py [--quick]

One process, JAX's first device. "handler" is `jdaso/_jax/ffi`, "callback" the same call with
JDASO_FFI=off, "io_callback" JAX's own, which copies each argument to an array of the CPU first.
Small arguments: the difference to a step without calls, which has CALLS calls in a row.
"""

import argparse
import os

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import io_callback

from benchmarks.lib import harness
from jdaso._jax.host_call import host_call

CALLS = 8
REPEATS, QUICK_REPEATS = 60, 3
MEGABYTES, QUICK_MEGABYTES = (1, 100), (1,)
SCALAR = jax.ShapeDtypeStruct((), jnp.int32)
ZERO = np.zeros((), np.int32)
WAYS = {
    "handler": (host_call, "auto"),
    "callback": (host_call, "off"),
    "io_callback": (io_callback, "auto"),
}


def nothing(*_):
    return ZERO


def compiled(function, way, *args):
    """Calls a step that has been compiled with a way of calls."""
    os.environ["JDASO_FFI"] = way
    step = jax.jit(function)
    jax.block_until_ready(step(*args))
    return lambda: jax.block_until_ready(step(*args))


def measure(functions, repeats):
    return [1e6 * harness.median(x) for x in harness.interleaved(functions, repeats)]


def small(count, repeats):
    """Microseconds of a call with so many small arguments."""
    arrays, x = [jnp.zeros(8) for _ in range(count)], jnp.int32(0)

    def chain(call):
        def step(x, arrays):
            for _ in range(CALLS if call else 0):
                x = x + call(nothing, SCALAR, x, *arrays)
            return x

        return step

    steps = [compiled(chain(None), "auto", x, arrays)]
    steps += [compiled(chain(call), way, x, arrays) for call, way in WAYS.values()]
    bare, *times = measure(steps, repeats)
    return dict(zip(WAYS, [(time - bare) / CALLS for time in times], strict=True))


def large(megabytes, out, repeats):
    """Microseconds of a step with a call that takes so many MB, or returns them."""
    host = np.ones(megabytes * 250_000, np.float32)
    x, about = jnp.asarray(host[:1] if out else host), jax.ShapeDtypeStruct(host.shape, host.dtype)

    def step_of(call):
        if out:
            return lambda x: call(lambda _: host, about, x)
        return lambda x: call(nothing, SCALAR, x)

    steps = [compiled(step_of(call), way, x) for call, way in WAYS.values()]
    return dict(zip(WAYS, measure(steps, repeats), strict=True))


def copying(megabytes, repeats):
    """Microseconds of a plain copy on the host."""
    a, b = (np.ones(megabytes * 250_000, np.float32) for _ in range(2))
    return measure([lambda: np.copyto(a, b)], repeats)[0]


def table(quick):
    """The rows, one by one."""
    repeats = QUICK_REPEATS if quick else REPEATS
    for count in (1,) if quick else (1, 160):
        yield {"arguments": f"{count} of 32 bytes"} | small(count, repeats)
    for megabytes in QUICK_MEGABYTES if quick else MEGABYTES:
        for out in (False, True):
            row = {"arguments": f"{megabytes} MB {'back' if out else ''}".strip()}
            row |= large(megabytes, out, repeats)
            yield row | {"copy": copying(megabytes, repeats)}


if __name__ == "__main__":
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true")
    rows = list(table(parser.parse_args().quick))
    harness.report("calls", rows, unit="us", device=jax.devices()[0].device_kind)
