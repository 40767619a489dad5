"""The bound: the rate of copies from a device to the host and back, by any way of JAX."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.lib import harness


class Copies:
    """One vector of a number of bytes, copied out and in; pageable memory and pinned memory.

    On a CPU device both ends are the host's memory, and JAX would copy nothing: there the ways
    copy it once, so that a dry run has a bound that is not 0.
    """

    def __init__(self, device: Any, nbytes: int):
        self._on_host = device.platform == "cpu"
        self._device = jax.sharding.SingleDeviceSharding(device)
        self._pinned = None
        if "pinned_host" in {memory.kind for memory in device.addressable_memories()}:
            self._pinned = self._device.with_memory_kind("pinned_host")
        size = max(nbytes // 4, 1)
        self._host = np.ones(size, np.float32)
        self._source = jax.device_put(self._host, self._device, may_alias=False)
        self._fresh = jax.jit(jnp.negative)  # JAX keeps what it has copied to the host once
        self._host_pinned = self._pinned and self._put(self._host, self._pinned)

    def _put(self, x: Any, where: Any) -> jax.Array:
        return jax.device_put(x, where, may_alias=False).block_until_ready()

    @property
    def out_ways(self) -> dict[str, Callable[[jax.Array], Any]]:
        """Copies from the device to the host."""
        pageable = np.array if self._on_host else np.asarray
        ways: dict[str, Callable[[jax.Array], Any]] = {"pageable": pageable}
        if self._pinned is not None:
            ways["pinned"] = lambda x: self._put(x, self._pinned)
        return ways

    @property
    def in_ways(self) -> dict[str, Callable[[], Any]]:
        """Copies from the host to the device."""
        ways: dict[str, Callable[[], Any]] = {
            "pageable": lambda: self._put(self._host, self._device)
        }
        if self._host_pinned is not None:
            ways["pinned"] = lambda: self._put(self._host_pinned, self._device)
        return ways

    def out_seconds(self) -> dict[str, float]:
        """Copies each way once."""
        found = {}
        for name, way in self.out_ways.items():
            x = self._fresh(self._source).block_until_ready()
            found[name] = _seconds(way, x)
        return found

    def in_seconds(self) -> dict[str, float]:
        """Copies each way once."""
        return {name: _seconds(way) for name, way in self.in_ways.items()}


class Bound:
    """Copies measured again and again beside something else; the bound is the fastest way's median.

    A ratio to it is taken from medians: the fastest single copy is luck.
    """

    def __init__(self, copies: Copies):
        self._copies = copies
        self._out: dict[str, list[float]] = {}
        self._in: dict[str, list[float]] = {}
        self.measure(), self._out.clear(), self._in.clear()  # compiles, touches the pages

    def measure(self) -> None:
        """Each way once more."""
        for times, found in (
            (self._out, self._copies.out_seconds()),
            (self._in, self._copies.in_seconds()),
        ):
            for name, seconds in found.items():
                times.setdefault(name, []).append(seconds)

    @property
    def out_ms(self) -> dict[str, float]:
        """Milliseconds from the device to the host, by way."""
        return {name: 1e3 * harness.median(times) for name, times in self._out.items()}

    @property
    def in_ms(self) -> dict[str, float]:
        """The same to the device."""
        return {name: 1e3 * harness.median(times) for name, times in self._in.items()}


def _seconds(function: Callable[..., Any], *args: Any) -> float:
    begin = time.perf_counter()
    function(*args)
    return time.perf_counter() - begin
