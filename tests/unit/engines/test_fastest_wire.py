"""The wire that `wire="auto"` takes, from rates and from this host."""

import pytest

from jdaso._engines.fastest_wire import fastest, host_seconds_of, seconds_per_number
from jdaso._payload.wire import WIRES, wire_of

HOST = {"float32": 0.3e-9, "bfloat16": 2e-9, "int8": 4e-9, "int4": 6e-9}
"""Seconds for a number, about those of two x86-64 cores."""


@pytest.mark.parametrize(
    ("megabytes", "name"),
    [(12, "int4"), (120, "int4"), (300, "int8"), (600, "bfloat16"), (1e4, "float32")],
)
def test_a_slow_link_takes_a_narrow_wire(megabytes, name):
    assert fastest(4, 1e6 * megabytes, HOST).name == name


def test_a_wire_must_be_worth_its_encoding():
    """A tenth less time is not: the host's cores are the steps' too."""
    about_equal = dict.fromkeys(HOST, 1e-6)
    assert fastest(2, 1e12, about_equal).name == "float32"
    assert fastest(2, 1e12, {**about_equal, "int8": 0.9e-6}).name == "float32"
    assert fastest(2, 1e12, {**about_equal, "int8": 0.7e-6}).name == "int8"


@pytest.mark.parametrize(("name", "size"), [("float32", 4), ("bfloat16", 2), ("int4", 0.53125)])
def test_the_bytes_of_an_exchange(name, size):
    """A ring: 2 (P - 1) / P of the bytes pass each link."""
    assert seconds_per_number(wire_of(name), 4, 1e6, 0.0) == pytest.approx(1.5 * size / 1e6)


def test_what_a_host_does_for_a_number_is_measured():
    for wire in WIRES.values():
        assert 0 < host_seconds_of(wire, 3) < 1e-6
