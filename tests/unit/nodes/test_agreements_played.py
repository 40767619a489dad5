"""Agreements: on places of the program, facts, settings of sessions and of optimizers."""

import contextlib
import re

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from network import World
from played import LIMIT_SECONDS, PROMPTLY_SECONDS, play

import jdaso
from jdaso._session.start import begin_together


def all_say(outcomes, text):
    """All nodes raise the same at the same time, each in its own name."""
    for node, outcome in enumerate(outcomes):
        assert re.search(text, outcome.text), outcome
        assert outcome.text.startswith(f"[node {node} of {len(outcomes)}, host {'abcdefgh'[node]}]")
    assert max(x.seconds for x in outcomes) - min(x.seconds for x in outcomes) < PROMPTLY_SECONDS
    assert max(x.seconds for x in outcomes) < 2.0


@pytest.mark.parametrize("seed", [None, 1, 2, 3])
def test_nodes_at_different_places_all_get_each_ones_place(seed):
    def program(node):
        node.come()
        node.come("finalize" if node.number == 1 else "restore a checkpoint")

    all_say(
        play(World(3, seed=seed), program),
        "different places in the program: node 0 is about to restore a checkpoint, node 1 is about "
        "to finalize, node 2 is about to restore a checkpoint",
    )


def test_one_call_more_is_met_by_the_next_of_the_others():
    def program(node):
        for _ in range(2 + (node.number == 0)):
            node.come("train")
        node.come("finalize")

    all_say(play(World(2), program), "node 0 is about to train, node 1 is about to finalize")


@pytest.mark.parametrize("seed", [None, 1, 2, 3])
def test_a_node_with_other_facts_is_named_against_the_others(seed):
    def program(node):
        node.come(rate=0.1, seed=7 if node.number == 2 else 8)

    outcomes = play(World(4, seed=seed), program)
    all_say(outcomes, "disagree on seed: node 2 has 7, the others 8. All nodes must be given the ")


def test_facts_of_many_lines_and_of_one_node_only():
    def program(node):
        node.come(**({"leaf ['c']": "float32[3]"} if node.number == 1 else {}), text="x\n" * 500)

    all_say(play(World(3), program), r"leaf \['c'\]: node 1 has float32\[3\], the others absent")


def test_different_bits_come_with_their_remedy():
    def program(node):
        node.come(**{"bits of leaf ['w']": node.number == 1})

    all_say(play(World(3), program), r"bits of leaf \['w'\].*jdaso.broadcast\(tree, session\)")


def test_texts_of_all_lengths_come_whole_to_all():
    def program(node):
        said = node.control.everyone("say", "x" * (5000 * node.number))
        given = node.control.broadcast(np.arange(5.0) * node.number, root=2)
        nothing = node.control.broadcast(np.zeros((0, 3)), root=1)
        return [len(text) for text in said], given.tolist(), nothing.shape

    for outcome in play(World(3, seed=5), program):
        assert outcome.result == ([0, 5000, 10000], [0, 2, 4, 6, 8], (0, 3))


SESSIONS = {
    "engine": r"the engine: node 1 has instant, the others mpi4py",
    "simulated": r"the engine: node 1 has simulated, the others mpi4py",
    "unknown": r"carrier pigeon",
    "unlimited": r"timeout_seconds must be above 0 and at most .*got inf",
    "version": r"the jdaso version: node 1 has 0\.0\.1",
    "trace": r"whether a trace is recorded: node 1 has yes, the others no",
    "on_death": r"on_death.*shrink",
}


@pytest.mark.parametrize("case", SESSIONS)
def test_sessions_that_differ_do_not_begin(case, monkeypatch, tmp_path):
    about = {
        "engine": {"engine": "instant"},
        "simulated": {"engine": jdaso.Simulated(2)},
        "unknown": {"engine": "carrier pigeon"},
        "unlimited": {"timeout_seconds": float("inf")},
        "trace": {"trace": tmp_path},
        "on_death": {"on_death": "shrink"},
    }
    world = World(2)

    class Version(str):
        def __str__(self):
            return f"0.0.{world.clock.current().rank}"

    if case == "version":
        monkeypatch.setattr(jdaso._session.start, "__version__", Version())

    def program(rank, comm):
        with jdaso.Session(**({"timeout_seconds": 6.0} | (about.get(case, {}) if rank else {}))):
            raise AssertionError("it began")

    outcomes = world.run(program)
    for outcome in outcomes:
        assert re.search(SESSIONS[case], outcome.text), outcome
        assert outcome.seconds < 2.0


def test_a_node_without_threads_is_reported_to_all():
    world = World(3)

    def program(rank, comm):
        jdaso.Session()

    world.mpi.Query_thread = lambda: 2 if world.clock.current().rank == 1 else 3
    for outcome in world.run(program):
        assert re.search(r"THREAD_MULTIPLE.* node 1 started MPI without it", outcome.text)
        assert outcome.seconds < 1.0


