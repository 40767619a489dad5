"""The failure detector: notices nodes that fail, leave or are stuck, whatever this node does.

Nodes send alarms and heartbeats on a communicator of their own, and a thread receives those of
other nodes.
"""

from __future__ import annotations

import enum
import functools
import logging
import sys
import threading
from typing import Any

from .._mpi.messages import Messages
from .._mpi.requests import mpi_error, poll
from .._mpi.topology import Topology
from .heartbeat import CALLS
from .known import Known
from .stopping import Stopping
from .wait import Wait

log = logging.getLogger("jdaso")

_PARTING_SECONDS = 2.0
"""Seconds that a node which ends its session waits for the others to end theirs."""

_LOOK_SECONDS = 0.1
"""Seconds between two checks for alarms of other nodes."""

_FRAMES = 8
"""Number of stack frames that a node sends when asked where its program is."""


class _Tag(enum.IntEnum):
    """The meaning of a message."""

    FAILED = 1  # this node has failed, and why
    FOLLOWED = 2  # it has failed because another node did
    LEFT = 3  # it has ended its session
    ENDED = 4  # after a failure: it waits for nobody in this session, and sends nothing more
    BEAT = 5  # a heartbeat
    WHERE = 6  # where is your program?
    PLACE = 7  # the answer
    BATCHES = 8  # its data ended
    STOPPING = 9  # from here on the tags of `Stopping`


