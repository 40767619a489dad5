"""Deliberate faults, for tests and drills: an action, a node, and a time."""

from __future__ import annotations

import ctypes
import dataclasses
import logging
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ._jax.types import PyTree
from ._jax.world import spans_processes
from ._launch.paths import local_folder
from ._optimizers.state import DasoState
from ._payload.layout import is_float
from ._session import Session

log = logging.getLogger("jdaso")

VARIABLE = "JDASO_FAULTS"
POINTS = ("warm-up", "cycling", "cool-down", "flight", "save", "restore")
ACTIONS = ("kill", "stop", "segfault", "exit", "raise", "hang", "flip", "nan", "delay")
_FORM = re.compile(r"(\d+)@([\w-]+):([a-z]+)(?:=([0-9.]+))?")


class InjectedError(RuntimeError):
    """The exception that the fault ``raise`` raises."""


@dataclasses.dataclass(frozen=True)
class Fault:
    """One fault.

    Attributes:
        node: the node on which the fault happens.
        when: after this many updates; or the first time in a phase (``"warm-up"``, ``"cycling"``,
            ``"cool-down"``), with an exchange in flight (``"flight"``), in the background of a save
            (``"save"``), or in a restore (``"restore"``).
        action: ``"kill"``, ``"stop"`` (SIGSTOP, then SIGCONT), ``"segfault"``, ``"exit"``,
            ``"raise"``, ``"hang"`` (holding Python's lock), ``"flip"`` (the lowest bit of the first
            parameter), ``"nan"`` (replaces the first parameter) or ``"delay"``.
        seconds: the duration of a stop, a hang or a delay.
    """

    node: int
    when: int | str
    action: str
    seconds: float = 1.0

    def __post_init__(self):
        if self.action not in ACTIONS:
            raise ValueError(f"A fault is one of {', '.join(ACTIONS)}, got {self.action!r}.")
        if isinstance(self.when, str) and self.when not in POINTS:
            raise ValueError(
                f"A fault happens after a number of updates, or at {', '.join(POINTS)}, got "
                f"{self.when!r}."
            )
        if self.action in ("flip", "nan") and self.when in ("save", "restore"):
            raise ValueError(f'"{self.action}" needs a state, and there is none at {self.when!r}.')

    @classmethod
    def parse(cls, text: str) -> Fault:
        """Parses ``NODE@WHEN:ACTION`` or ``NODE@WHEN:ACTION=SECONDS``, such as ``1@40:kill``."""
        found = _FORM.fullmatch(text.strip())
        if found is None:
            raise ValueError(
                f"{text!r} is not a fault. Write NODE@WHEN:ACTION, such as 1@40:kill or "
                f"0@save:stop=3; actions are {', '.join(ACTIONS)}."
            )
        node, when, action, seconds = found.groups()
        given = {} if seconds is None else {"seconds": float(seconds)}
        return cls(int(node), int(when) if when.isdigit() else when, action, **given)


