"""Docstrings of operations on arrays: each says how much moves between nodes."""

import inspect

import pytest

import jdaso.array as ja

WITHOUT_NODES = {
    "broadcast_shapes", "can_cast", "counted", "finfo", "iinfo", "isdtype", "result_type",
}  # fmt: skip
MODULES = ja, ja.linalg, ja.fft, ja.random


FUNCTIONS = {
    f"{module.__name__}.{name}": one
    for module in MODULES
    for name, one in vars(module).items()
    if inspect.isfunction(one) and not name.startswith("_")
    if module is ja or one.__module__.startswith(module.__name__)
}


@pytest.mark.parametrize("name, function", FUNCTIONS.items(), ids=FUNCTIONS)
def test_a_function_tells_what_moves(name, function):
    if name.removeprefix("jdaso.array.") not in WITHOUT_NODES:
        told = (function.__doc__ or "").lower()
        assert any(word in told for word in ("move", "see `", "gathers", "stay in place")), name
