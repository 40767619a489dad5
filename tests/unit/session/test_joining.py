"""The JAX world of a node's ranks: its address, worlds that do not fit, nodes on several hosts."""

import socket

import jax
import pytest

from jdaso._mpi.topology import Topology
from jdaso._nodes.control import Control
from jdaso._session import joining


def topology(rank, hosts, ranks_per_node=2):
    return Topology(
        rank, len(hosts), hosts[rank], hosts=tuple(hosts), ranks_per_node=ranks_per_node
    )


class Ranks(Control):
    """Plays calls of all ranks, which all give what this one does; notes it and its port."""

    def __init__(self, mine):
        self.topology, self.heard = mine, []

    def everyone(self, _, text):
        self.heard.append((text, is_free(text)))
        return [text] * self.topology.num_ranks


def is_free(address):
    host, port = address.split(":")
    with socket.socket() as found:
        try:
            found.bind((host if host == "127.0.0.1" else "", int(port)))
        except OSError:
            return False
    return True


def test_the_address_is_reached_by_the_whole_node_and_held_until_all_have_theirs():
    ranks = Ranks(topology(2, "aabb"))
    address = joining._address_of_node(ranks, "join", None)
    assert address.startswith("127.0.0.1:") and is_free(address)
    assert ranks.heard == [(address, False)]
    assert joining._address_of_node(Ranks(topology(2, "aabc")), "join", None).startswith("b:")
    assert joining._address_of_node(Ranks(topology(2, "aabb")), "join", "c:123") == "c:123"


@pytest.mark.parametrize(
    ("rank", "hosts", "said"),
    [(0, "aabb", 0), (0, "abbb", 1), (1, "abbb", 0), (2, "abbb", 0), (2, "aabc", 1)],
)
def test_a_node_on_several_hosts_is_warned_of_once(rank, hosts, said, caplog):
    joining._warn_if_spread(topology(rank, hosts))
    assert caplog.text.count("run on different hosts") == said


@pytest.mark.parametrize(
    ("count", "number", "fits", "fine"),
    [(2, 1, True, True), (4, 3, True, False), (2, 0, True, False), (2, 1, False, False)],
)
def test_a_world_that_the_program_made_is_taken_if_it_fits(count, number, fits, fine, monkeypatch):
    monkeypatch.setattr(jax, "process_count", lambda: count)
    monkeypatch.setattr(jax, "process_index", lambda: number)
    why = joining._why_not(topology(3, "aabb"), fits=fits)
    assert (why is None) == fine
    if why is not None:
        assert f"for {count} processes" in why and "this rank as number 1" in why
