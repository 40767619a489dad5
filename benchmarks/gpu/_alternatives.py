"""Part `alternatives`: ways by which a step's bytes can reach the host's memory, and come back.

All in one process. "held up" is how much longer the step itself takes (its loss is awaited),
"there" when the bytes lie in host memory that another thread may read; both less the same step
without. The bound is the copy alone. jdaso's own way is `host_call`; `io_callback` is JAX's, which
copies once more; the handlers are `_ffi.cc`. Of the ways with "output" the step gives the
packed vector as a result, and the loop (or a thread) takes it from there.
"""

import tempfile
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import io_callback

from benchmarks.gpu import _ffi, _part
from benchmarks.gpu._copies import Bound, Copies
from benchmarks.lib import harness
from jdaso._jax.host_call import host_call

SIZES, QUICK_SIZES = (25_600_000, 124_000_000), (1_000_000,)  # float32 numbers
REPEATS, BRIEF_REPEATS, QUICK_REPEATS = 20, 8, 3
GIVEN = 3.0
WRONG = "the numbers are wrong"
TICKET = jax.ShapeDtypeStruct((), jnp.int32)


class Way:
    """One way: a compiled step, and what the loop does when the loss is there.

    Args:
        moves: in the step: a vector to what the step gives besides (an int32, or the vector).
        take: on the host: from that to the numbers, in memory that may be kept.
    """

    def __init__(self, moves, take=np.asarray):
        self._take = take
        self._step = jax.jit(lambda x: _step(x, moves))

    def __call__(self, x):
        """Seconds until the loss is there, and until the bytes are."""
        begin = time.perf_counter()
        loss, moved = self._step(x)
        loss.block_until_ready()
        held = time.perf_counter() - begin
        self.found = loss, self._take(moved)
        return held, time.perf_counter() - begin


def _step(x, moves):
    y = x * 0.5  # what is packed is made by the step
    moved = moves(y)
    # A step is through when all its callbacks are: the loss follows from the ticket.
    after = moved if moved.ndim == 0 else jnp.int32(0)
    return y[0] + after, moved


def none(y):
    del y
    return jnp.int32(0)


def out_ways(device, memory, pinned_memory):
    """Name to way, from the device to the host; the handler has memory that it pins."""
    sharding = jax.sharding.SingleDeviceSharding(device)

    def keep(y):
        np.copyto(memory, np.asarray(y))
        return np.int32(0)

    def kept(_):
        return memory

    def start_early(moved):
        moved.copy_to_host_async()
        return np.asarray(moved)

    ways = {
        "none": lambda: Way(none),
        "io_callback": lambda: Way(lambda y: io_callback(keep, TICKET, y), kept),
        "host_call (jdaso)": lambda: Way(lambda y: host_call(keep, TICKET, y), kept),
        "FFI handler": lambda: Way(
            lambda y: _ffi.to_host(y, pinned_memory), lambda _: pinned_memory
        ),
        "output + copy_to_host_async": lambda: Way(lambda y: y, start_early),
    }
    if "pinned_host" in {kind.kind for kind in device.addressable_memories()}:
        pinned = sharding.with_memory_kind("pinned_host")
        ways["pinned_host output"] = lambda: Way(lambda y: jax.device_put(y, pinned))
    return ways


def in_ways(device, memory, pinned_memory):
    """Name to way, from the host to the device: the step that needs the numbers.

    A callback can return memory that the handler has pinned, too, and XLA copies from it faster.
    """
    about = jax.ShapeDtypeStruct(memory.shape, memory.dtype)
    give, give_pinned = lambda _: memory, lambda _: pinned_memory

    def on_device(moves):
        return Way(lambda y: jnp.max(moves(y[0].astype(jnp.int32))).astype(jnp.int32))

    ways = {
        "none": lambda: Put(device, memory, "resident"),
        "io_callback": lambda: on_device(lambda t: io_callback(give, about, t)),
        "host_call (jdaso)": lambda: on_device(lambda t: host_call(give, about, t)),
        "FFI handler": lambda: on_device(lambda t: _ffi.from_host(t, pinned_memory)),
        "host_call, memory pinned": lambda: on_device(lambda t: host_call(give_pinned, about, t)),
        "device_put in the loop": lambda: Put(device, memory),
    }
    if "pinned_host" in {kind.kind for kind in device.addressable_memories()}:
        ways["device_put, pinned"] = lambda: Put(device, memory, "pinned_host")
    return ways


