"""Nodes on a `World`: each with a `Session`'s parts except JAX, and ending as a program does."""

from jdaso._base.errors import summary
from jdaso._mpi.topology import find_topology
from jdaso._nodes import exit as _exit
from jdaso._nodes.control import Control
from jdaso._session import Session

LIMIT_SECONDS = 6.0
PROMPTLY_SECONDS = 0.5
"""Seconds for results that need not wait for a limit: two polls of the detector and messages."""


class Members(Session):
    """A session with only these members."""

    def __init__(self, **members):
        self.__dict__.update(members)


class Uncaught(Exception):
    """Ends the process with the error given to it, outside any `with` of a session."""


class Node:
    """The part of one rank."""

    def __init__(self, world, topology, limit_seconds):
        self.world, self.clock = world, world.clock
        self.topology, self.number = topology, topology.node
        self.control = Control(topology, limit_seconds)
        self.known, self.detector = self.control.known, self.control.detector
        self.closing, self.closed = [], False
        _exit.watch(self)

    def sleep(self, seconds):
        self.clock.sleep(seconds)

    def come(self, what="train", **facts):
        """Meets all others in a collective call."""
        self.control.agree(what, [(name, str(value)) for name, value in facts.items()])

    def fail(self, text):
        """Fails the session; see `Session.fail`."""
        if not self.closed:
            name = self.topology.name(self.topology.rank)
            self.detector.fail(f"{name} on host {self.topology.host} failed: {text}")

    def disown(self):
        """Disowns the session; see `Session.disown`: nothing here is forked."""

    def close(self, failed=False):
        """Closes the session; see `Session.close`."""
        if self.closed:
            return
        for close in self.closing:
            close(failed)
        failed = failed or bool(self.control.broken or self.known.failure)
        self.closed = True
        self.control.close(failed)
        _exit.unwatch(self, failed=failed)


def play(world, program, limit_seconds=LIMIT_SECONDS):
    """Outcomes of ``program(node)``, run as in a `with` of a session to the end of the job."""

    def of_rank(_, comm):
        node = Node(world, find_topology(comm, limit_seconds or 600.0), limit_seconds)
        try:
            result = program(node)
        except Uncaught as error:
            _exit._doom(summary(error.args[0]))
            raise
        except Exception as error:
            node.fail(summary(error))
            node.close(failed=True)
            raise
        node.close()
        return result

    return world.run(of_rank, _exit._end)
