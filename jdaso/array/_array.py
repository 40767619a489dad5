"""`Array`: one array on all nodes, of which each node holds a block."""

from __future__ import annotations

import sys
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from ._hints import hint_of
from ._layout import ArrayLayout, Shape
from ._methods import METHODS as METHODS
from ._methods import Operators
from ._methods import made as made
from ._methods import method as method
from ._whole_numbers import require_fit
from ._world import World, world

API_VERSIONS = "2021.12", "2022.12", "2023.12", "2024.12", "2025.12"
"""The versions of the array API standard that this namespace follows."""


class Array(Operators):
    """An immutable array on all nodes; a pytree whose one leaf is this node's block.

    All nodes call operations on arrays together, in the same order. The docstring of an
    operation states the bytes that it moves.

    Args:
        block: this node's part, of the layout's `block_shape`.
        layout: the layout.
        at: the nodes.

    Attributes:
        block: this node's part: one `jax.Array`.
        layout: the layout.
        world: the nodes.

    On failure: an operation that joins blocks raises `NodeError` on all nodes if a node fails,
    leaves, or exceeds the session's time limit.
    """

    __slots__ = ("block", "layout", "world")
    __array_priority__ = 1000

    def __init__(self, block: jax.Array, layout: ArrayLayout, at: World):
        for name, value in (("block", block), ("layout", layout), ("world", at)):
            object.__setattr__(self, name, value)

    block: jax.Array
    layout: ArrayLayout
    world: World

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"An Array is immutable; {name} cannot be set. Make a new one.")

    @property
    def shape(self) -> Shape:
        """The shape of the whole array."""
        return self.layout.shape

    @property
    def ndim(self) -> int:
        """The number of axes."""
        return len(self.layout.shape)

    @property
    def size(self) -> int:
        """The number of elements of the whole array."""
        return self.layout.size

    @property
    def dtype(self) -> np.dtype:
        """The type of the elements."""
        return self.block.dtype

    @property
    def itemsize(self) -> int:
        """Bytes of an element."""
        return self.block.dtype.itemsize

    @property
    def nbytes(self) -> int:
        """Bytes of the whole array."""
        return self.size * self.itemsize

    @property
    def split(self) -> int | None:
        """The axis along which nodes hold blocks; None: each node holds all of the array."""
        return self.layout.split

    @property
    def counts(self) -> tuple[int, ...]:
        """Indices of the split axis on each node; empty without a split."""
        return self.layout.counts

    @property
    def device(self) -> Any:
        """The device of this node's block."""
        return self.block.device

    @property
    def T(self) -> Array:  # noqa: N802
        """The transpose of a matrix; nothing moves.

        Raises:
            ValueError: the array does not have two axes.
        """
        if self.ndim != 2:
            raise ValueError(f"T needs two axes, the shape is {self.shape}. Take permute_dims.")
        return METHODS["permute_dims"](self, (1, 0))

    @property
    def mT(self) -> Array:  # noqa: N802
        """The array with its last two axes swapped; nothing moves."""
        return METHODS["permute_dims"](self, (*range(self.ndim - 2), self.ndim - 1, self.ndim - 2))

    @property
    def real(self) -> Array:
        """The real parts; nothing moves."""
        return METHODS["real"](self)

    @property
    def imag(self) -> Array:
        """The imaginary parts; nothing moves."""
        return METHODS["imag"](self)

    def __contains__(self, value: Any) -> bool:
        """Returns whether an element equals the value; if the array is split, all nodes call it."""
        return bool(METHODS["any"](self == value))

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("len() of an array without axes. Take x.size.")
        return self.shape[0]

    def __repr__(self) -> str:
        """Shows the layout; prints no numbers of other nodes, so a single node may call it."""
        about = f"shape={self.shape}, dtype={self.dtype}, split={self.split}"
        if self.split is not None:
            about += f", node {self.world.node} of {self.world.nodes}"
        if isinstance(self.block, Tracer):
            return f"Array({about})"
        text = np.array2string(np.asarray(self.block), threshold=50, separator=", ")
        return f"Array({about}, block=\n{text})"

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        """Gathers the array on every node: moves n (P - 1) / P bytes to each; all nodes call it."""
        found = np.asarray(METHODS["resplit"](self, None).block, dtype)
        return found.copy() if copy else found

    def __dlpack__(
        self,
        *,
        stream: Any = None,
        max_version: tuple[int, int] | None = None,
        dl_device: Any = None,
        copy: bool | None = None,
    ) -> Any:
        """Gathers the array on every node, for another library of the same process."""
        block = METHODS["resplit"](self, None).block
        # Of consumers of old versions, JAX supports only those that pass no version.
        known = max_version if max_version is None or max_version >= (0, 5) else None
        return block.__dlpack__(stream=stream, max_version=known, dl_device=dl_device, copy=copy)

    def __dlpack_device__(self) -> Any:
        return self.block.__dlpack_device__()  # pyright: ignore

    def to_device(self, device: Any, /, *, stream: Any = None) -> Array:
        """Returns the array with this node's block on another of the node's devices.

        Args:
            device: one of ``__array_namespace_info__().devices()``.
            stream: None: JAX orders its work itself.
        """
        return Array(jax.device_put(self.block, device), self.layout, self.world)

    def __array_namespace__(self, /, *, api_version: str | None = None) -> Any:
        if api_version not in (None, *API_VERSIONS):
            raise ValueError(
                f"There is no version {api_version} of the standard here. Take one of "
                f"{', '.join(API_VERSIONS)}."
            )
        return sys.modules[__package__ or ""]

    def _number(self, kind: type) -> Any:
        if self.size != 1:
            raise TypeError(f"Only one element converts to {kind.__name__}, there are {self.size}.")
        return kind(METHODS["resplit"](self, None).block.reshape(()).item())

    def copy(self) -> Array:
        """Returns the array: it cannot change."""
        return self

    def tolist(self) -> Any:
        """Gathers the array, and returns nested lists of Python's numbers; all nodes call it."""
        return np.asarray(self).tolist()

    def item(self) -> Any:
        """Returns the one element as a Python number; if the array is split, all nodes call it."""
        return METHODS["resplit"](self, None).block.item()

    def __bool__(self) -> bool:
        return self._number(bool)

    def __int__(self) -> int:
        return self._number(int)

    def __float__(self) -> float:
        return self._number(float)

    def __complex__(self) -> complex:
        return self._number(complex)

    def __format__(self, spec: str) -> str:
        """Formats an array without axes that is whole on this node as its number."""
        if not spec or self.ndim or isinstance(self.block, Tracer):
            return format(str(self), spec)
        return format(self.block.item(), spec)

    def __index__(self) -> int:
        if self.dtype.kind not in "iu":
            raise TypeError(f"An index must be a whole number, got {self.dtype}.")
        return self._number(int)

    def __getitem__(self, key: Any, /) -> Array:
        return METHODS["getitem"](self, key)

    def __setitem__(self, key: Any, value: Any, /) -> None:
        raise TypeError("An Array is immutable. Take x = x.at[key].set(value), or .add, .max, ...")

    @property
    def at(self) -> Any:
        """Assignment that makes a new array: ``x.at[key].set(value)``; see `At`."""
        return METHODS["at"](self)

    def __iter__(self) -> Any:
        return (self[k] for k in range(len(self)))

    def __getattr__(self, name: str) -> Any:
        """Functions of the namespace that are methods, too: ``x.sum(axis=0)``, ``x.resplit(1)``."""
        if name.startswith("_") or name not in METHODS:
            raise AttributeError(f"Array has no attribute {name!r}.{hint_of(name)}")
        return METHODS[name].__get__(self)


