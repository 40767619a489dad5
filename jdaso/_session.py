"""What the machine owns: communicators, threads and buffers, from a `Session` to its `close()`."""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import socket
import threading
import traceback
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import jax
import numpy as np

from . import _exit
from ._compat import (
    STEP_ERRORS,
    computes_on_cpus,
    cpu_threads_reserved,
    has_cpu_device,
    keep_freed_memory,
    reserve_cpu_threads,
    steps_called,
)
from ._control import Control, Facts
from ._deaths import say_failed, say_rank, say_through
from ._drift import Comparison
from ._engine import ENGINES, check_engine, make_reducer
from ._engine._channel import Channel
from ._environment import launched_ranks
from ._header import FAILED, STATUS, STEP
from ._host import survives_deaths
from ._packing import Layout, Leaf
from ._recorder import Recorder
from ._start import why_alone
from ._timeline import Stats, Timeline
from ._topology import Topology, claim_gpus, find_topology, members
from ._types import Leaves, NodeError, Stopped
from ._wire import wire_of

log = logging.getLogger("jdaso")

_DAY_SECONDS = 24 * 3600.0
_LONGEST_SECONDS = 365 * _DAY_SECONDS
_START_SECONDS = 600.0
"""The longest wait for all nodes to start, where no other limit is given."""


class Completion(NamedTuple):
    """How a run of one optimizer is completed.

    Attributes:
        complete: merges what is in flight, and adds what a wire owes, into float32 leaves.
        skips: whether numbers that are not finite are left out, and not an error.
        channel: gives the channel of its late exchanges; all nodes call it together.
    """

    complete: Callable[..., Leaves]
    skips: bool
    channel: Callable[[], Channel]


