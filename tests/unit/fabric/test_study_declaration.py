"""A declaration: its laws, and an error for each mistake that names where, what and the remedy."""

import dataclasses
import json
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jdaso.fabric._study import crossing
from jdaso.fabric._study.checks import StudyError
from jdaso.fabric._study.declaration import read_study, study_of
from jdaso.fabric._study.factors import READS

SMALL = {
    "name": "small",
    "factors": {
        "fabric": ["a", "b"],
        "library": ["mpich"],
        "workload": ["allreduce", "alltoall"],
        "nodes": [2, 4],
        "bytes": ["1KiB", 1_000_000],
    },
}


def changed(**keys):
    return {**SMALL, **keys}


def with_factors(**levels):
    return changed(factors={**SMALL["factors"], **levels})


LEVELS = {
    "fabric": st.sampled_from(["a", "b", "c"]),
    "library": st.sampled_from(["mpich", "openmpi"]),
    "workload": st.sampled_from(["allreduce", "allgather", "alltoall"]),
    "nodes": st.integers(2, 9),
    "bytes": st.integers(1, 10**6),
}
crossings = st.fixed_dictionaries(
    {name: st.lists(level, min_size=1, max_size=3, unique=True) for name, level in LEVELS.items()}
)


@given(crossings)
@settings(max_examples=40)
def test_a_crossing_has_every_combination_once(factors):
    cells = crossing.crossed(factors, READS)
    assert len(cells) == math.prod(map(len, factors.values()))
    assert len({cell.id for cell in cells}) == len(cells)
    for name, levels in factors.items():
        for level in levels:
            share = [cell for cell in cells if cell.factors[name] == level]
            assert len(share) * len(levels) == len(cells)


@given(crossings, st.data())
@settings(max_examples=40)
def test_exclusions_take_what_they_name_and_no_more(factors, data):
    named = data.draw(st.sets(st.sampled_from(sorted(factors)), min_size=1, max_size=2))
    rule = {n: data.draw(st.lists(st.sampled_from(factors[n]), min_size=1)) for n in named}
    every = crossing.crossed(factors, READS)
    kept = crossing.crossed(factors, READS, excluded=[rule])
    gone = [cell for cell in every if all(cell.factors[n] in rule[n] for n in rule)]
    assert gone and {c.id for c in kept} == {c.id for c in every} - {c.id for c in gone}


@given(crossings, crossings)
@settings(max_examples=25)
def test_ids_depend_on_the_factors_of_a_cell_alone(one, other):
    """Studies that share cells can therefore be compared."""
    ids = [{c.id: c.factors for c in crossing.crossed(f, READS)} for f in (one, other)]
    shared = [set(map(json.dumps, found.values())) for found in ids]
    same = set(ids[0]) & set(ids[1])
    assert all(ids[0][key] == ids[1][key] for key in same)
    assert len(same) == len(shared[0] & shared[1])


def test_an_id_stays_what_it_is():
    """Rows of old studies carry the id."""
    levels = {"fabric": "a", "library": "mpich", "workload": "latency", "nodes": 2, "bytes": 8}
    assert crossing.cell_of(levels, READS).id == "c7ecbcde8"


@given(crossings, st.integers(1, 5), st.integers(0, 99))
@settings(max_examples=25)
def test_every_replicate_is_a_permutation_and_more_of_them_change_none(factors, replicates, seed):
    cells = crossing.crossed(factors, READS)
    order = crossing.in_order(cells, replicates, seed)
    for replicate in range(replicates):
        ids = [cell.id for number, cell in order if number == replicate]
        assert sorted(ids) == [cell.id for cell in cells]
    assert [number for number, _ in order] == sorted(number for number, _ in order)
    assert crossing.in_order(cells, replicates + 2, seed)[: len(order)] == order


def test_orders_differ_between_replicates_and_seeds():
    cells = study_of(SMALL).cells
    first, second = (
        crossing.in_order(cells, 2, seed)[k * 16 : k * 16 + 16] for seed, k in ((0, 0), (1, 0))
    )
    both = crossing.in_order(cells, 2, 0)
    assert first != second
    assert [c.id for _, c in both[:16]] != [c.id for _, c in both[16:]]


def test_a_factor_that_a_workload_does_not_read_makes_no_cells():
    levels = {"workload": ["allreduce", "latency", "exchange"], "wire": ["float32", "int8"]}
    cells = study_of(with_factors(**levels)).cells
    count = {name: sum(c.factors["workload"] == name for c in cells) for name in levels["workload"]}
    assert count == {"allreduce": 8, "latency": 4, "exchange": 16}
    assert {c.factors["nodes"] for c in cells if c.factors["workload"] == "latency"} == {2}


def test_listed_cells_stand_beside_a_crossing_and_are_not_doubled():
    listed = {"fabric": "a", "library": "mpich", "workload": "allreduce", "nodes": 2, "bytes": 1024}
    study = study_of(changed(cells=[listed, {**listed, "nodes": 8}]))
    assert len(study.cells) == 16 + 1
    alone = study_of({"name": "alone", "cells": [listed]})
    assert [c.factors for c in alone.cells] == [listed] and alone.cells[0] in study.cells


