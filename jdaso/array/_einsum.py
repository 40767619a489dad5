"""Sums of products by the letters of axes, and the products of NumPy that are such sums."""

from __future__ import annotations

import math
import string
from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp

from ._array import Array, method, of_one_world
from ._layout import ArrayLayout
from ._move import laid, resplit
from ._products import matmul, tensordot, vecdot
from ._reduce import REDUCTIONS
from ._shape import expand_dims, ravel
from ._varied import beside, varied


def einsum(subscripts: str, *operands: Any, optimize: Any = True) -> Array:
    """Sums of products, like `numpy.einsum`: ``einsum("nd,md->nm", x, y)``.

    Args:
        subscripts: a letter for each axis of each operand, with "..." for any others in front of
            or between them; behind ``->`` those of the result, by default the letters that occur
            once, in their order.
        operands: the arrays.
        optimize: makes no difference: JAX chooses the order of products.

    The result is split along the letter for which the least has to move. Moves the operands that
    have the letter to a split along its axis, the others to all nodes. If the result lacks the
    letter, the nodes' results are added up instead, in one reduction.

    Raises:
        ValueError: there are not as many letters as axes, a letter stands for two lengths, or the
            result has a letter that no operand has, or one twice.
    """
    if not isinstance(subscripts, str) or not operands:
        raise TypeError("einsum takes a text such as 'ij,jk->ik', and then an array for each part.")
    arrays = of_one_world(*operands)
    names, result = _letters(subscripts, arrays)
    sizes = _sizes(subscripts, names, arrays)
    if missing := [one for one in result if one not in sizes or result.count(one) > 1]:
        raise ValueError(
            f"einsum {subscripts!r}: the result's {missing[0]!r} must be once in it, and in an "
            "operand."
        )
    shape = tuple(sizes[one] for one in result)
    letter = _best(names, result, sizes, arrays)
    spec = f"{','.join(names)}->{result}"
    if letter is None:
        blocks = [resplit(x, None).block for x in arrays]
        return Array(jnp.einsum(spec, *blocks), ArrayLayout(shape), arrays[0].world)
    counts = _counts(letter, names, sizes, arrays)
    blocks = [
        laid(x, ArrayLayout(x.shape, name.index(letter), counts)).block
        if _has(x, name, letter, sizes)
        else varied(resplit(x, None).block, x.world)
        for x, name in zip(arrays, names, strict=True)
    ]
    block, at = jnp.einsum(spec, *blocks), arrays[0].world
    block = block if block.size else beside(block, *blocks)
    if letter in result:
        return Array(block, ArrayLayout(shape, result.index(letter), counts), at)
    return Array(at.reduce(block, "sum"), ArrayLayout(shape), at)


def _letters(subscripts: str, arrays: Sequence[Array]) -> tuple[list[str], str]:
    """The letters of each operand and of the result, those of "..." in front of the alphabet's."""
    text = subscripts.replace(" ", "")
    given, arrow, result = text.partition("->")
    names = given.split(",")
    if len(names) != len(arrays):
        raise ValueError(f"einsum {subscripts!r} is of {len(names)} arrays, got {len(arrays)}.")
    free = [one for one in reversed(string.ascii_letters) if one not in text]
    rests = [x.ndim - len(one.replace("...", "")) for x, one in zip(arrays, names, strict=True)]
    for x, one, rest in zip(arrays, names, rests, strict=True):
        if rest < 0 or (rest and "..." not in one):
            raise ValueError(f"einsum {subscripts!r}: {one!r} does not fit the shape {x.shape}.")
    most = max((rest for one, rest in zip(names, rests, strict=True) if "..." in one), default=0)
    others = "".join(free[:most])
    spelled = [
        one.replace("...", others[most - rest :]) for one, rest in zip(names, rests, strict=True)
    ]
    if arrow and others and "..." not in result:
        raise ValueError(f"einsum {subscripts!r}: the result lacks the '...' of an operand.")
    if arrow:
        result = result.replace("...", others)
    else:
        every = "".join(names).replace("...", "")
        result = others + "".join(sorted(one for one in set(every) if every.count(one) == 1))
    wrong = [one for one in "".join([*spelled, result]) if one not in string.ascii_letters]
    if wrong:
        raise ValueError(f"einsum {subscripts!r}: {wrong[0]!r} is no letter.")
    return spelled, result


