"""A stencil of seven points on a cube, with an exchange of faces, as in a CFD code.

A point's next value is ``u / 4 + (sum of its six neighbours) / 8``; outside of the cube u is 0.
Both factors are powers of two, so the products are exact, and a fused multiply-add rounds as its
two operations do: any division over nodes gives the same bits as one process.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ._blocks import Block, Face, block_of, bytes_of_faces, points_of
from ._given import give, given
from ._timing import measure

Swap = Callable[[Sequence[tuple[int, int, int, np.ndarray, np.ndarray]]], None]
"""Exchanges arrays with neighbours: (node, tag to send, tag to receive, ours, theirs)."""


def first_values(begin: Sequence[int], shape: Sequence[int]) -> jax.Array:
    """Returns the values at the start; a point's value does not depend on its block."""
    x, y, z = (jnp.arange(b, b + n, dtype=jnp.float32) for b, n in zip(begin, shape, strict=True))
    return jnp.sin(0.3 * x)[:, None, None] + jnp.cos(0.7 * y)[:, None] * jnp.sin(1.1 * z + 0.5)


@jax.jit
def faces_of(u: jax.Array) -> list[jax.Array]:
    """Returns the six faces of a block: the two of each axis."""
    ends = (0, -1)
    return [jax.lax.index_in_dim(u, end, axis) for axis in range(3) for end in ends]


@jax.jit
def step(u: jax.Array, behind: list[jax.Array]) -> jax.Array:
    """Returns the next values; `behind` has the values behind each of the six faces."""
    total = jnp.zeros_like(u)
    for axis in range(3):
        low, high = behind[2 * axis], behind[2 * axis + 1]
        padded = jnp.concatenate([low, u, high], axis)
        size = u.shape[axis]
        total += jax.lax.slice_in_dim(padded, 0, size, axis=axis)
        total += jax.lax.slice_in_dim(padded, 2, size + 2, axis=axis)
    return 0.25 * u + 0.125 * total


class Stencil:
    """One node's block, and its values."""

    def __init__(self, block: Block, swap: Swap):
        self.u, self._block, self._swap = first_values(block.begin, block.shape), block, swap
        self._behind = [np.zeros_like(face) for face in map(np.asarray, faces_of(self.u))]

    def compute(self) -> None:
        """Takes a step with the values behind the faces as they are."""
        self.u = jax.block_until_ready(step(self.u, [jnp.array(x) for x in self._behind]))

    def __call__(self) -> None:
        """Exchanges the faces and takes a step."""
        ours = faces_of(self.u)
        self._swap([self._message(face, ours) for face in self._block.faces])
        self.compute()

    def _message(self, face: Face, ours: list[jax.Array]) -> tuple[int, int, int, Any, Any]:
        k = 2 * face.axis + (face.side > 0)
        sent = np.ascontiguousarray(ours[k])
        return face.node, face.sends, face.receives, sent, self._behind[k]


def main() -> None:
    """Runs the program."""
    from ._mpi import Mpi

    about, transport = given(), Mpi()
    grid, scaling = about.factors["grid"], about.factors.get("scaling", "strong")
    points = points_of(grid, scaling, transport.size)
    block = block_of(transport.rank, transport.size, points)
    stencil = Stencil(block, transport.swap)
    stencil()  # compiles
    compute = measure(transport, stencil.compute, 0, about.settings)["seconds"]
    least = 2 * bytes_of_faces(block)
    result = measure(transport, stencil, least, about.settings, compute_seconds=compute)
    if transport.rank == 0:
        give(result)


if __name__ == "__main__":
    main()
