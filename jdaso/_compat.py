"""What depends on the version of JAX, on how its CPU backend is built, or on the C library."""

from __future__ import annotations

import ctypes
import functools
import os
import re
import resource
from collections.abc import Callable, Sequence
from importlib.metadata import entry_points
from typing import Any

import jax
import numpy as np
from jax import core
from jax._src import callback as _callback  # the public io_callback copies what it is given
from jax._src import core as _core  # no public name lists the axes that are bound
from jax._src import dispatch as _dispatch  # else a lowering is not given the devices
from jax._src import xla_bridge  # no public name tells whether a backend was started
from jax.extend.core import Primitive, Var
from jax.interpreters import batching, mlir
from jaxlib import xla_client

_DEVICE_COUNT = re.compile(r"--xla_force_host_platform_device_count=(\d+)")
_PATIENCE = (
    "--xla_cpu_collective_call_warn_stuck_timeout_seconds",
    "--xla_cpu_collective_call_terminate_timeout_seconds",
)


def cpu_device_count() -> int:
    """How many CPU devices this process asks JAX for (1 unless it says otherwise)."""
    found = _DEVICE_COUNT.findall(os.environ.get("XLA_FLAGS", ""))
    configured = getattr(jax.config, "jax_num_cpu_devices", -1)
    return max(int(found[-1]) if found else 1, configured if configured > 0 else 1)


def backend_started() -> bool:
    """Whether JAX has made its devices; from then on its thread pools have their size."""
    return xla_bridge.backends_are_initialized()


def computes_on_cpus() -> bool:
    """Whether JAX's devices are CPUs, as far as one can know before it makes them."""
    if backend_started():
        return jax.default_backend() == "cpu"
    chosen = getattr(jax.config, "jax_platforms", None)
    return chosen == "cpu" or not entry_points(group="jax_plugins")


def has_cpu_device() -> bool:
    """Whether JAX has a device of the host, where `io_callback` puts what it is given.

    Not where ``JAX_PLATFORMS=cuda`` names other platforms only.
    """
    try:
        return bool(jax.local_devices(backend="cpu"))
    except RuntimeError:
        return False


def reserve_cpu_threads() -> None:
    """Gives XLA's CPU backend threads enough for callbacks that block.

    XLA runs each CPU device, each part of an operation and each host callback in two pools of as
    many threads as there are cores. With L devices, L - 1 of them stand in a ``pmean`` and the
    last in a callback: on 2 cores with L = 2 no thread is left to bring the callback its
    arguments, and the process hangs. XLA reads the pools' size from ``NPROC`` when the backend
    starts. XLA also ends a process whose devices meet later than 40 s apart, which a node that
    compiles slowly can cause on the others: that limit becomes an hour, jdaso's own is shorter.

    Does nothing for one device (its callbacks run in place), or where the user has set the values.
    """
    devices = cpu_device_count()
    if devices == 1 or backend_started():
        return
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    os.environ.setdefault("NPROC", str((cores or 1) + 4 * devices + 4))
    flags = os.environ.get("XLA_FLAGS", "")
    missing = [f"{name}=3600" for name in _PATIENCE if name not in flags]
    os.environ["XLA_FLAGS"] = " ".join([flags, *missing]).strip()


_MALLOC_SETTINGS = (
    "MALLOC_ARENA_MAX",
    "MALLOC_MMAP_MAX_",
    "MALLOC_MMAP_THRESHOLD_",
    "MALLOC_TOP_PAD_",
    "MALLOC_TRIM_THRESHOLD_",
    "GLIBC_TUNABLES",
)
# Of mallopt, in glibc's malloc.h.
_M_TRIM_THRESHOLD, _M_TOP_PAD, _M_MMAP_MAX, _M_ARENA_MAX = -1, -2, -4, -8


