"""The exchanges that a channel keeps, and those that give way to another optimizer's."""

import jax.numpy as jnp
import pytest

from jdaso._engines.flights import Flights
from jdaso._engines.in_flight import EARLIER_RUN
from jdaso._engines.staging import Staging
from jdaso._payload.layout import layout_of
from jdaso._payload.wire import wire_of


@pytest.fixture
def flights():
    return Flights(Staging(layout_of([jnp.zeros(10)], 1, 4096), wire_of("float32")), 3)


def test_the_newest_two_exchanges_of_an_optimizer_are_kept(flights):
    made = {ticket: flights.enroll(ticket, 1) for ticket in (1, 5, 9)}
    assert [flights.get(ticket) for ticket in (1, 5, 9)] == [None, made[5], made[9]]
    assert made[9].name == "3.9"
    assert not flights.gave_up(1, 1)


def test_a_repeated_start_replaces_its_exchange(flights):
    before, first = flights.enroll(1, 1), flights.enroll(5, 1)
    again = flights.enroll(5, 1)
    assert again is not first
    assert flights.of(5, 1) is again and flights.get(1) is before


@pytest.mark.parametrize("merged", [False, True])
def test_an_exchange_gives_way_to_that_of_another_optimizer(flights, merged):
    flights.enroll(1, 1).merged = merged
    new = flights.enroll(1, 2)
    assert flights.gave_up(1, 1) is not merged
    assert flights.of(1, 1) is (new if merged else None)
    assert flights.of(1, 2) is new


def test_an_optimizer_that_begins_anew_has_its_exchange_back(flights):
    flights.enroll(1, 1)
    flights.enroll(1, 2)
    again = flights.enroll(1, 1)
    assert flights.of(1, 1) is again and not flights.gave_up(1, 1)
    assert flights.of(1, 2) is None  # it was not merged either


def test_an_exchange_is_open_until_a_wait_has_seen_its_end(flights):
    flight = flights.enroll(1, 1)
    flight.waited = True  # ended early, with an error
    assert flights.open() == [flight]
    flight.done.set()
    assert flights.open() == []
    flight.waited = False
    assert flights.open() == [flight]


def test_only_one_device_and_one_optimizer_may_start_an_exchange_again(flights):
    flight = flights.enroll(1, 7)
    flight.device = 2
    assert flight.why_not_again(7, 2) is None
    assert "Devices 2 and 0" in (flight.why_not_again(7, 0) or "")
    assert "its own name" in (flight.why_not_again(8, 2) or "")
    flight.device = EARLIER_RUN  # from a checkpoint: no device has started it here
    assert flight.why_not_again(7, 2) is None
    nobody = flights.enroll(2, 0)  # jdaso.mean: its two values must not meet in one exchange
    assert "one tree" in (nobody.why_not_again(0, 0) or "")
