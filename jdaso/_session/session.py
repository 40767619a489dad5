"""Resources of a node: communicators, threads and buffers, from a `Session` to its `close()`."""

from __future__ import annotations

import os
import traceback
from contextlib import AbstractContextManager
from typing import Any

import numpy as np

from .._base.errors import Stopped, summary
from .._engines.channel import Channel
from .._engines.simulated import Simulated
from .._jax.ffi.functions import forget
from .._launch.reports import say_failed, say_rank, say_through
from .._mpi.topology import Topology
from .._nodes import exit as _exit
from .._nodes.control import Control, Facts
from .._payload.layout import Layout
from .._payload.wire import WIRES, Wire
from ..traces._recorder import TraceRecorder
from ..traces._timeline import Stats, Timeline
from .access import Access
from .channels import Channels
from .devices import check_devices, compare_devices, local_mesh
from .ending import end_work
from .hooks import Hooks
from .joining import join_ranks
from .optimizers import Optimizers
from .replicas import Replicas
from .reports import Reports
from .settings import check_settings
from .start import agree_on_start, begin_together, prepare_process, say_alone, topology_of


class Session:
    """This node's part in a run over several nodes.

    A node is one MPI rank and the JAX devices that it drives, or several ranks that are one JAX
    world (`ranks_per_node`). The session owns what MPI needs (duplicates of the communicator, and a
    thread for each kind of exchange) and frees it in `close()`; use the session as a context
    manager. All nodes make and close their sessions together (simulated ones too, if a
    launcher started several ranks). Use a session from the thread that made it.

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
            If None, it is derived from past waits: 100 times the longest of the last 16 of their
            kind (of calls, those over 15 s count), but at least 600 s; for a node that has gone
            silent 20 times, but at least 60 s. A wait of more than twice the usual is logged, with
            the missing nodes and where their programs are.
        share_gpus: whether nodes on one host may use the same GPU.
        on_death: reaction if a node's process fails: ``"end"`` the job, or ``"shrink"`` it: the
            others go on without that node, at the latest after the exchange that detects the
            failure.
            ``"shrink"`` needs engine mpi4py and Open MPI's ``mpiexec --with-ft ulfm``.
        ranks_per_node: R. That many consecutive ranks are one node and one JAX world: arrays of a
            step lie on the devices of all of them, and rank i of a node exchanges its part with
            rank i of the other nodes. jdaso calls ``jax.distributed.initialize``, unless the
            program has joined the same ranks.
        trace: a folder into which each node writes its timeline while it runs:
            ``node-00003.jsonl`` for node 3, for `jdaso.traces` and Perfetto. Pass it on all nodes
            or on none; each node may have its own folder. None records nothing.

    Attributes:
        node: this node's number, 0..num_nodes - 1.
        num_nodes: P.
        devices: the JAX devices that this node drives, those of all its ranks.
        mesh: a mesh of them, axis ``"local"``.
        node_axis: ``"node"``, the name of the virtual nodes' axis.
        timeline: this node's activities with their times; a `Timeline`.
        began: when the session began: ``unix_seconds`` by node 0's host, the same on all nodes, and
            ``seconds`` by this node's `time.perf_counter`.

    Raises:
        ValueError: unknown engine, or settings of another engine.
        RuntimeError: JAX made its CPU devices before the session, or has none.
        ImportError: mpi4jax is missing, or was built for another MPI.
        NodeError: the nodes disagree; the launcher is of another MPI; MPI has no
            ``THREAD_MULTIPLE``; more ranks than GPUs on a host; R does not divide the number of
            ranks, or they are joined otherwise.

    On failure: a node whose program ends with an exception notifies the others. Whatever they wait
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
        ranks_per_node: int = 1,
        trace: str | os.PathLike[str] | None = None,
    ):
        self.virtual = engine if isinstance(engine, Simulated) else None
        self.engine = engine = "simulated" if isinstance(engine, Simulated) else engine
        invalid = check_settings(engine, self.virtual, timeout_seconds, on_death, ranks_per_node)
        joined = ranks_per_node > 1
        prepare_process(comm, sends=invalid is None and not self.simulated, joined=joined)
        self._access = Access()
        self.timeout_seconds = timeout_seconds
        self.last_words = "its session was closed after an error"  # see `fail`
        self._failed = False
        self.hooks, self.replicas = Hooks(), Replicas[Session]()
        self.timeline = Timeline()
        self.recorder: TraceRecorder | None = None
        # If the settings are invalid, this node still has to report it to the others.
        limit = 60.0 if invalid is not None else timeout_seconds
        self.topology = topology_of(comm, limit, ranks_per_node, simulated=self.simulated)
        self.control = self.all_ranks = Control(self.topology, limit)
        _exit.watch(self)
        try:
            recorded = "whether a trace is recorded", "yes" if trace is not None else "no"
            settings = [("on_death", on_death), recorded]
            agree_on_start(self.control, engine, settings, invalid, share_gpus=share_gpus)
            if self.control.alone and comm is None and not self.simulated:
                say_alone(has_mpi=self.topology.comm is not None)
            if self.simulated:  # also if a launcher started several: each has virtual nodes
                self.all_ranks.close(failed=False)
                self.topology = Topology(0, 1, self.topology.host)
                self.control = self.all_ranks = Control(self.topology, limit)
            join_ranks(self.all_ranks, limit)
            self.control = self.all_ranks.across()
            inside = self.all_ranks.inside() if joined else None
            self.node = self.topology.node
            self.num_nodes = self.virtual.nodes if self.virtual else self.topology.num_nodes
            name = self.topology.name(self.topology.rank)
            say_rank(name.removeprefix("node "), self.topology.host)
            self.mesh = local_mesh(joined=joined)
            self.devices = list(self.mesh.devices.flat)
            check_devices(self.topology, self.devices, sends=self.sends)
            compare_devices(self.control, len(self.devices))
            self.began = begin_together(self.control)
            self.optimizers = Optimizers(self.topology.prefix())
            ranks = self.control, self.all_ranks, inside
            self._channels = Channels(engine, *ranks, self.timeline)
            self._reports = Reports(self.control, self.node, virtual=self.simulated)
            if trace is not None:
                about = {"engine": engine, "devices": len(self.devices)}
                self.recorder = TraceRecorder(trace, self.control, self.timeline, **about)
            if on_death == "shrink":
                self.control.survive()
        except BaseException as error:
            self._access.close()
            if self.control.known.failure is None:
                say_failed()
            self.control.detector.fail(self._failure(summary(error)))
            if self.recorder is not None:
                self.recorder.close(failed=True)
            self.all_ranks.close(failed=True)
            _exit.unwatch(self, failed=True)
            raise

    @property
    def closed(self) -> bool:
        """True once the session was closed."""
        return self._access.closed

    @property
    def ranks_per_node(self) -> int:
        """R, the number of ranks that are one node."""
        return self.topology.ranks_per_node

    @property
    def joined(self) -> bool:
        """True if a node has several ranks, which are one JAX world."""
        return self.ranks_per_node > 1

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

        All nodes call this together, for example before each epoch, and get matching parts:
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
        return self.replicas.stats_with(self.timeline.stats)

    def agree(self, what: str, facts: Facts) -> None:
        """Raises `NodeError` on every rank unless all hold the same facts; a collective call.

        Without facts, all ranks only wait for each other.

        Args:
            what: the call, in the words of an error: ``"restore a checkpoint"``.
            facts: pairs of a name and a value as text.
        """
        self.require_usable()
        self.control.check()  # after an error here the others may wait in another call
        self.all_ranks.agree(what, facts)

    def channel(self, layout: Layout, wire: Wire, name: str) -> Channel:
        """The channel of a layout on a wire; all nodes open it together at its first use."""
        self.require_usable()
        return self._channels.of(layout, wire, name)

    def fastest_wire(self) -> Wire:
        """The wire with the shortest exchanges on these links; a collective call.

        Raises:
            NodeError: other nodes make another call.
            ValueError: the session goes on when a node fails, and measures no links.
        """
        self.require_usable()
        if self.control.survives:
            raise ValueError(
                'wire="auto" measures the links, which a session with on_death="shrink" does not: '
                'a node could fail meanwhile. Name the wire: wire="int4" on links below 3 Gbit/s.'
            )
        return self._channels.fastest_wire() if self.sends else WIRES["float32"]

    def go_on_with(self, wire: Wire) -> None:
        """Makes a wire of an earlier run the result of `fastest_wire`, before the first update.

        A collective call. A wire that compiled updates already use stays.
        """
        self._channels.go_on_with(wire)

    def require_usable(self) -> None:
        """Raises if the session was closed, or this is not the thread that made it."""
        self._access.check(self.topology.prefix())

    def report(
        self,
        heads: np.ndarray,
        leaves: tuple[str, ...],
        common: tuple[str, ...] = (),
        prints: np.ndarray | None = None,
    ) -> None:
        """Raises the error that the headers of an exchange report; see `Reports.check`."""
        self._reports.check(heads, leaves, common, prints)

    def told(self) -> AbstractContextManager[None]:
        """Context that re-raises errors of `report` without JAX's wrapping."""
        return self._reports.told()

    def disown(self) -> None:
        """Leaves the session to the process from which this one was forked; closes nothing."""
        self._access.disown()

    def fail(self, text: str) -> None:
        """Notifies the other nodes that this one failed; their waits raise `NodeError`."""
        self.last_words = text
        if not self.control.alone and not self.closed:
            if self.control.known.failure is None:
                say_failed(peers=self.joined and not self._failed)
                self._failed = True
            self.control.detector.fail(self._failure(text))

    def _failure(self, text: str) -> str:
        where = f"{self.topology.name(self.topology.rank)} on host {self.topology.host}"
        return f"{where} failed: {text}"

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
        work = self.control, self.hooks.closers, self.devices, self._channels, self.fail
        ending = end_work(*work, after_error=after_error)
        incomplete = ending.failed or ending.stuck
        self._access.close()
        if self.recorder is not None:
            self.recorder.close(failed=incomplete)
        self.all_ranks.close(failed=incomplete)
        forget(self, self.control.closed_error())
        _exit.unwatch(self, failed=ending.failed, stuck=ending.stuck)
        if not ending.failed and not _exit.open_members():
            say_through()
        if not after_error and ending.error is not None:
            raise ending.error

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