class Detector:
    """Sends and receives alarms and heartbeats, in its own thread.

    Attributes:
        known: the facts received about other nodes.
        stopping: the agreement of all nodes to stop.

    Args:
        topology: the nodes.
        timeout_seconds: the longest wait; None derives it from past waits.

    On failure: no method raises.
    """

    def __init__(self, topology: Topology, timeout_seconds: float | None):
        self.topology = topology
        self._messages = Messages(topology.rank, topology.num_ranks)
        self.stopping = Stopping(topology.rank, topology.num_ranks, self._send_stopping)
        self.known = Known(
            topology,
            timeout_seconds,
            dead=self._messages.dead,
            ask=functools.partial(self._messages.send, tag=_Tag.WHERE, payload=b""),
            tell=functools.partial(self._messages.send_all, _Tag.BATCHES),
        )
        self._owner = threading.get_ident()
        self._closed = False
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._look, name="jdaso-detector", daemon=True)

    def begin(self, comm: Any) -> None:
        """Starts the thread, on a communicator that nothing else uses; receives nothing before."""
        self._messages.begin(comm)
        self._thread.start()
        for node in self.known.heartbeats.targets:  # a witness that has answered can be seen to end
            self.known.witnesses.ask(node)

    @property
    def began(self) -> bool:
        """Returns whether messages are already being received."""
        return self._messages.open

    def stops_at(self, step: int) -> bool:
        """Returns whether all nodes stop after this step; pauses while they agree on one.

        Raises:
            NodeError: a node failed, or does not answer.
        """
        wait = Wait(self.known, "call", "agrees on where to stop", call=0, column=CALLS, step=step)
        return self.stopping.stops_at(step, wait.check)

    def fail(self, text: str) -> None:
        """Notifies all other nodes that this node has failed; does not wait for them."""
        tag = _Tag.FAILED if self.known.failure is None else _Tag.FOLLOWED
        self._messages.send_all(tag, text.encode(errors="backslashreplace"))

    def end(self) -> None:
        """Notifies all other nodes that this one is through with the session, which has failed."""
        if self._messages.open:
            self._messages.send_all(_Tag.ENDED, b"")

    def close(self, failed: bool) -> bool:
        """Notifies the others that this node ends its session; returns whether all did the same.

        A node that ends first does not wait long for the others. After a failure the detector stays
        open, for reports that the others have failed too.
        """
        ended, self._closed = self._closed, True
        self.stopping.close()
        if ended or failed or not self._messages.open:
            return False
        self.stop()
        self._messages.send_all(_Tag.LEFT, b"")

        def parted() -> bool:
            self._listen()
            return self._messages.all_gone() and len(self.known.left | self.known.dead) == others

        others = self.topology.num_ranks - 1
        if not poll(parted, limit_seconds=_PARTING_SECONDS):
            return False
        if not self.known.dead:  # freeing it needs all nodes
            self._messages.free()
        return True

    def stop(self) -> None:
        """Stops the thread: from here on the detector calls MPI only when it is called."""
        if self._messages.open:
            self._stop.set()
            self._thread.join(timeout=2.0)

    def _send_stopping(self, node: int, what: int, step: int) -> None:
        self._messages.send(node, _Tag.STOPPING + what, str(step).encode())

    def _beat(self) -> None:
        """Sends a heartbeat if one is due, to each node that has received the previous one."""
        payloads = self.known.heartbeats.beat()
        if not payloads or self._closed:
            return
        self._messages.all_gone()
        for node in self.known.heartbeats.targets:
            gone = node in self.known.left | self.known.ended
            if not gone and not self._messages.under_way(node, _Tag.BEAT):
                for payload in payloads:
                    self._messages.send(node, _Tag.BEAT, payload)

    def _look(self) -> None:
        """The thread: receives alarms, sends heartbeats, watches the compiled step."""
        while not self._stop.wait(_LOOK_SECONDS):
            try:
                self._listen()
                self._beat()
                self.stopping.look()
            except mpi_error() as error:  # MPI is being shut down around us
                log.debug("jdaso detector ends: %s", error)
                return

    def _listen(self) -> None:
        """Receives messages, and notices failed nodes."""
        self._note_deaths()
        try:
            for message in self._messages.taken():
                self._take(*message)
        except mpi_error():
            if not self._note_deaths() and not (self.known.survives and self.known.dead):
                raise

    def _note_deaths(self) -> bool:
        """Returns whether a node has failed since the last call, if MPI reports it."""
        new = self._messages.newly_dead()
        who = self.known.name(new)
        if new and self.known.survives:
            log.warning("%s %s failed. The others go on.", self.topology.prefix(), who)
            for node in new:
                self.known.heartbeats.lose(node)
                self.stopping.lost(node)
        elif not set(new) <= self.known.left | self.known.ended and not self._closed:
            self.known.note_failure(f"{who} failed.")
            self.known.note_failed(new)
            log.error("%s %s", self.topology.prefix(), self.known.failure)
        return bool(new)

    def _take(self, node: int, tag: int, payload: bytes) -> None:
        """Handles a message of another node."""
        match tag:
            case _Tag.BEAT:
                self.known.heartbeats.take(payload)
            case _Tag.WHERE:
                self._messages.send(
                    node, _Tag.PLACE, self._place().encode(errors="backslashreplace")
                )
            case _Tag.PLACE:
                self.known.take_place(node, payload.decode(errors="replace"))
            case _Tag.BATCHES:
                self.known.batches.take(node, payload)
            case _Tag.LEFT:
                self.known.note_left(node)
            case _Tag.ENDED:
                self.known.note_ended(node)
            case _Tag.FAILED | _Tag.FOLLOWED:
                self.known.note_failed([node])
                if tag == _Tag.FAILED and self.known.failure is None and not self._closed:
                    self.known.note_failure(payload.decode(errors="replace"))
                    log.error("%s %s", self.topology.prefix(), self.known.failure)
            case _:
                self.stopping.take(node, tag - _Tag.STOPPING, int(payload))

    def _place(self) -> str:
        """The current wait of this node's program, if any; on a second line its place."""
        return f"{self.known.waiting.now()}\n{_where(self._owner)}"


def _where(thread: int) -> str:
    """The place of a thread of this process, the innermost frame first."""
    frame = sys._current_frames().get(thread)
    if frame is None:
        return "its end"
    found = []  # not by `traceback`, which reads the source: its file system may hang
    while frame is not None and len(found) < _FRAMES:
        code = frame.f_code
        found.append(f"{code.co_filename}:{frame.f_lineno} in {code.co_name}")
        frame = frame.f_back
    return " < ".join(found)