def _sizes(subscripts: str, names: Sequence[str], arrays: Sequence[Array]) -> dict[str, int]:
    """The length of each letter; an axis of length 1 is repeated."""
    sizes: dict[str, int] = {}
    for name, x in zip(names, arrays, strict=True):
        for one, size in zip(name, x.shape, strict=True):
            known = sizes.setdefault(one, size)
            if 1 not in (known, size) and known != size:
                raise ValueError(
                    f"einsum {subscripts!r} of {[x.shape for x in arrays]}: {one!r} has the "
                    f"lengths {known} and {size}."
                )
            sizes[one] = size if known == 1 else known
    return sizes


def _has(x: Array, name: str, letter: str, sizes: dict[str, int]) -> bool:
    """Returns whether an operand has rows of a letter, not one that is repeated."""
    return letter in name and x.shape[name.index(letter)] == sizes[letter]


def _split_of(x: Array, name: str) -> str | None:
    return None if x.split is None else name[x.split]


def _best(
    names: Sequence[str], result: str, sizes: dict[str, int], arrays: Sequence[Array]
) -> str | None:
    """The letter of a split for which the fewest bytes move; None: all operands are whole."""
    nodes = arrays[0].world.nodes
    itemsize = max(x.itemsize for x in arrays)
    shared = 2 * itemsize * math.prod(sizes[one] for one in result)

    def moves(letter: str) -> float:
        total = 0.0 if letter in result else shared
        for x, name in zip(arrays, names, strict=True):
            if _split_of(x, name) not in (None, letter):
                total += x.nbytes / (nodes if _has(x, name, letter, sizes) else 1)
            elif x.split is not None and not _has(x, name, letter, sizes):
                total += x.nbytes
        return total

    splits = dict.fromkeys(
        letter
        for x, name in zip(arrays, names, strict=True)
        if (letter := _split_of(x, name)) and _has(x, name, letter, sizes)
    )
    possible = [one for one in splits if all(name.count(one) < 2 for name in names)]
    return min(possible, key=moves, default=None)


def _counts(
    letter: str, names: Sequence[str], sizes: dict[str, int], arrays: Sequence[Array]
) -> tuple[int, ...]:
    """The rows of a letter on each node: those of the largest operand that is split along it."""
    rows = [
        x
        for x, name in zip(arrays, names, strict=True)
        if _split_of(x, name) == letter and _has(x, name, letter, sizes)
    ]
    return max(rows, key=lambda x: x.nbytes).counts


@method("dot")
def dot(x1: Any, x2: Any) -> Array:
    """Sums of products over the last axis of x1 and the last but one, or only, axis of x2.

    A number multiplies each element. Moves what `matmul` moves.
    """
    a, b = of_one_world(x1, x2)
    if not a.ndim or not b.ndim:
        return a * b
    if max(a.ndim, b.ndim) < 3:
        return matmul(a, b)
    return tensordot(a, b, axes=([-1], [-min(b.ndim, 2)]))


def inner(x1: Any, x2: Any) -> Array:
    """Sums of products over the last axes of both; a number multiplies. Moves as `tensordot`."""
    a, b = of_one_world(x1, x2)
    return tensordot(a, b, axes=([-1], [-1])) if a.ndim and b.ndim else a * b


def vdot(x1: Any, x2: Any) -> Array:
    """The sum of ``conj(x1) x2`` over all elements, as flat arrays.

    Moves one number if both have one layout, else the smaller one, or what `ravel` moves.

    Raises:
        ValueError: they have different numbers of elements.
    """
    a, b = of_one_world(x1, x2)
    if a.size != b.size:
        raise ValueError(f"vdot takes as many elements of both, got {a.shape} and {b.shape}.")
    if a.shape != b.shape:
        return vecdot(ravel(a), ravel(b))
    product = a.conj() * b
    return REDUCTIONS["sum"](product, dtype=product.dtype)


def kron(x1: Any, x2: Any) -> Array:
    """The Kronecker product: each element of x1, times all of x2. Moves x2 to all nodes."""
    a, b = of_one_world(x1, x2)
    for _ in range(b.ndim - a.ndim):
        a = expand_dims(a)
    for _ in range(a.ndim - b.ndim):
        b = expand_dims(b)
    whole = resplit(b, None).block
    whole = whole if a.split is None else varied(whole, a.world)
    kind = jnp.result_type(a.dtype, b.dtype)
    both = [one.astype(jnp.int8) if kind.kind == "b" else one for one in (a.block, whole)]
    block = jnp.kron(*both).astype(kind)
    shape = tuple(n * m for n, m in zip(a.shape, b.shape, strict=True))
    counts = tuple(count * b.shape[a.split or 0] for count in a.counts)
    return Array(block, ArrayLayout(shape, a.split, counts), a.world)