def test_what_changes_no_measurement_leaves_the_declaration_and_all_else_does_not():
    study, first = study_of(SMALL), study_of(SMALL).declaration
    turned = {key: levels[::-1] for key, levels in reversed(SMALL["factors"].items())}
    assert study_of(changed(factors=turned)).declaration == first
    assert study_of({"name": "small", "cells": [dict(c.factors) for c in study.cells]}) == study
    claim = {"name": "a", "text": "b is like a", "of": "b", "against": "a"}
    limits = {"limit_seconds": 7}, {"limit_bytes": "4GiB"}
    for unmeasured in ({"replicates": 9}, {"margin": 0.1}, {"claims": [claim]}, *limits):
        assert study_of(changed(**unmeasured)) != study
        assert study_of(changed(**unmeasured)).declaration == first
    others = [
        changed(name="other"),
        changed(seed=1),
        changed(exclude=[{"nodes": 4}]),
        changed(workloads={"allreduce": {"iterations": 3}}),
        changed(libraries={"mpich": {"environment": {"X": 1}}}),
        changed(fabrics={"a": {"interface": "eth0"}, "b": {}}),
    ]
    assert len({first, *(study_of(one).declaration for one in others)}) == 1 + len(others)


def test_a_library_of_a_transports_name_has_that_transport():
    names = ["mpich", "mpi4jax", "gloo", "nccl", "torch"]
    found = study_of(with_factors(library=names)).libraries
    transports = [found[name].transport for name in names]
    assert transports == ["mpi", "mpi4jax", "gloo", "nccl", "torch"]


def test_studies_cannot_be_changed():
    with pytest.raises(dataclasses.FrozenInstanceError):
        study_of(SMALL).seed = 3


def test_the_short_form_replaces_what_it_names():
    short = {"replicates": 1, "factors": {"nodes": 2}}
    study = study_of(changed(short=short), short=True)
    assert study.replicates == 1 and len(study.cells) == 8
    assert len(study_of(changed(short=short)).cells) == 16
    with pytest.raises(StudyError, match="no short form.*--short"):
        study_of(SMALL, short=True)


def test_a_number_for_each_node_is_enough_and_a_program_may_take_less():
    study = study_of(
        with_factors(
            workload=["latency", "allreduce"], nodes=[2, 4], bytes=[4, 16], library="mpich"
        )
        | {"exclude": [{"workload": "allreduce", "bytes": 4}]}
    )
    assert {cell.factors["bytes"] for cell in study.cells} == {4, 16}
    mine = {"mine": {"program": "x.py", "reads": ["bytes"]}}
    assert study_of(with_factors(workload="mine", bytes=1) | {"workloads": mine}).cells


def test_an_exclusion_may_name_what_another_form_of_the_study_has():
    """Also the two nodes of a latency, which no level names."""
    short = {"factors": {"nodes": 4, "workload": "latency"}}
    excluded = [{"nodes": max(SMALL["factors"]["nodes"])}]
    study = study_of(changed(short=short, exclude=excluded), short=True)
    assert {cell.factors["nodes"] for cell in study.cells} == {2}
    with pytest.raises(StudyError, match="no cell is left"):
        study_of(changed(short=short, exclude=[{"nodes": 2}]), short=True)


