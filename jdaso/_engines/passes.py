"""Passes over the numbers of a chunk: to a wire's format and back, on the host, behind the step.

The handler's library has a loop for each (`fused`): one pass over memory, in the thread that
calls. Without a compiler, or for a wire of a user's own, JAX compiles programs for a CPU device of
the host. These, too, run in the thread that calls, which is one of the channel's. A callback of a
step must not call them: JAX may wait there for the step itself.

The mean is the same on all nodes, whichever way each of them takes: its operations round one by
one, and JAX only decodes.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from functools import partial
from typing import Any, NamedTuple, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np

from .._jax.cpus import private_cpu_device
from .._jax.ffi import fused, library
from .._payload.layout import BLOCK
from .._payload.wire import WIRES, Wire, sum_rows
from . import recycled

_CACHE_NUMBERS = 2**16
"""Numbers of a NumPy pass whose operands stay in a core's cache."""

_ONE = np.float32(1)


class Owed(NamedTuple):
    """Error feedback of a chunk: ``sent (error + residual) + kept paid``, the residual in one row.

    Attributes:
        error: the wire's rounding error of the numbers sent, ``[nodes, width]``.
        paid: the error feedback that was added to these numbers, or None.
        residual: rounding error of the part of the sum that this node formed, ``[width]``, or None
            if `error` has it.
        node: the row of that part.
        sent: the share that the merge took in from all nodes.
        kept: the share of the node's own parameters that it left in place.
    """

    error: np.ndarray
    paid: np.ndarray | None
    residual: np.ndarray | None
    node: np.int32
    sent: np.float32
    kept: np.float32


@runtime_checkable
class Passes(Protocol):
    """The passes of one wire. Arrays are NumPy's; numbers are float32 ``[nodes, width]``."""

    def encode(
        self,
        numbers: np.ndarray,
        room: np.ndarray,
        anchor: np.ndarray | None = None,
        weight: np.float32 | None = None,
        owed: Owed | None = None,
        *,
        keeps: bool = False,
    ) -> tuple[np.ndarray | None, np.ndarray | None]:
        """Encodes weighted differences from the common point, plus error feedback.

        Args:
            numbers: of this node.
            room: rows for the encoded numbers; they may be longer.
            anchor: the common point; None for zeros.
            weight: of this node; None if the nodes have none.
            owed: the error feedback; None for none.
            keeps: whether the error feedback is returned too.

        Returns:
            The wire's rounding error (None for float32), and the error feedback (None if not kept).
        """
        ...

    def decode(self, rows: np.ndarray, numbers: np.ndarray) -> None:
        """Decodes rows into `numbers`."""
        ...

    def total(self, rows: np.ndarray, encoded: np.ndarray) -> np.ndarray:
        """Sums rows, first row first.

        Args:
            rows: encoded; they may be longer.
            encoded: takes the encoded sum.

        Returns:
            The rounding errors of encoding the sum, float32 (empty for the float32 wire).
        """
        ...

    def mean(
        self,
        rows: np.ndarray,
        anchor: np.ndarray | None,
        factor: np.float32,
        *,
        into: np.ndarray | None = None,
        numbers: np.ndarray | None = None,
        subtracts: bool = False,
    ) -> None:
        """The mean of all nodes' numbers, ``(factor sum + nodes anchor) / nodes``.

        Args:
            rows: the encoded sums.
            anchor: the common point, if the rows are sums of differences from it.
            factor: scales the sums as if all nodes had sent with weight 1.
            into: takes the mean; may be `rows` if these are float32.
            numbers: takes the mean too, or ``mean - numbers``.
            subtracts: whether `numbers` takes the difference.
        """
        ...


def passes_of(wire: Wire) -> Passes:
    """The fastest passes available for a wire."""
    own = wire == WIRES.get(wire.name)
    return Fused(wire) if own and library.has_fused(wire.name) else Compiled(wire)


