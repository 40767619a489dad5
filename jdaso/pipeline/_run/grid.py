"""The arrangement of nodes in replicas and partitions."""

from __future__ import annotations

import dataclasses

from ..._nodes.mail import Address
from ..._session import Session


@dataclasses.dataclass(frozen=True)
class Grid:
    """Nodes in rows of K: node n is partition ``n % K`` of replica ``n // K``.

    So the ranks of one pipeline, which exchange most, are adjacent: launchers fill hosts in the
    order of ranks.
    """

    session: Session
    partitions: int

    @classmethod
    def of(cls, session: Session, partitions: int) -> Grid:
        """Makes the grid of a session's nodes.

        Raises:
            ValueError: the nodes do not fill the grid.
        """
        if session.simulated:
            raise ValueError(
                "A pipeline needs real nodes, got jdaso.Simulated. Start it with mpiexec -n N."
            )
        if session.joined:
            raise ValueError(
                f"A pipeline takes nodes of one rank, got ranks_per_node={session.ranks_per_node}. "
                "Leave it out: each rank is a partition then."
            )
        if session.control.survives and partitions > 1:
            raise ValueError(
                f'on_death="shrink" continues without a node, but with {partitions} partitions '
                'none can be spared. Use Session(on_death="end"), or strategy="data".'
            )
        if session.num_nodes % partitions:
            raise ValueError(
                f"{session.num_nodes} nodes cannot form pipelines of num_partitions="
                f"{partitions}. Start a multiple of {partitions} (mpiexec -n {partitions})."
            )
        return cls(session, partitions)

    @property
    def partition(self) -> int:
        """This node's partition."""
        return self.session.node % self.partitions

    @property
    def replica(self) -> int:
        """This node's replica."""
        return self.session.node // self.partitions

    @property
    def num_replicas(self) -> int:
        """R, the number of replicas."""
        return self.session.num_nodes // self.partitions

    def address(self, partition: int, tag: int) -> Address:
        """Returns the address of a message from or to another rank of this node's pipeline."""
        return Address(self.replica * self.partitions + partition, tag)

    def replicas(self) -> Session:
        """Returns a session of the nodes that hold this partition; it closes with the grid's."""
        session = self.session
        if self.partitions == 1:
            return session
        if (found := session.replicas.find(self.partitions)) is not None:
            return found
        comm = session.control.split(session.topology.comm, self.partition, self.replica)
        inner = Session(
            comm=comm,
            engine=session.engine,
            timeout_seconds=session.timeout_seconds,
            share_gpus=True,
        )
        # Waits and the ends of data concern all nodes and the whole process, not one session.
        inner.control.known.share(session.control.known)
        inner.timeline.copy_to(session.timeline.sink)  # its exchanges are in the same trace
        inner.hooks.on_note(session.hooks.note)  # as are its saves, for records and faults
        session.hooks.on_settle(inner.hooks.settle)
        inner.hooks.on_point(session.hooks.reach)
        session.replicas.keep(self.partitions, inner)

        def close(after_error: bool) -> None:
            if after_error:
                inner.fail(session.last_words)
                inner._close(after_error=True)
            else:
                inner.close()

        session.hooks.on_close(close)
        return inner
