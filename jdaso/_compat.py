"""Code that depends on JAX's version, on how its CPU backend is built, or on the C library."""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from importlib.metadata import entry_points
from typing import Any

import jax
import numpy as np
from jax import core
from jax._src import callback as _callback  # the public io_callback copies its arguments
from jax._src import core as _core  # no public name lists the bound axes
from jax._src import dispatch as _dispatch  # otherwise a lowering does not get the devices
from jax._src import distributed as _distributed  # no public name tells the world's address
from jax._src import mesh as _mesh  # the public get_mesh raises inside jit
from jax._src import xla_bridge  # no public name tells whether a backend has started
from jax._src.interpreters import mlir as _mlir  # the public one cannot set a sharding
from jax.extend.core import Primitive, Var
from jax.interpreters import batching, mlir
from jaxlib import xla_client

from ._ffi import library
from ._ffi.functions import Callee, name_of

_DEVICE_COUNT = re.compile(r"--xla_force_host_platform_device_count=(\d+)")
_PATIENCE = (
    "--xla_cpu_collective_call_warn_stuck_timeout_seconds",
    "--xla_cpu_collective_call_terminate_timeout_seconds",
)


def cpu_device_count() -> int:
    """The number of CPU devices that this process requests from JAX (1 by default)."""
    found = _DEVICE_COUNT.findall(os.environ.get("XLA_FLAGS", ""))
    configured = getattr(jax.config, "jax_num_cpu_devices", -1)
    return max(int(found[-1]) if found else 1, configured if configured > 0 else 1)


def backend_started() -> bool:
    """Returns whether JAX has made its devices; from then on its thread pools have their size."""
    return xla_bridge.backends_are_initialized()


def computes_on_cpus() -> bool:
    """Returns whether JAX's devices are CPUs, as far as that is known before it makes them."""
    if backend_started():
        return jax.default_backend() == "cpu"
    chosen = getattr(jax.config, "jax_platforms", None)
    return chosen == "cpu" or not entry_points(group="jax_plugins")


def has_cpu_device() -> bool:
    """Returns whether JAX has a device of the host, where `io_callback` puts its arguments.

    It has none if ``JAX_PLATFORMS=cuda`` names other platforms only.
    """
    try:
        return bool(jax.local_devices(backend="cpu"))
    except RuntimeError:
        return False


def coordinator_address() -> str | None:
    """The address of the JAX world that this process has joined; None if it has joined none."""
    if not jax.distributed.is_initialized():
        return None
    return str(_distributed.global_state.coordinator_address)


_PART_SECONDS = 10
"""The wait of a process that ends for the others of its world."""

_SILENCE_SECONDS = 365 * 24 * 3600
"""The silence after which JAX ends the processes of a world, with no reason given: never here."""


def join_world(address: str, processes: int, number: int, seconds: float) -> None:
    """Joins this process to a JAX world, before JAX makes its devices.

    Args:
        address: where process 0 opens the world.
        processes: the number of processes.
        number: this one's.
        seconds: how long to wait for the others.

    Raises:
        RuntimeError: JAX has made its devices, or the others did not come.
    """
    # JAX would keep SIGTERM from the process, and only note that it came.
    jax.config.update("jax_enable_preemption_service", False)
    jax.distributed.initialize(
        address,
        processes,
        number,
        cluster_detection_method="deactivate",
        initialization_timeout=max(int(seconds), 1),
        heartbeat_timeout_seconds=_SILENCE_SECONDS,
        shutdown_timeout_seconds=_PART_SECONDS,
    )


def reserve_cpu_threads(*, joined: bool = False) -> None:
    """Gives XLA's CPU backend enough threads for callbacks that block.

    XLA runs each CPU device, each part of an operation and each host callback in two pools of as
    many threads as there are cores. With L devices, L - 1 of them wait in a ``pmean`` and the last
    in a callback: on 2 cores with L = 2 no thread is left to bring the callback its arguments, and
    the process hangs. XLA reads the pools' size from ``NPROC`` when the backend starts. XLA also
    ends a process whose devices meet more than 40 s apart, which a node that compiles slowly can
    cause on the others: this limit is raised to an hour; jdaso's own limit is shorter.

    Does nothing for one device (its callbacks run in place), or if the user has set the values.

    Args:
        joined: whether devices of other processes take part in a step.
    """
    devices = cpu_device_count()
    if (devices == 1 and not joined) or backend_started():
        return
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    os.environ.setdefault("NPROC", str((cores or 1) + 4 * devices + 4))
    flags = os.environ.get("XLA_FLAGS", "")
    missing = [f"{name}=3600" for name in _PATIENCE if name not in flags]
    os.environ["XLA_FLAGS"] = " ".join([flags, *missing]).strip()


@functools.cache
def private_cpu_device() -> Any:
    """A CPU device of its own client, whose programs run in the thread that calls them.

    A program that waits in MPI must not share a client with the training. JAX queues some 32 steps
    of a device. If the first of them is in a callback that waits for MPI, the program that would
    bring it the answer would be the 33rd. It would also take a thread from the pools described
    above.
    """
    return xla_client.make_cpu_client(asynchronous=False, num_devices=1).local_devices()[0]


