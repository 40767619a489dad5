"""Texts that hold names of files reach the other nodes, whatever the bytes of the names."""

from unittest import mock

from jdaso._mpi.topology import Topology
from jdaso._nodes.detector import Detector


def test_a_failure_is_reported_though_its_text_is_no_utf8():
    detector = Detector(Topology(0, 1, "here"), None)
    with mock.patch.object(detector, "_messages") as messages:
        detector.fail("caf\udce9.png is no image")
    assert messages.send_all.call_args.args[1] == rb"caf\udce9.png is no image"