class Faults:
    """Triggers faults on this node; if the node has several ranks, on the first.

    Args:
        faults: the faults; if None, those in ``JDASO_FAULTS``, separated by semicolons.
        session: the nodes.
        folder: records the faults that have happened, so that a restarted run does not repeat them;
            without a folder, each process starts afresh.

    Example:
        >>> import jdaso, jax.numpy as jnp
        >>> from jdaso.faults import Fault, Faults
        >>> with jdaso.Session() as session:
        ...     faults = Faults([Fault(0, 3, "nan")], session)
        ...     for step in range(4):
        ...         params = faults.at(step, {"w": jnp.ones(2)})
        >>> params["w"]
        Array([nan,  1.], dtype=float32)
    """

    def __init__(
        self,
        faults: Iterable[Fault] | None,
        session: Session,
        folder: str | Path | None = None,
    ):
        if faults is None:
            parts = os.environ.get(VARIABLE, "").split(";")
            faults = [Fault.parse(part) for part in parts if part.strip()]
        faults = list(faults)
        nodes = 1 if session.simulated else session.num_nodes  # one process has all virtual nodes
        missing = [fault for fault in faults if not 0 <= fault.node < nodes]
        if missing and session.node == 0:  # a restart may have fewer nodes
            log.warning("%s does not happen: no such node of %d.", missing[0], nodes)
        first = session.topology.place == 0
        self._mine = [fault for fault in faults if fault.node == session.node and first]
        self._session = session
        self._folder = None if folder is None else local_folder(folder)
        self._done: set[Fault] = set()
        session.hooks.on_point(self._reach)

    def at(self, step: int, params: PyTree, opt_state: PyTree = None) -> PyTree:
        """Takes the parameters for the next update; returns them, changed or not.

        Args:
            step: completed updates.
            params: the parameters.
            opt_state: for faults with an exchange in flight.
        """
        phase = self._session.control.known.phase_of(step)
        for fault in self._mine:
            here = fault.when in (step, phase) or (fault.when == "flight" and _flies(opt_state))
            if here and self._is_new(fault):
                params = self._act(fault, params)
        return params

    def _reach(self, point: str) -> None:
        """Runs faults at a point of the session that has no step, such as a save."""
        for fault in self._mine:
            if fault.when == point and self._is_new(fault):
                self._act(fault, None)

    def _is_new(self, fault: Fault) -> bool:
        name = f"fault-{fault.node}-{fault.when}-{fault.action}"
        if fault in self._done or (self._folder is not None and (self._folder / name).exists()):
            return False
        self._done.add(fault)
        if self._folder is not None:
            self._folder.mkdir(parents=True, exist_ok=True)
            (self._folder / name).touch()
        return True

    def _act(self, fault: Fault, params: PyTree) -> PyTree:
        sys.stderr.write(f"{self._session.topology.prefix()} fault: {fault.action}\n")
        sys.stderr.flush()
        step = fault.when if isinstance(fault.when, int) else None
        self._session.hooks.note("fault", step, f"{fault.action} on purpose at {fault.when}")
        process = os.getpid()
        if fault.action == "kill":
            os.kill(process, signal.SIGKILL)
        elif fault.action == "stop":
            wake = f"sleep {fault.seconds}; kill -CONT {process}"
            subprocess.Popen(["sh", "-c", wake], start_new_session=True)
            os.kill(process, signal.SIGSTOP)
        elif fault.action == "segfault":
            ctypes.string_at(0)
        elif fault.action == "exit":
            os._exit(3)
        elif fault.action == "raise":
            raise InjectedError(f"a fault on purpose on node {fault.node}")
        elif fault.action == "hang":
            ctypes.PyDLL(None).usleep(int(fault.seconds * 1e6))
        elif fault.action == "delay":
            time.sleep(fault.seconds)
        else:
            return _spoil(params, fault.action)
        return params


def _flies(opt_state: PyTree) -> bool:
    is_daso = lambda x: isinstance(x, DasoState)  # noqa: E731
    states = [x for x in jax.tree.leaves(opt_state, is_leaf=is_daso) if is_daso(x)]
    return any(int(np.max(np.asarray(state.ticket))) for state in states)


def _spoil(params: PyTree, action: str) -> PyTree:
    """Changes the first number of the first float leaf."""
    leaves, tree = jax.tree.flatten(params)
    for k, leaf in enumerate(leaves):
        if is_float(jnp.result_type(leaf)) and np.size(leaf):
            leaves[k] = _spoilt(leaf, action)
            break
    return jax.tree.unflatten(tree, leaves)


def _spoilt(leaf: Any, action: str) -> Any:
    """The leaf with its first number changed; if the leaf spans ranks, the first on this rank."""
    if spans_processes(leaf):
        first, *others = (shard.data for shard in leaf.addressable_shards)
        parts = [_spoilt(first, action), *others]
        return jax.make_array_from_single_device_arrays(leaf.shape, leaf.sharding, parts)
    array = np.array(leaf)
    if action == "nan":
        array.reshape(-1)[0] = np.nan
    else:
        array.reshape(-1).view(np.uint8)[0] ^= 1
    committed = isinstance(leaf, jax.Array) and leaf.committed
    return jax.device_put(array, leaf.sharding) if committed else jnp.asarray(array)
