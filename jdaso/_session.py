"""Resources of a node: communicators, threads and buffers, from a `Session` to its `close()`."""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import socket
import threading
import traceback
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import numpy as np

from ._compat import (
    STEP_ERRORS,
    backend_started,
    computes_on_cpus,
    cpu_threads_reserved,
    has_cpu_device,
    reserve_cpu_threads,
    steps_called,
)
from ._engines.channel import Channel
from ._engines.make import ENGINES, check_engine, make_reducer
from ._engines.simulated import Simulated
from ._errors import NodeError, Stopped, summary
from ._ffi.functions import forget
from ._launch.environment import launched_ranks, survives_deaths
from ._launch.first_failure import say_failed, say_rank, say_through
from ._launch.memory import keep_freed_memory
from ._mpi.gpus import claim_gpus
from ._mpi.start import why_alone
from ._mpi.topology import Topology, find_topology, members
from ._nodes import exit as _exit
from ._nodes.compare import Comparison
from ._nodes.control import Control, Facts
from ._nodes.links import Links
from ._payload.layout import Layout, Leaf
from ._payload.wire import Wire
from ._payload.words import FAILED, STATUS, STEP
from ._types import Leaves
from ._version import __version__
from .traces._recorder import Recorder
from .traces._timeline import Stats, Timeline

log = logging.getLogger("jdaso")

_DAY_SECONDS = 24 * 3600.0
_LONGEST_SECONDS = 365 * _DAY_SECONDS
_START_SECONDS = 600.0
"""The longest wait for all nodes to start, unless another limit is given."""


class Completion(NamedTuple):
    """Completes the run of one optimizer.

    Attributes:
        complete: merges exchanges in flight and the error feedback into float32 leaves.
        skips: whether numbers that are not finite are left out, instead of an error.
        channels: returns the channel of each fragment; all nodes call it together.
    """

    complete: Callable[..., Leaves]
    skips: bool
    channels: Callable[[], tuple[Channel, ...]]


