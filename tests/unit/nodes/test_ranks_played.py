"""Nodes of several ranks: names, calls across nodes and inside them, and what does not fit."""

import re

import numpy as np
import pytest
from network import World
from played import LIMIT_SECONDS, Node

from jdaso._base.errors import NodeError
from jdaso._mpi.names import names_of
from jdaso._mpi.topology import find_topology


def play_ranks(world, program, ranks_per_node=2):
    """Runs nodes of several ranks, as `play` does."""

    def of_rank(_, comm):
        given = ranks_per_node[comm.Get_rank()] if isinstance(ranks_per_node, list) else None
        topology = find_topology(comm, LIMIT_SECONDS, given or ranks_per_node)
        node = Node(world, topology, LIMIT_SECONDS)
        try:
            return program(node)
        except Exception as error:
            node.fail(str(error))
            raise
        finally:
            node.close()

    return world.run(of_rank)


def test_a_rank_calls_all_those_across_and_those_inside():
    def program(node):
        everyone, mine = node.control, str(node.topology.rank)
        across, inside = everyone.across(), everyone.inside()
        said = [x.everyone("count", mine) for x in (everyone, across, inside)]
        given = [x.broadcast(np.array([node.topology.rank])).item() for x in (across, inside)]
        rows = across.allgather("add", np.array([node.topology.rank]))[:, 0].tolist()
        return said, given, rows, (node.topology.node, node.topology.place)

    outcomes = play_ranks(World(6), program)
    for rank, outcome in enumerate(outcomes):
        node, place = divmod(rank, 2)
        column = [str(place + 2 * k) for k in range(3)]
        assert outcome.result == (
            [list("012345"), column, [str(2 * node), str(2 * node + 1)]],
            [place, 2 * node],
            [place, place + 2, place + 4],
            (node, place),
        ), outcome


def test_calls_across_name_nodes_and_ranks():
    def program(node):
        across = node.control.across()
        across.agree("train", [("rate", "0.2" if node.topology.rank == 3 else "0.1")])

    outcomes = play_ranks(World(6), program)
    said = (
        r"\[node \d of 3 \(rank [135]\), host \w\] .* disagree on rate: node 1 \(rank 3\) has 0.2"
    )
    for rank in (1, 3, 5):
        assert re.search(said, outcomes[rank].text), outcomes[rank]


def test_a_failure_reaches_ranks_that_wait_across_nodes():
    """Rank 3 fails; ranks 0 and 2 have no call with it, and rank 1 waits for it."""

    def program(node):
        across = node.control.across()
        if node.topology.rank == 3:
            raise OSError("disk full")
        while True:
            across.agree("train", [])
            node.sleep(0.1)

    outcomes = play_ranks(World(4), program)
    for rank in (0, 1, 2):
        assert "node 1 (rank 3) on host d failed: disk full" in outcomes[rank].text


@pytest.mark.parametrize(
    ("ranks", "per_node", "text"),
    [
        (3, 2, "3 ranks cannot form nodes of ranks_per_node=2. Start a multiple of 2"),
        (4, [2, 2, 1, 2], "ranks disagree on ranks_per_node: rank 2 has 1, the others 2"),
        (2, -1, "ranks_per_node must be at least 1, and rank 0 has -1"),
        (1, 2, "1 ranks cannot form nodes of ranks_per_node=2"),
    ],
)
def test_what_does_not_fit_is_an_error_on_all_ranks(ranks, per_node, text):
    outcomes = play_ranks(World(ranks), lambda node: None, per_node)
    for outcome in outcomes:
        assert isinstance(outcome.error, NodeError) and text in outcome.text, outcome
        assert outcome.seconds < 2.0


def test_ranks_are_called_by_their_nodes():
    assert names_of([3, 1], 1) == "nodes 1, 3"
    assert names_of([3], 1) == "node 3"
    assert names_of([3, 0], 2) == "node 0 (rank 0), node 1 (rank 3)"