class Fused:
    """The passes of the handler's library; see `Passes`."""

    def __init__(self, wire: Wire):
        self._wire = wire

    def encode(
        self,
        numbers: np.ndarray,
        room: np.ndarray,
        anchor: np.ndarray | None = None,
        weight: np.float32 | None = None,
        owed: Owed | None = None,
        *,
        keeps: bool = False,
    ) -> tuple[np.ndarray | None, np.ndarray | None]:
        """See `Passes.encode`."""
        error = self._numbers(numbers.shape) if self._wire.narrow else None
        fed = self._numbers(numbers.shape) if keeps else None
        about: dict[str, Any] = {"anchor": anchor, "weight": weight, "error": error, "fed": fed}
        if owed is not None:
            arrays = {"lost": owed.error, "residual": owed.residual, "paid": owed.paid}
            about |= {**arrays, "node": int(owed.node), "sent": owed.sent, "kept": owed.kept}
        fused.encode(self._wire.name, numbers, room, **about)
        return error, fed

    def decode(self, rows: np.ndarray, numbers: np.ndarray) -> None:
        """See `Passes.decode`."""
        about = {"anchor": None, "factor": 1.0, "nodes": 1.0, "mean": numbers}
        fused.mean(self._wire.name, rows, numbers.shape, **about)

    def total(self, rows: np.ndarray, encoded: np.ndarray) -> np.ndarray:
        """See `Passes.total`."""
        numbers = numbers_in(self._wire, encoded.size)
        residual = self._numbers((numbers if self._wire.narrow else 0,))
        into = residual if self._wire.narrow else None
        fused.total(self._wire.name, numbers, rows, encoded, into)
        return residual

    def mean(
        self,
        rows: np.ndarray,
        anchor: np.ndarray | None,
        factor: np.float32,
        *,
        into: np.ndarray | None = None,
        numbers: np.ndarray | None = None,
        subtracts: bool = False,
    ) -> None:
        """See `Passes.mean`."""
        shape = len(rows), numbers_in(self._wire, rows.shape[1])
        about = {"anchor": anchor, "factor": factor, "nodes": np.float32(len(rows))}
        taken = {"mean": into, "numbers": numbers, "subtracts": subtracts}
        fused.mean(self._wire.name, rows, shape, **about, **taken)

    def _numbers(self, shape: tuple[int, ...]) -> np.ndarray:
        return recycled.empty(shape, np.float32)


class Compiled:
    """The passes by programs of JAX and by NumPy; see `Passes`."""

    def __init__(self, wire: Wire):
        self._wire, self._cpu = wire, private_cpu_device()

    def encode(
        self,
        numbers: np.ndarray,
        room: np.ndarray,
        anchor: np.ndarray | None = None,
        weight: np.float32 | None = None,
        owed: Owed | None = None,
        *,
        keeps: bool = False,
    ) -> tuple[np.ndarray | None, np.ndarray | None]:
        """See `Passes.encode`."""
        given = jax.device_put((numbers, anchor, weight, owed), self._cpu)
        rows, error, fed = _encode(*given, wire=self._wire, keeps=keeps)
        np.copyto(room[:, : rows.shape[1]], rows)
        error, fed = (None if x is None else np.asarray(x) for x in (error, fed))
        return error, fed

    def decode(self, rows: np.ndarray, numbers: np.ndarray) -> None:
        """See `Passes.decode`."""
        np.copyto(numbers, self._decoded(rows))

    def total(self, rows: np.ndarray, encoded: np.ndarray) -> np.ndarray:
        """See `Passes.total`."""
        if not self._wire.narrow:  # one operation, which NumPy does as fast
            np.copyto(encoded, sum_rows(self._wire, rows[:, : encoded.size]))
            return np.zeros(0, np.float32)
        total, residual = _total(self._put(rows), wire=self._wire, width=encoded.size)
        np.copyto(encoded, total)
        return np.array(residual)  # JAX's own array must be released by this thread

    def mean(
        self,
        rows: np.ndarray,
        anchor: np.ndarray | None,
        factor: np.float32,
        *,
        into: np.ndarray | None = None,
        numbers: np.ndarray | None = None,
        subtracts: bool = False,
    ) -> None:
        """See `Passes.mean`."""
        nodes = np.float32(len(rows))
        mean = np.array(self._decoded(rows) if self._wire.narrow else rows)
        points = itertools.repeat(None) if anchor is None else _parts(anchor)
        for part, point in zip(_parts(mean), points, strict=False):
            part *= factor
            if point is not None:
                part += nodes * point
            part *= _ONE / nodes
        if numbers is not None and subtracts:
            np.subtract(mean, numbers, out=numbers)
        elif numbers is not None:
            np.copyto(numbers, mean)
        if into is not None:
            np.copyto(into, mean)

    def _decoded(self, rows: np.ndarray) -> np.ndarray:
        return np.asarray(_decode(self._put(rows), wire=self._wire))

    def _put(self, numbers: np.ndarray) -> jax.Array:
        return jax.device_put(numbers, self._cpu)