class Session:
    """This node's part in a run over several nodes.

    A node is one MPI rank and the JAX devices that it drives. The session owns what MPI needs
    (duplicates of the communicator; a thread and staging buffers for each kind of exchange) and
    frees it in `close()`; use the session as a context manager. All nodes make and close their
    sessions together (simulated ones too, if a launcher started several ranks). Use a session from
    the thread that made it.

    Several nodes on one host divide its GPUs here, so make the session before JAX's first use of a
    device. Without an MPI library or a launcher there is one node, and nothing is sent. If several
    nodes compute on CPUs, the session makes glibc's malloc keep freed memory, to the end of the
    process. If the session starts MPI, it sets ``UCX_RNDV_THRESH``, unless that is set.

    Args:
        comm: an mpi4py communicator of the nodes; ``MPI.COMM_WORLD`` if None. With another
            communicator, a host's GPUs are divided among its ranks only, and a failure still ends
            the whole job.
        engine: ``"mpi4py"`` (non-blocking calls, errors raised instead of aborting), ``"mpi4jax"``
            (blocking calls in a thread of their own), ``"instant"`` (sends nothing; the node's own
            numbers come back), or `Simulated` (virtual nodes of one device).
        timeout_seconds: the longest that this node waits for the others in any call on the host.
            If None, it is derived from past waits: 100 times the longest of the last 16, but at
            least 600 s; for a node that has gone silent 20 times, but at least 60 s. A wait of more
            than twice the usual is logged, with the missing nodes and where their programs are.
        share_gpus: whether nodes on one host may use the same GPU.
        on_death: reaction if a node's process dies: ``"end"`` the job, or ``"shrink"`` it: the
            others go on without that node, at the latest after the exchange in which they notice.
            ``"shrink"`` needs engine mpi4py and Open MPI's ``mpiexec --with-ft ulfm``.
        trace: a folder into which each node writes its timeline while it runs:
            ``trace-00003.json`` for node 3, for `jdaso.traces` and Perfetto. Pass it on all nodes
            or on none; each node may have its own folder. None records nothing.

    Attributes:
        node: this node's number, 0..num_nodes - 1.
        num_nodes: P.
        devices: the JAX devices that this node drives.
        mesh: a mesh of them, axis ``"local"``.
        node_axis: ``"node"``, the name of the virtual nodes' axis.
        timeline: what this node did and when; a `Timeline`.

    Raises:
        ValueError: unknown engine, or settings of another engine.
        ImportError: mpi4jax is missing, or was built for another MPI.
        NodeError: the nodes disagree; the launcher is of another MPI; MPI has no
            ``THREAD_MULTIPLE``; more nodes than GPUs on a host.

    On failure: a node whose program ends by an exception notifies the others. Whatever they wait
    for raises `NodeError` with the exception's text; after some seconds the job is ended.

    Example:
        >>> import jdaso
        >>> with jdaso.Session() as session:
        ...     print(session.node, session.num_nodes)
        0 1
    """

    node_axis = "node"

    def __init__(
        self,
        comm: Any = None,
        engine: str | Simulated = "mpi4py",
        *,
        timeout_seconds: float | None = None,
        share_gpus: bool = False,
        on_death: str = "end",
        trace: str | os.PathLike[str] | None = None,
    ):
        self.virtual = engine if isinstance(engine, Simulated) else None
        engine = "simulated" if isinstance(engine, Simulated) else engine
        invalid = _check_settings(engine, self.virtual, timeout_seconds)
        invalid = invalid or _check_on_death(on_death, engine, several=launched_ranks() > 1)
        if _exit.is_bereft():
            raise NodeError(
                "Nodes have died in this process's last session, and MPI cannot make another one "
                "without them. Start the job again."
            )
        _exit.install()
        reserve_cpu_threads()
        several = members(comm) != 1 and launched_ranks() > 1
        if several and invalid is None and not self.simulated and computes_on_cpus():
            keep_freed_memory()  # before MPI and XLA begin their threads
        self.engine = engine
        self.closed = self._disowned = False
        self._owner = threading.get_ident()
        self._channels: dict[Any, Channel] = {}
        self.optimizers = 0  # number made so far
        self.timeout_seconds = timeout_seconds
        self.of_replicas: dict[int, Session] = {}  # by the number of partitions
        self.facts: dict[int, Facts] = {}  # of each initialised optimizer, by its number
        # For `finalize`, by the optimizer's number and the leaves that it exchanges.
        self.completions: dict[tuple[int, tuple[Leaf, ...]], Completion] = {}
        self.programs: dict[Any, Callable[..., Any]] = {}  # compiled means
        self._warned = False
        self._reported: Exception | None = None
        self.last_words = "its session was closed after an error"  # see `fail`
        self.reach: Callable[[str], None] = lambda point: None  # injects faults
        self.closing: list[Callable[[bool], None]] = []  # called with whether an error came first
        self.observers: list[Callable[[str, int | None, str], None]] = []  # see `note`
        self.timeline = Timeline()
        self.recorder: Recorder | None = None
        # If the settings are invalid, this node still has to report it to the others.
        limit = 60.0 if invalid is not None else timeout_seconds
        if self.simulated and comm is None and launched_ranks() == 1:
            self.topology = Topology(0, 1, socket.gethostname())  # MPI need not be there
        else:
            self.topology = find_topology(comm, limit or _START_SECONDS)
        self.control = Control(self.topology, limit)
        _exit.watch(self)
        try:
            self._agree_on_start(invalid, share_gpus, on_death, records=trace is not None)
            if self.control.alone and comm is None and not self.simulated:
                _say_alone(has_mpi=self.topology.comm is not None)
            if self.simulated:  # also if a launcher started several: each has virtual nodes
                self.control.close(failed=False)
                self.topology = Topology(0, 1, self.topology.host)
                self.control = Control(self.topology, limit)
            self.node = self.topology.node
            self.num_nodes = self.virtual.nodes if self.virtual else self.topology.num_nodes
            self._links = Links(self.control)
            self.comparison = Comparison(self.control, virtual=self.simulated)
            say_rank(self.node, self.topology.host)
            self._begin()
            if trace is not None:
                about = {"engine": engine, "devices": len(self.devices)}
                self.recorder = Recorder(trace, self.control, self.timeline, **about)
            if on_death == "shrink":
                self.control.survive()
        except BaseException as error:
            self.closed = True
            self.control.detector.fail(summary(error))
            if self.recorder is not None:
                self.recorder.close(failed=True)
            self.control.close(failed=True)
            _exit.unwatch(self, failed=True)
            raise

    def _begin(self) -> None:
        self.devices = jax.local_devices()
        self.mesh = jax.make_mesh(
            (len(self.devices),),
            ("local",),
            devices=self.devices,
            axis_types=(jax.sharding.AxisType.Auto,),
        )
        self._check_threads()
        self._check_host_device()
        devices = self.control.allgather("start a session", np.array([len(self.devices)]))[:, 0]
        if len(set(devices.tolist())) > 1 and self.node == 0:
            log.warning(
                "%s The nodes drive different numbers of devices (%s). If they process different "
                "numbers of samples per step, pass these: tx.update(..., weight=samples).",
                self.topology.prefix(),
                ", ".join(map(str, devices)),
            )

    @property
    def simulated(self) -> bool:
        """True if the nodes are virtual nodes of one device."""
        return self.virtual is not None

    @property
    def sends(self) -> bool:
        """True if steps call the host to exchange with other nodes."""
        return self.num_nodes > 1 and not self.simulated

    @property
    def living(self) -> tuple[int, ...]:
        """Nodes that had not failed when all hosts last communicated; see `share`."""
        return self.control.living if not self.simulated else tuple(range(self.num_nodes))

    def share(self) -> tuple[int, int]:
        """Returns this node's part of the work: its index among living nodes, and their number.

        All nodes call this together, for example before each epoch, and get parts that fit:
        ``jdaso.data.batches(..., node=part, num_nodes=parts)``. With ``on_death="end"`` the result
        is always ``(node, num_nodes)``.

        Raises:
            NodeError: a node failed or timed out.
        """
        self.require_usable()
        if self.control.survives:
            self.control.everyone("share out the work", "")
            return self.living.index(self.node), len(self.living)
        return self.node, self.num_nodes

    @property
    def stats(self) -> Stats:
        """Running totals of this node: exchanges, bytes, seconds, share hidden.

        Exchanges between replicas of a pipeline's partition are included.
        """
        inner = (session.timeline.stats for session in self.of_replicas.values())
        return Stats(*map(sum, zip(self.timeline.stats, *inner, strict=True)))

    def note(self, kind: str, step: int | None, text: str = "") -> None:
        """Passes a "checkpoint" or a "fault" to all observers of the run, before it returns."""
        for observer in list(self.observers):
            observer(kind, step, text)

    def agree(self, what: str, facts: Facts) -> None:
        """Raises `NodeError` on every node unless all hold the same facts."""
        self.require_usable()
        self.control.agree(what, facts)

    def channel(self, layout: Layout, wire: Wire, name: str) -> Channel:
        """The channel of a layout on a wire; all nodes open it together at its first use."""
        self.require_usable()
        key = (layout, wire, name)
        if key not in self._channels:
            facts = [("optimizer", f"{name} on {wire.name}"), ("chunks", str(layout.widths))]
            self.control.agree("open a channel", facts)
            reducer = make_reducer(
                self.engine,
                wire,
                layout.nodes,
                self.control.duplicate,
                check=self.control.check,
                limit_seconds=_DAY_SECONDS,  # waits of steps have shorter limits of their own
                bytes_per_second=self._links.bytes_per_second,
                survives=self.control.survives,
            )
            channel = Channel(
                layout,
                wire,
                reducer,
                self.control,
                self.timeline,
                sends=self.engine != "instant",
                number=1 + len(self._channels),
            )
            self._channels[key] = channel
        return self._channels[key]

    def number_optimizer(self) -> int:
        """Returns the next optimizer's number; equal on nodes that make them in the same order."""
        self.optimizers += 1
        return self.optimizers

    def warn_past_end(self, total_steps: int) -> None:
        """Warns once that the run has passed its end."""
        if not self._warned:
            self._warned = True
            log.warning(
                "%s The run has passed total_steps=%d and goes on blocking at every step. Give "
                "Phases the number of updates that you mean to make.",
                self.topology.prefix(),
                total_steps,
            )

    def require_usable(self) -> None:
        """Raises if the session was closed, or this is not the thread that made it."""
        if self._disowned:
            raise RuntimeError(
                f"{self.topology.prefix()} This process was forked from the one that the session "
                "belongs to, and is no node. Make the calls in the process that made the session."
            )
        if self.closed:
            raise RuntimeError(
                f"{self.topology.prefix()} This session was closed. Use it inside its with block, "
                "or make another Session."
            )
        if threading.get_ident() != self._owner:
            raise RuntimeError(
                f"{self.topology.prefix()} A session belongs to the thread that made it; "
                f"{threading.current_thread().name} is another one, and calls of two threads could "
                "reach the nodes in different orders. Make the calls from one thread."
            )

    def report(
        self,
        heads: np.ndarray,
        leaves: tuple[str, ...],
        common: tuple[str, ...] = (),
        prints: np.ndarray | None = None,
    ) -> None:
        """Raises the error that the headers of an exchange report, if any; the same on all nodes.

        Args:
            heads: headers of all nodes.
            leaves: paths of the leaves that were exchanged.
            common: paths of the leaves that must be replicated.
            prints: checksums of those leaves; with virtual nodes, of all nodes.
        """
        step = int(heads[self.node % len(heads), STEP])
        error = None
        if (heads[:, STATUS] == FAILED).any():
            error = self.control.broken or self.control.refused
            error = error or self.control.error("An exchange failed.", step)
        elif (text := self.comparison.complaint(heads, leaves, common, prints)) is not None:
            error = self.control.error(text, step)
        if error is not None:
            self._reported = error
            raise error

    @contextlib.contextmanager
    def told(self) -> Iterator[None]:
        """Re-raises errors of `report` from programs run inside it, without JAX's wrapping."""
        self._reported = None
        try:
            yield
        except STEP_ERRORS as error:
            if self._reported is None:
                raise
            raise self._reported from error

    def disown(self) -> None:
        """Leaves the session to the process from which this one was forked; closes nothing."""
        self.closed = self._disowned = True

    def fail(self, text: str) -> None:
        """Notifies the other nodes that this one failed; their waits raise `NodeError`."""
        self.last_words = text
        if not self.control.alone and not self.closed:
            if self.control.known.failure is None:
                say_failed()
            where = f"node {self.node} on host {self.topology.host}"
            self.control.detector.fail(f"{where} failed: {text}")

    def close(self) -> None:
        """Completes exchanges in flight and frees all resources; may be called twice.

        Raises:
            NodeError: an exchange could not be completed. The session is closed all the same.
        """
        self._close(after_error=False)

    def _close(self, after_error: bool) -> None:
        """See `close`; after an error of the program itself, raises nothing else."""
        if self.closed:
            return
        failed = after_error
        known, unsaid = self.control.broken, None
        for close in list(self.closing):
            try:
                close(after_error)
            except Exception as error:  # close the rest all the same
                unsaid = error
                if isinstance(error, NodeError):
                    failed = True
                    self.fail(summary(error))
        ended = True
        try:
            self.control.see_end(steps_called(self.devices), "steps that it has called")
        except NodeError as error:
            failed, ended, unsaid = True, False, error
            self.fail(summary(error))
        except STEP_ERRORS as error:
            # Reading the step's result raises this too. It must not prevent closing.
            level = logging.DEBUG if after_error else logging.ERROR
            log.log(level, "A step failed before the session was closed: %s", error)
        failed = failed or bool(self.control.broken or self.control.known.failure)
        limit = 1.0 if failed else None
        for channel in self._channels.values():
            ended &= channel.close(limit, after_error=after_error)
            limit = limit if self.control.broken is None else 1.0
        error = self.control.broken if self.control.broken is not known else None
        if error is not None:
            self.fail(summary(error))
        failed = failed or error is not None
        self.closed = True
        if self.recorder is not None:
            self.recorder.close(failed=failed or not ended)
        self.control.close(failed or not ended)
        forget(self, self.control.closed_error())
        _exit.unwatch(self, failed=failed, stuck=not ended)
        if not failed:
            say_through()
        if not after_error and (error or unsaid) is not None:
            raise error or unsaid  # pyright: ignore[reportGeneralTypeIssues]

    def __enter__(self) -> Session:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace
    ) -> None:
        done = kind is SystemExit and not getattr(error, "code", 0)
        if kind is None or done or isinstance(error, Stopped):
            self.close()
            return
        assert error is not None
        self.fail(summary(error))
        try:
            self._close(after_error=True)
        except Exception:
            traceback.print_exc()

    def _agree_on_start(
        self, invalid: Exception | None, share_gpus: bool, on_death: str, *, records: bool
    ) -> None:
        raised = invalid
        if raised is None:
            try:
                claim_gpus(
                    self.topology,
                    share=share_gpus,
                    on_cpus=computes_on_cpus(),
                    started=backend_started(),
                )
                check_engine(self.engine, self.topology.num_nodes)
            except (ImportError, NodeError) as error:
                raised = error
        status = "starts" if raised is None else str(raised)
        versions = [("the jdaso version", __version__), ("the JAX version", jax.__version__)]
        facts = [*versions, ("the engine", self.engine), ("on_death", on_death)]
        facts.append(("whether a trace is recorded", "yes" if records else "no"))
        facts.append((f"engine {self.engine}", status))
        self.control.agree("start a session", facts)
        if raised is not None:
            raise raised

    def _check_threads(self) -> None:
        devices = len(self.devices)
        if self.simulated or self.num_nodes == 1 or self.devices[0].platform != "cpu":
            return
        if not cpu_threads_reserved(devices):
            raise RuntimeError(
                f"{self.topology.prefix()} JAX started {devices} CPU devices before jdaso could "
                "reserve enough threads for their waits, and the run would hang. Make the Session "
                f"before the first use of a device, or set the environment variable NPROC to "
                f"{4 * devices + 8} or more."
            )

    def _check_host_device(self) -> None:
        if not has_cpu_device():
            raise RuntimeError(
                f"{self.topology.prefix()} JAX has no CPU device beside {self.devices[0]}, and its "
                "host callbacks need one: JAX_PLATFORMS names other platforms only. Add cpu at its "
                "end, JAX_PLATFORMS=cuda,cpu, or leave it unset."
            )