def lane_device() -> Any:
    """A CPU device as `private_cpu_device`, of one more client, with a pool of one thread.

    A program with a loop takes a thread of its client's pool. If it waits there for another node,
    it must not keep the thread from a program that the other node waits for.
    """
    before = os.environ.get("NPROC")
    os.environ["NPROC"] = "1"  # the size of the pool; otherwise one thread for each core
    try:
        return xla_client.make_cpu_client(asynchronous=False, num_devices=1).local_devices()[0]
    finally:
        if before is None:
            del os.environ["NPROC"]
        else:
            os.environ["NPROC"] = before


def cpu_threads_reserved(devices: int) -> bool:
    """Returns whether a process with so many CPU devices can block in a callback without a hang."""
    return devices == 1 or "NPROC" in os.environ


STEP_ERRORS = (jax.errors.JaxRuntimeError, ValueError)
"""Types of an exception in a host function as JAX raises it; the second from its fast dispatch."""

ANNOTATION = "jdaso clock"
"""The name of annotations made by `annotate`."""

_host_call = Primitive("jdaso_host_call")
_host_call.multiple_results = True


@_host_call.def_effectful_abstract_eval
def _abstract_host_call(*_: Any, kept: bool, results: Any, **__: Any) -> Any:
    effects = {_callback._IOEffect} if kept else set()
    return [core.ShapedArray(*r) for r in results], effects


def _call_outside_jit(*args: Any, callee: Callee, **_: Any) -> list[jax.Array]:
    """Calls it at once, on whole arrays; copies the results, which are the host's own memory."""
    return [jax.numpy.array(x) for x in callee.call(*(np.asarray(x) for x in args))]


_host_call.def_impl(_call_outside_jit)


SPANS_PROCESSES = (
    "lies on devices of several processes, which jax.distributed has joined to one JAX world, and "
    "each rank is a node of its own here. If R ranks are one node, pass "
    "Session(ranks_per_node=R); otherwise do not call jax.distributed.initialize(), or make meshes "
    "and arrays of session.devices (session.mesh) only."
)
"""Reason to refuse arrays on several processes: each would exchange its part as if it were all."""


def spans_processes(x: Any) -> bool:
    """Returns whether an array lies on devices of other processes too."""
    return (
        isinstance(x, jax.Array) and not isinstance(x, core.Tracer) and not x.is_fully_addressable
    )


def _refuse_other_processes(context: Any) -> None:
    """Raises if a program is compiled for devices of other processes too."""
    devices = getattr(context, "device_assignment", None)
    mesh = getattr(context, "mesh", None)
    if devices is None and not isinstance(mesh, jax.sharding.AbstractMesh | None):
        devices = tuple(mesh.devices.flat)
    if any(device.process_index != jax.process_index() for device in devices or ()):
        raise ValueError(f"A step that calls jdaso {SPANS_PROCESSES}")


def _on_each(function: Callable[..., Any], devices: Sequence[Any]) -> Callable[..., Any]:
    """A function of whole arrays that each of a program's devices calls, with copies of them."""
    mesh = jax.sharding.Mesh(np.array(devices), "device")
    if not jax.sharding.get_abstract_mesh().empty:  # the one that the user has set, of all devices
        mesh = None
    whole = jax.sharding.PartitionSpec()
    about = {"mesh": mesh, "in_specs": whole, "out_specs": whole, "check_vma": False}
    return jax.shard_map(function, **about)


def _lower_host_call(
    ctx: Any,
    *args: Any,
    callee: Callee,
    places: Any,
    everywhere: bool,
    joined: bool,
    **rest: Any,
) -> Any:
    """Lowers to a call by name, or as `io_callback` does but without copying every argument."""
    about = ctx.module_context.axis_context
    if not joined:
        _refuse_other_processes(about)
    sharding, devices = None, getattr(about, "num_devices", 1)
    if everywhere and getattr(about, "device_assignment", None) is not None and devices > 1:
        rest |= {"callee": callee, "places": places, "joined": joined}
        call = partial(_host_call.bind, everywhere=False, **rest)
        return mlir.lower_fun(_on_each(call, about.device_assignment))(ctx, *args)
    if devices != 1:  # of N results each would carry N descriptions
        sharding = _callback._callback_op_sharding(about, None, ctx.avals_out)
    target = library.target(ctx.module_context.platforms, devices)
    if target is not None:
        lower = jax.ffi.build_ffi_lowering_function(
            target, has_side_effect=True, operand_output_aliases=dict(places)
        )
        made = lower(ctx, *args, name=callee.name_for(ctx.avals_in, ctx.avals_out))
        if sharding is not None:
            _mlir.set_sharding(ctx.module_context, made, sharding)
        return made.results
    out, _, _ = _callback.emit_python_callback(
        ctx,
        lambda *given: tuple(np.asarray(x) for x in callee.call(*given)),
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
        "Map over nodes with Session(engine=jdaso.Simulated(...)), over devices with "
        "jax.shard_map."
    )