MISTAKES = {
    "unknown key 'replicate'. Did you mean 'replicates'?": changed(replicate=1),
    "factors: unknown key 'node'. Did you mean 'nodes'?": with_factors(node=[2]),
    r"factors.nodes must be a whole number, got '2'": with_factors(nodes="2"),
    r"factors.nodes must be at least 1, got 0": with_factors(nodes=0),
    r"factors.nodes has 2 more than once": with_factors(nodes=[2, 2]),
    r"factors.nodes has no level, got \[\]": with_factors(nodes=[]),
    r"factors.bytes must be .* such as '64KiB', got '1 elephant'": with_factors(bytes="1 elephant"),
    r"factors.workload: 'allreduse' is not known. Did you mean 'allreduce'\?": with_factors(
        workload="allreduse"
    ),
    r"factors.wire: 'int9' is not known. Did you mean 'int8'\?": with_factors(
        workload="exchange", wire="int9"
    ),
    r"the workload halo needs the factor grid. Add it: grid = \[...\]": with_factors(
        workload="halo"
    ),
    "factors: the factor library is missing": changed(
        factors={k: v for k, v in SMALL["factors"].items() if k != "library"}
    ),
    r"exclude\[0\]: unknown key 'fabrik'. Did you mean 'fabric'\?": changed(
        exclude=[{"fabrik": "a"}]
    ),
    "nodes=4 bytes=15 has fewer bytes than one float32 number.*Give 16 bytes": with_factors(
        workload="exchange", nodes=[2, 4], bytes=["8KiB", 15]
    ),
    "nodes=2 bytes=7 .*8 bytes or more, or exclude": with_factors(nodes=2, bytes=7),
    "workload=latency nodes=2 bytes=3 .*4 bytes or more": with_factors(workload="latency", bytes=3),
    r"exclude\[0\] excludes everything": changed(exclude=[{}]),
    r"exclude\[0\].bytes: '4095' is not known": changed(exclude=[{"bytes": [4095]}]),
    r"exclude\[1\].wire: 'int8' is not known. Give one of: nothing": changed(
        exclude=[{"fabric": "a"}, {"wire": "int8"}]
    ),
    "no cell is left of 16 combinations": changed(exclude=[{"fabric": ["a", "b"]}]),
    r"cells\[0\]: the factor fabric is missing": changed(cells=[{"nodes": 2}]),
    "margin must be between 0 and 1, got 5. Take 0.05 for 5 %": changed(margin=5),
    "margin must be a number, got 'small'": changed(margin="small"),
    "margin must be finite": changed(margin=math.inf),
    "replicates must be at least 1, got 0": changed(replicates=0),
    "seed must be a whole number, got True": changed(seed=True),
    "limit_seconds must be at least 1, got 0": changed(limit_seconds=0),
    r"limit_seconds must be at most 1e\+08, got 10000000000.0. Lower it": changed(
        limit_seconds=1e10
    ),
    "limit_bytes must be .* such as '64KiB', got 'much'": changed(limit_bytes="much"),
    "the study has no name": {"factors": SMALL["factors"]},
    r"fabric: 'b' is not known. Give one of: a, other": changed(fabrics={"a": {}, "other": {}}),
    "fabrics.a: unknown key 'rates'. Did you mean 'rate'": changed(fabrics={"a": {"rates": "1"}}),
    "fabrics.a: rate must be bits per second.*got 'fast'": changed(fabrics={"a": {"rate": "fast"}}),
    "fabrics.a has a rate and hosts": changed(fabrics={"a": {"rate": "1gbit", "hosts": ["n1"]}}),
    "fabrics.a.hosts must be 4 or more.*got 2": changed(
        fabrics={"a": {"hosts": ["n1", "n2"]}, "b": {}}
    ),
    "fabrics.a emulates one host for each node, at most 64.*needs 100": changed(
        fabrics={"a": {"rate": "1gbit"}, "b": {}}, factors={**SMALL["factors"], "nodes": [2, 100]}
    ),
    "fabrics.a.environment.X must be a text, got ": changed(
        fabrics={"a": {"environment": {"X": []}}}
    ),
    "fabrics.a.check must be true or false, got 1": changed(fabrics={"a": {"check": 1}}),
    r"libraries.mpich.transport: 'mpl' is not known. Did you mean 'mpi'\?": changed(
        libraries={"mpich": {"transport": "mpl"}}
    ),
    "workloads.allreduce: unknown key 'iteration'. Did you mean 'iterations'": changed(
        workloads={"allreduce": {"iteration": 3}}
    ),
    "workloads.allreduce.iterations must be at least 1, got 0": changed(
        workloads={"allreduce": {"iterations": 0}}
    ),
    "a workload of your own needs a program.*'mine' is not known": changed(
        workloads={"mine": {"reads": ["bytes"]}}
    ),
    "workloads.training.delay must be at most 4, got 5. Lower it": changed(
        workloads={"training": {"delay": 5}}
    ),
    "workloads.training.tokens must be at most 1024, got 2000": changed(
        workloads={"training": {"tokens": 2000}}
    ),
    "factors.compute: 'reel' is not known. Did you mean 'real'": with_factors(
        workload="training", method="bare", model="vgg16", compute="reel"
    ),
    "workloads.mine.reads: 'byte' is not known. Did you mean 'bytes'": changed(
        workloads={"mine": {"program": "x.py", "reads": ["byte"]}}
    ),
    "short: unknown key 'name'": changed(short={"name": "x"}),
}


@pytest.mark.parametrize("text", MISTAKES)
def test_a_mistake_is_reported_with_its_remedy(text):
    with pytest.raises(StudyError, match=text):
        study_of(MISTAKES[text], short="short" in MISTAKES[text])


def test_an_error_names_the_file(tmp_path):
    with pytest.raises(StudyError, match="nowhere.toml cannot be read"):
        read_study(tmp_path / "nowhere.toml")
    path = tmp_path / "study.toml"
    path.write_text("name = [")
    with pytest.raises(StudyError, match="study.toml cannot be read: .*Give a TOML file"):
        read_study(path)
    path.write_text("name = 'x'\nsead = 3")
    with pytest.raises(StudyError, match="study.toml: .*'sead'. Did you mean 'seed'"):
        read_study(path)
    path.write_text(
        "name = 'x'\n[factors]\nfabric = 'here'\nlibrary = 'mpich'\nworkload = 'latency'\n"
        "nodes = 2\nbytes = [8, '1 MiB']\n"
    )
    assert [c.factors["bytes"] for c in read_study(path).cells] in ([8, 2**20], [2**20, 8])