@functools.cache
def _say_alone(*, has_mpi: bool) -> None:
    why = why_alone() or ("mpiexec -n N starts more" if has_mpi else "no MPI library was found")
    log.warning("jdaso runs on one node: %s.", why)


def _check_on_death(on_death: str, engine: str, *, several: bool) -> ValueError | None:
    if on_death not in ("end", "shrink"):
        return ValueError(f'on_death must be "end" or "shrink", got {on_death!r}.')
    if on_death == "end" or not several:
        return None
    if engine != "mpi4py":
        return ValueError(f'on_death="shrink" needs engine="mpi4py", got {engine!r}.')
    if not survives_deaths():
        return ValueError(
            'on_death="shrink" needs Open MPI, and to be started with mpiexec --with-ft ulfm: '
            "without it MPI ends the whole job when a process dies."
        )
    return None


def _check_settings(
    engine: str, virtual: Simulated | None, timeout_seconds: float | None
) -> ValueError | None:
    """Returns an error about the settings. It is not raised here: all nodes must agree on it."""
    if engine not in ENGINES or (engine == "simulated" and virtual is None):
        names = ", ".join(f'"{name}"' for name in ENGINES if name != "simulated")
        return ValueError(
            f"engine must be one of {names}, or jdaso.Simulated(nodes=...), got {engine!r}."
        )
    if timeout_seconds is not None and not 0 < timeout_seconds <= _LONGEST_SECONDS:
        return ValueError(
            f"timeout_seconds must be above 0 and at most {_LONGEST_SECONDS:g} (a year), got "
            f"{timeout_seconds}."
        )
    return None