def keep_freed_memory() -> None:
    """Lets this process keep memory that was freed, for the next step to use.

    XLA's CPU backend and NumPy take their buffers from malloc and free them in every step. glibc
    gives large ones back to the kernel, which provides them anew one page of 4 KiB at a time: more
    than half of the time of an exchange. Here all blocks come from one heap, which grows by 16 MiB
    at a time and gives nothing back.

    To be called before other threads begin: those that run have heaps of their own already, and
    new ones inherit those of ended ones. What one thread has freed then does not serve another,
    and resident memory goes on growing for hundreds of exchanges, by a third or more.

    Does nothing where the user has set glibc's malloc, or where the C library is another one.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None or any(name in os.environ for name in _MALLOC_SETTINGS):
        return
    mallopt(_M_ARENA_MAX, 1)
    mallopt(_M_MMAP_MAX, 0)
    mallopt(_M_TOP_PAD, 16 * 2**20)
    mallopt(_M_TRIM_THRESHOLD, -1)  # never


@functools.cache
def private_cpu_device() -> Any:
    """A CPU device of a client of its own, whose programs run in the thread that calls them.

    A program that waits in MPI must not share a client with the training. JAX lets some 32 steps
    of a device wait their turn, and where the first of them stands in a callback that waits for
    MPI, the program that would bring it the answer would be the 33rd. It would also take a thread
    from the pools described above.
    """
    return xla_client.make_cpu_client(asynchronous=False, num_devices=1).local_devices()[0]


def cpu_threads_reserved(devices: int) -> bool:
    """Whether a process with so many CPU devices can block in a callback without hanging."""
    return devices == 1 or "NPROC" in os.environ


STEP_ERRORS = (jax.errors.JaxRuntimeError, ValueError)
"""As what an exception in a host function surfaces: the second where JAX's fast dispatch met it."""

ANNOTATION = "jdaso clock"
"""What `annotate` calls it."""

_host_call = Primitive("jdaso_host_call")
_host_call.multiple_results = True
_host_call.def_abstract_eval(lambda *_, call, results: [core.ShapedArray(*r) for r in results])


def _call_outside_jit(*args: Any, call: Callable[..., Any], results: Any) -> list[jax.Array]:
    """Calls it at once, on whole arrays; copies what it gives, which is the host's own memory."""
    del results
    return [jax.numpy.array(x) for x in call(*(np.asarray(x) for x in args))]


_host_call.def_impl(_call_outside_jit)


SPANS_PROCESSES = (
    "lies on devices of several processes, which jax.distributed has joined to one JAX world, and "
    "each rank is a node of its own here. Leave jax.distributed.initialize() out where jdaso "
    "connects the ranks, or make meshes and arrays of session.devices (session.mesh) only."
)
"""Why what spans processes is refused: each would exchange its part as if it were the whole."""


def spans_processes(x: Any) -> bool:
    """Returns whether an array lies on devices of other processes too."""
    return (
        isinstance(x, jax.Array) and not isinstance(x, core.Tracer) and not x.is_fully_addressable
    )


def _refuse_other_processes(context: Any) -> None:
    """Raises where a program is compiled for devices of other processes too."""
    devices = getattr(context, "device_assignment", None)
    if devices is None and getattr(context, "mesh", None) is not None:
        devices = tuple(context.mesh.devices.flat)
    if any(device.process_index != jax.process_index() for device in devices or ()):
        raise ValueError(f"A step that calls jdaso {SPANS_PROCESSES}")


def _lower_host_call(ctx: Any, *args: Any, call: Callable[..., Any], results: Any) -> Any:
    """As `io_callback` is lowered, less its first act, which is to copy every argument."""
    del results
    _refuse_other_processes(ctx.module_context.axis_context)
    sharding = _callback._callback_op_sharding(ctx.module_context.axis_context, None, ctx.avals_out)
    out, _, _ = _callback.emit_python_callback(
        ctx,
        lambda *given: tuple(np.asarray(x) for x in call(*given)),
        None,
        list(args),
        ctx.avals_in,
        ctx.avals_out,
        has_side_effect=True,
        returns_token=False,
        sharding=sharding,
    )
    return out


def _refuse_vmap(*_: Any, **__: Any) -> Any:
    raise NotImplementedError(
        "Exchanges between nodes cannot be mapped with jax.vmap: each would happen several times. "
        'Map over nodes with Session(engine="simulated"), over devices with jax.shard_map.'
    )


_dispatch.prim_requires_devices_during_lowering.add(_host_call)
mlir.register_lowering(_host_call, _lower_host_call, cacheable=False)
batching.primitive_batchers[_host_call] = _refuse_vmap