def test_one_that_is_stuck_before_its_session_is_waited_for_so_long():
    world = World(3)

    def program(rank, comm):
        if rank == 1:
            world.clock.forever()
        world.clock.sleep(2.0 * (rank == 2))
        jdaso.Session(timeout_seconds=LIMIT_SECONDS)

    first, _, third = world.run(program)
    for outcome in (first, third):
        assert "Waited 6 s to start a session, and not all nodes came" in outcome.text
    assert third.seconds - first.seconds == pytest.approx(2.0, abs=0.1)


def test_one_that_is_stuck_as_its_session_starts_is_waited_for_so_long():
    """The node has sent its name, and gets no further: no detector watches it yet."""
    from jdaso._mpi.topology import find_topology

    world = World(3)

    def program(rank, comm):
        if rank == 1:
            find_topology(comm)
            world.clock.forever()
        jdaso.Session(timeout_seconds=LIMIT_SECONDS)

    first, _, third = world.run(program)
    for outcome in (first, third):
        assert re.search("waits to open a communicator.*within 6 s", outcome.text)
        assert outcome.seconds < LIMIT_SECONDS + 2


OPTIMIZERS = {
    "shape": r"leaf \['b'\]: node 1 has float32\[4\], the others float32\[3\]",
    "dtype": r"leaf \['b'\]: node 1 has bfloat16\[3\]",
    "tree": r"leaf \['c'\]|the tree",
    "bits": r"bits of leaf \['b'\]: node 1 .*jdaso.broadcast",
    "phases": r"the setting phases: node 1 has .*delay=1",
    "wire": r"the setting wire: node 1 has bfloat16",
    "merge": r"the setting merge: node 1 has ",
    "inner": r"the inner optimizer's state: node 1 has empty, the others \[0\]\.count int32",
    "synchronous": r"node 1",
}


@pytest.mark.parametrize("case", OPTIMIZERS)
def test_optimizers_that_differ_do_not_begin(case):
    def program(rank, comm):
        odd = rank == 1
        params = {"b": jnp.zeros(3), "w": jnp.zeros(5)}
        if odd and case in ("shape", "dtype", "bits"):
            params["b"] = {
                "shape": lambda: jnp.zeros(4),
                "dtype": lambda: jnp.zeros(3, jnp.bfloat16),
                "bits": lambda: jnp.ones(3),
            }[case]()
        if odd and case == "tree":
            params["c"] = jnp.zeros(3)
        with jdaso.Session(timeout_seconds=6.0) as session:
            phases = jdaso.Phases(20, 3, 4, 4, delay=1 if odd and case == "phases" else 2)
            settings = dict(
                phases=phases,
                session=session,
                wire="bfloat16" if odd and case == "wire" else "float32",
                merge="paper" if odd and case == "merge" else "corrected",
            )
            inner = optax.sgd(0.1) if odd and case == "inner" else optax.adam(0.1)
            if odd and case == "synchronous":
                tx = jdaso.synchronous(inner, session=session)
            else:
                tx = jdaso.daso(inner, **settings)
            tx.init(params)

    all_say(World(3).run(program), OPTIMIZERS[case])


@pytest.mark.parametrize("wrong", ["phases", "axis"])
def test_an_error_of_one_node_is_reported_to_the_others(wrong):
    def program(rank, comm):
        with jdaso.Session(timeout_seconds=6.0) as session:
            if rank == 1:
                jdaso.Phases(20, sync_every=2, delay=3)
            session.share()
            session.agree("begin an epoch", [])

    first, second = World(2).run(program)
    assert "delay must be within 1..sync_every, got delay=3" in second.text
    assert "node 1 on host b failed: ValueError: delay must be within" in first.text
    assert first.seconds < second.seconds + PROMPTLY_SECONDS


def test_a_session_that_one_has_closed_is_an_error_on_all():
    def program(rank, comm):
        with jdaso.Session(timeout_seconds=6.0) as session:
            if rank == 1:
                session.close()
            session.agree("begin an epoch", [])

    first, second = World(2).run(program)
    assert "This session was closed" in second.text and isinstance(second.error, RuntimeError)
    assert "node 1 ended the session while this node waits to begin an epoch" in first.text


def test_sessions_one_after_the_other_know_nothing_of_each_other():
    def program(rank, comm):
        found = []
        for k in range(3):
            with jdaso.Session(timeout_seconds=6.0) as session:
                with contextlib.suppress(jdaso.NodeError):
                    session.agree("begin", [("k", str(k))])
                found.append(session.share())
        return found

    world = World(2, seed=3)
    assert [x.result for x in world.run(program)] == [[(0, 2)] * 3, [(1, 2)] * 3]
    assert world.aborted is None and not world.untaken()


def test_devices_are_distinguished_from_their_number(caplog):
    def program(rank, comm):
        with jdaso.Session(timeout_seconds=6.0) as session:
            return session.num_nodes, len(session.devices)

    assert {x.result for x in World(2).run(program)} == {(2, len(jax.local_devices()))}


def test_a_session_begins_at_the_time_of_node_0_on_all_nodes():
    """The clocks of the hosts are an hour apart."""
    began = play(World(3), lambda node: begin_together(node.control, lambda: 3600.0 * node.number))
    assert [outcome.result.unix_seconds for outcome in began] == [0.0, 0.0, 0.0]