def owed_on_host(owed: Owed) -> np.ndarray:
    """Error feedback of a chunk, by NumPy: a step's callback must not wait for JAX."""
    found = np.array(owed.error)
    if owed.residual is not None:
        found[owed.node] += owed.residual
    found *= owed.sent
    return found if owed.paid is None else found + owed.kept * owed.paid


def scale(numbers: np.ndarray, *factors: np.float32) -> None:
    """Multiplies numbers in place by each factor in turn, in one pass."""
    for part in _parts(numbers):
        for factor in factors:
            if factor != 1:
                np.multiply(part, factor, out=part)


def divide(numbers: np.ndarray, divisor: np.float32) -> None:
    """Divides numbers in place."""
    if divisor != 1:
        np.divide(numbers, divisor, out=numbers)


def is_finite(numbers: np.ndarray) -> bool:
    """Returns whether all numbers are finite."""
    return all(bool(np.isfinite(part).all()) for part in _parts(np.asarray(numbers)))


def _parts(numbers: np.ndarray) -> Iterator[np.ndarray]:
    """Parts that stay in a core's cache from one operation to the next."""
    flat = numbers.reshape(-1)
    for begin in range(0, flat.size, _CACHE_NUMBERS):
        yield flat[begin : begin + _CACHE_NUMBERS]


def numbers_in(wire: Wire, width: int) -> int:
    """The count of numbers in an encoded row of this width."""
    return width * BLOCK // wire.encoded_width(BLOCK)


@partial(jax.jit, static_argnames=("wire", "keeps"))
def _encode(
    numbers: Any, anchor: Any, weight: Any, owed: Owed | None, *, wire: Wire, keeps: bool
) -> tuple[Any, Any, Any]:
    send = numbers if anchor is None else numbers - anchor
    if weight is not None:
        send = jnp.where(weight > 0, weight * send, jnp.zeros_like(send))
    fed = None if owed is None else _owed(owed)
    if fed is not None:
        send = send + fed
    elif keeps:
        fed = jnp.zeros_like(send)
    rows = wire.encode(send)
    return rows, send - wire.decode(rows) if wire.narrow else None, fed if keeps else None


@partial(jax.jit, static_argnames="wire")
def _decode(rows: Any, *, wire: Wire) -> Any:
    return wire.decode(rows)


@partial(jax.jit, static_argnames=("wire", "width"))
def _total(rows: Any, *, wire: Wire, width: int) -> tuple[Any, Any]:
    total = sum_rows(wire, rows[:, :width])
    encoded = wire.encode(total)
    return encoded, total - wire.decode(encoded)


@jax.jit
def _owed(owed: Owed) -> Any:
    error = owed.error
    if owed.residual is not None:
        mine = jnp.arange(error.shape[0])[:, None] == owed.node
        error = error + jnp.where(mine, owed.residual[None], jnp.zeros_like(owed.residual)[None])
    found = owed.sent * error
    return found if owed.paid is None else found + owed.kept * owed.paid