_unmapped = Primitive("jdaso_unmapped")
_unmapped.def_abstract_eval(lambda x: x)
_unmapped.def_impl(lambda x: x)
mlir.register_lowering(_unmapped, lambda _, x: [x])
batching.primitive_batchers[_unmapped] = _refuse_vmap


def unmapped(x: Any) -> Any:
    """An array as it is; under ``vmap`` it raises what `host_call` does."""
    return _unmapped.bind(jax.numpy.asarray(x))


def host_call(call: Callable[..., Any], shapes: Any, *args: Any) -> Any:
    """Calls a host function from a compiled step, as `jax.experimental.io_callback` does.

    It is lowered to the same operation, which XLA neither drops nor doubles nor moves out of a
    branch, but JAX is not told of an effect. A program with effects is dispatched by Python, leaf
    by leaf, at some 10 microseconds for each array that a step takes or gives (60: 0.5 ms). The
    price: JAX drops calls whose results nobody uses, and `jax.effects_barrier` does not wait for
    them (`steps_called` does).

    Args:
        call: takes NumPy arrays, returns arrays of these shapes. What it is given is the step's
            own memory (on a CPU), valid until it returns, and must not be written to.
        shapes: tree of ``jax.ShapeDtypeStruct``.
        args: arrays.
    """
    leaves, tree = jax.tree.flatten(shapes)
    results = tuple((leaf.shape, np.dtype(leaf.dtype)) for leaf in leaves)

    def flat(*given: Any) -> list[Any]:
        return jax.tree.leaves(call(*given))

    return jax.tree.unflatten(tree, _host_call.bind(*args, call=flat, results=results))


def refuses_nan() -> bool:
    """Returns whether JAX ends a program in which a number is NaN, as the user told it to."""
    return bool(getattr(jax.config, "jax_debug_nans", False))


def annotate(node: int, microseconds: float) -> None:
    """Leaves a time in the profile that JAX may be recording; costs little where it is not."""
    # Whole numbers: of others the profile keeps six digits.
    with jax.profiler.TraceAnnotation(ANNOTATION, node=node, nanoseconds=round(1e3 * microseconds)):
        pass


def steps_called(devices: Sequence[Any]) -> Callable[[], None]:
    """Returns a function that waits until the steps that this thread has called have run.

    It may be called in another thread. Of steps without effects it waits for those of which any
    result is held. It raises one of `STEP_ERRORS` where a step failed.
    """
    # What `jax.effects_barrier` waits for, which knows the steps of its own thread only.
    tokens = _dispatch.runtime_tokens
    effects = [*tokens.current_tokens.values(), *tokens.output_runtime_tokens.values()]

    def wait() -> None:
        failure = None
        for array in (*effects, *jax.live_arrays(devices[0].platform)):
            try:
                if not (isinstance(array, jax.Array) and array.is_deleted()):
                    array.block_until_ready()
            except STEP_ERRORS as error:
                failure = error
        if failure is not None:
            raise failure

    return wait


def memory_limit_bytes() -> int:
    """How much memory this process may use: its limit (``ulimit -v``), else the machine's."""
    sizes = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    for limit in (resource.RLIMIT_AS, resource.RLIMIT_DATA):
        soft, _ = resource.getrlimit(limit)
        if soft != resource.RLIM_INFINITY:
            sizes.append(soft)
    return min(sizes)


def new_var(aval: Any) -> Var:
    """A variable of a jaxpr that nobody else uses."""
    return Var(aval)


def varies(x: Any, axis: str) -> bool:
    """Whether JAX keeps count (``check_vma=True``) and knows x to differ along a mapped axis."""
    kind = jax.typeof(x)
    counted = getattr(kind, "mat", None)
    return axis in (counted.varying if counted is not None else getattr(kind, "vma", ()))


def bound_axes() -> dict[Any, int]:
    """Sizes of the axes of ``shard_map``, ``pmap`` and ``vmap`` that the caller is traced in."""
    return dict(_core.get_axis_env().axis_sizes)


def unmapped_axes() -> dict[Any, int]:
    """Sizes of axes of the mesh that a ``shard_map(axis_names=...)`` around the caller omits."""
    mesh = jax.sharding.get_abstract_mesh()
    if not mesh.manual_axes:
        return {}
    return {name: n for name, n in mesh.shape.items() if name not in mesh.manual_axes}
