"""A call to the host that all devices of a node make together, each with its shards.

In a step whose parameters are divided over devices, each device calls the host, on a thread of its
own. The last one makes the call for all; the others wait for it. So the numbers stay where they
are until the call has read them, and no device goes on with memory that is still in use.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

Given = Sequence[Any]
"""The arguments of one device."""


class Meeting:
    """The calls of one place in a program, one after another.

    Args:
        devices: the numbers of the devices that make the calls.
        limit_seconds: how long a device waits for the others to come; the call itself has no limit
            here.
    """

    def __init__(self, devices: Sequence[int], limit_seconds: float):
        self._devices, self._limit = list(devices), limit_seconds
        self._changed = threading.Condition()
        self._given: dict[int, Given] = {}
        self._found: dict[int, Any] = {}  # by device, until the device takes it
        self._error: Exception | None = None
        self._strange: Exception | None = None  # once a device that is not one of these has called
        self._calls = 0

    def call(
        self, device: int, given: Given, function: Callable[[list[Given]], Sequence[Any]]
    ) -> Any:
        """Calls a function with the arguments of all devices; returns this device's result.

        Args:
            device: the number of the device that calls.
            given: the device's arguments; valid until the call returns.
            function: called once with each device's arguments; returns a result for each, in the
                order of the devices.

        Raises:
            RuntimeError: a device calls twice, an unknown device calls, or another one does not
                call within the limit.
            Exception: the function's own, on all devices.
        """
        if device not in self._devices:
            self._strange = RuntimeError(
                f"Device {device} of the mesh calls the host of a rank that drives devices "
                f"{self._devices}: the mesh has the node's devices in another order than "
                "session.devices. Make it with jax.make_mesh, or set it with jax.set_mesh."
            )
            self._end((), self._strange)  # the others would wait in vain
        if self._strange is not None:
            raise self._strange
        with self._changed:
            if device in self._given:
                raise RuntimeError(
                    f"Device {device} of this node calls the host again, while its first call "
                    f"waits for devices {self._missing()}: the devices run different programs."
                )
            self._given[device] = given
            number = self._calls
            if len(self._given) < len(self._devices):
                ready = lambda: self._calls != number  # noqa: E731
                came = lambda: ready() or len(self._given) == len(self._devices)  # noqa: E731
                if not self._changed.wait_for(came, self._limit):
                    missing = self._missing()
                    del self._given[device]
                    raise RuntimeError(
                        f"Device {device} of this node has waited {self._limit:g} s in a call of "
                        f"the host for devices {missing}, which did not make it."
                    )
                self._changed.wait_for(ready)
                return self._result(device)
            self._changed.notify_all()
        found, error = (), None
        try:
            found = function([self._given[k] for k in self._devices])
        except Exception as raised:
            error = raised
        with self._changed:
            self._end(found, error)
            return self._result(device)

    def _end(self, found: Sequence[Any], error: Exception | None) -> None:
        """Ends the call with a result for each device, or an error."""
        with self._changed:
            self._given = {}
            self._found, self._error = dict(zip(self._devices, found, strict=False)), error
            self._calls += 1
            self._changed.notify_all()

    def _result(self, device: int) -> Any:
        if self._error is not None:
            raise self._error
        return self._found.pop(device)

    def _missing(self) -> list[int]:
        return [k for k in self._devices if k not in self._given]
