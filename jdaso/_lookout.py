"""How a node that fails, leaves or is stuck is noticed by the others, whatever they do meanwhile.

Nodes sound alarms on a communicator of their own, and a thread looks out for those of others.
"""

from __future__ import annotations

import logging
import threading
import time
from typing import Any

from ._topology import Topology, poll

log = logging.getLogger("jdaso")

_FAILED, _FOLLOWED, _LEFT, _ENDED = 1, 2, 3, 4
"""Tags of alarms: a node failed; it failed because another did; it ended its session; its program
has ended after a failure, and has nothing more to say."""

_GRACE_SECONDS = 5.0
"""How long a node goes on waiting after another one left: its last messages may be on the way."""

_PARTING_SECONDS = 2.0
"""How long a node that ends its session waits to hear the same from the others."""

_LOOK_SECONDS = 0.2
"""How often a node looks whether another one sounded the alarm."""


class Lookout:
    """What this node knows of the others' ends, and says of its own.

    Attributes:
        failure: what another node said before it failed.
        failed: nodes that have failed, be it because of this one.
        left: nodes that ended their session.
        ended: nodes whose program has ended after a failure.

    On failure: no method raises. Where the compiled step itself waits in MPI for what cannot come,
    the look-out ends the job (`enter`).
    """

    def __init__(self, topology: Topology, timeout_seconds: float):
        self.topology, self.timeout_seconds = topology, timeout_seconds
        self.failure: str | None = None
        self.failed: set[int] = set()
        self.left: set[int] = set()
        self.ended: set[int] = set()
        self._closed = False
        self._comm: Any = None
        self._blocked: list[tuple[float, int]] = []  # since when, and in which step
        self._stop = threading.Event()
        self._alarms_out: list[tuple[Any, bytes]] = []  # requests and the text they send
        self._thread = threading.Thread(target=self._look, name="jdaso-lookout", daemon=True)

    def begin(self, comm: Any) -> None:
        """Begins to look out, on a communicator that nobody else uses. Before, nothing is heard."""
        self._comm = comm
        self._thread.start()

    def why_wait_no_longer(self, waited_seconds: float, what: str) -> str | None:
        """What ends a wait for other nodes early, if anything does.

        Args:
            waited_seconds: how long this node has waited.
            what: what it does, "waits for ...".
        """
        if self.failure is not None:
            return self.failure
        if waited_seconds <= _GRACE_SECONDS:
            return None
        if self.failed:
            return f"{_names(self.failed)} failed while this node {what}."
        if self.left:
            return (
                f"{_names(self.left)} ended the session while this node {what}. All nodes must "
                "make the same calls and the same number of updates."
            )
        return None

    def fail(self, text: str) -> None:
        """Tells all others that this node has failed; does not wait for them."""
        self._sound(_FAILED if self.failure is None else _FOLLOWED, text)

    def end(self) -> None:
        """Tells all others that this node's program has ended after a failure."""
        self._sound(_ENDED, "")

    def all_failed(self) -> bool:
        """Whether all other nodes have failed too."""
        return len(self.failed) >= self.topology.num_nodes - 1

    def all_ended(self) -> bool:
        """Whether all other nodes have said that their program has ended after a failure."""
        return len(self.ended) >= self.topology.num_nodes - 1

    def enter(self, step: int) -> None:
        """The compiled step goes into MPI by itself; from here the look-out watches over it."""
        self._blocked.append((time.perf_counter(), step))

    def leave(self) -> float:
        """The compiled step came back from MPI; returns how many seconds it was there.

        A step may hold several means, and XLA may enter the next before it leaves the last.
        """
        blocked = self._blocked
        begin, _ = blocked.pop(0) if blocked else (time.perf_counter(), 0)
        return time.perf_counter() - begin

    def abandon(self) -> None:
        """An error ends the step: none of its means is waited for any more."""
        self._blocked = []

    def close(self, failed: bool) -> bool:
        """Tells the others that this node ends its session; whether it heard the same from them.

        A node that ended first does not wait for the others for long. After a failure the look-out
        stays, to hear whether the others have failed too.
        """
        ended, self._closed, self._blocked = self._closed, True, []
        if ended or failed or self._comm is None:
            return False
        self._sound(_LEFT, "")
        self.stop()

        def parted() -> bool:
            self._take_alarms()
            self._alarms_out = [(sent, text) for sent, text in self._alarms_out if not sent.Test()]
            return not self._alarms_out and len(self.left) == self.topology.num_nodes - 1

        if not poll(parted, lambda: None, _PARTING_SECONDS):
            return False
        self._comm.Free()
        self._comm = None
        return True

    def stop(self) -> None:
        """Stops looking out: makes no more MPI calls of its own accord."""
        if self._comm is not None:
            self._stop.set()
            self._thread.join(timeout=2.0)

    def _sound(self, tag: int, text: str) -> None:
        if self._comm is None:
            return
        from mpi4py import MPI

        payload = text.encode()[:8192]
        for node in range(self.topology.num_nodes):
            if node != self.topology.node:
                request = self._comm.Isend([payload, len(payload), MPI.BYTE], dest=node, tag=tag)
                self._alarms_out.append((request, payload))

    def _look(self) -> None:
        """The thread: takes alarms in."""
        from mpi4py import MPI

        while not self._stop.wait(_LOOK_SECONDS):
            try:
                self._take_alarms()
                self._watch_step()
            except MPI.Exception as error:  # MPI is being shut down around us
                log.debug("jdaso look-out ends: %s", error)
                return

    def _take_alarms(self) -> None:
        from mpi4py import MPI

        status = MPI.Status()
        while (message := self._comm.Improbe(status=status)) is not None:
            source, tag = status.Get_source(), status.Get_tag()
            payload = bytearray(status.Get_count(MPI.BYTE))
            message.Recv([payload, len(payload), MPI.BYTE])
            if tag == _LEFT:
                self.left.add(source)
                continue
            if tag == _ENDED:
                self.ended.add(source)
                continue
            self.failed.add(source)
            if tag == _FAILED and self.failure is None and not self._closed:
                self.failure = payload.decode(errors="replace")
                log.error("%s %s", self.topology.prefix(), self.failure)

    def _watch_step(self) -> None:
        """Ends the job if the compiled step waits in MPI for what cannot come.

        mpi4jax's operations return only when all nodes came. Nothing can be raised in them, so
        this is the one place where jdaso ends a process from outside.
        """
        blocked = list(self._blocked)  # another thread sets it
        if not blocked:
            return
        begin, step = blocked[0]
        waited, why = time.perf_counter() - begin, None
        if waited > _GRACE_SECONDS:  # it may yet come back by itself
            why = self.why_wait_no_longer(waited, "waits for a mean of all nodes")
        if why is None and waited > self.timeout_seconds:
            why = (
                f"Waited {self.timeout_seconds:g} s for a mean of all nodes. Look for a node that "
                "is stuck; raise Session(timeout_seconds=...) if one is only slow."
            )
        if why is None:
            return
        from mpi4py import MPI

        log.critical("%s %s The job is ended.", self.topology.prefix(step), why)
        time.sleep(_LOOK_SECONDS * 5)  # the others say what they know
        MPI.COMM_WORLD.Abort(1)


def _names(nodes: set[int]) -> str:
    plural = "nodes" if len(nodes) > 1 else "node"
    return f"{plural} {', '.join(map(str, sorted(nodes)))}"