class Session:
    """This node's part in a run over several nodes.

    A node is one MPI rank and the JAX devices that it drives. The session owns what MPI needs
    (duplicates of the communicator; a thread and staging buffers for each kind of exchange) and
    gives it back in `close()`; use it as a context manager. All nodes make and close their
    sessions together (simulated ones too, where a launcher started several ranks), and use a
    session from the thread that made it.

    Several nodes on one host share out its GPUs here, so make the session before JAX's first use
    of a device. Without an MPI library or a launcher there is one node, and nothing is sent. Where
    several nodes compute on CPUs, glibc's malloc is set to keep freed memory, to the end of the
    process. Where it is what starts MPI, it sets ``UCX_RNDV_THRESH``, unless that is set.

    Args:
        comm: an mpi4py communicator of the nodes; ``MPI.COMM_WORLD`` where None. Of another one
            jdaso shares out a host's GPUs among its own ranks only, and a failure still ends the
            whole job.
        engine: ``"mpi4py"`` (non-blocking calls, errors raised instead of aborting), ``"mpi4jax"``
            (blocking calls in a thread of their own; blocking means inside of the compiled step
            where a node drives one device), ``"simulated"`` (virtual nodes under
            ``jax.vmap(step, axis_name=session.node_axis)``) or ``"instant"`` (sends nothing; the
            node's own numbers come back).
        num_nodes: number of virtual nodes; for ``"simulated"`` only.
        timeout_seconds: the longest that this node waits for the others, anywhere on the host.
            Where None that follows from what waits have taken so far: 100 times the longest of
            the last 16, at least 600 s; and 20 times, at least 60 s, for a node of which nothing
            is heard any more. A wait of more than twice the usual is reported in the log, with the
            nodes that are missing and where their programs are.
        share_gpus: whether nodes on one host may use the same GPU.
        on_death: what happens where a node's process dies: the job is to ``"end"``, or to
            ``"shrink"``: the others go on without it, after at most the exchange in which they
            notice. That needs engine mpi4py and Open MPI's ``mpiexec --with-ft ulfm``.
        exchange_steps: for ``"simulated"``: how many steps an exchange takes, as
            ``delay="auto"`` sees it; or a table ``{step: steps}`` of those that start at these
            steps, where all others take 1.
        faults: for ``"simulated"``: ``{(node, step): value}`` puts ``value`` (NaN, inf)
            in the first number of that node's snapshot of that step.
        trace: a folder into which each node writes what it does and when, while it runs:
            ``trace-00003.json`` of node 3, for `jdaso.traces` and Perfetto. Given on all nodes or
            on none; a folder of a node's own will do. None records nothing.

    Attributes:
        node: this node's number, 0..num_nodes - 1.
        num_nodes: P.
        devices: the JAX devices that this node drives.
        mesh: a mesh of them, axis ``"local"``.
        node_axis: ``"node"``, the name of the virtual nodes' axis.
        timeline: what this node did and when; a `Timeline`.

    Raises:
        ValueError: unknown engine, or settings of another one.
        ImportError: mpi4jax is missing, or was built for another MPI.
        NodeError: the nodes disagree; the launcher is of another MPI; MPI has no
            ``THREAD_MULTIPLE``; more nodes than GPUs on a host.

    On failure: a node whose program ends by an exception tells the others, which raise
    `NodeError` with its text in whatever they wait for; after some seconds the job is ended.

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
        engine: str = "mpi4py",
        *,
        num_nodes: int | None = None,
        timeout_seconds: float | None = None,
        share_gpus: bool = False,
        on_death: str = "end",
        exchange_steps: int | Mapping[int, int] = 1,
        faults: Mapping[tuple[int, int], float] | None = None,
        trace: str | os.PathLike[str] | None = None,
    ):
        invalid = _check_settings(engine, num_nodes, timeout_seconds, faults, exchange_steps)
        invalid = invalid or _check_on_death(on_death, engine, several=launched_ranks() > 1)
        if _exit.is_bereft():
            raise NodeError(
                "Nodes have died in this process's last session, and MPI cannot make another one "
                "without them. Start the job again."
            )
        reserve_cpu_threads()
        several = members(comm) != 1 and launched_ranks() > 1
        if several and invalid is None and engine != "simulated" and computes_on_cpus():
            keep_freed_memory()  # before MPI and XLA begin their threads
        self.engine = engine
        self.exchange_steps, self.faults = exchange_steps, dict(faults or {})
        self.closed = self._disowned = False
        self._owner = threading.get_ident()
        self._channels: dict[Any, Channel] = {}
        self.optimizers = self.mails = 0  # how many were made
        self.timeout_seconds = timeout_seconds
        self.of_replicas: dict[int, Session] = {}  # by the number of partitions
        self.facts: dict[int, Facts] = {}  # of each that was initialised, by its number
        # What `finalize` does, by the optimizer's number and the leaves that its exchanges take.
        self.completions: dict[tuple[int, tuple[Leaf, ...]], Completion] = {}
        self.programs: dict[Any, Callable[..., Any]] = {}  # compiled means
        self._warned = False
        self._reported: Exception | None = None
        self.last_words = "its session was closed after an error"  # see `fail`
        self.reach: Callable[[str], None] = lambda point: None  # for faults on purpose
        self.closing: list[Callable[[bool], None]] = []  # told whether it is after an error
        self.observers: list[Callable[[str, int | None, str], None]] = []  # see `note`
        self.timeline = Timeline()
        self.recorder: Recorder | None = None
        # Where it is invalid, the others are still to be told.
        limit = 60.0 if invalid is not None else timeout_seconds
        if engine == "simulated" and comm is None and launched_ranks() == 1:
            self.topology = Topology(0, 1, socket.gethostname())  # MPI need not be there
        else:
            self.topology = find_topology(comm, limit or _START_SECONDS)
        self.control = Control(self.topology, limit)
        _exit.watch(self)
        try:
            self._agree_on_start(invalid, share_gpus, on_death, records=trace is not None)
            if self.control.alone and comm is None and not self.simulated:
                _say_alone(has_mpi=self.topology.comm is not None)
            if self.simulated:  # also where a launcher started many: each has virtual nodes
                self.control.close(failed=False)
                self.topology = Topology(0, 1, self.topology.host)
                self.control = Control(self.topology, limit)
            self.node = self.topology.node
            self.num_nodes = num_nodes or self.topology.num_nodes
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
            self.control.lookout.fail(_exit.summary(error))
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
        # Nodes may have different devices; all of them average in the same way.
        about = np.array([self._runs_mpi4jax_in_steps(), len(self.devices)])
        able, devices = self.control.allgather("start a session", about).T
        self.in_step = bool(able.all())
        if len(set(devices.tolist())) > 1 and self.node == 0:
            log.warning(
                "%s The nodes drive different numbers of devices (%s). Where they take different "
                "numbers of samples a step, give these as tx.update(..., weight=samples).",
                self.topology.prefix(),
                ", ".join(map(str, devices)),
            )
        self.step_comm = self.control.duplicate().comm if self.in_step else None

    @property
    def simulated(self) -> bool:
        """Whether the nodes are virtual ones of one device."""
        return self.engine == "simulated"

    @property
    def sends(self) -> bool:
        """Returns whether steps call the host to talk to other nodes."""
        return self.num_nodes > 1 and not self.simulated

    def _runs_mpi4jax_in_steps(self) -> bool:
        """Whether this node's blocking means can be mpi4jax operations of the compiled step itself.

        mpi4jax works in programs of one device only; on a GPU it needs to be built for it.
        """
        if self.engine != "mpi4jax" or self.num_nodes == 1 or len(self.devices) > 1:
            return False
        if self.devices[0].platform == "cpu":
            return True
        import mpi4jax

        return self.devices[0].platform == "gpu" and mpi4jax.has_cuda_support()

    @property
    def living(self) -> tuple[int, ...]:
        """Nodes that have not died, as far as all knew when their hosts last spoke; see `share`."""
        return self.control.living if not self.simulated else tuple(range(self.num_nodes))

    def share(self) -> tuple[int, int]:
        """Which part of the work is this node's: its number among those that live, and theirs.

        All nodes call it together, for example before each epoch, and get parts that fit:
        ``jdaso.data.batches(..., node=part, num_nodes=parts)``. With ``on_death="end"`` that is
        always ``(node, num_nodes)``.

        Raises:
            NodeError: a node failed, or does not come.
        """
        self.require_usable()
        if self.control.survives:
            self.control.everyone("share out the work", "")
            return self.living.index(self.node), len(self.living)
        return self.node, self.num_nodes

    @property
    def stats(self) -> Stats:
        """Running totals of this node: exchanges, bytes, seconds, share hidden.

        Those between replicas of a pipeline's partition are in them.
        """
        inner = (session.timeline.stats for session in self.of_replicas.values())
        return Stats(*map(sum, zip(self.timeline.stats, *inner, strict=True)))

    def note(self, kind: str, step: int | None, text: str = "") -> None:
        """Tells who records the run of a "checkpoint" or a "fault", before this returns."""
        for observer in list(self.observers):
            observer(kind, step, text)

    def agree(self, what: str, facts: Facts) -> None:
        """Raises `NodeError` on every node unless all hold the same facts."""
        self.require_usable()
        self.control.agree(what, facts)

    def channel(self, layout: Layout, wire: str, name: str) -> Channel:
        """The channel of a layout on a wire, opened by all nodes together at its first use."""
        self.require_usable()
        key = (layout, wire, name)
        if key not in self._channels:
            facts = [("optimizer", f"{name} on {wire}"), ("chunks", str(layout.widths))]
            self.control.agree("open a channel", facts)
            fmt = wire_of(wire)
            reducer = make_reducer(
                self.engine,
                fmt,
                layout.nodes,
                self.control.duplicate,
                check=self.control.check,
                limit_seconds=_DAY_SECONDS,  # the waits of steps are watched over, and end sooner
                bytes_per_second=self.control.bytes_per_second,
                survives=self.control.survives,
            )
            channel = Channel(
                layout,
                fmt,
                reducer,
                self.control,
                self.timeline,
                sends=self.engine != "instant",
                number=1 + len(self._channels),
            )
            self._channels[key] = channel
        return self._channels[key]

    def number_optimizer(self) -> int:
        """A number for one more optimizer; nodes that make them in the same order give the same."""
        self.optimizers += 1
        return self.optimizers

    def warn_past_end(self, total_steps: int) -> None:
        """Says once that the run has passed its end."""
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
        """Raises what the headers of an exchange say, if anything; the same everywhere.

        Args:
            heads: of all nodes.
            leaves: paths of the leaves that were exchanged.
            common: of those that are to be the same on all nodes.
            prints: checksums of these; between virtual nodes, of all nodes.
        """
        self.control.lookout.abandon()  # the step will not say that it came back
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
        """What `report` raises in a program that is run here comes out as it is, not JAX's way."""
        self._reported = None
        try:
            yield
        except STEP_ERRORS as error:
            if self._reported is None:
                raise
            raise self._reported from error

    def disown(self) -> None:
        """Leaves the session to the process from which this one was forked: nothing is closed."""
        self.closed = self._disowned = True

    def fail(self, text: str) -> None:
        """Tells the other nodes that this one fails; what they wait for raises `NodeError`."""
        self.last_words = text
        if not self.control.alone and not self.closed:
            if self.control.lookout.failure is None:
                say_failed()
            where = f"node {self.node} on host {self.topology.host}"
            self.control.lookout.fail(f"{where} failed: {text}")

    def close(self) -> None:
        """Completes what is on the wire and gives everything back; may be called twice.

        Raises:
            NodeError: what was on the wire could not be completed. The session is closed then too.
        """
        self._close(after_error=False)

    def _close(self, after_error: bool) -> None:
        """See `close`; after an error of the program's own nothing is raised beside that."""
        if self.closed:
            return
        failed = after_error
        known, unsaid = self.control.broken, None
        for close in list(self.closing):
            try:
                close(after_error)
            except Exception as error:  # the rest is to be closed all the same
                unsaid = error
                if isinstance(error, NodeError):
                    failed = True
                    self.fail(_exit.summary(error))
        ended = True
        try:
            self.control.see_end(steps_called(self.devices), "steps that it has called")
        except NodeError as error:
            failed, ended, unsaid = True, False, error
            self.fail(_exit.summary(error))
        except STEP_ERRORS as error:
            # Whoever asks for the step's result is told. It must not keep us from closing.
            level = logging.DEBUG if after_error else logging.ERROR
            log.log(level, "A step failed before the session was closed: %s", error)
        failed = failed or bool(self.control.broken or self.control.lookout.failure)
        limit = 1.0 if failed else None
        for channel in self._channels.values():
            ended &= channel.close(limit, after_error=after_error)
            limit = limit if self.control.broken is None else 1.0
        error = self.control.broken if self.control.broken is not known else None
        if error is not None:
            self.fail(_exit.summary(error))
        failed = failed or error is not None
        self.closed = True
        if self.recorder is not None:
            self.recorder.close(failed=failed or not ended)
        self.control.close(failed or not ended)
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
        self.fail(_exit.summary(error))
        try:
            self._close(after_error=True)
        except Exception:
            traceback.print_exc()

    def _agree_on_start(
        self, invalid: Exception | None, share_gpus: bool, on_death: str, *, records: bool
    ) -> None:
        from . import __version__

        raised = invalid
        if raised is None:
            try:
                claim_gpus(self.topology, share=share_gpus)
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
                "give them threads enough to wait in, and the run would hang. Import jdaso before "
                f"the first use of a device, or set the environment variable NPROC to "
                f"{4 * devices + 8} or more."
            )

    def _check_host_device(self) -> None:
        if not has_cpu_device():
            raise RuntimeError(
                f"{self.topology.prefix()} JAX has no CPU device beside {self.devices[0]}, and its "
                "host callbacks need one: JAX_PLATFORMS names other platforms only. Add cpu at its "
                "end, JAX_PLATFORMS=cuda,cpu, or leave it unset."
            )


