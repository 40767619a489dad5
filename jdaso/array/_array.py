"""`Array`: one array on all nodes, of which each node holds a block."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from ._layout import Layout, Shape
from ._world import World, world

METHODS: dict[str, Callable[..., Any]] = {}
"""Operators and methods by name: the modules above this one put their functions here."""


def method(name: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Makes a function the method of a name."""

    def put(function: Callable[..., Any]) -> Callable[..., Any]:
        METHODS[name] = function
        return function

    return put


def made(name: str, doc: str, call: Callable[..., Any]) -> Callable[..., Any]:
    """Names a function that was made from another one, and makes it a method."""
    call.__name__ = call.__qualname__ = name
    call.__doc__ = doc
    return method(name)(call)


def _operator(name: str, *, swapped: bool = False) -> Callable[[Array, Any], Array]:
    def operator(self: Array, other: Any) -> Array:
        if not is_operand(other):
            return NotImplemented
        return METHODS[name](other, self) if swapped else METHODS[name](self, other)

    return operator


def _both(name: str) -> tuple[Callable[[Array, Any], Array], Callable[[Array, Any], Array]]:
    return _operator(name), _operator(name, swapped=True)


class Array:
    """An immutable array on all nodes; a pytree whose one leaf is this node's block.

    All nodes call operations on arrays together, in the same order. The docstring of an
    operation tells the bytes that it moves.

    Args:
        block: this node's part, of the layout's `block_shape`.
        layout: the layout.
        at: the nodes.

    Attributes:
        block: this node's part: one `jax.Array`.
        layout: the layout.
        world: the nodes.

    On failure: an operation that joins blocks raises `NodeError` on all nodes if a node fails,
    leaves, or does not come within the session's limit.
    """

    __slots__ = ("block", "layout", "world")
    __array_priority__ = 1000

    def __init__(self, block: jax.Array, layout: Layout, at: World):
        for name, value in (("block", block), ("layout", layout), ("world", at)):
            object.__setattr__(self, name, value)

    block: jax.Array
    layout: Layout
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
            ValueError: the array has not two axes.
        """
        if self.ndim != 2:
            raise ValueError(f"T needs two axes, the shape is {self.shape}. Take permute_dims.")
        return METHODS["permute_dims"](self, (1, 0))

    @property
    def mT(self) -> Array:  # noqa: N802
        """The array with its last two axes swapped; nothing moves."""
        return METHODS["permute_dims"](self, (*range(self.ndim - 2), self.ndim - 1, self.ndim - 2))

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("len() of an array without axes. Take x.size.")
        return self.shape[0]

    def __repr__(self) -> str:
        """Tells the layout; prints no number of other nodes, so one node alone may call it."""
        about = f"shape={self.shape}, dtype={self.dtype}, split={self.split}"
        if self.split is not None:
            about += f", node {self.world.node} of {self.world.nodes}"
        if isinstance(self.block, Tracer):
            return f"Array({about})"
        text = np.array2string(np.asarray(self.block), threshold=50, separator=", ")
        return f"Array({about}, block=\n{text})"

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        """Gathers the array on every node: moves n (P - 1) / P bytes to each; all call together."""
        found = np.asarray(METHODS["resplit"](self, None).block, dtype)
        return found.copy() if copy else found

    def __dlpack__(self, **options: Any) -> Any:
        return METHODS["resplit"](self, None).block.__dlpack__(**options)

    def __dlpack_device__(self) -> Any:
        return METHODS["resplit"](self, None).block.__dlpack_device__()  # pyright: ignore

    def __array_namespace__(self, api_version: str | None = None) -> Any:
        return sys.modules[__package__ or ""]

    def _number(self, kind: type) -> Any:
        if self.size != 1:
            raise TypeError(f"Only one element converts to {kind.__name__}, there are {self.size}.")
        return kind(METHODS["resplit"](self, None).block.reshape(()).item())

    def item(self) -> Any:
        """Returns the one element as a Python number; if the array is split, all call together."""
        return METHODS["resplit"](self, None).block.item()

    def __bool__(self) -> bool:
        return self._number(bool)

    def __int__(self) -> int:
        return self._number(int)

    def __float__(self) -> float:
        return self._number(float)

    def __complex__(self) -> complex:
        return self._number(complex)

    def __index__(self) -> int:
        if self.dtype.kind not in "iu":
            raise TypeError(f"An index must be a whole number, got {self.dtype}.")
        return self._number(int)

    def __getitem__(self, key: Any) -> Array:
        return METHODS["getitem"](self, key)

    def __iter__(self) -> Any:
        return (self[k] for k in range(len(self)))

    def __matmul__(self, other: Any) -> Array:
        return METHODS["matmul"](self, other)

    def __rmatmul__(self, other: Any) -> Array:
        return METHODS["matmul"](other, self)

    def __neg__(self) -> Array:
        return METHODS["negative"](self)

    def __pos__(self) -> Array:
        return METHODS["positive"](self)

    def __abs__(self) -> Array:
        return METHODS["abs"](self)

    def __invert__(self) -> Array:
        return METHODS["bitwise_invert"](self)

    __add__, __radd__ = _both("add")
    __sub__, __rsub__ = _both("subtract")
    __mul__, __rmul__ = _both("multiply")
    __truediv__, __rtruediv__ = _both("divide")
    __floordiv__, __rfloordiv__ = _both("floor_divide")
    __mod__, __rmod__ = _both("remainder")
    __pow__, __rpow__ = _both("pow")
    __and__, __rand__ = _both("bitwise_and")
    __or__, __ror__ = _both("bitwise_or")
    __xor__, __rxor__ = _both("bitwise_xor")
    __lshift__, __rlshift__ = _both("bitwise_left_shift")
    __rshift__, __rrshift__ = _both("bitwise_right_shift")
    __lt__ = _operator("less")
    __le__ = _operator("less_equal")
    __gt__ = _operator("greater")
    __ge__ = _operator("greater_equal")

    __eq__ = _operator("equal")  # pyright: ignore[reportAssignmentType]
    __ne__ = _operator("not_equal")  # pyright: ignore[reportAssignmentType]

    def __getattr__(self, name: str) -> Any:
        """Functions of the namespace that are methods, too: ``x.sum(axis=0)``, ``x.resplit(1)``."""
        if name.startswith("_") or name not in METHODS:
            raise AttributeError(f"Array has no attribute {name!r}.")
        return METHODS[name].__get__(self)

    __hash__ = None  # pyright: ignore[reportAssignmentType]


jax.tree_util.register_pytree_node(
    Array,
    lambda x: ((x.block,), (x.layout, x.world)),
    lambda about, blocks: Array(blocks[0], *about),
)

Operand = Array | jax.Array | np.ndarray | bool | int | float | complex
"""Whatever stands beside an array; all but `Array` must be the same on all nodes."""


def is_operand(x: object) -> bool:
    """Returns whether an operator takes it."""
    return isinstance(x, Array | jax.Array | np.ndarray | np.generic | bool | int | float | complex)


def as_array(x: Any) -> Array:
    """Returns an operand as an array; what is not one yet is the same on all nodes."""
    if isinstance(x, Array):
        return x
    block = jnp.asarray(x)
    return Array(block, Layout(block.shape), world())


def world_of(*operands: Any) -> World:
    """Returns the nodes of a result: those of the split operands, else of all, else the present.

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
