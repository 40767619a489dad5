"""Which node is which partition of which replica."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable

import numpy as np

from .._heartbeat import CALLS
from .._poll import poll
from .._session import Session
from .._watchdog import Wait
from ._mail import Address


@dataclasses.dataclass(frozen=True)
class Grid:
    """Nodes in rows of K: node n is partition ``n % K`` of replica ``n // K``.

    So the ranks of one pipeline, which talk most, are next to each other: launchers fill hosts in
    the order of ranks.
    """

    session: Session
    partitions: int

    @classmethod
    def of(cls, session: Session, partitions: int) -> Grid:
        """The grid of a session's nodes.

        Raises:
            ValueError: the nodes do not fill it.
        """
        if session.simulated:
            raise ValueError(
                'A pipeline needs real nodes, got engine="simulated". Start it with mpiexec -n N.'
            )
        if session.control.survives and partitions > 1:
            raise ValueError(
                f'on_death="shrink" goes on without a node, and with {partitions} partitions none '
                'can be spared. Use Session(on_death="end"), or strategy="data".'
            )
        if session.num_nodes % partitions:
            raise ValueError(
                f"{session.num_nodes} nodes cannot be pipelines of num_partitions={partitions} "
                f"each. Start a multiple of {partitions} (mpiexec -n {partitions})."
            )
        return cls(session, partitions)

    @property
    def partition(self) -> int:
        """This node's."""
        return self.session.node % self.partitions

    @property
    def replica(self) -> int:
        """This node's."""
        return self.session.node // self.partitions

    @property
    def num_replicas(self) -> int:
        """R."""
        return self.session.num_nodes // self.partitions

    def address(self, partition: int, tag: int) -> Address:
        """A message from or to another rank of this node's pipeline."""
        return Address(self.replica * self.partitions + partition, tag)

    def gatherer(self) -> Callable[[np.ndarray], np.ndarray]:
        """Brings together what the ranks of this node's pipeline hold, ``[partitions, ...]``.

        It may be called from any thread, on all of them in the same order.
        """
        session = self.session
        if self.partitions == 1:
            return lambda array: array[None]
        comm = session.control.duplicate().comm
        comm = session.control.split(comm, self.replica, self.partition)
        nodes = [self.replica * self.partitions + k for k in range(self.partitions)]

        def gather(array: np.ndarray) -> np.ndarray:
            from mpi4py import MPI

            out = np.empty((self.partitions, *array.shape), array.dtype)
            request = comm.Iallgather([array, MPI.BYTE], [out, MPI.BYTE])
            doing = "waits for sums over all partitions"
            wait = Wait(
                session.control.lookout,
                "sum over partitions",
                doing,
                call=0,
                column=CALLS,
                nodes=nodes,
            )

            def check() -> None:
                if (why := wait.why_no_longer()) is not None:
                    raise session.control.error(why)

            with session.control.explained():
                poll(request.Test, check, math.inf, 2e-4)
            return out

        return gather

    def replicas(self) -> Session:
        """A session of the nodes that hold this partition; it is closed with the grid's."""
        session = self.session
        if self.partitions == 1:
            return session
        if self.partitions in session.of_replicas:
            return session.of_replicas[self.partitions]
        comm = session.control.split(session.topology.comm, self.partition, self.replica)
        inner = Session(
            comm=comm,
            engine=session.engine,
            timeout_seconds=session.timeout_seconds,
            share_gpus=True,
        )
        # Of all nodes, and of the program whatever session it is in.
        inner.control.lookout.batches = session.control.lookout.batches
        inner.control.lookout.waiting = session.control.lookout.waiting
        inner.timeline.sink = session.timeline.sink  # its exchanges are in the same trace
        session.of_replicas[self.partitions] = inner

        def close(after_error: bool) -> None:
            if after_error:
                inner.fail(session.last_words)
                inner._close(after_error=True)
            else:
                inner.close()

        session.closing.append(close)
        return inner