def guarded(function: Callable[..., Any], session: Session, refused: Any) -> Callable[..., Any]:
    """A callback that never raises: keeps the error for `Session.report`, returns `refused`.

    That is a value, or a function of the arguments.
    """

    def call(*args: Any) -> Any:
        try:
            if session.closed:
                raise session.control.closed_error()
            return function(*args)
        except Exception as error:
            session.control.broken = session.control.broken or error
            return refused(*args) if callable(refused) else refused

    return call


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
    engine: str,
    num_nodes: int | None,
    timeout_seconds: float | None,
    faults: Any,
    exchange_steps: Any,
) -> ValueError | None:
    """What is wrong with the settings. Not raised here: the other nodes have to hear of it."""
    if engine not in ENGINES:
        return ValueError(f"engine must be one of {', '.join(ENGINES)}, got {engine!r}.")
    if engine == "simulated" and (num_nodes is None or num_nodes < 1):
        return ValueError(
            f'engine="simulated" needs num_nodes, at least 1 virtual node, got {num_nodes}.'
        )
    if engine != "simulated" and (num_nodes is not None or faults or exchange_steps != 1):
        return ValueError(
            'num_nodes, faults and exchange_steps are for engine="simulated"; with '
            f"engine={engine!r} the number of nodes is the number of MPI ranks (mpiexec -n N), and "
            "exchanges take the time that they take."
        )
    times = exchange_steps.values() if isinstance(exchange_steps, Mapping) else [exchange_steps]
    if wrong := [steps for steps in times if not steps >= 1]:
        return ValueError(f"exchange_steps must be at least 1, got {wrong[0]}.")
    if timeout_seconds is not None and not 0 < timeout_seconds <= _LONGEST_SECONDS:
        return ValueError(
            f"timeout_seconds must be above 0 and at most {_LONGEST_SECONDS:g} (a year), got "
            f"{timeout_seconds}."
        )
    return None