jax.tree_util.register_pytree_node(
    Array,
    lambda x: ((x.block,), (x.layout, x.world)),
    lambda about, blocks: Array(blocks[0], *about),
)

Operand = Array | jax.Array | np.ndarray | bool | int | float | complex
"""Operands of an array; all but `Array` must be the same on all nodes."""


def as_array(x: Any) -> Array:
    """Returns an operand as an array; all but `Array` are the same on all nodes.

    Raises:
        ValueError: whole numbers of NumPy do not fit the type that JAX has for them.
    """
    if isinstance(x, Array):
        return x
    require_fit(x)
    block = jnp.asarray(x)
    return Array(block, ArrayLayout(block.shape), world())


def world_of(*operands: Any) -> World:
    """Returns the nodes of a result: those of the split operands, else of all, else the current.

    Raises:
        ValueError: two operands are split over different nodes.
    """
    arrays = [x for x in operands if isinstance(x, Array)]
    worlds = [x.world for x in arrays if x.split is not None]
    if any(one is not worlds[0] for one in worlds):
        raise ValueError(
            "Two arrays are split over different nodes: "
            f"{[f'{x.shape} over {x.world.nodes}' for x in arrays if x.split is not None]}, made "
            "in different sessions or before one. Make both in the same session."
        )
    worlds = worlds or [x.world for x in arrays]
    return worlds[0] if worlds and all(one is worlds[0] for one in worlds) else world()


def of_one_world(*operands: Any) -> list[Array]:
    """Returns operands as arrays on the nodes of their result; see `world_of`."""
    at = world_of(*operands)
    return [Array(x.block, x.layout, at) for x in map(as_array, operands)]
