"""The exchanges that a channel has not forgotten, by ticket.

They are the newest exchange and, if the same optimizer has started it, the one before: its result
may still have to be merged. Optimizers of equal layout share a channel. Where a run replaces its
optimizer, the exchange of the old one gives way to those of the new one; an optimizer that is still
in use then finds its exchange *given up*, and its step ends with an error.
"""

from __future__ import annotations

from .in_flight import InFlight
from .staging import Staging, StagingMemory


class Flights:
    """The exchanges of one channel.

    The channel calls `enroll` while it holds its lock; other calls need none.

    Args:
        staging: makes the memory of exchanges.
        number: distinguishes the channels of a session.
    """

    def __init__(self, staging: Staging, number: int):
        self._staging, self._number = staging, number
        self._kept: dict[int, InFlight] = {}
        self._given_up: dict[int, int] = {}  # by optimizer, the last ticket that it lost

    def get(self, ticket: int) -> InFlight | None:
        """An exchange of any optimizer; None if it is not known, or forgotten."""
        return self._kept.get(ticket)

    def of(self, ticket: int, owner: int) -> InFlight | None:
        """An optimizer's exchange; None if there is none, or if it was given up."""
        return None if self.gave_up(ticket, owner) else self._kept.get(ticket)

    def gave_up(self, ticket: int, owner: int) -> bool:
        """Returns whether the optimizer's exchange gave way to one of another optimizer."""
        return self._given_up.get(owner) == ticket

    def open(self) -> list[InFlight]:
        """Exchanges that were never waited for, or whose wait ended early, with an error."""
        flights = list(self._kept.values())
        return [flight for flight in flights if not (flight.waited and flight.done.is_set())]

    def enroll(
        self, ticket: int, owner: int, *, blocking: bool = False, place: StagingMemory | None = None
    ) -> InFlight:
        """Returns a new exchange, with a place for its sums that nothing else reads or writes.

        Args:
            ticket: the exchange; an earlier one of the same ticket is forgotten.
            owner: the optimizer.
            blocking: whether the step waits for the result.
            place: takes the sums; None for memory of the exchange's own.
        """
        before = self._kept.pop(ticket, None)
        last = [x for x in list(self._kept.values())[-1:] if x.owner == owner]
        for flight in (before, *self._kept.values()):
            if (
                flight is not None
                and flight not in last
                and flight.owner != owner
                and not flight.merged
            ):
                self._given_up[flight.owner] = flight.ticket
        if self.gave_up(ticket, owner):  # the exchange is begun anew
            del self._given_up[owner]
        self._kept = {flight.ticket: flight for flight in last}
        place = self._staging.sums() if place is None else place
        memory = self._staging.rows(), place
        new = InFlight(ticket, owner, blocking, *memory, f"{self._number}.{ticket}")
        self._kept[ticket] = new
        return new
