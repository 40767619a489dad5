"""The recorder: one row for each step, checkpoint and fault of this node."""

from __future__ import annotations

import dataclasses
import json
import logging
import platform
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, SupportsIndex

import jax
import jax.numpy as jnp
import numpy as np

from .._base.errors import Stopped
from .._base.version import __version__
from .._jax.types import PyTree
from .._optimizers.state import DasoState
from .._rules.phases import Phases
from .._session import Session
from ..traces._timeline import Stats
from ..traces._writer import Row, Writer, own_path, plain

log = logging.getLogger("jdaso")

_LIMIT_SECONDS = 60.0
_SAVE_SECONDS = 3600.0
"""As long as a session waits for a save at its end."""
_EVENTS = 1000
RESERVED = ("kind", "step", "seconds", "phase", "sync_every", "delay", *Stats._fields)


class Recorder:
    """Records this node's run in ``folder/node-00003.jsonl``, one JSON object per line.

    In a node of several ranks the first one writes. With ``Session(trace=folder)`` the file has
    the events of the trace too.

    A row of kind ``"run"`` comes first; then ``"settings"``, ``"step"``, ``"checkpoint"`` and
    ``"fault"``; at the end of the cycling phase, and at the end of the run, ``"events"``, the
    latest of the session's timeline; finally ``"end"``. A restarted run appends to the file;
    ``python -m jdaso report`` joins the parts.

    Numbers on a device stay there until they are ready, and a thread writes them, so that a step
    does not wait for them. Events of jdaso's checkpoints and of `jdaso.faults` are recorded
    automatically.

    Args:
        folder: folder for this run only; all nodes may share it. Created if missing.
        session: the nodes. Closing it closes the recorder.
        phases: gives the phase of a step; those of the session's `daso` if None.
        tensorboard: whether to write the numbers for TensorBoard too, to
            ``folder/tensorboard/node-00003``. Needs ``pip install "jdaso[metrics]"``.
        settings: further facts about the run, such as a learning rate. JSON values.

    Raises:
        ImportError: `tensorboard` is set, but tensorboardX is missing.
        ValueError: `settings` cannot be written as JSON.

    On failure: if the folder cannot be written or the disk is full, the log has one warning, and
    training continues. The file of a killed process is readable up to its last whole line, written
    at most half a second before. An exception that leaves the ``with`` block becomes a row of kind
    ``"fault"``.

    Example:
        >>> import tempfile, pathlib, jax.numpy as jnp, jdaso
        >>> from jdaso.metrics import Recorder
        >>> folder = pathlib.Path(tempfile.mkdtemp())
        >>> with jdaso.Session() as session, Recorder(folder, session) as recorder:
        ...     for n in range(3):
        ...         recorder.step(n + 1, loss=jnp.float32(1 / (n + 1)))
        >>> text = (folder / "node-00000.jsonl").read_text()
        >>> text.count('"kind":"step"')
        3
    """

    def __init__(
        self,
        folder: str | Path,
        session: Session,
        phases: Phases | None = None,
        *,
        tensorboard: bool = False,
        settings: Mapping[str, Any] | None = None,
    ):
        session.require_usable()
        try:
            json.dumps(plain(settings), default=str)
        except (TypeError, ValueError) as error:
            raise ValueError(
                f"settings must have text as names, got {settings!r} ({error}). Give each value a "
                "name."
            ) from error
        self._session, self._phases, self._settings = session, phases, dict(settings or {})
        path = own_path(folder, session.topology)
        board = path.parent / "tensorboard" / path.stem
        self._board = (
            open_tensorboard(board) if tensorboard and session.topology.place == 0 else None
        )
        self._began = time.perf_counter()
        self._before = session.stats
        self._wrote_settings = self._closed = self._stopped = False
        self._last_phase, self._last_event = "", self._began
        trace = session.recorder
        self._own = trace is None or trace.path != path
        self._writer = Writer(path) if trace is None or self._own else trace.writer
        self._writer.copy_to(self._show)
        self._writer.put_now(self._header())
        session.hooks.on_note(self._note)
        session.hooks.on_close(lambda after_error: self._close(1.0 if after_error else None))

    def step(self, step: SupportsIndex, opt_state: PyTree = None, **scalars: Any) -> None:
        """Records an update without waiting for the device; call it after each update.

        Args:
            step: completed updates, including this one.
            opt_state: the new optimizer state; B and S are read from the `DasoState` in it.
            scalars: numbers, or arrays of one element, on a device or not: ``loss=``,
                ``accuracy=`` and others. They must not be donated to a later step.

        Raises:
            ValueError: a value is not one number, or its name is reserved for rows.
            RuntimeError: the recorder, or its session, was closed.
        """
        self._require_open()
        self._stopped = False  # the loop goes on all the same
        for name, value in scalars.items():
            check_scalar(name, value)
        if not self._wrote_settings and (facts := self._session.optimizers.facts):
            self._wrote_settings = True
            self._writer.put({"kind": "settings", "settings": plain_facts(facts)})
        row = {"kind": "step", "step": int(step), "seconds": self._seconds()}
        row |= self._phase(int(step) - 1, opt_state)
        if self._last_phase == "cycling" != row.get("phase"):
            self._put_events()  # before those of a long cool-down replace them
        self._last_phase = row.get("phase", "")
        numbers = {name: getattr(x, "block", x) for name, x in scalars.items()}
        self._writer.put(row | self._totals() | numbers)

    def checkpoint(self, step: int) -> None:
        """Records a checkpoint of your own; `jdaso.checkpoint` records its own."""
        self._require_open()
        self._note("checkpoint", step, "")

    def fault(self, text: str, step: int | None = None) -> None:
        """Records a failure of your own; `jdaso.faults` records its own."""
        self._require_open()
        self._note("fault", step, text)

    def flush(self) -> None:
        """Writes all rows; waits for their numbers for at most a minute."""
        self._writer.flush(_LIMIT_SECONDS)

    def close(self) -> None:
        """Writes the remaining rows, the latest events and the totals. May be called twice."""
        self._close(None)

    def __enter__(self) -> Recorder:
        return self

    def __exit__(self, kind, error: BaseException | None, trace) -> None:
        done = isinstance(error, SystemExit) and not error.code
        self._stopped |= isinstance(error, Stopped)
        failed = error is not None and not done and not isinstance(error, Stopped)
        if failed and not self._closed:
            self.fault(f"{type(error).__name__}: {error}".strip().partition("\n")[0])
        self._close(1.0 if failed else None)

    def _close(self, limit_seconds: float | None) -> None:
        """Closes the recorder; a limit means that the run failed, and no end is written."""
        if self._closed:
            return
        self._closed = True
        # After an error the others are notified first, so the last save may be without its row.
        self._session.hooks.settle(_SAVE_SECONDS if limit_seconds is None else limit_seconds)
        self._session.hooks.forget_note(self._note)
        self._put_events()
        if limit_seconds is None:
            end = {"kind": "end", "seconds": self._seconds()} | self._totals()
            self._writer.put(end | ({"stopped": 1} if self._stopped else {}))
        limit_seconds = _LIMIT_SECONDS if limit_seconds is None else limit_seconds
        self._writer.close(limit_seconds) if self._own else self._writer.flush(limit_seconds)
        if self._board is not None:
            self._board.close()

    def _require_open(self) -> None:
        if self._closed:
            raise RuntimeError(
                "This recorder was closed, with its session or by itself: nothing can be added to "
                "its file. Record before that, or make another one."
            )

    def _header(self) -> dict[str, Any]:
        session, began = self._session, self._session.began
        phases = None if self._phases is None else dataclasses.asdict(self._phases)
        return {
            "kind": "run",
            "time": began.unix_seconds,
            "seconds": round(self._began - began.seconds, 6),
            "node": session.node,
            "num_nodes": session.num_nodes,
            "host": session.topology.host,
            "devices": [str(device) for device in session.devices],
            "engine": session.engine,
            "versions": {
                "jdaso": __version__,
                "jax": jax.__version__,
                "python": platform.python_version(),
            },
            "phases": phases,
            "settings": self._settings,
        }

    def _seconds(self) -> float:
        return round(time.perf_counter() - self._began, 6)

    def _totals(self) -> dict[str, Any]:
        """Returns running totals since the recorder was created."""
        now, before = self._session.stats, self._before
        amounts = {name: getattr(now, name) - getattr(before, name) for name in Stats._fields}
        return {k: round(v, 6) if isinstance(v, float) else v for k, v in amounts.items()}

    def _phase(self, update: int, opt_state: PyTree) -> dict[str, Any]:
        """Returns phase, B and S of an update counted from 0; B = 1 and S = 0 if the step waits."""
        state = find_daso(opt_state)
        if opt_state is not None and state is None:
            return {"phase": "blocking", "sync_every": 1, "delay": 0}
        name_of = self._session.control.known.phase_of
        phase = (name_of if self._phases is None else self._phases.name)(update)
        if phase in ("warm-up", "cool-down"):
            return {"phase": phase, "sync_every": 1, "delay": 0}
        known = {"phase": phase} if phase else {}
        if state is None:
            return known
        sync_every, delay = _kept(state.phase.sync_every, state.phase.delay)
        return known | {"sync_every": sync_every, "delay": delay}

    def _note(self, kind: str, step: int | None, text: str) -> None:
        if kind == "stopped":
            self._stopped = True  # a part of the row of the end
            return
        row = {"kind": kind, "step": step, "seconds": self._seconds()}
        self._writer.put_now(row | ({"text": text} if text else {}))

    def _put_events(self) -> None:
        """Writes the latest events of the session's timeline that are not written yet."""
        latest = self._session.timeline.events[-_EVENTS:]
        fresh = [event for event in latest if event.end_seconds > self._last_event]
        events = []
        for event in fresh:
            fields = event._asdict()
            begin, end = fields.pop("begin_seconds"), fields.pop("end_seconds")
            fields |= {"begin": round(begin - self._began, 6), "end": round(end - self._began, 6)}
            events.append({name: value for name, value in fields.items() if value is not None})
        self._last_event = max([self._last_event, *(event.end_seconds for event in fresh)])
        self._writer.put({"kind": "events", "events": events})

    def _show(self, row: Row) -> None:
        """Writes a row for TensorBoard."""
        if self._board is None or row["kind"] != "step":
            return
        numbers = {k: v for k, v in row.items() if isinstance(v, int | float) and k != "step"}
        try:
            for name, value in numbers.items():
                self._board.add_scalar(name, value, row["step"])
        except Exception as error:
            self._board = None
            log.warning("TensorBoard gets no more numbers (%s). Training goes on.", error)


