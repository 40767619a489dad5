"""Averages inside a node, over its own devices."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from .._jax.axes import bound_axes, unmapped_axes, varies
from .._jax.types import LocalAxis, PyTree
from .._payload.layout import is_float


def mean_gradients_locally(grads: PyTree, axis: LocalAxis) -> PyTree:
    """Gradients averaged over the node's devices.

    Under ``shard_map(..., check_vma=True)`` JAX itself sums the gradients of replicated parameters
    over the axis. The mean of these equal sums is that sum, L times too large for L devices. Such a
    sum cannot be distinguished from a mean that the user took, so these gradients are refused.

    Raises:
        ValueError: JAX tracks the gradients as already equal on all devices.
    """
    if axis is not None:
        require_axis(axis)
        floats = [x for x in jax.tree.leaves(grads) if is_float(jnp.result_type(x))]
        for each in names_of(axis):
            tracked = varies(jax.lax.axis_index(each), each)
            if tracked and any(not varies(x, each) for x in floats):
                raise ValueError(
                    f"The gradients are already the same on all devices of axis {each!r}: under "
                    "jax.shard_map with check_vma=True, JAX sums (not averages) the gradients of "
                    "replicated parameters. Pass check_vma=False to jax.shard_map; or, if you "
                    f"averaged the loss yourself, jax.lax.pcast(grads, {each!r}, to='varying')."
                )
    return mean_locally(grads, axis)


def mean_locally(tree: PyTree, axis: LocalAxis) -> PyTree:
    """Float leaves averaged over the node's devices."""
    if axis is None:
        return tree
    require_axis(axis)
    return jax.tree.map(
        lambda x: jax.lax.pmean(x, axis) if is_float(jnp.result_type(x)) else x, tree
    )


def names_of(axis: LocalAxis) -> tuple[str, ...]:
    """The names in a ``local_axis``: none, one or several."""
    if axis is None:
        return ()
    return axis if isinstance(axis, tuple) else (axis,)


def require_axis(axis: LocalAxis) -> None:
    """Raises if `axis` is not bound where the update is traced."""
    bound = bound_axes()
    for name in names_of(axis):
        if name not in bound:
            raise ValueError(
                f"local_axis={name!r} is not bound here. Call update inside jax.shard_map or "
                "jax.pmap over an axis of that name, or leave local_axis=None under plain jax.jit."
            )


def refuse_other_axes(axis: LocalAxis, call: str, sharded: Sequence[str] = ()) -> None:
    """Raises if the caller is inside an axis of several devices that nothing names.

    Each device of that axis would call the host for this node's one exchange: shards of different
    places would be averaged, or the node would seem to make twice as many updates.

    Args:
        axis: the axes that ``local_axis=`` names.
        call: the user's call, for the message.
        sharded: the axes that ``sharded=`` names.
    """
    left = {name: size for name, size in unmapped_axes().items() if size > 1}
    for name, size in left.items():
        raise ValueError(
            f"{call} is called inside a jax.shard_map whose axis_names leave out axis {name!r} of "
            f"size {size} of the mesh, and JAX calls no host function there. Map all axes of the "
            "mesh, or call it outside of jax.shard_map, under plain jax.jit; the loss may call a "
            "jax.shard_map of some axes."
        )
    named, bound = names_of(axis), bound_axes()
    known = (*named, *sharded)
    others = [name for name, size in bound.items() if size > 1 and name not in known]
    for name in others:
        every, size, said = (*named, *others), bound[name], repr(name)
        remedy = f"local_axis={every if len(every) > 1 else name!r}"
        if str(name).startswith("_"):  # the axis that jax.pmap makes
            said, remedy = "without a name", "axis_name='local' to jax.pmap and local_axis='local'"
        raise ValueError(
            f"{call} is called inside an axis {said} of size {size} (of jax.shard_map, jax.pmap or "
            f"jax.vmap), and local_axis={axis!r} does not name it: each of the {size} "
            "devices would start the node's one exchange. If the devices hold copies, pass "
            f"{remedy}; then the copies are averaged first. If they hold parts (tensor "
            "parallelism, FSDP), pass sharded= the PartitionSpecs of the parameters; or call it "
            "under plain jax.jit, with sharded arrays and local_axis=None. jax.vmap cannot map it."
        )


def device_number() -> Any:
    """This device's number over all axes bound here; 0 under plain ``jit``."""
    axes = tuple(bound_axes())
    return jax.lax.axis_index(axes) if axes else jnp.int32(0)


def check_gradients(
    grads: PyTree, params: PyTree, call: str, local_axis: LocalAxis, *, between_nodes: bool
) -> None:
    """Raises if gradients to be averaged do not have the shapes of the parameters.

    Such gradients are of single examples, for an inner optimizer that clips each (differential
    privacy). Example k of one node has nothing to do with example k of another: the clipped mean of
    the two is not the mean of the two clipped.

    Args:
        grads: gradients as the user passes them.
        params: the parameters. If these are another tree, as optax.lookahead's pairs are, each
            gradient needs the shape of any of them.
        call: the user's call, for the message.
        local_axis: axis of the devices over which gradients are averaged.
        between_nodes: whether gradients are averaged between nodes too.
    """
    sizes = bound_axes()
    local = any(sizes.get(name, 1) > 1 for name in names_of(local_axis))
    if not (local or between_nodes):
        return
    flat, tree = jax.tree_util.tree_flatten_with_path(grads)
    shapes = [np.shape(x) for x in jax.tree.leaves(params)]
    alike = tree == jax.tree.structure(params)
    for k, (path, x) in enumerate(flat):
        if np.shape(x) == shapes[k] if alike else np.shape(x) in shapes:
            continue
        of_param = f", its parameter {shapes[k]}" if alike else ", which no parameter has"
        remedies = ['blocking="parameters"'] if between_nodes else []
        if local:
            remedies.append(f"local_axis=None, under plain jax.jit (not local_axis={local_axis!r})")
        raise ValueError(
            f"{call} was given a gradient{jax.tree_util.keystr(path)} of shape {np.shape(x)}"
            f"{of_param}. Gradients of single examples, for instance, would be averaged before "
            f"the inner optimizer clips each one. Use {' and '.join(remedies)}; then the inner "
            "optimizer gets this node's own gradients."
        )
