"""Checkpoints: saved in the background, completely or not at all, and restored bit for bit."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import logging
import os
import secrets
import signal
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

import jax
import numpy as np

from .._errors import NodeError, Stopped
from .._exchange.collectives import require_own_devices
from .._launch import signals as _signals
from .._launch.first_failure import say_saved
from .._launch.paths import shown
from .._session import Session
from .._types import PyTree
from .._version import __version__
from . import _files
from ._facts import check_facts, facts_of
from ._files import COMMON, CheckpointError, DamagedError, Leaf, Manifest, node_folder
from ._folder import Folder, appears
from ._resize import fit_leaves, read_flights, read_resized, spread
from ._state import (
    Kept,
    Value,
    adopt_flights,
    check_leaves,
    describe_layout,
    flight_arrays,
    from_host,
    is_flight,
    keep_flights,
    parted_devices,
    require_common_points,
    to_host,
    values_of,
)
from ._together import DISK_SECONDS, folder_of_all, raise_together

log = logging.getLogger("jdaso")

_NICE = 15


class Checkpoints:
    """Saves and restores the whole state of a run, in a folder that all nodes see.

    The state is any tree: parameters, optimizer state, BatchNorm statistics, random keys, the
    position in the data. The result of an exchange in flight is saved with it: the save completes
    the exchange on the network but does not merge it, and a restored run merges it at the step
    where it would have been merged. With the same number of nodes a restored run continues
    bit for bit as if it had never stopped.

    All nodes create, save and restore together, at the same steps. A save copies the state to the
    host and returns; a thread writes it. Each node writes its own arrays, node 0 also those that
    are the same everywhere. A checkpoint is complete once all nodes have written their parts: an
    incomplete one is never used, and the one before it is kept. Every file has a checksum. Nothing
    is pickled, so a checkpoint from elsewhere cannot run code.

    On another number of nodes, parameters, inner optimizer and all other float leaves become the
    mean over the old nodes, in float64; integers become node 0's; random keys that differed stay
    different. Phases, plateau state and the outer optimizer continue. The exchange in flight is
    dropped: its content is in the mean of the parameters already, except the error feedback of a
    narrow wire. Losses that no exchange has carried yet are dropped too.

    Args:
        folder: created if missing; on a file system that all nodes share. ``~`` and ``$NAME`` are
            expanded.
        session: the nodes. Closing it waits until the current save is written.
        every_steps: steps between the saves that `after` makes.
        keep_last: number of complete checkpoints to keep.
        keep_best: number of best checkpoints to keep besides, by the scores given to `save`.
        best: ``"max"`` or ``"min"``: whether high or low scores are better.
        stop_signals: signals that ask the run to save and end at the next step that all nodes can
            reach together; see `after`. They are handled only in the program's main thread. The
            program's own handlers, also those in C, are called too, and restored when the session
            closes. An exception that such a handler raises, such as `SystemExit`, is held back
            until the run is saved, and then becomes the cause of `Stopped`.

    `Reader` reads the checkpoints while a run holds the folder.

    Raises:
        CheckpointError: on all nodes, if one does not see the folder, another run uses it, or its
            name is not valid.
        ValueError: a setting is out of range.

    On failure: a failed save is logged at once; complete checkpoints stay, and `wait` raises.

    Example:
        >>> import tempfile, jax.numpy as jnp, jdaso
        >>> from jdaso.checkpoint import Checkpoints
        >>> with jdaso.Session() as session:
        ...     checkpoints = Checkpoints(tempfile.mkdtemp(), session, every_steps=2)
        ...     state, begin = checkpoints.restore({"w": jnp.zeros(3)})
        ...     for step in range(begin, 4):
        ...         state = {"w": state["w"] + 1}
        ...         checkpoints.after(step + 1, state)
        ...     checkpoints.wait()
        ...     checkpoints.restore(state)[1]
        4
    """

    def __init__(
        self,
        folder: str | Path,
        session: Session,
        *,
        every_steps: int = 1000,
        keep_last: int = 2,
        keep_best: int = 0,
        best: str = "max",
        stop_signals: Sequence[signal.Signals] = (signal.SIGTERM, signal.SIGUSR1),
    ):
        for name, value, least in (
            ("every_steps", every_steps, 1),
            ("keep_last", keep_last, 1),
            ("keep_best", keep_best, 0),
        ):
            if value < least:
                raise ValueError(f"{name} must be at least {least}, got {value}.")
        if best not in ("max", "min"):
            raise ValueError(f'best must be "max" or "min", got {best!r}.')
        signals = _signals.check(stop_signals)
        session.require_usable()
        self.session, self.every_steps = session, every_steps
        path = folder_of_all(folder, session, "open checkpoints")
        self._folder = Folder(path, keep_last=keep_last, keep_best=keep_best, best=best)
        self._node, self._nodes = session.topology.node, session.topology.num_nodes
        if session.control.survives:
            self._node, self._nodes = session.share()
        self._saved_by: tuple[int, ...] | None = None  # the nodes alive at the last save
        self._shares = session.engine != "instant"  # that engine shares nothing between nodes
        self._buffers: dict[str, np.ndarray] = {}
        self._flights: list[Kept] = []  # in flight at the last save
        self._writer: threading.Thread | None = None
        self._error: Exception | None = None
        self._run, self._number = self._begin()
        session.closing.append(self._close)
        session.control.detector.stopping.on_signals(signals)

    @property
    def folder(self) -> Path:
        """The folder that holds the checkpoints."""
        return self._folder.path

    def after(self, step: int, state: PyTree, score: float | None = None) -> None:
        """Saves if a save is due or the run must stop; call this after each update.

        A save is due every `every_steps`. If any node's process receives a stop signal (such as
        Slurm's SIGTERM or SIGUSR1 before preemption), all nodes agree on the next step that all can
        reach, save there, and end with `Stopped`, whose exit status is 75.

        Args:
            step: completed updates, the same on all nodes.
            state: the state that the next update needs.
            score: see `save`.

        Raises:
            Stopped: the run was asked to stop; its state is saved.
        """
        stops = self.session.control.detector.stops_at(step)
        due = step % self.every_steps == 0
        if due or stops:
            self.save(step, state, score)
        if stops:
            while True:
                try:
                    self.wait()
                    break
                except _LostError:  # ends, as each try has fewer nodes left
                    self.save(step, state, score)
            for kept in self._flights:  # the save includes the exchanges in flight
                kept.version.forget()
            raise_stopped(self.session, step)

    def save(self, step: int, state: PyTree, score: float | None = None) -> None:
        """Copies a state to the host and starts to write it; waits for the previous save.

        Args:
            step: completed updates, the same on all nodes.
            state: the state that the next update needs.
            score: how good the state is, for `keep_best`; the same on all nodes.

        Raises:
            CheckpointError: the state does not belong to this session.
        """
        self.session.require_usable()
        begin = time.perf_counter()
        self._join()
        self._error = None  # the earlier failure was reported; this is a new save
        self._count()
        if self.session.control.survives:  # all are here; some may have died while writing
            self._sweep()
        self._number += 1
        self._saved_by = self.session.living if self.session.control.survives else None
        if self.session.num_nodes > 1:
            require_own_devices(self.session, state)
        state = jax.block_until_ready(state)
        parted = parted_devices(state, self.session)
        values = values_of(state, shares=self._shares, parted=parted)
        flights = self._flights = keep_flights(state, self.session)
        mine = [value for value in values if self._node == 0 or not value.leaf.common]
        for leaf, value in mine:
            buffer = self._buffers.get(leaf.file)
            self._buffers[leaf.file] = to_host(Value(leaf, value), buffer)
        manifest = Manifest(
            run=self._run,
            number=self._number,
            step=step,
            node=self._node,
            nodes=self._nodes,
            begun=self.session.topology.num_nodes,
            score=None if score is None else float(score),
            facts=facts_of(self.session),
            leaves=tuple(value.leaf for value in values),
            parted=parted,
            flights=tuple(
                (x.owner, x.fragment, x.ticket, x.in_flight, describe_layout(x.versions))
                for x in flights
            ),
            files={},
            versions=_versions(),
        )
        self._writer = threading.Thread(
            target=self._write,
            args=(manifest, self._buffers, flights),
            name="jdaso-save",
            daemon=True,
        )
        self._writer.start()
        self.session.note("checkpoint", step)
        size = sum(array.nbytes for array in self._buffers.values())
        self.session.timeline.record("checkpoint", step, begin, size_bytes=size)

    def wait(self) -> None:
        """Waits until all nodes have finished the current save.

        Raises:
            CheckpointError: on all nodes, if the last save failed on one.
        """
        self._join()
        said = "" if self._error is None else str(self._error)
        self._error = None
        try:
            self._raise_together("wait for a checkpoint", said)
        except CheckpointError:
            self._sweep()
            raise
        whole = self._saved_by in (None, self.session.living)
        self._saved_by = None
        self._count()
        if self._node == 0:
            self._prune()
        if not whole:
            self._sweep()
            raise _LostError(
                f"{self.session.topology.prefix()} A node died before its part of a checkpoint was "
                "known to be written. Save again; earlier checkpoints are still there."
            )

    def restore(self, like: PyTree, step: int | None = None) -> tuple[PyTree, int]:
        """Restores the newest complete checkpoint, or that of a step.

        A damaged checkpoint is logged, and the one before it is taken.

        Args:
            like: a state as the program has it before its first update: the tree, dtypes, shapes
                and shardings of the result. Make it with ``tx.init``, so that the exchange in
                flight finds its optimizer.
            step: the step to restore; the newest if None.

        Returns:
            The state, and the number of updates it has seen; `like` and 0 if nothing was saved.

        Raises:
            CheckpointError: on all nodes; shapes, phases or settings differ from the program's; or
                the checkpoint is damaged, if `step` was given or no other is whole. Names the leaf.
        """
        self.session.require_usable()
        self._join()
        self._count()
        living, damaged = self.session.living, []
        for name in self._names(step):
            try:
                restored = self._restore(self.folder / name, like)
                if self.session.living != living:
                    raise self.session.control.error(
                        "A node died while a checkpoint was restored. Start the job again."
                    )
                return restored
            except DamagedError as error:
                damaged.append(str(error))
                log.error("A checkpoint is left out: %s", error)
        if damaged or step is not None:
            what = "No checkpoint" if step is None else f"The checkpoint of step {step}"
            why = damaged[0] if damaged else "There is none."
            raise CheckpointError(f"{what} in {self.folder} can be restored. {why}")
        return like, 0

    def steps(self) -> list[int]:
        """Steps of the complete checkpoints that this node sees, oldest first."""
        return sorted({manifest.step for _, manifest in self._folder.complete()})

    def _begin(self) -> tuple[str, int]:
        """Agrees on a name for this run, takes the folder, and checks that all nodes see it.

        Returns:
            The name, and the number of the last save in the folder.
        """
        control, folder, said = self.session.control, self._folder, ""
        run = control.everyone("open checkpoints", secrets.token_hex(4))[0]
        if self._node == 0:
            try:
                folder.take(run)
            except OSError as error:
                said = (
                    f"{shown(folder.path)} cannot be used ({error}). Give a folder in which this "
                    "user may write, on a file system with free space."
                )
            except CheckpointError as error:
                said = str(error)
        self._raise_together("open checkpoints", said)
        token = folder.token(run)
        if not appears(token):
            said = (
                f"Node {self._node} on host {self.session.topology.host} does not see what node 0 "
                f"writes to {shown(folder.path)}. Give a folder on a file system that all nodes "
                "share."
            )
        try:
            self._raise_together("open checkpoints", said)
            folder.remember()
        finally:
            if self._node == 0:
                with contextlib.suppress(OSError):  # the next start removes it
                    token.unlink(missing_ok=True)
        return run, int(control.everyone("open checkpoints", str(folder.last_number))[0])

    def _count(self) -> None:
        """Finds this node's part of a checkpoint; if nodes may die, all call this together."""
        if self.session.control.survives:
            before = self._node
            self._node, self._nodes = self.session.share()
            if before > self._node == 0:  # node 0's part and the folder are now this node's
                try:
                    self._folder.take(self._run).unlink(missing_ok=True)
                except OSError as error:
                    raise CheckpointError(
                        f"{self.session.topology.prefix()} {shown(self.folder)} cannot be used "
                        f"({error}), now that node 0 has failed."
                    ) from error

    def _write(
        self, manifest: Manifest, arrays: dict[str, np.ndarray], flights: Sequence[Kept]
    ) -> None:
        """Writes arrays first, the manifest last; runs in a thread."""
        begin = time.perf_counter()
        with contextlib.suppress(OSError):  # training goes first; orbax's threads inherit it
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICE)
        folder = self._folder.of(manifest.step, manifest.number)
        try:
            nothing = np.zeros(0)  # for arrays that node 0 writes
            found = [(leaf, arrays.get(leaf.file, nothing)) for leaf in manifest.leaves]
            for number, kept in enumerate(flights):
                found += flight_arrays(number, kept, shares=self._shares)
            self._folder.make_again()
            self._folder.sweep_own(manifest.node, manifest.number - 1)
            folder.mkdir(exist_ok=True)
            leaves: list[Leaf] = []
            own = node_folder(manifest.node)
            for name, common in ((COMMON, True), (own, False)):
                part = [(leaf, array) for leaf, array in found if leaf.common == common]
                if common and manifest.node != 0:
                    leaves += [leaf for leaf, _ in part]
                else:
                    leaves += _files.write_arrays(folder, name, part)
            self.session.reach("save")
            files = _files.checksums(folder, (COMMON, own) if manifest.node == 0 else (own,))
            manifest = dataclasses.replace(manifest, leaves=tuple(leaves), files=files)
            manifest.write(folder)
        except Exception as error:
            _files.give_up(folder, manifest.node, manifest.nodes)
            self._error = CheckpointError(
                f"{self.session.topology.prefix(manifest.step)} A checkpoint could not be written "
                f"to {shown(folder)}: {str(error).rstrip('.')}. {self._what_is_left(str(error))}"
            )
            log.error("%s", self._error)
            return
        if _files.has_failed(folder):
            _files.remove_part(folder, manifest.node)
        if manifest.node == 0:
            self._prune()
        timeline, size = self.session.timeline, sum(array.nbytes for array in arrays.values())
        timeline.record("checkpoint", manifest.step, begin, lane="checkpoint", size_bytes=size)
        log.info("saved step %d in %.1f s", manifest.step, time.perf_counter() - begin)

    def _prune(self) -> None:
        """Removes checkpoints that are not kept. A failure costs nothing but space."""
        try:
            self._folder.prune()
        except (OSError, CheckpointError) as error:
            log.warning("Old checkpoints could not be removed: %s", error)

    def _sweep(self) -> None:
        """Removes incomplete saves; no node writes one that this one has started."""
        if self._node == 0:
            try:
                self._folder.sweep(self._number)
            except (OSError, CheckpointError) as error:
                log.warning("What is left of a save could not be removed: %s", error)

    def _what_is_left(self, why: str) -> str:
        """Describes what is left after a failed save, and what to do."""
        if not self.folder.is_dir():
            return "The folder is gone with its contents. Give a folder that stays."
        remedies = {
            "space left": "Free space there. ",
            "quota": "Free space there, or raise the quota. ",
            "denied": "Give this user the right to write there. ",
            "Read-only": "Choose a file system that is mounted for writing. ",
        }
        found = [remedy for sign, remedy in remedies.items() if sign in why]
        return f"{''.join(found[:1])}Checkpoints before it are still there."

    def _join(self) -> None:
        """Waits until this node's save is written.

        Raises:
            CheckpointError: the file system does not respond.
        """
        if self._writer is not None:
            self._writer.join(DISK_SECONDS)
            if self._writer.is_alive():
                raise CheckpointError(
                    f"{self.session.topology.prefix()} A checkpoint was not written to "
                    f"{self.folder} within {DISK_SECONDS:g} s. Look for a file system that hangs."
                )
            self._writer = None

    def _close(self, after_error: bool) -> None:
        """Finishes the current save when the session closes."""
        try:
            if after_error:
                self._join()
            else:
                self.wait()
        except _LostError as error:
            log.warning("%s", error)
        finally:
            self._folder.give_back()

    def _names(self, step: int | None) -> list[str]:
        """Returns complete checkpoints, newest first; the same on all nodes."""
        said, found = "", ""
        if self._node == 0:
            try:
                complete = self._folder.complete()
                wanted = [x for x in complete if step is None or x[1].step == step]
                found = json.dumps([folder.name for folder, _ in reversed(wanted)])
            except CheckpointError as error:
                said = str(error)
            if not self.folder.is_dir():
                said = f"{shown(self.folder)} is gone, and with it all checkpoints."
        self._raise_together("restore a checkpoint", said)
        return json.loads(self.session.control.everyone("restore a checkpoint", found)[0])

    def _restore(self, folder: Path, like: PyTree) -> tuple[PyTree, int]:
        """Restores one checkpoint on all nodes, or on none."""
        said, first = "", None
        self.session.reach("restore")
        try:
            if not appears(_files.manifest_path(folder, 0)):
                raise DamagedError(f"{folder} is not seen by node {self._node}.")
            first = Manifest.read(folder, 0)
        except DamagedError as error:
            said = str(error)
        self._raise_together("restore a checkpoint", said, DamagedError)
        assert first is not None
        here = values_of(like, shares=self._shares)
        check_facts(first, self.session)
        require_common_points(self.session, first.nodes)
        flies = any(in_flight for _, _, _, in_flight, _ in first.flights)
        if first.nodes != self._nodes or (flies and first.begun != self._nodes):
            arrays = self._read_resized(folder, first, here)
        else:
            arrays = self._read(folder, first, here)
            said, kind = "", CheckpointError
            try:
                adopt_flights(self.session, first.flights, arrays)
            except (CheckpointError, NodeError) as error:
                said, kind = str(error), type(error)
            kind = DamagedError if kind is DamagedError else CheckpointError
            self._raise_together("restore a checkpoint", said, kind)
        mesh = self.session.mesh
        leaves = [from_host(value, arrays[value.leaf.file], mesh) for value in here]
        return jax.tree.unflatten(jax.tree.structure(like), leaves), first.step

    def _read(self, folder: Path, first: Manifest, here: Sequence[Value]) -> dict[str, np.ndarray]:
        """Reads this node's arrays and the common ones."""
        said, kind, arrays = "", DamagedError, {}
        try:
            appears(_files.manifest_path(folder, self._node))
            own = first if self._node == 0 else Manifest.read(folder, self._node)
            if (own.run, own.number) != (first.run, first.number):
                raise DamagedError(
                    f"{folder}: the parts of nodes 0 and {self._node} do not belong together."
                )
            first.verify(folder, (COMMON,))
            own.verify(folder, (node_folder(self._node),))
            saved = [leaf for leaf in own.leaves if not is_flight(leaf)]
            check_leaves(saved, here, first.parted)
            for name, of in ((COMMON, first), (node_folder(self._node), own)):
                leaves = [leaf for leaf in of.leaves if leaf.common == (name == COMMON)]
                arrays |= _files.read_arrays(folder, name, leaves)
        except CheckpointError as error:
            said, kind = str(error), type(error)
        self._raise_together("restore a checkpoint", said, kind)
        return arrays

    def _read_resized(
        self, folder: Path, first: Manifest, here: Sequence[Value]
    ) -> dict[str, np.ndarray]:
        """Reads the parts of all old nodes, combined."""
        said, kind, fitting, arrays, flights = "", DamagedError, {}, {}, {}
        try:
            leaves = [leaf for leaf in first.leaves if not is_flight(leaf)]
            fitting = fit_leaves(leaves, here, first.parted)
            if self._node == 0:
                arrays = read_resized(folder, fitting, first.nodes)
                flights = read_flights(folder, first)
        except CheckpointError as error:
            said, kind = str(error), type(error)
        self._raise_together("restore a checkpoint", said, kind)
        log.warning(
            "The checkpoint of step %d has %d nodes, this run has %d: floats become the mean over "
            "all nodes, and what was in flight is dropped.",
            first.step,
            first.nodes,
            self._nodes,
        )
        self._spread_flights(first, flights)
        return spread(here, fitting, first.nodes, arrays, self.session)

    def _spread_flights(self, first: Manifest, arrays: dict[str, np.ndarray]) -> None:
        """Gives all nodes the common points and outer optimizers that node 0 has read."""
        if self.session.num_nodes == 1:
            return
        names = json.loads(self.session.control.everyone("restore", json.dumps(list(arrays)))[0])
        found = {}
        for name in names:
            about = next(leaf for leaf in first.leaves if leaf.file == name)
            room = np.zeros(about.shape, about.dtype)
            found[name] = self.session.control.broadcast(arrays.get(name, room))
        settled = tuple((*x[:3], False, x[4]) for x in first.flights)
        kept = [(k, x) for k, x in enumerate(settled) if f"exchange{k}.anchor" in found]
        for k, flight in kept:
            begin = f"exchange{k}."
            own = {
                f"exchange0.{n.removeprefix(begin)}": x
                for n, x in found.items()
                if n.startswith(begin)
            }
            adopt_flights(self.session, [flight], own)

    def _raise_together(
        self, what: str, said: str, kind: type[CheckpointError] = CheckpointError
    ) -> None:
        raise_together(self.session, what, said, kind)


def raise_stopped(session: Session, step: int) -> NoReturn:
    """Ends a run that was asked to stop and is saved."""
    if session.share()[0] == 0:  # the first node alive
        log.warning(
            "%s The run was told to stop. It is saved at step %d; start it again to go on.",
            session.topology.prefix(),
            step,
        )
    say_saved()
    raise Stopped from session.control.detector.stopping.held


class _LostError(CheckpointError):
    """A node died while it was saving."""


def _versions() -> dict[str, str]:
    return {"jdaso": __version__, "jax": jax.__version__}