@jax.jit
def _kept(sync_every: jax.Array, delay: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Returns copies, which survive donation to the next step. Virtual nodes hold equal values."""
    return jnp.max(sync_every), jnp.max(delay)


def find_daso(opt_state: PyTree) -> DasoState | None:
    """Returns the first state of `daso` in an optimizer state."""
    is_daso = lambda x: isinstance(x, DasoState)  # noqa: E731
    return next(filter(is_daso, jax.tree.leaves(opt_state, is_leaf=is_daso)), None)


def check_scalar(name: str, value: Any) -> None:
    """Raises unless a value is one number."""
    if name in RESERVED:
        raise ValueError(
            f"{name} is a name that rows use themselves ({', '.join(RESERVED)}). Give yours "
            "another one."
        )
    if isinstance(value, bool | int | float):
        return
    if hasattr(value, "world") and value.split is not None:  # of jdaso.array
        raise ValueError(
            f"{name} is divided over the nodes, and the recorder moves nothing between them. "
            f"Give a number: {name}=float({name})."
        )
    dtype = getattr(value, "dtype", None)
    if (
        dtype is None
        or np.size(value) != 1
        or not (jnp.issubdtype(dtype, jnp.integer) or jnp.issubdtype(dtype, jnp.floating))
    ):
        what = f"{dtype}{list(np.shape(value))}" if dtype is not None else repr(value)
        raise ValueError(
            f"The recorder takes single numbers, got {name}={what}. Give a mean, as "
            f"{name}={name}.mean()."
        )


def plain_facts(facts: Mapping[int, Any]) -> dict[str, dict[str, str]]:
    """Returns the settings of the session's optimizers, by their number."""
    return {
        str(number): {name.removeprefix("the setting "): value for name, value in about}
        for number, about in facts.items()
    }


def open_tensorboard(folder: Path) -> Any:
    """Opens a writer of TensorBoard's files."""
    try:
        from tensorboardX import SummaryWriter
    except ImportError as error:
        raise ImportError(
            "Recorder(tensorboard=True) needs tensorboardX. Install it: "
            "pip install 'jdaso[metrics]'"
        ) from error
    try:
        return SummaryWriter(str(folder))
    except OSError as error:
        log.warning("TensorBoard gets no numbers (%s). Training goes on.", error)
        return None