def register_lowering(primitive: Primitive, rule: Callable[..., Any]) -> None:
    """Registers a lowering rule that is told the devices of the program."""
    _dispatch.prim_requires_devices_during_lowering.add(primitive)
    mlir.register_lowering(primitive, rule, cacheable=False)


register_lowering(_host_call, _lower_host_call)
batching.primitive_batchers[_host_call] = _refuse_vmap

_unmapped = Primitive("jdaso_unmapped")
_unmapped.def_abstract_eval(lambda x: x)
_unmapped.def_impl(lambda x: x)
mlir.register_lowering(_unmapped, lambda _, x: [x])
batching.primitive_batchers[_unmapped] = _refuse_vmap


def unmapped(x: Any) -> Any:
    """Returns the array unchanged; under ``vmap`` it raises the error of `host_call`."""
    return _unmapped.bind(jax.numpy.asarray(x))


def host_call(
    call: Callable[..., Any],
    shapes: Any,
    *args: Any,
    kept: bool = False,
    label: str = "",
    holder: object = None,
    places: Mapping[int, int] | None = None,
    everywhere: bool = False,
    joined: bool = False,
) -> Any:
    """Calls a host function from a compiled step, as `jax.experimental.io_callback` does.

    XLA does not drop, duplicate or move the call out of a branch. Unless it is `kept`, it declares
    no effect to JAX. A program with effects is dispatched by Python, leaf by leaf, at some 10
    microseconds for each array that a step takes or returns (60: 0.5 ms). The price: JAX drops
    calls whose results are unused, and `jax.effects_barrier` does not wait for them
    (`steps_called` does).

    The program holds the function's name, if `_ffi` can be had: JAX's compilation cache keeps it.

    Args:
        call: takes NumPy arrays, returns arrays of these shapes. Its arguments are the step's own
            memory (on a CPU), valid until it returns, and must not be written to.
        shapes: tree of ``jax.ShapeDtypeStruct``.
        args: arrays.
        kept: the call is made even if nothing uses its results.
        label: what distinguishes the function from others of the same name, in every start.
        holder: `_ffi.functions.forget` drops its functions; without, they are kept for good.
        places: results (numbers of leaves) that may take the memory of an argument of the same
            shape and dtype, by the argument's number. The call reads its arguments first.
        everywhere: whether each device of the program makes the call; otherwise, in a program of
            whole arrays, one does.
        joined: whether the program may run on devices of other processes too.
    """
    leaves, tree = jax.tree.flatten(shapes)
    results = tuple((leaf.shape, np.dtype(leaf.dtype)) for leaf in leaves)

    def flat(*given: Any) -> list[Any]:
        return jax.tree.leaves(call(*given))

    callee = Callee(flat, f"{label} {name_of(call)}".strip(), holder)
    about = {"kept": kept, "results": results, "places": tuple((places or {}).items())}
    about |= {"everywhere": everywhere, "joined": joined}
    found = _host_call.bind(*args, callee=callee, **about)
    return jax.tree.unflatten(tree, found)


def refuses_nan() -> bool:
    """Returns whether the user made JAX end programs in which a number is NaN."""
    return bool(getattr(jax.config, "jax_debug_nans", False))


def annotate(node: int, microseconds: float) -> None:
    """Adds a time to the profile that JAX may be recording; costs little if it is not."""
    # Whole numbers: of others the profile keeps only six digits.
    with jax.profiler.TraceAnnotation(ANNOTATION, node=node, nanoseconds=round(1e3 * microseconds)):
        pass


def steps_called(devices: Sequence[Any]) -> Callable[[], None]:
    """Returns a function that waits until the steps that this thread has called have run.

    The function may be called in another thread. It waits for steps without effects only if one of
    their results is still held. It raises one of `STEP_ERRORS` if a step failed.
    """
    # As `jax.effects_barrier`, which covers only the steps of its own thread.
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


def mesh_in_context() -> jax.sharding.Mesh | None:
    """The mesh, with its devices, that the user has set with `jax.set_mesh`."""
    found = _mesh.get_concrete_mesh()
    return None if found is None or found.empty else found


def new_var(aval: Any) -> Var:
    """A jaxpr variable that nothing else uses."""
    return Var(aval)


def varies(x: Any, axis: str) -> bool:
    """Returns whether JAX tracks (``check_vma=True``) that x differs along a mapped axis."""
    kind = jax.typeof(x)
    counted = getattr(kind, "mat", None)
    return axis in (counted.varying if counted is not None else getattr(kind, "vma", ()))


def bound_axes() -> dict[Any, int]:
    """Sizes of the axes of ``shard_map``, ``pmap`` and ``vmap`` around the caller's trace."""
    return dict(_core.get_axis_env().axis_sizes)


def unmapped_axes() -> dict[Any, int]:
    """Sizes of the mesh axes that a ``shard_map(axis_names=...)`` around the caller omits."""
    mesh = jax.sharding.get_abstract_mesh()
    if not mesh.manual_axes:
        return {}
    return {name: n for name, n in mesh.shape.items() if name not in mesh.manual_axes}
