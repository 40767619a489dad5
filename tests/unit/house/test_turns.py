"""The order of scopes: long ones first, and those that wait among those that compute."""

import turns


def order(seconds):
    places = turns.turns_of(seconds)
    return sorted(places, key=places.__getitem__)


def test_long_scopes_come_first():
    assert order({"a": (1, 1), "b": (3, 3), "c": (2, 2)}) == ["b", "c", "a"]


def test_scopes_that_wait_are_spread_among_those_that_compute():
    computing = {f"computes {k}": (10, 10) for k in range(8)}
    waiting = {f"waits {k}": (0.1, 10) for k in range(4)}
    found = order(computing | waiting)
    places = [k for k, scope in enumerate(found) if scope in waiting]
    assert places == [1, 4, 7, 10]


def test_a_file_of_unit_tests_is_a_scope_and_so_is_a_launch():
    assert turns.scope_of("tests/unit/rules/test_merge.py::test_a[1]") == (
        "tests/unit/rules/test_merge.py"
    )
    launch = "tests/launches/limits/test_failures.py::test_a[1]"
    assert turns.scope_of(launch) == launch
    both = "tests/launches/cluster/test_a.py::test", "tests/launches/doctor/test_b.py::test"
    assert len({turns.scope_of(test) for test in both}) == 1


def test_every_recorded_scope_is_there():
    for scope in turns.recorded():
        file = scope.split("::")[0]
        assert scope == "emulated hosts" or (turns.RECORDED.parents[2] / file).exists(), scope
