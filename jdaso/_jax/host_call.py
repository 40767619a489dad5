"""Calls of Python functions from compiled steps, and the wait for such steps."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import jax
import numpy as np
from jax import core
from jax._src import callback as _callback  # the public io_callback copies its arguments
from jax._src import dispatch as _dispatch  # otherwise a lowering does not get the devices
from jax._src.interpreters import mlir as _mlir  # the public one cannot set a sharding
from jax.extend.core import Primitive
from jax.interpreters import batching, mlir

from .ffi import library
from .ffi.functions import Callee, name_of
from .world import SPANS_PROCESSES

STEP_ERRORS = (jax.errors.JaxRuntimeError, ValueError)
"""Types that JAX raises for an exception in a host function; the second in its fast dispatch."""

_host_call = Primitive("jdaso_host_call")
_host_call.multiple_results = True


@_host_call.def_effectful_abstract_eval
def _abstract_host_call(*_: Any, kept: bool, results: Any, **__: Any) -> Any:
    effects = {_callback._IOEffect} if kept else set()
    return [core.ShapedArray(*r) for r in results], effects


def _call_outside_jit(*args: Any, callee: Callee, **_: Any) -> list[jax.Array]:
    """Calls the function at once, on whole arrays; copies the results, which are host memory."""
    return [jax.numpy.array(x) for x in callee.call(*(np.asarray(x) for x in args))]


_host_call.def_impl(_call_outside_jit)


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
    to_host: int,
    **rest: Any,
) -> Any:
    """Lowers to a call by name, or as `io_callback` does but without copying every argument."""
    about = ctx.module_context.axis_context
    if not joined:
        _refuse_other_processes(about)
    sharding, devices = None, getattr(about, "num_devices", 1)
    if everywhere and getattr(about, "device_assignment", None) is not None and devices > 1:
        rest |= {"callee": callee, "places": places, "joined": joined, "to_host": to_host}
        call = partial(_host_call.bind, everywhere=False, **rest)
        return mlir.lower_fun(_on_each(call, about.device_assignment))(ctx, *args)
    if devices != 1:  # each of N results would carry N descriptions
        sharding = _callback._callback_op_sharding(about, None, ctx.avals_out)
    target = library.target(ctx.module_context.platforms, devices)
    if target is not None:
        lower = jax.ffi.build_ffi_lowering_function(
            target, has_side_effect=True, operand_output_aliases=dict(places)
        )
        name = callee.name_for(ctx.avals_in, ctx.avals_out)
        made = lower(ctx, *args, name=name, to_host=np.int64(to_host))
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
    """Registers a lowering rule that gets the devices of the program."""
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
    to_host: int | None = None,
) -> Any:
    """Calls a host function from a compiled step, as `jax.experimental.io_callback` does.

    XLA does not drop, duplicate or move the call out of a branch. Unless it is `kept`, the call
    declares no effect to JAX. A program with effects is dispatched by Python, leaf by leaf, at some
    10 microseconds for each array that a step takes or returns (60: 0.5 ms). The price: JAX drops
    calls whose results are unused, and `jax.effects_barrier` does not wait for them (`steps_called`
    does).

    If `ffi` is available, the program holds a name, and JAX's compilation cache keeps it.

    Args:
        call: takes NumPy arrays, returns arrays of these shapes. Its arguments are the step's own
            memory (on a CPU), valid until it returns, and must not be written to.
        shapes: tree of ``jax.ShapeDtypeStruct``.
        args: arrays.
        kept: the call is made even if nothing uses its results.
        label: distinguishes the function from others of the same name, in every start.
        holder: `ffi.functions.forget` drops the functions of this object; others are kept for ever.
        places: results (numbers of leaves) that may take the memory of an argument of the same
            shape and dtype, by the argument's number. The call reads its arguments first.
        everywhere: whether each device of the program makes the call; otherwise, in a program of
            whole arrays, one does.
        joined: whether the program may run on devices of other processes too.
        to_host: the number of first arguments that are copied to the host before the call; None
            for all. On a GPU the function gets the others as `ffi.on_device.OnDevice`, and copies
            them itself.
    """
    leaves, tree = jax.tree.flatten(shapes)
    results = tuple((leaf.shape, np.dtype(leaf.dtype)) for leaf in leaves)

    def flat(*given: Any) -> list[Any]:
        return jax.tree.leaves(call(*given))

    callee = Callee(flat, f"{label} {name_of(call)}".strip(), holder)
    about = {"kept": kept, "results": results, "places": tuple((places or {}).items())}
    about |= {"everywhere": everywhere, "joined": joined}
    about["to_host"] = len(args) if to_host is None else to_host
    found = _host_call.bind(*args, callee=callee, **about)
    return jax.tree.unflatten(tree, found)


def steps_called(devices: Sequence[Any]) -> Callable[[], None]:
    """Returns a function that waits until the steps that this thread has called have run.

    The function may be called in another thread. It waits for steps without effects only if one of
    their results is still held. It raises one of `STEP_ERRORS` if a step failed.
    """
    # Like `jax.effects_barrier`, which covers only the steps of its own thread.
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