class Put:
    """A `Way` whose loop puts the numbers on the device; the step takes them as an argument.

    From memory of a kind; of the kind "resident" they are on the device already.
    """

    def __init__(self, device, memory, kind="pageable"):
        self._device = jax.sharding.SingleDeviceSharding(device)
        self._memory, self._resident = memory, kind == "resident"
        if self._resident:
            self._memory = jax.device_put(memory, self._device)
        elif kind != "pageable":
            self._memory = jax.device_put(memory, self._device.with_memory_kind(kind))
        self._step = jax.jit(lambda x, y: _step(x, lambda _: jnp.max(y).astype(jnp.int32)))

    def __call__(self, x):
        begin = time.perf_counter()
        given = self._memory
        if not self._resident:
            given = jax.device_put(given, self._device, may_alias=False)
        loss, moved = self._step(x, given)
        loss.block_until_ready()
        held = time.perf_counter() - begin
        self.found = loss, moved
        return held, held


def all_came_out(found):
    """Returns whether the numbers of `out_ways`, run with ones, are those of the step."""
    return bool(np.all(np.asarray(found[1]) == 0.5))


def all_came_in(found):
    """The result of `in_ways`, whose memory holds `GIVEN`."""
    return float(found[0]) == 0.5 + GIVEN


def usable(ways, x, right):
    """The ways that work here, each compiled and run once; of the others, what they say."""
    made, errors = {}, {}
    for name, make in ways.items():
        try:
            made[name] = make()
            made[name](x)
            if name != "none" and not right(made[name].found):
                raise ValueError(WRONG)
        except Exception as error:  # each says something else: a row of the report
            made.pop(name, None)
            errors[name] = str(error).strip().splitlines()[0][:120] or type(error).__name__
    return made, errors


def measure(ways, x, repeats, bound):
    """Seconds (held up, there) of each way, in turn, and of the plain copies."""
    times = {name: [] for name in ways}
    for _ in range(repeats):
        for name, way in ways.items():
            times[name].append(way(x))
        bound.measure()
    return times


def add_rows(rows, direction, size, times, errors, bound_ms):
    for name, seconds in times.items():
        if name == "none":
            continue
        pairs = list(zip(seconds, times["none"], strict=True))
        held = 1e3 * harness.median([a[0] - b[0] for a, b in pairs])
        there = 1e3 * harness.median([a[1] - b[1] for a, b in pairs])
        about = {"held up ms": held, "there ms": there, "bound ms": bound_ms}
        about |= {"held up / bound": held / bound_ms, "there / bound": there / bound_ms}
        rows.add(direction=direction, way=name, MB=4 * size / 1e6, **about)
    for name, text in errors.items():
        judged = {"error": text, "right": "no"} if text == WRONG else {"error": text}
        rows.add(direction=direction, way=name, MB=4 * size / 1e6, **judged)


DIRECTIONS = (("out", out_ways, all_came_out), ("in", in_ways, all_came_in))


def main():
    options = _part.options()
    device, rows = _part.require(options), _part.Rows()
    with tempfile.TemporaryDirectory() as folder:
        try:
            _ffi.build(Path(folder))
        except RuntimeError as error:
            print(error, flush=True)  # its ways say that they are not registered
        for size in options.pick(SIZES, SIZES[:1], QUICK_SIZES):
            x = jnp.ones(size, jnp.float32)
            memories = np.ones(size, np.float32), np.ones(size, np.float32)
            bound = Bound(Copies(device, 4 * size))
            for direction, ways_of, right in DIRECTIONS:
                for memory in memories:
                    memory.fill(GIVEN)
                ways, errors = usable(ways_of(device, *memories), x, right)
                repeats = options.pick(REPEATS, BRIEF_REPEATS, QUICK_REPEATS)
                times = measure(ways, x, repeats, bound)
                bound_ms = min((bound.out_ms if direction == "out" else bound.in_ms).values())
                add_rows(rows, direction, size, times, errors, bound_ms)


if __name__ == "__main__":
    main()
